"""A part of the backward pass of flash-linear-attention's chunked gated delta rule, in matrix products.

Triton 3.4 to 3.7.0 compiles the library's kernel for it wrongly on Hopper GPUs, and the library refuses to
run it there. fla_kernels.py puts this function in its place; what it costs beside the kernel is small.

Of one chunk of up to C tokens of one head, with rows q_i, k_i, v_i (values less what the state held), the
state h before the chunk, and G_i the sum of log2 decays up to row i:

    o_i    = s (2^G_i h^T q_i + sum_{j <= i} 2^(G_i - G_j) (q_i . k_j) v_j)
    h_next = 2^G_last h + sum_i 2^(G_last - G_i) k_i v_i^T
    v_i    = u_i - h^T w_i
"""

from __future__ import annotations

import torch
from torch import Tensor


def _chunk_layout(
    starts: Tensor, chunk_indices: Tensor, size: int, entries: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Where rows of chunks lie among the entries: [chunks, size], which of them exist, and for each entry
    its row among all chunks' rows."""
    segment, within = chunk_indices.long().unbind(1)
    begin = starts.long()[segment] + within * size
    rows = begin[:, None] + torch.arange(size, device=begin.device)
    exists = rows < starts.long()[segment + 1][:, None]
    entry = torch.arange(entries, device=begin.device)
    chunk = torch.searchsorted(begin, entry, right=True) - 1
    return rows.clamp(max=entries - 1), exists, chunk * size + entry - begin[chunk]


def chunk_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    h: Tensor,
    dh: Tensor,
    w: Tensor,
    g: Tensor,
    dv: Tensor,
    scale: float,
    cu_seqlens: Tensor,
    chunk_indices: Tensor,
    chunk_size: int = 64,
    state_v_first: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, w and of the sums of decays (by their natural logarithms).

    q, k, w [1, M, H, K], v, do, dv [1, M, H, V], g [1, M, H] (log2), h and dh (of the state behind the chunk)
    [1, chunks, H, K, V] -> dq, dk [1, M, H, K], dw like w, dg [1, M, H] in fp32.
    """
    assert not state_v_first and q.shape == k.shape and q.shape[2] == v.shape[2]
    rows, exists, place = _chunk_layout(cu_seqlens, chunk_indices, chunk_size, q.shape[1])

    def chunks(x: Tensor) -> Tensor:  # [1, M, H, ...] -> [chunks, H, C, ...], zeros where no entry is
        taken = x[0][rows]
        taken = taken.masked_fill(~exists.view(*exists.shape, *[1] * (taken.dim() - 2)), 0)
        return taken.transpose(1, 2).contiguous()

    def entries(x: Tensor) -> Tensor:  # the way back
        return x.transpose(1, 2).reshape(-1, x.shape[1], *x.shape[3:])[place].unsqueeze(0)

    dtype = q.dtype
    h, dh = h.view(len(rows), *h.shape[-3:]), dh.view(len(rows), *dh.shape[-3:])
    qs, ks, vs, dos, dvs = (chunks(x) for x in (q, k, v, do, dv))
    sums = chunks(g.float())  # [chunks, H, C]
    count = exists.sum(1)
    last = sums.gather(2, (count - 1).view(-1, 1, 1).expand(-1, sums.shape[1], 1))  # [chunks, H, 1]

    later = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=q.device).tril()
    seen = later & exists[:, None, :, None]  # rows that do not exist have no decay to speak of
    gap = (sums[..., :, None] - sums[..., None, :]).masked_fill(~seen, -torch.inf)
    ds = ((dos @ vs.mT).float() * torch.exp2(gap) * scale).to(dtype)
    dq = (dos @ h.to(dtype).mT).float() * torch.exp2(sums)[..., None] * scale + (ds @ ks).float()
    outlives = torch.exp2(last - sums).masked_fill(~exists[:, None, :], 0)
    dk_state = (vs @ dh.to(dtype).mT).float() * outlives[..., None]
    dk = dk_state + (ds.mT @ qs).float()
    dw = -(dvs.to(dtype) @ h.to(dtype).mT)

    dg = (dq * qs).sum(-1) - (dk * ks).sum(-1)
    of_last = torch.exp2(last[..., 0]) * (h.float() * dh.float()).sum((-1, -2)) + (dk_state * ks).sum(
        (-1, -2)
    )
    is_last = torch.arange(chunk_size, device=q.device) == (count - 1)[:, None]
    dg = dg + is_last[:, None, :] * of_last[..., None]
    return entries(dq.to(dtype)), entries(dk.to(dtype)), entries(dw.to(w.dtype)), entries(dg)
