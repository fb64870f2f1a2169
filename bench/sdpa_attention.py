#!/usr/bin/env python3
"""Times PyTorch's scaled_dot_product_attention on the problems of cuda_attention_bench, in bf16.

Each of its backends that takes a problem is timed as a CUDA graph; the fastest is printed last.
Needs torch with CUDA.
"""

import argparse
import json
import pathlib
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, KV_HEADS, DIM = 32, 8, 128
# rows, tokens of each, positions before
STEPS = [(1, 1, 512), (32, 1, 512), (256, 1, 512), (1, 1, 32767), (64, 1, 32767)]
PROMPTS = [(1, 2048, 0), (1, 8192, 0), (8, 2048, 0)]
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
PASSES, ROUNDS = 4, 7


def time_graph(work):
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(PASSES):
            work()
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / PASSES)
    return statistics.median(times)


def microseconds(backend, rows, tokens, past):
    """The time of one call, or None if the backend does not take the problem."""

    def tensor(heads, count):
        return torch.randn(rows, heads, count, DIM, device="cuda", dtype=torch.bfloat16)

    q, k, v = tensor(HEADS, tokens), tensor(KV_HEADS, past + tokens), tensor(KV_HEADS, past + tokens)
    try:
        with torch.no_grad(), sdpa_kernel([BACKENDS[backend]]):
            return 1e3 * time_graph(
                lambda: F.scaled_dot_product_attention(
                    q, k, v, is_causal=tokens > 1, enable_gqa=True
                )
            )
    except RuntimeError:
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    results = []
    for rows, tokens, past in STEPS + PROMPTS:
        times = {name: microseconds(name, rows, tokens, past) for name in BACKENDS}
        taken = {name: us for name, us in times.items() if us is not None}
        best = min(taken, key=taken.get) if taken else None
        results.append({"rows": rows, "tokens": tokens, "past": past, "us": times, "best": best})
        shown = ", ".join(f"{name} {us:.1f}" for name, us in taken.items())
        print(f"{rows} x {tokens} tokens after {past}: {shown} us; fastest: {best}", flush=True)
        torch.cuda.empty_cache()
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
