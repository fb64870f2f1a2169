#!/usr/bin/env python3
"""Times the TTT authors' own model on prompts, beside gpu_bench's section prefill.

The model is made of the config.json of a folder (mneme-make-model --shape ttt-linear-350m) with random
bf16 weights; of logits, those of each prompt's last token.
Needs torch with CUDA, transformers, and ttt.py of test-time-training/ttt-lm-pytorch on PYTHONPATH.
"""

import torch
import ttt
from prompt_times import config_of, run

# transformers 5 wants to know of each tied weight what it is tied to.
ttt.TTTForCausalLM._tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}


@torch.inference_mode()
def make(folder):
    own = {key: value for key, value in config_of(folder).items() if key != "model_type"}
    model = ttt.TTTForCausalLM(ttt.TTTConfig(**own)).to("cuda", torch.bfloat16).eval()

    def forward(ids):
        hidden = model.model(input_ids=ids, use_cache=True, return_dict=True).last_hidden_state
        return model.lm_head(hidden[:, -1])

    return torch.inference_mode()(forward)


if __name__ == "__main__":
    run(__doc__, "ttt", "ttt-lm-pytorch", make)
