"""Memoria's GPT-2 (Park and Bak, arXiv:2310.03052) in PyTorch, trained as upstream trains it.

A text is read in segments. In each layer and from the second segment on, tokens attend to what they see of
their segment, to working engrams, which the segment before was made into, and to those that these recalled:

    x = x + SelfAttention( LN(x) )
    x = x + MemoryAttention( LN(x); working engrams ),     x = x + MemoryAttention( LN(x); recalled engrams )
    x = x + MLP( LN(x) )

Gradients reach the encoder of engrams through the working ones alone: the hidden states that it encodes, the
engrams that are kept, and all that chooses among them carry none. So no gradient goes from one segment into
another, and a step is two passes of one function. The first reads segment after segment without gradients,
and finds out what each one encodes and recalls. The second one reads all segments at once with it.

Parameters carry the names of upstream's checkpoint. Shapes: B sequences of K segments of T tokens, N
sequences or segments that are read side by side; W working and M recalled engrams; d channels, H heads.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo.engrams import PROFILES, Engrams, Rules
from demo.layers import Linear

_RULES = {
    "segment": "segment_tokens",
    "working": "memoria_num_memories",
    "recalled_short": "memoria_num_reminded_stm",
    "recalled_long": "memoria_num_reminded_ltm",
    "short_term": "memoria_stm_capacity",
    "depth": "memoria_ltm_search_depth",
    "lifespan": "memoria_initial_lifespan",
    "lifespan_scale": "memoria_lifespan_extend_scale",
    "profile": "memoria_profile",
    "seed": "memoria_seed",
}


@dataclasses.dataclass(frozen=True)
class MemoriaConfig:
    """What differs between models of this kind; fields as in model.Config."""

    model_type: str = "gpt2_with_memoria"
    vocab_size: int = 1920
    hidden_size: int = 256
    num_hidden_layers: int = 4
    head_dim: int = 64
    intermediate_size: int = 1024
    norm_eps: float = 1e-5
    positions: int = 64  # at least the tokens of a segment
    rules: Rules = Rules()

    @property
    def num_heads(self) -> int:
        return self.hidden_size // self.head_dim

    @property
    def state_bytes(self) -> int:
        """Bytes of the engrams of a session: vectors, lifespans, births and types, and counts of pairs."""
        capacity = self.rules.capacity
        return capacity * (4 * self.hidden_size + 9) + 2 * capacity * capacity

    def to_json(self) -> dict:
        """config.json as Mneme reads it."""
        rules = self.rules
        return {
            "architectures": ["GPT2WithMemoriaLMHeadModel"],
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "n_embd": self.hidden_size,
            "n_layer": self.num_hidden_layers,
            "n_head": self.num_heads,
            "n_inner": self.intermediate_size,
            "n_positions": self.positions,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": self.norm_eps,
            **{key: getattr(rules, field) for field, key in _RULES.items()},
            "memoria_ltm_ties": "random" if rules.random_ties else "oldest",
            "bos_token_id": 1,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
        }

    @staticmethod
    def from_json(text: str) -> MemoriaConfig:
        """Of a config.json of upstream's with Mneme's keys, of a network whose segments are encoded."""
        values = json.loads(text)
        if values.get("activation_function", "gelu_new") != "gelu_new":
            raise ValueError("this module has no other activation_function than 'gelu_new'")
        if not values.get("memoria_num_memories"):
            raise ValueError("memoria_num_memories is missing or 0: this module encodes segments")
        known = {field: values[key] for field, key in _RULES.items() if key in values}
        rules = Rules(random_ties=values.get("memoria_ltm_ties", "random") == "random", **known)
        if rules.profile not in PROFILES:
            raise ValueError(f"memoria_profile is {rules.profile!r}, expected one of {', '.join(PROFILES)}")
        return MemoriaConfig(
            vocab_size=values["vocab_size"],
            hidden_size=values["n_embd"],
            num_hidden_layers=values["n_layer"],
            head_dim=values["n_embd"] // values["n_head"],
            intermediate_size=values.get("n_inner") or 4 * values["n_embd"],
            norm_eps=values["layer_norm_epsilon"],
            positions=values["n_positions"],
            rules=rules,
        )

    @staticmethod
    def checkpoint_name(parameter: str) -> str:
        """The tensor of a checkpoint that a parameter is kept in."""
        return parameter


class BiasedLinear(Linear):
    """y = W x + b in the arithmetic of x."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


class Conv1D(nn.Module):
    """The same with the weight the other way round, [inputs, outputs], as GPT-2 has it."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.t().to(x.dtype), self.bias.to(x.dtype))


class LayerNorm(nn.Module):
    """Of the residual stream, for products in `dtype`."""

    def __init__(self, config: MemoriaConfig):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden_size))
        self.bias = nn.Parameter(torch.zeros(config.hidden_size))
        self.eps = config.norm_eps

    def forward(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps).to(dtype)


class Heads(nn.Module):
    """What both attentions share."""

    def __init__(self, config: MemoriaConfig):
        super().__init__()
        self.heads = config.num_heads
        self.c_proj = Conv1D(config.hidden_size, config.hidden_size)

    def split(self, x: Tensor) -> Tensor:
        """[N, T, d] -> [N, H, T, d / H]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def emit(self, read: Tensor) -> Tensor:
        """What the heads read, [N, H, T, d / H] -> [N, T, d]."""
        return self.c_proj(read.transpose(1, 2).flatten(2))


class SelfAttention(Heads):
    """Each token attends to those of its segment up to itself."""

    def __init__(self, config: MemoriaConfig):
        super().__init__(config)
        self.c_attn = Conv1D(config.hidden_size, 3 * config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(self.split, self.c_attn(x).chunk(3, -1))
        return self.emit(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class MemoryAttention(Heads):
    """Every token attends to all engrams of a kind."""

    def __init__(self, config: MemoriaConfig):
        super().__init__(config)
        self.q_attn = Conv1D(config.hidden_size, config.hidden_size)
        self.c_attn = Conv1D(config.hidden_size, 2 * config.hidden_size)

    def forward(self, x: Tensor, engrams: Tensor, used: Tensor | None = None) -> Tensor:
        """x [N, T, d], engrams [N, M, d] of which `used` [N, M] are some -> [N, T, d].

        Without any, what is read is 0.
        """
        q, k, v = self._projected(x, engrams)
        if used is None:
            return self.emit(F.scaled_dot_product_attention(q, k, v))
        some = used.any(-1, keepdim=True)
        seen = (used | ~some)[:, None, None].expand(-1, 1, x.shape[1], -1)
        read = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.emit(read * some[..., None, None])

    def weigh(self, x: Tensor, engrams: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and the mean weight of each engram over heads and tokens, [N, M]."""
        q, k, v = self._projected(x, engrams)
        scores = (q @ k.mT).to(torch.promote_types(q.dtype, torch.float32)) / math.sqrt(q.shape[-1])
        some = used.any(-1, keepdim=True)
        weights = scores.masked_fill(~(used | ~some)[:, None, None], float("-inf")).softmax(-1)
        weights = weights * some[..., None, None]
        return self.emit(weights.to(v.dtype) @ v), weights.mean((1, 2))

    def _projected(self, x: Tensor, engrams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.split(self.q_attn(x)), *map(self.split, self.c_attn(engrams).chunk(2, -1))


class Mlp(nn.Module):
    def __init__(self, config: MemoriaConfig):
        super().__init__()
        self.c_fc = Conv1D(config.hidden_size, config.intermediate_size)
        self.c_proj = Conv1D(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Abstractor(nn.Module):
    """A segment as W engrams: learned queries attend to its tokens.

    It computes in the arithmetic of the parameters, for engrams are compared by their distances.
    """

    def __init__(self, config: MemoriaConfig):
        super().__init__()
        width, working = config.hidden_size, config.rules.working
        self.query_embeddings = nn.Parameter(torch.empty(1, working, width))
        self.key_transform, self.value_transform = BiasedLinear(width, width), BiasedLinear(width, width)
        self.feedforward, self.output = BiasedLinear(width, 4 * width), BiasedLinear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, T, d] -> [N, W, d]."""
        scores = self.query_embeddings @ self.key_transform(hidden).mT
        return self.output(self.feedforward(scores.softmax(-1) @ self.value_transform(hidden)))


class Seen(NamedTuple):
    """What a segment's tokens attend to outside of it."""

    working: Tensor  # [N, W, d]
    recalled: Tensor  # [N, M, d]
    used: Tensor  # [N, M]: which of them are engrams


class Block(nn.Module):
    def __init__(self, config: MemoriaConfig):
        super().__init__()
        self.ln_1, self.ln_2 = LayerNorm(config), LayerNorm(config)
        self.ln_working_memory_attn, self.ln_memory_attn = LayerNorm(config), LayerNorm(config)
        self.attn, self.memory_attention = SelfAttention(config), MemoryAttention(config)
        self.mlp = Mlp(config)

    def read(self, x: Tensor, seen: Seen | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """x [N, T, d] of segments -> the same and, of those that see engrams, the recalled ones' weights."""
        x = x + self.attn(self.ln_1(x, dtype))
        weights = None
        if seen is not None:
            x = x + self.memory_attention(self.ln_working_memory_attn(x, dtype), seen.working)
            read, weights = self.memory_attention.weigh(self.ln_memory_attn(x, dtype), *seen[1:])
            x = x + read
        return x + self.mlp(self.ln_2(x, dtype)), weights

    def forward(self, x: Tensor, seen: Seen | None, dtype: torch.dtype) -> Tensor:
        """x [B, K, T, d], of which all segments but the first see engrams, N = B (K - 1)."""
        x = x + self.attn(self.ln_1(x, dtype).flatten(0, 1)).view(x.shape)
        if seen is not None:
            first, later = x.split([1, x.shape[1] - 1], 1)
            shape, later = later.shape, later.flatten(0, 1)
            later = later + self.memory_attention(self.ln_working_memory_attn(later, dtype), seen.working)
            later = later + self.memory_attention(self.ln_memory_attn(later, dtype), *seen[1:])
            x = torch.cat([first, later.view(shape)], 1)
        return x + self.mlp(self.ln_2(x, dtype))


class Reading(NamedTuple):
    hidden: Tensor  # what ln_f gives, [B, K, T, d]
    saw: Seen | None  # all segments but the first, N = B (K - 1)
    engrams: Engrams  # as the last segment's tokens have them


_PRODUCT = re.compile(r"h\..*\.(c_attn|c_proj|c_fc|q_attn)\.(weight|bias)")


class Transformer(nn.Module):
    def __init__(self, config: MemoriaConfig):
        super().__init__()
        self.rules = config.rules
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.wpe = nn.Embedding(config.positions, config.hidden_size)
        self.h = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.ln_f = LayerNorm(config)
        self.abs = Abstractor(config)

    def forward(self, embedded: Tensor, dtype: torch.dtype) -> Reading:
        """Segment after segment of [B, K, T, d]."""
        sequences, segments = embedded.shape[:2]
        engrams = Engrams(self.rules, sequences, segments - 1, embedded)
        most = min(self.rules.recalled, (segments - 1) * self.rules.working)
        outputs, saw, weights = [], [], []
        for segment, x in enumerate(embedded.unbind(1)):
            seen = None
            if segment > 0:
                if segment > 1:
                    engrams.commit(torch.stack(weights).mean(0))
                working = self.abs(outputs[-1])
                engrams.write(working)
                recalled, used = engrams.retrieve(segment)
                missing = most - used.shape[1]
                saw.append(Seen(working, F.pad(recalled, (0, 0, 0, missing)), F.pad(used, (0, missing))))
                seen = Seen(working.to(dtype), recalled.to(dtype), used)
            weights = []
            for block in self.h:
                x, weight = block.read(x, seen, dtype)
                weights.append(weight)
            outputs.append(self.ln_f(x, x.dtype))
        all_saw = [torch.stack(parts, 1).flatten(0, 1) for parts in zip(*saw, strict=True)]
        return Reading(torch.stack(outputs, 1), Seen(*all_saw) if all_saw else None, engrams)


class MemoriaLanguageModel(nn.Module):
    """The residual stream and engrams are fp32, as the parameters; products of tokens run in `dtype`."""

    def __init__(self, config: MemoriaConfig):
        super().__init__()
        self.config = config
        self.transformer = Transformer(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)
        self.initialize()

    @torch.no_grad()
    def initialize(self) -> None:
        """Draws all weights from torch's generator. Queries begin far apart, or all of a segment's engrams
        would be one."""
        residual = 1 / math.sqrt(2 * self.config.num_hidden_layers)
        for name, parameter in self.named_parameters():
            if name.endswith("query_embeddings"):
                parameter.normal_(std=0.25)
            elif parameter.dim() == 2:
                parameter.normal_(std=0.04 * (residual if name.endswith("c_proj.weight") else 1))

    @torch.no_grad()
    def read(self, embedded: Tensor, dtype: torch.dtype) -> Reading:
        """The first pass over segments [B, K, T, d]."""
        net = self.transformer
        # Weights of products are rounded once, not in every segment.
        rounded = {name: p.to(dtype) for name, p in net.named_parameters() if _PRODUCT.fullmatch(name)}
        return torch.func.functional_call(net, rounded, (embedded, dtype))

    def forward(self, ids: Tensor, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
        """ids [B, tokens] -> logits [B, tokens, vocabulary] and 0 for the balance loss of others."""
        net, length = self.transformer, self.config.rules.segment
        tokens = ids.shape[1]
        cut = F.pad(ids, (0, -tokens % length)).unflatten(1, (-1, length))
        x = net.wte(cut) + net.wpe.weight[:length]
        hidden, saw, _ = self.read(x, dtype)
        if torch.is_grad_enabled():
            if saw is not None:
                working = net.abs(hidden[:, :-1].flatten(0, 1))
                saw = Seen(working.to(dtype), saw.recalled.to(dtype), saw.used)
            for block in net.h:
                x = block(x, saw, dtype)
            hidden = net.ln_f(x, x.dtype)
        hidden = hidden.flatten(1, 2)[:, :tokens].to(dtype)
        return self.lm_head(hidden), x.new_zeros(())
