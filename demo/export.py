"""Writes a trained network as a folder that Mneme serves and Hugging Face's tools read."""

from __future__ import annotations

import json
import pathlib
import shutil

import torch

from demo.memoria import MemoriaLanguageModel
from demo.model import LanguageModel

TOKENIZER_FILES = (
    "tokenizer.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
)


def write(
    model: LanguageModel | MemoriaLanguageModel, tokenizer_folder: pathlib.Path, out: pathlib.Path
) -> None:
    """config.json, model.safetensors (all in bf16) and the tokenizer's files."""
    from safetensors.torch import save_file

    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(model.config.to_json(), indent=2) + "\n")
    tensors = {
        model.config.checkpoint_name(name): tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    for name in TOKENIZER_FILES:
        if (tokenizer_folder / name).exists() and tokenizer_folder.resolve() != out.resolve():
            shutil.copy(tokenizer_folder / name, out / name)
