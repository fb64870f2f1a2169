#!/usr/bin/env python3
"""Times flash-linear-attention's own model on prompts, beside gpu_bench's section prefill.

The model is made of the config.json of a folder (mneme-make-model) with random bf16 weights; of logits,
those of each prompt's last token. Mamba's models take mamba_ssm's scans where that is installed.
Needs torch with CUDA, triton, transformers, flash-linear-attention.
"""

import fla
import fla.models  # registers the model types
import torch
from prompt_times import run
from transformers import AutoConfig, AutoModelForCausalLM


@torch.inference_mode()
def make(folder):
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    if not type(model).__module__.startswith("fla."):
        raise SystemExit(f"{type(model)} is not flash-linear-attention's")
    model.to("cuda", torch.bfloat16).eval()
    return torch.inference_mode()(lambda ids: model(ids, logits_to_keep=1, use_cache=True))


if __name__ == "__main__":
    run(__doc__, "fla", fla.__version__, make)
