#!/usr/bin/env python3
"""Times flash-linear-attention's chunk_* of the rules of cuda_matrix_chunk_bench, in bf16.

What is timed is queued while the device is kept busy, as in that bench: launches do not count.

Each rule is a process of its own with a time limit, because some tune themselves for minutes; with
--json what is done already is kept there, and the rest is measured when this is called again. Needs
torch with CUDA, triton, flash-linear-attention.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

# Of S: heads, keys, values.
SIZES = {
    "linear_attn": (4, 256, 256),
    "retnet": (8, 256, 512),
    "mamba2": (64, 128, 64),
    "gla": (4, 256, 512),
    "hgrn2": (16, 128, 128),
    "gsa": (4, 512, 512),  # both matrices of 64 slots, and the softmax between them
    "delta_net": (16, 128, 128),
    "kda": (16, 128, 128),
}
SLOTS = 64
WORK = [(1, 8192), (8, 2048)]
ROUNDS = 7
PASSES = 5
# Longer than the host takes to launch all passes: else small problems would be timed by their launches.
DELAY_CYCLES = 40_000_000


def operation(rule, batch, tokens):
    """A function that does one layer of the rule."""
    import torch
    import torch.nn.functional as F
    from fla.ops.delta_rule import chunk_delta_rule
    from fla.ops.gla import chunk_gla
    from fla.ops.gsa import chunk_gsa
    from fla.ops.kda import chunk_kda
    from fla.ops.linear_attn import chunk_linear_attn
    from fla.ops.retention import chunk_retention
    from fla.ops.simple_gla import chunk_simple_gla

    heads, keys, values = SIZES[rule]

    def tensor(width, dtype=torch.bfloat16):
        return torch.randn(batch, tokens, heads, width, device="cuda", dtype=dtype)

    q, k, v = tensor(keys), tensor(keys), tensor(values)
    beta = torch.rand(batch, tokens, heads, device="cuda", dtype=torch.bfloat16)

    def decays(width, dtype=torch.bfloat16):
        return (F.logsigmoid(tensor(width, torch.float32)) / 16).to(dtype)

    if rule == "linear_attn":
        return lambda: chunk_linear_attn(q, k, v, output_final_state=True, normalize=False)
    if rule == "retnet":
        return lambda: chunk_retention(q, k, v, output_final_state=True)
    if rule == "mamba2":
        g = decays(1, torch.float32)[..., 0].contiguous()
        return lambda: chunk_simple_gla(q, k, v, g=g, output_final_state=True)
    if rule in ("gla", "hgrn2"):
        g = decays(keys)
        return lambda: chunk_gla(q, k, v, g, output_final_state=True)
    if rule == "gsa":
        g = decays(SLOTS)
        s = (1 - g.float().exp()).to(torch.bfloat16)
        return lambda: chunk_gsa(q, k, v, s, g, output_final_state=True)
    q, k = F.normalize(q.float(), dim=-1).bfloat16(), F.normalize(k.float(), dim=-1).bfloat16()
    if rule == "delta_net":
        return lambda: chunk_delta_rule(q, k, v, beta, output_final_state=True)
    g = decays(keys)
    return lambda: chunk_kda(q, k, v, g, beta, output_final_state=True)


def measure(rule, batch, tokens):
    """Milliseconds of a layer."""
    import torch

    with torch.no_grad():
        step = operation(rule, batch, tokens)
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        times = []
        for _ in range(ROUNDS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(DELAY_CYCLES)
            begin.record()
            for _ in range(PASSES):
                step()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / PASSES)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rules", nargs="*", default=list(SIZES), help=", ".join(SIZES))
    parser.add_argument("--seconds", type=float, default=180, help="limit of a rule")
    parser.add_argument("--json", type=pathlib.Path, help="results, also those of earlier calls")
    parser.add_argument("--here", action="store_true", help="one rule, in this process")
    args = parser.parse_args()
    for rule in args.rules:
        if rule not in SIZES:
            parser.error(f"{rule}, expected one of {', '.join(SIZES)}")
    if args.here:
        for batch, tokens in WORK:
            print(json.dumps([args.rules[0], batch, tokens,
                              measure(args.rules[0], batch, tokens)]), flush=True)
        return
    rows = []
    if args.json is not None and args.json.exists():
        rows = json.loads(args.json.read_text(encoding="utf-8"))
    for rule in args.rules:
        if sum(row[0] == rule for row in rows) >= len(WORK):
            continue
        command = [sys.executable, __file__, "--here", rule]
        try:
            done = subprocess.run(command, timeout=args.seconds, capture_output=True, text=True,
                                  check=False)
            output, error = done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            output, error = (late.stdout or b"").decode(), f"not done in {args.seconds:.0f} s"
        new = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
        for _, batch, tokens, ms in new:
            print(f"fla   {rule:12} {batch} x {tokens:<5} {ms:8.4f} ms "
                  f"{batch * tokens / ms * 1e-3:6.1f} M tokens/s", flush=True)
        if len(new) < len(WORK):
            print(f"fla   {rule:12} {error.strip().splitlines()[-1] if error.strip() else '?'}",
                  flush=True)
        rows = [row for row in rows if row[0] != rule] + new
        if args.json is not None:
            args.json.write_text(json.dumps(rows), encoding="utf-8")
    missing = [rule for rule in args.rules if sum(row[0] == rule for row in rows) < len(WORK)]
    if missing:
        sys.exit(f"fla_matrix_chunks.py: not measured: {', '.join(missing)}")


if __name__ == "__main__":
    main()
