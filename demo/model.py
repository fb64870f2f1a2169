"""The networks that the demo compares, in PyTorch: Mixture-of-Memories, gated DeltaNet, Titans, whose memory
is in titans.py, and Memoria, which is all in memoria.py.

Training computes the function that is served: every memory of every sequence is a segment of its own, for the
convolutions and for the delta rule, so nothing leaks from one into another, and there is no difference
between training and evaluation. Parameters carry the names of the checkpoint
(`model.layers.0.attn.k_proj.1.weight`, ...) or, of Titans, names that checkpoint_name translates.

Shapes: B sequences of T tokens, N = B T; D hidden, H heads of K key and V value channels; E memories, R of
them per token; M = N R (+ N with a shared memory) entries, sorted by memory, sequence and position.

On CUDA the convolutions and the delta rule are flash-linear-attention's kernels; elsewhere they are plain
loops in the arithmetic of the inputs, slow and meant for tests.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pathlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo.layers import ConvWeight, FeedForward, Linear, RmsNorm, causal_convolution
from demo.memoria import MemoriaConfig, MemoriaLanguageModel
from demo.titans import NeuralMemory, TitansConfig

CHUNK = 64  # of flash-linear-attention's kernels


@dataclasses.dataclass(frozen=True)
class Config:
    """What config.json says of a model, under its names."""

    model_type: str  # "mom" or "gated_deltanet"
    vocab_size: int = 1920
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_heads: int = 2
    head_dim: int = 128
    expand_v: float = 1.0
    intermediate_size: int = 512
    conv_size: int = 4
    norm_eps: float = 1e-6
    num_memories: int = 1
    topk: int = 1
    shared_mem: bool = False

    @property
    def value_dim(self) -> int:
        """Value channels of a head."""
        return int(self.head_dim * self.expand_v)

    @property
    def state_bytes(self) -> int:
        """Bytes of the fp32 matrices of one sequence, all layers."""
        memories = self.num_memories + self.shared_mem
        return 4 * self.num_hidden_layers * memories * self.num_heads * self.head_dim * self.value_dim

    def to_json(self) -> dict:
        """config.json as Hugging Face and Mneme read it."""
        common = {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "expand_v": self.expand_v,
            "intermediate_size": self.intermediate_size,
            "hidden_act": "swish",
            "conv_size": self.conv_size,
            "use_short_conv": True,
            "norm_eps": self.norm_eps,
            "attn": None,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
            "max_position_embeddings": 65536,
            "dtype": "bfloat16",
            "model_type": self.model_type,
        }
        if self.model_type == "gated_deltanet":
            return {"architectures": ["GatedDeltaNetForCausalLM"], "use_gate": True, **common}
        return {
            "architectures": ["MomForCausalLM"],
            "mom_backend": "gated_deltanet",
            "num_memories": self.num_memories,
            "topk": self.topk,
            "shared_mem": self.shared_mem,
            "single_kv_proj": False,
            "use_output_gate": True,
            **common,
        }

    @staticmethod
    def checkpoint_name(parameter: str) -> str:
        """The tensor of a checkpoint that a parameter of LanguageModel is kept in."""
        return parameter

    @staticmethod
    def from_json(text: str) -> Config:
        """Of a config.json with the settings that this module knows; others are not looked at."""
        values = json.loads(text)
        known = {
            field.name: values[field.name] for field in dataclasses.fields(Config) if field.name in values
        }
        if values.get("intermediate_size") is None:
            width = int(values["hidden_size"] * values.get("hidden_ratio", 4) * 2 / 3)
            known["intermediate_size"] = 256 * math.ceil(width / 256)
        if known["model_type"] == "gated_deltanet":
            known |= {"num_memories": 1, "topk": 1, "shared_mem": False}
        return Config(**known)


# The demo and its twins. A token of `demo` goes through 983,040 weights of a layer (embedding, norms, gates
# and router aside), and a sequence keeps 163,840 numbers per layer.
CONFIGS = {
    "demo": Config("mom", num_memories=4, topk=2, shared_mem=True),
    # The same without the memory that every token writes.
    "no_shared": Config("mom", num_memories=4, topk=2, shared_mem=False),
    # One memory, and as many weights as a token of `demo` goes through.
    "gdn_active": Config("gated_deltanet", num_heads=3, intermediate_size=640),
    # One memory of the bytes of all of `demo`'s; its weights are as many as all of `demo`'s.
    "gdn_state": Config("gated_deltanet", head_dim=256, expand_v=1.25, intermediate_size=640),
    # Memories that are networks; about as many weights as `demo` has in all.
    "titans": TitansConfig(),
    # Engrams; about as many weights as `demo` has in all.
    "memoria": MemoriaConfig(),
}


@dataclasses.dataclass
class Segments:
    """Where entries of one memory and sequence begin: [count + 1] on the device, none of them empty."""

    starts: Tensor
    chunk_indices: Tensor | None  # [chunks, 2]: segment and chunk in it, for the kernels

    @staticmethod
    def of(counts: Tensor) -> Segments:
        """Segments of these lengths, empty ones left out. Waits for the device once."""
        lengths = counts.cpu()
        lengths = lengths[lengths > 0]
        starts = F.pad(lengths.cumsum(0), (1, 0))
        if not counts.is_cuda:
            return Segments(starts, None)
        chunks = (lengths + CHUNK - 1) // CHUNK
        segment = torch.repeat_interleave(torch.arange(len(lengths)), chunks)
        first = F.pad(chunks.cumsum(0), (1, 0))[:-1]
        within = torch.arange(len(segment)) - first[segment]
        indices = torch.stack([segment, within], 1).to(counts.device, non_blocking=True)
        return Segments(starts.to(counts.device, non_blocking=True), indices)


def short_convolution(x: Tensor, weight: Tensor, segments: Segments) -> Tensor:
    """silu of the causal convolution of each channel, zeros before each segment.

    x [M, C], weight [C, 1, W] -> [M, C].
    """
    if x.is_cuda:
        from demo.fla_kernels import causal_conv1d

        taps = weight.squeeze(1).to(x.dtype)
        y, _ = causal_conv1d(
            x.unsqueeze(0),
            taps,
            activation="silu",
            cu_seqlens=segments.starts,
            chunk_indices=segments.chunk_indices,
        )
        return y.squeeze(0)
    parts = [
        causal_convolution(x[None, begin:end], weight)[0]
        for begin, end in itertools.pairwise(segments.starts)
    ]
    return F.silu(torch.cat(parts))


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, segments: Segments) -> Tensor:
    """Reads of each entry after its write.

    q, k [M, H, K], v [M, H, V], g (log decay) and beta [M, H] -> [M, H, V]:

        S <- e^g S;  S <- S + k (beta (v - S^T k))^T;  o = S^T q / sqrt(K)

    with q and k of length 1, and S = 0 before each segment.
    """
    if q.is_cuda:
        from demo.fla_kernels import chunk_gated_delta_rule

        out, _ = chunk_gated_delta_rule(
            *(part.unsqueeze(0) for part in (q, k, v, g, beta)),
            use_qk_l2norm_in_kernel=True,
            cu_seqlens=segments.starts,
            chunk_indices=segments.chunk_indices,
        )
        return out.squeeze(0)
    q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) / math.sqrt(q.shape[-1])
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
    decay = g.exp().to(q.dtype)
    beta = beta.to(q.dtype)
    reads = []
    for begin, end in itertools.pairwise(segments.starts.tolist()):
        state = q.new_zeros(q.shape[1], q.shape[2], v.shape[2])
        for t in range(begin, end):
            state = state * decay[t, :, None, None]
            error = v[t] - torch.einsum("hkv,hk->hv", state, k[t])
            state = state + torch.einsum("hk,hv->hkv", k[t], beta[t, :, None] * error)
            reads.append(torch.einsum("hkv,hk->hv", state, q[t]))
    return torch.stack(reads)


class DeltaMixer(nn.Module):
    """What both kinds of layers share: convolutions, gates and rule on sorted entries; how they end."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        keys, values = config.num_heads * config.head_dim, config.num_heads * config.value_dim
        self.q_proj = Linear(config.hidden_size, keys)
        self.g_proj = Linear(config.hidden_size, values)
        self.o_proj = Linear(values, config.hidden_size)
        self.q_conv1d = ConvWeight(keys, config.conv_size)
        self.k_conv1d = ConvWeight(keys, config.conv_size)
        self.v_conv1d = ConvWeight(values, config.conv_size)
        self.A_log = nn.Parameter(torch.empty(config.num_heads))
        self.dt_bias = nn.Parameter(torch.empty(config.num_heads))
        self.o_norm = RmsNorm(config.value_dim, config.norm_eps)

    def read(self, q: Tensor, kvba: Tensor, segments: Segments) -> Tensor:
        """What each entry reads, [M, H V].

        q [M, H K]: raw queries; kvba [M, H K + H V + 2 H]: raw keys and values, write and decay gates.
        """
        c = self.config
        heads = c.num_heads
        k, v, b, a = kvba.split([heads * c.head_dim, heads * c.value_dim, heads, heads], dim=-1)
        k, v = k.contiguous(), v.contiguous()
        q = short_convolution(q, self.q_conv1d.weight, segments).view(-1, heads, c.head_dim)
        k = short_convolution(k, self.k_conv1d.weight, segments).view(-1, heads, c.head_dim)
        v = short_convolution(v, self.v_conv1d.weight, segments).view(-1, heads, c.value_dim)
        g = -self.A_log.exp() * F.softplus(a.to(self.A_log.dtype) + self.dt_bias)
        beta = b.to(self.A_log.dtype).sigmoid()
        return gated_delta_rule(q, k, v, g, beta, segments).flatten(1)

    def emit(self, x: Tensor, mixed: Tensor) -> Tensor:
        """x [N, D] and what the memories gave [N, H V] -> [N, D]."""
        normed = self.o_norm(mixed.view(len(mixed), self.config.num_heads, -1)).flatten(1)
        return self.o_proj(normed * F.silu(self.g_proj(x)))


class GatedDeltaNet(DeltaMixer):
    """One memory for every token."""

    def __init__(self, config: Config):
        super().__init__(config)
        self.k_proj = Linear(config.hidden_size, config.num_heads * config.head_dim)
        self.v_proj = Linear(config.hidden_size, config.num_heads * config.value_dim)
        self.b_proj = Linear(config.hidden_size, config.num_heads)
        self.a_proj = Linear(config.hidden_size, config.num_heads)

    def forward(self, x: Tensor, sequences: int) -> tuple[Tensor, Tensor | None]:
        """x [N, D] of so many sequences, one behind the other -> [N, D] and no balance loss."""
        segments = Segments.of(torch.full((sequences,), len(x) // sequences, device=x.device))
        weights = torch.cat([p.weight for p in (self.k_proj, self.v_proj, self.b_proj, self.a_proj)])
        kvba = F.linear(x, weights.to(x.dtype))
        return self.emit(x, self.read(self.q_proj(x), kvba, segments)), None


class MixtureOfMemories(DeltaMixer):
    """R of E memories for each token, and one for all if `shared_mem`."""

    def __init__(self, config: Config):
        super().__init__(config)
        d, heads, memories = config.hidden_size, config.num_heads, config.num_memories
        keys, values = heads * config.head_dim, heads * config.value_dim
        self.gate = Linear(d, memories)
        self.k_proj = nn.ModuleList(Linear(d, keys) for _ in range(memories))
        self.v_proj = nn.ModuleList(Linear(d, values) for _ in range(memories))
        self.b_proj = nn.ModuleList(Linear(d, heads) for _ in range(memories))
        self.a_proj = nn.ModuleList(Linear(d, heads) for _ in range(memories))
        if config.shared_mem:
            self.shared_k, self.shared_v = Linear(d, keys), Linear(d, values)
            self.shared_b, self.shared_a = Linear(d, heads), Linear(d, heads)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [N, D] -> chosen memories and their weights [N, R], and the loss that keeps memories in use.

        The loss is E sum_e (share of choices)_e (mean probability)_e, 1 where all are used alike.
        """
        probabilities = self.gate(x).float().softmax(-1)
        top, chosen = probabilities.topk(self.config.topk, dim=-1)
        weights = (top / top.sum(-1, keepdim=True)).to(x.dtype)
        memories = self.config.num_memories
        shares = torch.bincount(chosen.flatten(), minlength=memories).float() / chosen.numel()
        return chosen, weights, memories * (shares * probabilities.mean(0)).sum()

    def memory_weights(self) -> list[Tensor]:
        """Keys, values and gates of each memory in one matrix, the shared memory's last."""
        stacked = [
            torch.cat([part[m].weight for part in (self.k_proj, self.v_proj, self.b_proj, self.a_proj)])
            for m in range(self.config.num_memories)
        ]
        if self.config.shared_mem:
            shared = (self.shared_k, self.shared_v, self.shared_b, self.shared_a)
            stacked.append(torch.cat([part.weight for part in shared]))
        return stacked

    def forward(self, x: Tensor, sequences: int) -> tuple[Tensor, Tensor]:
        """x [N, D] of so many sequences, one behind the other -> [N, D] and the balance loss."""
        tokens, routes, memories = len(x), self.config.topk, self.config.num_memories
        chosen, weights, balance = self.route(x)
        sequence = torch.arange(tokens, device=x.device) // (tokens // sequences)
        bucket = (chosen * sequences + sequence[:, None]).flatten()
        order = bucket.argsort(stable=True)  # by memory, then sequence, then position
        counts = torch.bincount(bucket, minlength=memories * sequences)
        entries = order // routes  # the token of each entry
        if self.config.shared_mem:
            entries = torch.cat([entries, torch.arange(tokens, device=x.device)])
            counts = torch.cat([counts, counts.new_full((sequences,), tokens // sequences)])
        segments = Segments.of(counts)
        per_memory = counts.view(-1, sequences).sum(1).tolist()
        parts = x[entries].split(per_memory)
        kvba = torch.cat(
            [F.linear(part, w.to(x.dtype)) for part, w in zip(parts, self.memory_weights(), strict=True)]
        )
        reads = self.read(self.q_proj(x)[entries], kvba, segments)
        place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
        routed = reads[place].view(tokens, routes, -1)
        mixed = (routed * weights.unsqueeze(-1)).sum(1)
        if self.config.shared_mem:
            mixed = mixed + reads[tokens * routes :]
        return self.emit(x, mixed), balance


MIXERS = {"mom": MixtureOfMemories, "gated_deltanet": GatedDeltaNet, "titans": NeuralMemory}


class Block(nn.Module):
    def __init__(self, config: Config | TitansConfig):
        super().__init__()
        self.attn_norm = RmsNorm(config.hidden_size, config.norm_eps)
        self.attn = MIXERS[config.model_type](config)
        self.mlp_norm = RmsNorm(config.hidden_size, config.norm_eps)
        self.mlp = FeedForward(config.hidden_size, config.intermediate_size)

    def forward(self, h: Tensor, sequences: int, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        mixed, balance = self.attn(self.attn_norm(h).to(dtype), sequences)
        h = h + mixed
        return h + self.mlp(self.mlp_norm(h).to(dtype)), balance


class Backbone(nn.Module):
    def __init__(self, config: Config | TitansConfig):
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, config.norm_eps)


class LanguageModel(nn.Module):
    """Embedding, blocks, head. The residual stream is fp32, as the parameters; products run in `dtype`."""

    def __init__(self, config: Config | TitansConfig):
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)
        self.initialize()

    @torch.no_grad()
    def initialize(self) -> None:
        """Draws all weights from torch's generator. Half-lives begin with eight tokens and more."""
        residual = 1 / math.sqrt(2 * self.config.num_hidden_layers)
        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                continue
            if name.endswith("A_log"):
                parameter.uniform_(1, 8).log_()
            elif name.endswith("dt_bias"):
                step = torch.empty_like(parameter).uniform_(math.log(1e-4), math.log(1e-2)).exp()
                parameter.copy_(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus
            elif "_conv" in name:
                parameter.uniform_(-0.5, 0.5)
            else:
                scale = residual if name.endswith(("o_proj.weight", "down_proj.weight")) else 1
                parameter.normal_(std=0.04 * scale)
        for layer in self.model.layers:
            if isinstance(layer.attn, NeuralMemory):
                layer.attn.initialize()

    def hidden(self, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """ids [B, T] -> what the head reads, [B T, D], and the mean of the layers' balance losses."""
        sequences = len(ids)
        h = self.model.embeddings(ids.flatten())
        balances = []
        for layer in self.model.layers:
            h, balance = layer(h, sequences, dtype)
            if balance is not None:
                balances.append(balance)
        balance = torch.stack(balances).mean() if balances else h.new_zeros(())
        return self.model.norm(h).to(dtype), balance

    def forward(self, ids: Tensor, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
        """ids [B, T] -> logits [B, T, vocabulary] and the balance loss."""
        hidden, balance = self.hidden(ids, dtype)
        return self.lm_head(hidden).view(*ids.shape, -1), balance


KINDS = {"titans": TitansConfig, "gpt2_with_memoria": MemoriaConfig}
_EMBEDDINGS = {"gpt2_with_memoria": "transformer.wte.weight"}
_MASKS = (".attn.bias", ".memory_attention.bias", ".masked_bias")  # buffers of GPT-2's older files


def make(config: Config | TitansConfig | MemoriaConfig) -> LanguageModel | MemoriaLanguageModel:
    """A network with weights of torch's generator."""
    return MemoriaLanguageModel(config) if isinstance(config, MemoriaConfig) else LanguageModel(config)


def load(folder: pathlib.Path) -> LanguageModel | MemoriaLanguageModel:
    """A checkpoint folder (config.json, model.safetensors) in fp32, on the CPU."""
    from safetensors.torch import load_file

    text = (folder / "config.json").read_text()
    model_type = json.loads(text)["model_type"]
    model = make(KINDS.get(model_type, Config).from_json(text))
    stored = load_file(folder / "model.safetensors")
    tensors = {name: tensor.float() for name, tensor in stored.items() if not name.endswith(_MASKS)}
    names = {name: model.config.checkpoint_name(name) for name in model.state_dict()}
    if "lm_head.weight" not in tensors:
        embeddings = _EMBEDDINGS.get(model_type, "model.embeddings.weight")
        tensors["lm_head.weight"] = tensors[names[embeddings]]
    model.load_state_dict({name: tensors.pop(stored) for name, stored in names.items()})
    if tensors:
        raise ValueError(f"{folder} has a tensor {min(tensors)} that this model has not")
    return model
