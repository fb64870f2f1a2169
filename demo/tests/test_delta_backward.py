"""Gradients of a chunk against automatic differentiation, and of the whole rule on a GPU against the loop in
float64."""

import math

import pytest

torch = pytest.importorskip("torch")

from demo import delta_backward, model  # noqa: E402


def draw(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("decay", [1, 300])
def test_gradients_of_chunks_are_those_of_their_equations(decay):
    heads, keys, values, size, scale = 2, 3, 5, 4, 0.7
    lengths, pieces = [6, 3, 4], [4, 2, 3, 4]  # of segments and of their chunks
    starts = torch.tensor([0, 6, 9, 13])
    indices = torch.tensor([[0, 0], [0, 1], [1, 0], [2, 0]])
    entries, chunks = sum(lengths), len(indices)
    q, k, w = (draw(1, entries, heads, keys, seed=s).requires_grad_() for s in range(3))
    u, do = (draw(1, entries, heads, values, seed=s) for s in (3, 4))
    h, dh = (draw(1, chunks, heads, keys, values, seed=s) for s in (5, 6))
    g = -decay * draw(1, entries, heads, seed=7).abs()  # sums of natural logarithms, falling in each segment
    g = torch.cat([part.sort(1, descending=True)[0] for part in g.split(pieces, 1)], 1).requires_grad_()

    total = torch.zeros((), dtype=torch.float64)
    v = torch.empty_like(u)
    for c, (segment, within) in enumerate(indices.tolist()):
        begin = int(starts[segment]) + within * size
        rows = slice(begin, min(begin + size, int(starts[segment + 1])))
        for head in range(heads):
            qs, ks, ws, us, gs = (x[0, rows, head] for x in (q, k, w, u, g))
            state = h[0, c, head]
            vs = us - ws @ state
            v[0, rows, head] = vs.detach()
            kept = (gs[:, None] - gs[None, :]).tril().exp().tril()
            out = scale * (gs.exp()[:, None] * (qs @ state) + ((qs @ ks.T) * kept) @ vs)
            after = gs[-1].exp() * state + (ks * (gs[-1] - gs).exp()[:, None]).T @ vs
            total = total + (do[0, rows, head] * out).sum() + (dh[0, c, head] * after).sum()
            # What reaches w goes through v alone; its gradient is asked for with v's own.
    dq, dk, dw, dg = torch.autograd.grad(total, (q, k, w, g))
    dv = gradient_of_values(q, k, g, do, dh, starts, indices, size, scale)
    found = delta_backward.chunk_gradients(
        q.detach(),
        k.detach(),
        v,
        do,
        h,
        dh,
        w.detach(),
        g.detach() / math.log(2),
        dv,
        scale,
        starts,
        indices,
        size,
    )
    for name, ours, expected in zip(("q", "k", "w", "g"), found, (dq, dk, dw, dg), strict=True):
        error = ((ours - expected).abs().max() / expected.abs().max()).item()
        print(f"d{name}: {error:.1e}")
        assert error < 1e-6 * decay  # exponents of that size are computed in fp32


def gradient_of_values(q, k, g, do, dh, starts, indices, size, scale):
    dv = torch.zeros_like(do)
    q, k, g = q.detach(), k.detach(), g.detach()
    for c, (segment, within) in enumerate(indices.tolist()):
        begin = int(starts[segment]) + within * size
        rows = slice(begin, min(begin + size, int(starts[segment + 1])))
        for head in range(q.shape[2]):
            qs, ks, gs = q[0, rows, head], k[0, rows, head], g[0, rows, head]
            scores = scale * (qs @ ks.T) * (gs[:, None] - gs[None, :]).tril().exp().tril()
            kept = ks * (gs[-1] - gs).exp()[:, None]
            dv[0, rows, head] = scores.T @ do[0, rows, head] + kept @ dh[0, c, head]
    return dv


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("keys, values", [(128, 128), (256, 320)])
def test_the_rule_and_its_gradients_on_a_gpu_are_those_of_the_loop(keys, values):
    heads, lengths = 2, torch.tensor([150, 1, 64, 90])
    entries = int(lengths.sum())
    inputs = [draw(entries, heads, n, seed=s) for s, n in enumerate((keys, keys, values))]
    inputs += [-draw(entries, heads, seed=3).abs() * 0.1, draw(entries, heads, seed=4).sigmoid()]
    # Both begin from what bf16 holds.
    inputs[:3] = [x.bfloat16().double() for x in inputs[:3]]
    weights = draw(entries, heads, values, seed=5).bfloat16().double()

    def run(device, dtypes):
        leaves = [x.to(device, d).requires_grad_() for x, d in zip(inputs, dtypes, strict=True)]
        segments = model.Segments.of(lengths.to(device))
        out = model.gated_delta_rule(*leaves, segments)
        gradients = torch.autograd.grad((out.double() * weights.to(device)).sum(), leaves)
        return [out, *gradients]

    found = run("cuda", [torch.bfloat16] * 3 + [torch.float32] * 2)
    expected = run("cpu", [torch.float64] * 5)
    for name, ours, right in zip(("o", "dq", "dk", "dv", "dg", "dbeta"), found, expected, strict=True):
        error = ((ours.cpu().double() - right).norm() / right.norm()).item()
        print(f"{name} {keys}x{values}: {error:.1e}")
        assert error < 1.5e-2
