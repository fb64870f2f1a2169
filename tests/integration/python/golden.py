"""Reads the small golden files without a tensor library."""

import json
import struct
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def int_tensor(path: Path, name: str) -> list[int]:
    """A tensor of i32 or i64 from a safetensors file."""
    data = path.read_bytes()
    header_bytes = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8 : 8 + header_bytes])[name]
    begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
    code, width = {"I32": ("i", 4), "I64": ("q", 8)}[entry["dtype"]]
    return list(struct.unpack(f"<{(end - begin) // width}{code}", data[begin:end]))
