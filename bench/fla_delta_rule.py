#!/usr/bin/env python3
"""Times flash-linear-attention's gated delta rule, one token, beside cuda_delta_rule_bench.

Its kernel is recorded in a CUDA graph, as ours is, over as many sets of matrices as do not fit in
the cache (cold_graph.py). Needs torch with CUDA, triton, flash-linear-attention.
"""

import argparse
import json
import pathlib

import torch
from cold_graph import seconds_of_step, sets_of
from fla.ops.gated_delta_rule.fused_recurrent import fused_recurrent_gated_delta_rule_fwd

HEADS = 4
DIM = 256


def measure(head_states):
    """Seconds of a step of head_states matrices, float32, read and written."""
    sequences = head_states // HEADS
    state_bytes = 4 * head_states * DIM * DIM

    def vectors(*shape):
        return torch.randn(*shape, device="cuda") / 16

    q, k, v = (vectors(sequences, 1, HEADS, DIM) for _ in range(3))
    g = torch.full((sequences, 1, HEADS), -0.01, device="cuda")
    beta = torch.full((sequences, 1, HEADS), 0.5, device="cuda")
    states = [torch.zeros(sequences, HEADS, DIM, DIM, device="cuda")
              for _ in range(sets_of(state_bytes))]

    def step(state):
        return fused_recurrent_gated_delta_rule_fwd(
            q=q, k=k, v=v, g=g, beta=beta, scale=1.0, initial_state=state,
            output_final_state=True, state_v_first=True)

    return seconds_of_step(step, states), state_bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("head_states", nargs="*", type=int,
                        default=[12, 24, 48, 96, 192, 384, 1536, 3072, 6144])
    parser.add_argument("--json", type=pathlib.Path, help="also write the results there")
    args = parser.parse_args()
    rows = []
    for head_states in args.head_states:
        seconds, state_bytes = measure(head_states)
        rows.append({"head_states": head_states, "step_us": 1e6 * seconds,
                     "tbs": 2e-12 * state_bytes / seconds})
        print(f"fla {head_states:5d} f32 {1e6 * seconds:9.2f} us {rows[-1]['tbs']:5.2f} TB/s",
              flush=True)
        torch.cuda.empty_cache()
    if args.json is not None:
        args.json.write_text(json.dumps({"fla": {"rows": rows}}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
