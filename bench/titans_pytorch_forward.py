#!/usr/bin/env python3
"""Times titans-pytorch's own model on prompts, beside gpu_bench's section prefill.

The MemoryAsContextTransformer is made of the config.json of a folder (mneme-make-model --shape
titans-pytorch-393m), whose keys are its arguments, with random float32 weights, as it comes; logits
are of every token. --tf32 lets its products round to TF32.
Needs torch with CUDA, titans-pytorch.
"""

import importlib.metadata

import torch
from prompt_times import config_of, run
from titans_pytorch import MemoryAsContextTransformer, MemoryMLP

# Keys of config.json that are not arguments.
OF_OURS = ("model_type", "hyper_connections", "titans_pytorch_version", "bos_token_id", "eos_token_id",
           "dtype", "torch_dtype", "architectures", "tie_word_embeddings")


def make(folder):
    own = {key: value for key, value in config_of(folder).items() if key not in OF_OURS}
    memory = dict(own.pop("neural_memory_model"))
    memory.pop("class")
    own["neural_memory_layers"] = tuple(own["neural_memory_layers"])
    model = MemoryAsContextTransformer(neural_memory_model=MemoryMLP(**memory), **own).to("cuda").eval()
    # The memory takes gradients, which inference_mode would not allow.
    return torch.no_grad()(lambda ids: model(ids, return_cache=True))


if __name__ == "__main__":
    run(__doc__, "titans_pytorch", importlib.metadata.version("titans-pytorch"), make)
