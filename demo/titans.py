"""The long-term memory of Titans (Behrouz et al., arXiv:2501.00663) in PyTorch, trained through its training
at test time.

A head's memory is a network of two layers with weights of its own for every sequence:

    M(x) = x + gain rms(gelu(x W1) W2),        rms(y) = y / sqrt(mean(y^2) + 1e-6)

At each token it takes a gradient step on mean((M_A(k) - v)^2), with momentum S and forgetting, and is read:

    S <- eta S - theta grad l(A);   W <- (1 - alpha) W + S;   r = M_W(q)

for W one of W1, W2 and gain, each with its S. Gradients are taken at an anchor A, which is W as it was when a
window of B tokens began. So those of a whole window are known at once, in matrix products, and with them all
that its tokens read; windows follow one another. In one that begins with W_0 and S_0, with keep = 1 - alpha,

    W_t = beta_t W_0 + f_t S_0 + sum_{i <= t} G_ti grad_i,        S_t = mu_t S_0 + sum_{i <= t} n_ti grad_i
    mu_t = prod eta, beta_t = prod keep,   n_ti = -theta_i prod_{i < s <= t} eta_s,
    f_t = sum_s mu_s prod_{s < r <= t} keep_r,   G_ti = sum_{i <= s <= t} n_si prod_{s < r <= t} keep_r

and the gradients of W1 and W2 at a token are outer products, z^T delta.

On CUDA what a window computes beside matrix products is fused by torch.compile.

Shapes: b sequences of T tokens, H heads, d channels of a head, m hidden; N = b H memories; V windows of B
tokens.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo.layers import ConvWeight, Linear, RmsNorm, causal_convolution

EPS = 1e-6  # of the norm in the memory

# What Mneme's keys say of the function above; the configuration has the rest.
FUNCTION = {
    "variant": "lmm",
    "hidden_act": "silu",
    "attention_kind": "none",
    "memory_integration": "residual",
    "memory_rule": "gradient",
    "memory_depth": 2,
    "memory_activation": "gelu_erf",
    "memory_norm": "rms",
    "memory_norm_eps": EPS,
    "memory_norm_offset": 0,
    "memory_loss": "mean",
    "memory_step_size": 1,
    "memory_read": "running",
    "memory_gate_pooling": "token",
    "memory_decay": "sigmoid",
    "memory_momentum_order": 1,
    "memory_forget": True,
    "memory_conv_bias": False,
    "memory_qkv_activation": "silu",
    "memory_qk_norm": "l2",
    "memory_output": "gated_rms",
}

# Names of parameters here and in a checkpoint.
_RENAMED = (
    ("model.embeddings.", "model.embed_tokens."),
    (".attn_norm.", ".input_layernorm."),
    (".attn.", ".memory."),
    (".mlp_norm.", ".post_attention_layernorm."),
)


@dataclasses.dataclass(frozen=True)
class TitansConfig:
    """What differs between models of this kind; fields as in model.Config."""

    model_type: str = "titans"
    vocab_size: int = 1920
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_heads: int = 4
    head_dim: int = 64
    expansion: float = 2.0  # hidden units of a memory by head_dim
    intermediate_size: int = 1088
    conv_size: int = 4
    norm_eps: float = 1e-6
    window: int = 16
    theta_max: float = 0.06  # times window: about 1, or gradients through long texts may explode

    @property
    def memory_width(self) -> int:
        """Hidden units of a memory."""
        return int(self.head_dim * self.expansion)

    @property
    def state_bytes(self) -> int:
        """Bytes of the memories of one sequence, all layers: W, S and the anchor in fp32."""
        memory = 2 * self.head_dim * self.memory_width + self.head_dim
        return 3 * 4 * self.num_hidden_layers * self.num_heads * memory

    def to_json(self) -> dict:
        """config.json as Mneme reads it."""
        return {
            "architectures": ["TitansForCausalLM"],
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "intermediate_size": self.intermediate_size,
            "rms_norm_eps": self.norm_eps,
            "memory_num_heads": self.num_heads,
            "memory_head_dim": self.head_dim,
            "memory_expansion": self.expansion,
            "memory_conv_kernel": self.conv_size,
            "memory_anchor_period": self.window,
            "memory_theta_max": self.theta_max,
            **FUNCTION,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
            "max_position_embeddings": 65536,
            "dtype": "bfloat16",
        }

    @staticmethod
    def from_json(text: str) -> TitansConfig:
        """Of a config.json that to_json made, or one of the same function."""
        values = json.loads(text)
        differing = [key for key, value in FUNCTION.items() if values.get(key, value) != value]
        if differing:
            raise ValueError(f"this module has no other {differing[0]} than {FUNCTION[differing[0]]!r}")
        return TitansConfig(
            vocab_size=values["vocab_size"],
            hidden_size=values["hidden_size"],
            num_hidden_layers=values["num_hidden_layers"],
            num_heads=values["memory_num_heads"],
            head_dim=values["memory_head_dim"],
            expansion=values["memory_expansion"],
            intermediate_size=values["intermediate_size"],
            conv_size=values["memory_conv_kernel"],
            norm_eps=values["rms_norm_eps"],
            window=values["memory_anchor_period"],
            theta_max=values["memory_theta_max"],
        )

    @staticmethod
    def checkpoint_name(parameter: str) -> str:
        """The tensor of a checkpoint that a parameter of LanguageModel is kept in."""
        for ours, theirs in _RENAMED:
            parameter = parameter.replace(ours, theirs)
        return parameter


class Coefficients(NamedTuple):
    """How a window's gradients and what was before it make each W_t and the state behind the window."""

    gradients: Tensor  # G, [..., B, B]
    before: Tensor  # beta and f, [..., B, 2]
    last_gradients: Tensor  # the last rows of G and n, [..., B, 2]
    carried: Tensor  # beta, f and mu of the last token, [..., 3]


def coefficients(rate: Tensor, log_momentum: Tensor, log_keep: Tensor) -> Coefficients:
    """Of theta, log eta and log keep of the tokens of windows, [..., B] each."""
    size = rate.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=rate.device).tril()
    momentum, keep = log_momentum.cumsum(-1), log_keep.cumsum(-1)

    def products(sums: Tensor) -> Tensor:  # over s with i < s <= t
        return (sums[..., :, None] - sums[..., None, :]).masked_fill(~later, -torch.inf).exp()

    pushed = products(momentum) * -rate[..., None, :]
    kept = products(keep)
    gradients = kept @ pushed
    mu, beta = momentum.exp(), keep.exp()
    f = (kept @ mu[..., None]).squeeze(-1)
    return Coefficients(
        gradients,
        torch.stack([beta, f], -1),
        torch.stack([gradients[..., -1, :], pushed[..., -1, :]], -1),
        torch.stack([beta[..., -1], f[..., -1], mu[..., -1]], -1),
    )


def _both(factors: Tensor, x: Tensor) -> Tensor:
    """Rows x [..., B, n] times each of two factors [..., B, 2], side by side: [..., B, 2 n]."""
    return (factors.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)


class _Window(NamedTuple):
    """What is known of a window before its memory: [N, ...]."""

    q: Tensor  # [N, B, d], as k and v
    k: Tensor
    v: Tensor
    q_before: Tensor  # beta q and f q, [N, B, 2 d]
    k_last: Tensor  # k by the last rows of G and n, [N, B, 2 d]
    scores: Tensor  # G (q k^T), [N, B, B]
    gradients: Tensor  # as in Coefficients
    before: Tensor
    last_gradients: Tensor
    carried: Tensor


class _Memory(NamedTuple):
    """W above S of each tensor: [N, 2 d, m], [N, 2 m, d], [N, 2, d]."""

    first: Tensor
    second: Tensor
    gain: Tensor


def _carry(memory: Tensor, carried: Tensor, written: Tensor) -> Tensor:
    """[N, 2 x, y] of W and S behind a window, to which `written` of the same shape was added.

    No matrix product: on a GPU that would round what is carried.
    """
    beta, f, mu = carried[:, None].chunk(3, -1)
    weights, momenta = memory.chunk(2, 1)
    return written + torch.cat([beta * weights + f * momenta, mu * momenta], 1)


def _run_window(window: _Window, memory: _Memory) -> tuple[Tensor, _Memory]:
    """What the tokens read, [N, B, d], and the memory behind them."""
    w = window
    first, second, gain = memory
    dim, hidden = first.shape[1] // 2, second.shape[1] // 2
    anchor_second, anchor_gain = second[:, :hidden], gain[:, :1]

    # Keys at the anchor, forward and back. Constant factors of the loss are in the rates.
    a = torch.bmm(w.k, first[:, :dim])
    z = F.gelu(a)
    y = torch.bmm(z, anchor_second)
    per_rms = torch.rsqrt(y.square().mean(-1, keepdim=True) + EPS)
    normed = y * per_rms
    error = torch.addcmul(w.k - w.v, normed, anchor_gain)
    d_gain = error * normed
    d_normed = error * anchor_gain
    d_y = per_rms * (d_normed - normed * (d_normed * normed).mean(-1, keepdim=True))
    d_a = torch.ops.aten.gelu_backward(torch.bmm(d_y, anchor_second.mT), a)

    # Queries, each at the weights behind its own token.
    z_q = F.gelu(torch.baddbmm(torch.bmm(w.q_before, first), w.scores, d_a))
    scores = w.gradients * torch.bmm(z_q, z.mT)
    y_q = torch.baddbmm(torch.bmm(_both(w.before, z_q), second), scores, d_y)
    gain_q = torch.baddbmm(torch.bmm(w.before, gain), w.gradients, d_gain)
    read = torch.addcmul(w.q, F.rms_norm(y_q, (dim,), eps=EPS), gain_q)

    return read, _Memory(
        _carry(first, w.carried, torch.bmm(w.k_last.mT, d_a)),
        _carry(second, w.carried, torch.bmm(_both(w.last_gradients, z).mT, d_y)),
        _carry(gain, w.carried, torch.bmm(w.last_gradients.mT, d_gain)),
    )


@functools.cache
def _fused_window() -> Callable[[_Window, _Memory], tuple[Tensor, _Memory]]:
    """_run_window for a GPU, where a window costs what it launches: a third as much."""
    return torch.compile(_run_window, fullgraph=True)


def neural_memory(
    qkv: tuple[Tensor, Tensor, Tensor],
    gates: tuple[Tensor, Tensor, Tensor],
    initial: tuple[Tensor, Tensor, Tensor],
    window: int,
) -> Tensor:
    """What each token reads, [b, T, H, d].

    qkv: q, k and v [b, T, H, d]; gates: theta by the derivative 2 / d of the mean, log eta and log keep
    [b, T, H]; initial: W1 [H, d, m], W2 [H, m, d], gain [H, d].
    """
    sequences, tokens, heads, dim = qkv[0].shape
    windows = -(-tokens // window)
    missing = windows * window - tokens  # in the last one; they write nothing

    def by_window(x: Tensor) -> Tensor:  # [b, T, H, ...] -> [V, N, B, ...]
        x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, missing)).unflatten(1, (windows, window))
        return x.movedim((1, 3), (0, 2)).flatten(1, 2)

    q, k, v = map(by_window, qkv)
    parts = coefficients(*map(by_window, gates))
    of_windows = _Window(
        q,
        k,
        v,
        _both(parts.before, q),
        _both(parts.last_gradients, k),
        parts.gradients * (q @ k.mT),
        *parts,
    )
    first, second, gain = initial
    memory = _Memory(
        *(
            torch.cat([w, torch.zeros_like(w)], 1).repeat(sequences, 1, 1)
            for w in (first, second, gain.unsqueeze(1))
        )
    )
    run = _fused_window() if q.is_cuda else _run_window
    reads = []
    for parts_of_one in zip(*(x.unbind(0) for x in of_windows), strict=True):
        read, memory = run(_Window(*parts_of_one), memory)
        reads.append(read)
    out = torch.stack(reads).unflatten(1, (sequences, heads))  # [V, b, H, B, d]
    return out.movedim((0, 2), (1, 3)).flatten(1, 2)[:, :tokens]


class Gate(Linear):
    """The logit of a gate for each head."""

    def __init__(self, inputs: int, heads: int):
        super().__init__(inputs, heads)
        self.bias = nn.Parameter(torch.empty(heads))


class NeuralMemory(nn.Module):
    """q, k, v = convolved, through silu, q and k of length 1; gates; memory; a norm of the gated read."""

    def __init__(self, config: TitansConfig):
        super().__init__()
        self.config = config
        width, heads, dim = config.hidden_size, config.num_heads, config.head_dim
        channels = heads * dim
        self.q_proj, self.k_proj, self.v_proj = (Linear(width, channels) for _ in range(3))
        self.g_proj, self.o_proj = Linear(width, channels), Linear(channels, width)
        self.q_conv, self.k_conv, self.v_conv = (ConvWeight(channels, config.conv_size) for _ in range(3))
        self.b_proj, self.m_proj, self.a_proj = (Gate(width, heads) for _ in range(3))
        hidden = config.memory_width
        self.mem_weights = nn.ParameterList(
            [torch.empty(heads, dim, hidden), torch.empty(heads, hidden, dim)]
        )
        self.mem_norm_weight = nn.Parameter(torch.empty(heads, dim))
        self.norm = RmsNorm(dim, config.norm_eps)

    @torch.no_grad()
    def initialize(self) -> None:
        """Draws what LanguageModel does not: hidden units of the memory that bend, outputs that a single
        token can move by about their own size, and memories that hardly forget. Rates begin so low that
        the steps of a window do not overshoot where its keys are alike, which would let gradients grow
        from window to window."""
        self.mem_weights[0].normal_(std=0.5)
        self.mem_weights[1].normal_(std=0.05)
        self.mem_norm_weight.fill_(1)
        self.b_proj.bias.fill_(-2)
        self.m_proj.bias.fill_(-1)
        self.a_proj.bias.uniform_(-14, -9)

    def forward(self, x: Tensor, sequences: int) -> tuple[Tensor, None]:
        """x [N, D] of so many sequences, one behind the other -> [N, D] and no balance loss."""
        c = self.config
        heads, channels = c.num_heads, c.num_heads * c.head_dim
        streams = (self.q_proj, self.k_proj, self.v_proj, self.g_proj)
        gates = (self.b_proj, self.m_proj, self.a_proj)
        weights = torch.cat([part.weight for part in (*streams, *gates)])
        products = F.linear(x, weights.to(x.dtype)).view(sequences, -1, len(weights))
        products = products.to(self.mem_norm_weight.dtype)  # what the memory computes in
        qkv, output_gate, logits = products.split([3 * channels, channels, 3 * heads], -1)

        taps = torch.cat([conv.weight for conv in (self.q_conv, self.k_conv, self.v_conv)])
        qkv = F.silu(causal_convolution(qkv, taps)).unflatten(-1, (3, heads, c.head_dim))
        q, k, v = qkv.unbind(2)
        q, k = F.normalize(q, dim=-1, eps=1e-12), F.normalize(k, dim=-1, eps=1e-12)
        b, m, a = (logits + torch.cat([gate.bias for gate in gates])).chunk(3, -1)
        rate = b.sigmoid() * (c.theta_max * 2 / c.head_dim)
        read = neural_memory(
            (q, k, v),
            (rate, F.logsigmoid(m), F.logsigmoid(-a)),
            (*self.mem_weights, self.mem_norm_weight),
            c.window,
        )
        gated = read * F.silu(output_gate).view(read.shape)
        return self.o_proj(self.norm(gated).to(x.dtype).view(len(x), channels)), None
