"""How far f16 and int8 memories lead a model astray over a long text, against float64.

    python -m demo.state_error reference --bin build/cuda/bin --model demo/model --out reference.npz
    python -m demo.state_error compare --bin build/cuda/bin --model demo/model --reference reference.npz \\
        --runs cuda:f32,cuda:f16,cuda:int8 --out demo/results/state_error.json

Both feed one text of the corpus to mneme-logits, the first one on its float64 backend, and keep the logits of
every so many positions and of those before each value that a question asks for. The reference can be made on
a machine without GPU. With memories to choose from, the reference's choices are written, too, and each run is
made twice: as it chooses itself, and with the reference's choices, which leaves arithmetic alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demo.tally import share

STRETCHES = (1024, 4096, 16384, 65536)


def long_text(tokenizer: Path, tokens: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of a conversation, and the indices of the first tokens of values that are asked for.

    Longer ones than the corpus has go on with another conversation, as a session would.
    """
    from demo import corpus

    encoder = corpus.Encoder(tokenizer)
    ids: list[int] = []
    values: list[int] = []
    while len(ids) < tokens:
        length = min(corpus.MAX_LENGTH, max(corpus.MIN_LENGTH, tokens - len(ids)))
        found, _, questions = corpus.Stream(seed, length, tokenizer=encoder).next_with_questions()
        seed += 1
        turns = np.flatnonzero(found == corpus.EOS)
        if not questions or not len(turns):
            continue  # a story without turns
        whole = int(turns[-1]) + 1
        start = len(ids)
        # A new line instead of another <s>.
        ids.append(encoder.newline if ids else corpus.BOS)
        ids.extend(found[1:whole].tolist())
        values.extend(start + q.index for q in questions if q.index < whole)
    return np.array(ids[:tokens], dtype=np.int32), np.array([v for v in values if v < tokens], dtype=np.int64)


def places(tokens: int, every: int, values: np.ndarray) -> np.ndarray:
    """Rows of logits to keep: one in so many, the last one, and those that predict a value."""
    return np.unique(np.concatenate([np.arange(0, tokens, every), [tokens - 1], values - 1]))


def read_logits(path: Path, rows: np.ndarray) -> np.ndarray:
    """Some rows of the tensor "logits" of a safetensors file, without reading the others."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        tensor = json.loads(file.read(length))["logits"]
    if tensor["dtype"] != "F32":
        raise SystemExit(f"{path}: logits are {tensor['dtype']}, expected F32")
    begin, _ = tensor["data_offsets"]
    data = np.memmap(path, np.float32, "r", offset=8 + length + begin, shape=tuple(tensor["shape"]))
    return np.array(data[rows])


def run_logits(
    options: argparse.Namespace, ids: np.ndarray, rows: np.ndarray, flags: Sequence[str]
) -> tuple[np.ndarray, float]:
    """Logits of these rows, and the seconds that it took."""
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        tokens = Path(folder, "tokens.txt")
        tokens.write_text(" ".join(map(str, ids.tolist())), encoding="ascii")
        out = Path(folder, "logits.safetensors")
        start = time.monotonic()
        program = [str(options.bin / "mneme-logits"), "--model", str(options.model)]
        subprocess.run([*program, "--tokens", str(tokens), "--out", str(out), *flags], check=True)
        return read_logits(out, rows), time.monotonic() - start


def has_memories(model: Path) -> bool:
    """Whether tokens choose between memories."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return bool(config.get("model_type") == "mom")


def stretches(tokens: int) -> Iterator[tuple[int, int]]:
    """The text in parts, each longer than all before it."""
    begin = 0
    for end in (*(s for s in STRETCHES if s < tokens), tokens):
        yield begin, end
        begin = end


def errors(logits: np.ndarray, exact: np.ndarray, rows: np.ndarray, tokens: int) -> dict[str, Any]:
    """Relative errors in norm, and how often the most likely token is another one."""
    squares = np.sum((logits.astype(np.float64) - exact) ** 2, axis=1)
    norms = np.sum(exact.astype(np.float64) ** 2, axis=1)
    differ = logits.argmax(axis=1) != exact.argmax(axis=1)
    parts = []
    for begin, end in stretches(tokens):
        inside = (rows >= begin) & (rows < end)
        if inside.any():
            error = float(np.sqrt(squares[inside].sum() / norms[inside].sum()))
            parts.append({"until": end, "error": error, "differ": float(differ[inside].mean())})
    return {
        "error": float(np.sqrt(squares.sum() / norms.sum())),
        "worst": float(np.sqrt((squares / norms).max())),
        "differ": float(differ.mean()),
        "stretches": parts,
    }


def values_right(logits: np.ndarray, rows: np.ndarray, ids: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    """How often the most likely token before a value is its first one."""
    best = logits[np.searchsorted(rows, values - 1)].argmax(axis=1)
    return share(int((best == ids[values]).sum()), len(values))


def make_reference(options: argparse.Namespace) -> None:
    """Runs the float64 backend and writes what comparisons need."""
    ids, values = long_text(options.model / "tokenizer.model", options.tokens, options.seed)
    rows = places(len(ids), options.every, values)
    flags = ["--device", "reference"]
    if has_memories(options.model):
        flags += ["--routing-out", str(routing_of(options.out))]
    logits, seconds = run_logits(options, ids, rows, flags)
    np.savez(options.out, ids=ids, values=values, rows=rows, logits=logits, seconds=seconds)
    right = values_right(logits, rows, ids, values)
    print(f"{len(ids)} tokens in {seconds:.0f} s; {right['right']} of {right['questions']} values right")


def routing_of(reference: Path) -> Path:
    """Where the reference's choices of memories lie."""
    return reference.with_suffix(".routing")


def compare(options: argparse.Namespace) -> None:
    """Runs each device with each state, and writes how far its logits are from the reference's."""
    with np.load(options.reference) as file:
        ids, values, rows, exact = (file[name] for name in ("ids", "values", "rows", "logits"))
    runs = []
    for spec in options.runs:
        device, _, state = spec.partition(":")
        flags = ["--device", device, "--state-dtype", state or "f32", *options.flag]
        variants = {spec: flags}
        if routing_of(options.reference).exists():
            routing = ["--routing-in", str(routing_of(options.reference))]
            variants[f"{spec}, equal routing"] = [*flags, *routing]
        for name, arguments in variants.items():
            logits, seconds = run_logits(options, ids, rows, arguments)
            runs.append(
                {
                    "name": name,
                    "flags": [flag for flag in arguments if "/" not in flag],
                    "seconds": seconds,
                    **errors(logits, exact, rows, len(ids)),
                    "values": values_right(logits, rows, ids, values),
                }
            )
            last = runs[-1]
            print(f"{name}: error {last['error']:.2e}, values {last['values']['accuracy']:.4f}", flush=True)
    result = {
        "format": 1,
        "tokens": len(ids),
        "rows": len(rows),
        "reference": values_right(exact, rows, ids, values),
        "runs": runs,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("reference", "compare"))
    parser.add_argument("--bin", type=Path, required=True, help="folder of mneme-logits")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="reference: .npz; compare: .json")
    parser.add_argument("--scratch", type=Path, help="folder for logits, 0.8 GB for 100,000 tokens")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=77)
    parser.add_argument("--every", type=int, default=32, help="keep the logits of one in so many positions")
    parser.add_argument("--reference", type=Path, help="what `reference` wrote")
    parser.add_argument(
        "--runs", type=lambda text: text.split(","), default=["cuda:f32", "cuda:f16", "cuda:int8"]
    )
    parser.add_argument(
        "--flag", action="append", default=[], help="also for mneme-logits: --flag=--chunks=1"
    )
    options = parser.parse_args(arguments)
    if options.what == "compare" and options.reference is None:
        parser.error("compare needs --reference FILE.npz")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the reference, or compares with it."""
    options = parse(arguments)
    (make_reference if options.what == "reference" else compare)(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
