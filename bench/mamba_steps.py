#!/usr/bin/env python3
"""Times mamba_ssm's step of one token, selective_state_update, beside ours.

Mamba's at the sizes of mamba-370m, beside cuda_scan_bench, and Mamba-2's at those of mamba2-370m,
beside cuda_matrix_memory_bench --rules mamba2: CUDA graphs over as many sets of states as do not fit
in the cache (cold_graph.py). Called as its modules call it: states float32, activations bf16 (ours are
float32), skip, bias and softplus inside, of Mamba the gate, too. Needs torch with CUDA, triton, einops,
mamba_ssm.
"""

import argparse
import json
import pathlib

import torch
from cold_graph import seconds_of_step, sets_of
from mamba_ssm.ops.triton.selective_state_update import selective_state_update

# A session's states: of each channel, of heads of channels in Mamba-2.
SHAPES = {"mamba": (2048, 16), "mamba2": (32, 64, 128)}


def step_of(rule, sessions, dtype):
    """A function of the states that takes one token."""
    def activations(*shape):
        return torch.randn(*shape, device="cuda", dtype=dtype) / 16

    if rule == "mamba":
        channels, states = SHAPES[rule]
        x, dt, gate = (activations(sessions, channels) for _ in range(3))
        b, c = (activations(sessions, states) for _ in range(2))
        a = -0.5 - torch.rand(channels, states, device="cuda")
        skip, bias = torch.ones(channels, device="cuda"), torch.full((channels,), -3.0, device="cuda")
    else:
        heads, channels, states = SHAPES[rule]
        x, gate = activations(sessions, heads, channels), None
        b, c = (activations(sessions, 1, states) for _ in range(2))
        # One number a head, which the kernel knows by strides of 0.
        dt = activations(sessions, heads, 1).expand(-1, -1, channels)
        a = (-0.5 - torch.rand(heads, 1, 1, device="cuda")).expand(-1, channels, states)
        skip, bias = (torch.full((heads, 1), value, device="cuda").expand(-1, channels)
                      for value in (1.0, -3.0))
    return lambda state: selective_state_update(state, x, dt, a, b, c, D=skip, z=gate, dt_bias=bias,
                                                dt_softplus=True)


def measure(rule, megabytes, dtype):
    """Sessions, seconds of a step, and bytes of the states, read and written."""
    shape = SHAPES[rule]
    session_bytes = 4 * torch.Size(shape).numel()
    sessions = max(1, round(1e6 * megabytes / session_bytes))
    state_bytes = sessions * session_bytes
    states = [torch.zeros(sessions, *shape, device="cuda") for _ in range(sets_of(state_bytes))]
    return sessions, seconds_of_step(step_of(rule, sessions, dtype), states), state_bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", default=",".join(SHAPES))
    parser.add_argument("--megabytes", default="3,12,50,100,400,1600")
    parser.add_argument("--activations", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--json", type=pathlib.Path, help="also write the results there")
    args = parser.parse_args()
    rows = []
    for rule in args.rules.split(","):
        for megabytes in map(int, args.megabytes.split(",")):
            sessions, seconds, state_bytes = measure(rule, megabytes, getattr(torch, args.activations))
            rows.append({"rule": rule, "sessions": sessions, "state_mb": 1e-6 * state_bytes,
                         "step_us": 1e6 * seconds, "tbs": 2e-12 * state_bytes / seconds})
            print(f"mamba_ssm {rule:7} {sessions:5d} {1e-6 * state_bytes:7.1f} MB "
                  f"{1e6 * seconds:9.2f} us {rows[-1]['tbs']:5.2f} TB/s", flush=True)
            torch.cuda.empty_cache()
    if args.json is not None:
        args.json.write_text(json.dumps({"mamba_steps": {"rows": rows}}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
