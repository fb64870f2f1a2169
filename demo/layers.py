"""Layers that all networks of the demo are made of."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def causal_convolution(x: Tensor, weight: Tensor) -> Tensor:
    """Of each channel, with zeros before the first token: x [B, T, C], weight [C, 1, W] -> [B, T, C]."""
    tokens, width = x.shape[1], weight.shape[-1]
    taps = weight.squeeze(1).to(x.dtype).unbind(-1)
    before = F.pad(x, (0, 0, width - 1, 0))
    return sum(before[:, i : i + tokens] * tap for i, tap in enumerate(taps))


class Linear(nn.Module):
    """y = W x in the arithmetic of x; W stays in fp32 for the optimizer."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class ConvWeight(nn.Module):
    """The taps of a depthwise convolution, [C, 1, W]; the last one meets the current token."""

    def __init__(self, channels: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, width))


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate_proj = Linear(width, hidden)
        self.up_proj = Linear(width, hidden)
        self.down_proj = Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
