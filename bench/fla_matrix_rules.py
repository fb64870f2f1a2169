#!/usr/bin/env python3
"""Times flash-linear-attention's fused_recurrent kernels, one token, beside cuda_matrix_memory_bench.

Each rule is recorded in a CUDA graph, as ours is, over as many sets of matrices as do not fit in
the cache (cold_graph.py). Needs torch with CUDA, triton, flash-linear-attention.
"""

import argparse
import json
import pathlib

import torch
from cold_graph import seconds_of_step, sets_of

# Heads, key size, value size; of gsa: key size, slots (values are as keys).
SHAPES = {
    "linear_attn": (4, 256, 256),
    "retnet": (8, 256, 512),
    "gla": (4, 256, 512),
    "delta_net": (16, 128, 128),
    "kda": (16, 128, 128),
    "hgrn2": (16, 128, 128),
    "gsa": (4, 512, 64),
    "rwkv6": (4, 128, 256),
    "rwkv7": (16, 64, 64),
}


def vectors(*shape):
    return torch.randn(*shape, device="cuda") / 16


def decays(*shape):
    return -0.01 * torch.rand(*shape, device="cuda")


def step_of(rule, sessions):
    """A function of the state that takes one token, and the shapes of a state."""
    heads, keys, values = SHAPES[rule]
    q, k = vectors(sessions, 1, heads, keys), vectors(sessions, 1, heads, keys)
    v = vectors(sessions, 1, heads, values)
    common = {"scale": 1.0, "output_final_state": True}
    matrix = (sessions, heads, keys, values)
    if rule == "linear_attn":
        from fla.ops.linear_attn import fused_recurrent_linear_attn as function
        return lambda state: function(q, k, v, initial_state=state[0], normalize=False, **common), [matrix]
    if rule == "retnet":
        from fla.ops.simple_gla.fused_recurrent import fused_recurrent_simple_gla as function
        # What its fused_recurrent_retention makes of the heads, made once.
        gamma = (1 - 2.0 ** (-5.0 - torch.arange(heads, dtype=torch.float, device="cuda"))).log()
        return lambda state: function(q, k, v, g_gamma=gamma, initial_state=state[0], **common), [matrix]
    if rule in ("gla", "hgrn2"):
        from fla.ops.gla import fused_recurrent_gla as function
        g = decays(sessions, 1, heads, keys)
        return lambda state: function(q, k, v, gk=g, initial_state=state[0], **common), [matrix]
    if rule == "rwkv6":
        from fla.ops.rwkv6 import fused_recurrent_rwkv6 as function
        w, u = decays(sessions, 1, heads, keys), vectors(heads, keys)
        return lambda state: function(q, k, v, w, u, initial_state=state[0], **common), [matrix]
    if rule == "rwkv7":
        from fla.ops.rwkv7 import fused_mul_recurrent_rwkv7 as function
        # The function that its layer calls for few tokens; the correction's two vectors are kk and kk * a.
        w, kk = decays(sessions, 1, heads, keys), vectors(sessions, 1, heads, keys)
        a = torch.rand(sessions, 1, heads, keys, device="cuda")
        return lambda state: function(q, w, k, v, kk, a, initial_state=state[0], **common), [matrix]
    beta = torch.full((sessions, 1, heads), 0.5, device="cuda")
    if rule == "delta_net":
        from fla.ops.delta_rule import fused_recurrent_delta_rule as function
        return lambda state: function(q, k, v, beta=beta, initial_state=state[0], **common), [matrix]
    if rule == "kda":
        from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd as function
        g = decays(sessions, 1, heads, keys)
        out = torch.empty_like(v)
        return lambda state: function(
            q=q, k=k, v=v, g=g, beta=beta, initial_state=state[0], scale=1.0, out=out,
            output_final_state=False, inplace_final_state=True), [matrix]
    from fla.ops.gsa import fused_recurrent_gsa as function
    slots = values
    v, s = vectors(sessions, 1, heads, keys), vectors(sessions, 1, heads, slots)
    g = decays(sessions, 1, heads, slots)
    return (lambda state: function(q, k, v, s, g, initial_state=tuple(state), **common),
            [(sessions, heads, keys, slots), (sessions, heads, slots, keys)])


@torch.no_grad()
def measure(rule, megabytes):
    """Head states, seconds of a step, and bytes of the states, float32, read and written."""
    heads, keys, values = SHAPES[rule]
    matrices = 2 if rule == "gsa" else 1
    session_bytes = 4 * matrices * heads * keys * values
    sessions = max(1, round(1e6 * megabytes / session_bytes))
    state_bytes = sessions * session_bytes
    step, shapes = step_of(rule, sessions)
    states = [[torch.zeros(*shape, device="cuda") for shape in shapes] for _ in range(sets_of(state_bytes))]
    return matrices * sessions * heads, seconds_of_step(step, states), state_bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", default=",".join(SHAPES))
    parser.add_argument("--megabytes", default="3,12,50,100,400,1600")
    parser.add_argument("--json", type=pathlib.Path, help="also write the results there")
    args = parser.parse_args()
    rows = []
    for rule in args.rules.split(","):
        for megabytes in map(int, args.megabytes.split(",")):
            head_states, seconds, state_bytes = measure(rule, megabytes)
            rows.append({"rule": rule, "head_states": head_states, "state_mb": 1e-6 * state_bytes,
                         "step_us": 1e6 * seconds, "tbs": 2e-12 * state_bytes / seconds})
            print(f"fla {rule:11} {head_states:5d} {1e-6 * state_bytes:7.1f} MB "
                  f"{1e6 * seconds:9.2f} us {rows[-1]['tbs']:5.2f} TB/s", flush=True)
            torch.cuda.empty_cache()
    if args.json is not None:
        args.json.write_text(json.dumps({"fla_matrix_rules": {"rows": rows}}, indent=1),
                             encoding="utf-8")


if __name__ == "__main__":
    main()
