"""Checkpoints as titans-pytorch's users save them, of random weights, and the converter as they run it.

They are made with PyTorch where it is installed, else with the few functions of tests/tools/torch_stand_in.
"""

import importlib.util
import json
import os
import pathlib
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
STAND_IN = ROOT / "tests" / "tools" / "torch_stand_in"
HAS_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "safetensors"))
if not HAS_TORCH:
    sys.path.insert(0, str(STAND_IN))
import torch


def environment() -> dict:
    """The environment of programs that need torch."""
    return {**os.environ, **({} if HAS_TORCH else {"PYTHONPATH": str(STAND_IN)})}


def convert(*words, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, ROOT / "tools" / "convert_titans_pytorch.py", *map(str, words)],
                          capture_output=True, text=True, timeout=120, check=False,
                          **{"env": environment(), **options})


def read_tensors(path: pathlib.Path) -> dict:
    """Shape and bytes of each tensor of a file of float32."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    header.pop("__metadata__", None)
    assert all(entry["dtype"] == "F32" for entry in header.values())
    return {name: (tuple(entry["shape"]), data[slice(*entry["data_offsets"])])
            for name, entry in header.items()}


def state_dict(tensors: dict) -> dict:
    return {name: torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(shape)
            if data else torch.zeros(shape) for name, (shape, data) in tensors.items()}


def make_model(bin_dir: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """A folder of titans-pytorch's tensors and arguments, of a small network."""
    subprocess.run([bin_dir / "mneme-make-model", "--shape", "titans-pytorch-tiny", "--dtype", "f32",
                    "--out", folder], check=True, capture_output=True, timeout=120)
    return folder
