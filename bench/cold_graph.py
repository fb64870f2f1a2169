"""The time of a GPU's step on states that are not in its cache, as ours are timed (bench/cuda_timing.h)."""

import statistics

import torch

COLD_BYTES = 240_000_000
ROUNDS = 9


def sets_of(state_bytes):
    """How many sets of states do not fit in the cache together."""
    return max(1, -(-COLD_BYTES // state_bytes))


@torch.no_grad()
def seconds_of_step(step, states):
    """Seconds of step(state), the median of some: one CUDA graph goes through all the states.

    Everything that step launches counts. What it allocates is of the graph: every launch writes to
    another place, as with real sessions.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(states[0])
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    outputs = []
    with torch.cuda.graph(graph):
        for state in states:
            outputs.append(step(state))
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        begin.record()
        graph.replay()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / (2 * len(states)))
    return statistics.median(times)
