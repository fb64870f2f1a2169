"""Memoria's engrams (Park and Bak, arXiv:2310.03052) of many sequences at once, on their device: which are
recalled, which live on. docs/memory_models.md, section 24, has the rules; nothing here carries gradients.

An engram lies where its birth says, segment * W + index, and stays there: what is older comes first in every
tensor, and as a training's documents are short, no place is used twice. A choice between equals takes the
oldest. Nothing waits for the device, and shapes follow from the number of the segment alone.

Shapes: B sequences, n engrams that were ever born, W working ones, S short-term ones at most, R recalled at
most, d channels.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

DEAD, WORKING, SHORT_TERM, LONG_TERM = range(4)
PROFILES = ("upstream_1_0", "upstream_1_1", "paper")
_LEAST = float("-inf")


@dataclasses.dataclass(frozen=True)
class Rules:
    """What config.json says of engrams."""

    segment: int = 64  # tokens
    working: int = 8  # W: made of a segment
    recalled_short: int = 64
    recalled_long: int = 128
    short_term: int = 128  # S
    depth: int = 10
    lifespan: float = 17
    lifespan_scale: float = 2
    profile: str = "upstream_1_0"
    random_ties: bool = True
    seed: int = 0

    @property
    def recalled(self) -> int:
        """R."""
        return self.recalled_short + self.recalled_long

    @property
    def of_paper(self) -> bool:
        """Whether the paper's rules hold where the authors' programs have others."""
        return self.profile == "paper"

    @property
    def capacity(self) -> int:
        """Engrams that Mneme has room for in a session, where it is not told otherwise."""
        mean = math.ceil(self.working * self.lifespan)
        gains = math.ceil(1.25 * self.lifespan_scale * (self.recalled + 1))
        return max(_whole(mean + gains + self.working), _whole(2 * self.working + self.short_term))


def _whole(engrams: int) -> int:
    return -(-engrams // 64) * 64


def _signed(bits: int) -> int:
    """64 bits as the integer that a tensor holds."""
    return bits - (1 << 64) if bits >> 63 else bits


def _shifted(z: Tensor, bits: int) -> Tensor:
    """The 64 bits of z, as if they had no sign, to the right."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def draw(seed: int, segment: int, births: Tensor, counts: Tensor) -> Tensor:
    """For each engram a number below its count: SplitMix64's output number segment 2^32 + birth + 1."""
    z = (births + ((segment << 32) + 1)) * _signed(0x9E3779B97F4A7C15) + _signed(seed)
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    z = z ^ _shifted(z, 31)
    return _shifted(_shifted(z, 32) * counts, 32)


def _best(scores: Tensor, candidates: Tensor, most: int) -> Tensor:
    """Which `most` candidates have the highest scores, [B, n] each."""
    order = scores.masked_fill(~candidates, _LEAST).argsort(dim=1, descending=True, stable=True)
    return torch.zeros_like(candidates).scatter(1, order[:, :most], True) & candidates


def _places(marks: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Where marks [B, n] are set, oldest first, in `most` places, and which of these are used."""
    order = (~marks).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]
    return order, marks.gather(1, order)


class Recalled(NamedTuple):
    """What a segment's tokens attend to beside its working engrams."""

    vectors: Tensor  # [B, at most R, d], oldest first, and then any
    used: Tensor  # which of them are engrams


class Engrams:
    """Those of sequences that are read together, up to some number of segments."""

    def __init__(self, rules: Rules, sequences: int, segments: int, like: Tensor):
        """like [..., d]: the type and the device of vectors."""
        self.rules, self.born = rules, 0
        room = segments * rules.working
        self.vectors = like.new_zeros(sequences, room, like.shape[-1])
        self.lifespans = like.new_zeros(sequences, room)
        self.types = torch.zeros(sequences, room, dtype=torch.uint8, device=like.device)
        self.counts = torch.zeros(sequences, room, room, dtype=torch.int16, device=like.device)
        self.recalled = self.types[:, :0].long()  # births
        self.used = self.types[:, :0].bool()  # which of them are engrams
        self.columns = self.types[:, :1].long()  # what gains are scaled by
        self.found = self.types[:, :0].bool()  # by the last walk
        self._rows = torch.arange(sequences, device=like.device)[:, None]

    def commit(self, weights: Tensor) -> None:
        """The end of a segment whose tokens gave the recalled engrams these mean weights, as `recalled`."""
        rules, n = self.rules, self.born
        lifespans, types = self.lifespans[:, :n], self.types[:, :n]
        gains = weights * self.used * self.columns * rules.lifespan_scale
        lifespans.scatter_add_(1, self.recalled, gains)
        lifespans -= 1
        if rules.of_paper:
            types.masked_fill_(lifespans <= 0, DEAD)
        types.masked_fill_(types == WORKING, SHORT_TERM)
        short = types == SHORT_TERM
        over = short.sum(1, keepdim=True) - rules.short_term
        types.masked_fill_(short & (short.cumsum(1) <= over), LONG_TERM)
        if not rules.of_paper:
            types.masked_fill_(lifespans <= 0, DEAD)

    def write(self, working: Tensor) -> None:
        """A segment's new engrams, [B, W, d]."""
        new = slice(self.born, self.born + working.shape[1])
        self.vectors[:, new] = working
        self.lifespans[:, new] = self.rules.lifespan
        self.types[:, new] = WORKING
        self.born = new.stop

    def retrieve(self, segment: int) -> Recalled:
        """What the working engrams recall at the start of a segment, all of which then fire together."""
        rules, n = self.rules, self.born
        types = self.types[:, :n]
        short, long = types == SHORT_TERM, types == LONG_TERM
        scores, score_of_zeros = self._scores()
        of_short = _best(scores, short, rules.recalled_short)
        self.found, exhausted = self._walk(segment, short, of_short, long)
        candidates = torch.cat([self.found, exhausted], 1)
        of_long = _best(torch.cat([scores, score_of_zeros], 1), candidates, rules.recalled_long)
        of_long, zeros = of_long.split([n, 1], 1)
        chosen = of_short | of_long
        self.columns = zeros.new_zeros(zeros.shape, dtype=torch.long)
        if not rules.of_paper:
            self.columns += (short & ~of_short).any(1, keepdim=True) | zeros
            if rules.recalled_long > 0:
                oldest = short & (short.cumsum(1) == 1)
                chosen = chosen | (oldest & ~long.any(1, keepdim=True))
        self.columns += chosen.sum(1, keepdim=True)
        self.recalled, self.used = _places(chosen, rules.recalled)
        fired = chosen | (types == WORKING)
        self.counts[:, :n, :n].add_(fired[:, :, None] & fired[:, None, :])
        return Recalled(self.vectors[self._rows, self.recalled], self.used)

    def _scores(self) -> tuple[Tensor, Tensor]:
        """Of every engram [B, n], and of a vector of zeros [B, 1], against the working ones."""
        n = self.born
        vectors = F.pad(self.vectors[:, :n], (0, 0, 0, 1))
        working = vectors[:, n - self.rules.working : n]
        if self.rules.profile == "upstream_1_1":
            # The mean of squared distances, but for what all have in common.
            scores = -(vectors - working.mean(1, keepdim=True)).square().sum(-1)
        else:
            # Not by matrix products, whose rounding would be as large as small distances.
            apart = torch.cdist(vectors, working, compute_mode="donot_use_mm_for_euclid_dist")
            scores = (-apart.square()).logsumexp(-1)
        return scores.split([n, 1], 1)

    def _walk(self, segment: int, short: Tensor, chosen: Tensor, long: Tensor) -> tuple[Tensor, Tensor]:
        """Which long-term engrams links lead to [B, n], and whether there were no others left [B, 1]."""
        rules, n = self.rules, self.born
        extra = not rules.of_paper
        some = long.any(1, keepdim=True)
        sources, used = _places(short, min(n, rules.short_term))
        asks = chosen.gather(1, sources)
        links = self._links(sources).masked_fill(~long[:, None], -1)
        candidates = (links == links.amax(-1, keepdim=True)) & long[:, None]
        if extra:
            candidates = torch.where(asks[..., None], candidates, long[:, None])
        if rules.random_ties:
            number = draw(rules.seed, segment, sources, candidates.sum(-1))
        else:
            number = torch.zeros_like(sources)
        before = candidates.cumsum(-1, dtype=torch.int32) <= number[..., None]
        current = before.sum(-1).clamp(max=n - 1)
        idle = ~(used & some & (asks | extra))
        # Its last column takes what chains that are none find.
        found = torch.zeros(len(long), n + 1, dtype=torch.bool, device=long.device)
        found.scatter_(1, current.masked_fill(idle, n), True)
        older = n - 1 - torch.arange(n, dtype=torch.int32, device=long.device)
        exhausted = torch.zeros_like(some)
        for _ in range(rules.depth):
            reach = long & ~found[:, :n]
            exhausted = ~reach.any(1, keepdim=True) if extra else exhausted
            order = torch.add(older, self._links(current), alpha=n)
            current = order.masked_fill(~reach[:, None], -1).argmax(-1)
            found.scatter_(1, current.masked_fill(idle, n), True)
        # Where none was left to reach, chains went anywhere.
        return found[:, :n] & long, exhausted & some

    def _links(self, engrams: Tensor) -> Tensor:
        """How often each of engrams [B, chains] fired with every one, [B, chains, n]."""
        return self.counts[self._rows, engrams, : self.born]
