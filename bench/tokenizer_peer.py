#!/usr/bin/env python3
"""Times tokenizer_bench beside the tokenizers package: the same files and texts, one thread each.

What is measured is processor time, so that other programs disturb it less.

Needs the package tokenizers. The tokenizer files are trained, once, on the licences that Debian
has and on Python's own library, and filled up to the sizes of GPT-2's and Qwen's; prose and code
are the repository's documents and sources, Chinese is made up of words that a seed draws, and the
long line is the prose without line feeds. Every id is compared.
"""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import argparse
import array
import json
import pathlib
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
SIZES = {"50k": 50257, "150k": 151643}
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXT_BYTES = 1_000_000
LEAST_RATIO = 1.0  # as fast as the package


def read(paths):
    return [path.read_text(encoding="utf-8", errors="replace") for path in sorted(paths)]


def chinese(seed, characters):
    draw = random.Random(seed)
    words = [
        "".join(chr(0x4E00 + int(draw.paretovariate(0.6)) % 4000) for _ in range(draw.choice([1, 2, 2, 2, 3, 4])))
        for _ in range(20000)
    ]
    weights = [1 / (rank + 10) for rank in range(len(words))]
    text = []
    while sum(map(len, text)) < characters:
        for _ in range(1000):
            text.append("".join(draw.choices(words, weights, k=draw.randint(4, 14))) + draw.choice(",。，。！？\n"))
    return "".join(text)[:characters]


def write_texts(folder):
    prose = "\n".join(read([REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]))
    code = "\n".join(read(path for part in ("base", "engine", "server") for path in (REPOSITORY / part).rglob("*.cc")))
    texts = {
        "prose": prose[:TEXT_BYTES],
        "code": code[:TEXT_BYTES],
        "chinese": chinese(2, TEXT_BYTES // 3),
        "long line": prose.replace("\n", " ")[:TEXT_BYTES],
    }
    paths = {}
    for name, text in texts.items():
        paths[name] = folder / (name.replace(" ", "_") + ".txt")
        paths[name].write_text(text, encoding="utf-8")
    return paths


def write_tokenizer(folder, size):
    """tokenizer.json with byte-level BPE and Qwen's pattern, of `size` tokens."""
    path = folder / "tokenizer.json"
    if path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(QWEN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    licences = read(path for path in pathlib.Path("/usr/share/common-licenses").glob("*") if not path.is_symlink())
    library = read(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=1, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(licences + library + [chinese(1, TEXT_BYTES // 3)], trainer)
    content = json.loads(tokenizer.to_str())
    vocab, merges = content["model"]["vocab"], content["model"]["merges"]
    draw = random.Random(3)
    tokens = list(vocab)
    while len(vocab) < size:
        left, right = draw.choice(tokens), draw.choice(tokens)
        if len(left) + len(right) <= 12 and left + right not in vocab:
            vocab[left + right] = len(vocab)
            merges.append([left, right])
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")


def seconds_of(function, rounds):
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        result = function()
        taken.append(time.process_time() - start)
    return statistics.median(taken), result


def measure_ours(bench, folder, size, texts, rounds):
    """Seconds to load; by text: MB/s and the ids."""
    with tempfile.TemporaryDirectory() as scratch:
        result = pathlib.Path(scratch) / "result.json"
        subprocess.run(
            [bench, "--rounds", str(rounds), "--vocab-size", str(size), "--json", str(result), "--ids", scratch,
             str(folder), *map(str, texts.values())],
            check=True, stdout=subprocess.DEVNULL)
        content = json.loads(result.read_text())
        speeds = {}
        for i, (name, row) in enumerate(zip(texts, content["rows"])):
            ids = array.array("i", (pathlib.Path(scratch) / f"{i}.ids").read_bytes())
            speeds[name] = (row["mb_per_s"], ids)
    return content["load_s"], speeds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default=str(REPOSITORY / "build/release/bin/tokenizer_bench"))
    parser.add_argument("--files", type=pathlib.Path, default=REPOSITORY / "build/tokenizer-bench",
                        help="where texts and tokenizer files are, or are made")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    arguments.files.mkdir(parents=True, exist_ok=True)
    texts = write_texts(arguments.files)
    good = True
    print(f"tokenizers {tokenizers.__version__}, processor time of one thread each\n")
    print("| vocabulary | text | MB | ours, MB/s | tokenizers, MB/s | ratio |")
    print("|---|---|---|---|---|---|")
    loads = []
    for name, size in SIZES.items():
        folder = arguments.files / name
        write_tokenizer(folder, size)
        load, ours = measure_ours(arguments.bench, folder, size, texts, arguments.rounds)
        peer_load, peer = seconds_of(
            lambda: tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")), min(arguments.rounds, 3))
        loads.append(f"{name}: loaded in {load:.3f} s, tokenizers {peer_load:.3f} s, "
                     f"{(folder / 'tokenizer.json').stat().st_size / 1e6:.1f} MB")
        for text_name, path in texts.items():
            text = path.read_text(encoding="utf-8")
            megabytes = path.stat().st_size / 1e6
            seconds, encoding = seconds_of(lambda: peer.encode(text, add_special_tokens=False), arguments.rounds)
            speed, ids = ours[text_name]
            if ids != array.array("i", encoding.ids):
                good = False
                print(f"{name}, {text_name}: the ids differ", file=sys.stderr)
            ratio = speed / (megabytes / seconds)
            good = good and ratio >= LEAST_RATIO
            print(f"| {name} | {text_name} | {megabytes:.2f} | {speed:.2f} | {megabytes / seconds:.2f} | {ratio:.1f} |")
    print("\n" + "\n".join(loads))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
