"""Conversations with a running server: turns as token ids, filler, and questions asked of forks.

Control tokens are not recognised in a prompt's text, so that nobody can say them. Turns whose answer is
given (a fact with its acknowledgement, filler) are therefore tokenized by the server, and sent as ids with
the end-of-answer token behind each answer. Questions go as text, as `mneme chat` sends them.
"""

from __future__ import annotations

import asyncio
import bisect
import random
from collections.abc import Sequence
from dataclasses import dataclass

from mneme import AsyncClient, Completion

from demo.filler import chatter, story_turn

MAX_PIECE = 4096  # tokens of one request that feeds a long text


def turn_text(user: str, assistant: str | None = None, *, first: bool = False) -> str:
    """A turn as `mneme chat` writes it; without an answer it ends where the model is to go on."""
    text = f"{'' if first else chr(10)}User: {user}\nAssistant:"
    return text if assistant is None else f"{text} {assistant}"


@dataclass(frozen=True)
class Filler:
    """Turns about something else, each as token ids, in order of length."""

    turns: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, turns: Sequence[Sequence[int]]) -> Filler:
        """Filler of these turns."""
        return cls(tuple(sorted((tuple(turn) for turn in turns), key=len)))

    def stretch(self, tokens: int, rng: random.Random, deck: list[int]) -> list[int]:
        """Whole turns that come as near to so many tokens as the turns allow.

        `deck` holds the order of turns for one conversation and is used up: no turn comes twice in it
        before all have.
        """
        ids: list[int] = []
        longest = len(self.turns[-1])
        while tokens - len(ids) > longest:
            if not deck:
                deck.extend(range(len(self.turns)))
                rng.shuffle(deck)
            ids.extend(self.turns[deck.pop()])
        left = tokens - len(ids)
        if left * 2 >= len(self.turns[0]):
            near = bisect.bisect_left(self.turns, left, key=len)
            ids.extend(self.turns[rng.choice(_around(near, len(self.turns), 3))])
        return ids


def _around(middle: int, count: int, reach: int) -> range:
    """Indices from `reach` below to `reach` above, as far as there are any."""
    return range(min(max(0, middle - reach), count - 1), min(count, middle + reach + 1))


class Encoder:
    """Turns to token ids, through the server's tokenizer."""

    def __init__(self, client: AsyncClient, bos: int | None, eos: int | None) -> None:
        self._client = client
        self._bos = [] if bos is None else [bos]
        self._eos = [] if eos is None else [eos]

    @classmethod
    async def create(cls, client: AsyncClient) -> Encoder:
        """An encoder for the model that the server has."""
        model = (await client.info()).model
        if model is None or not model.tokenizer:
            raise SystemExit("the server's model has no tokenizer; the evaluation speaks in text")
        return cls(client, model.bos_token_id if model.adds_bos else None, model.eos_token_id)

    async def turn(self, user: str, assistant: str, *, first: bool = False) -> list[int]:
        """A whole turn with its answer; the first one of a conversation begins with <s>."""
        text = turn_text(user, assistant, first=first)
        tokens = await self._client.tokenize(text, continuation=True)
        return [*(self._bos if first else []), *tokens.ids, *self._eos]

    async def turns(self, turns: Sequence[tuple[str, str]], *, first: bool = False) -> list[list[int]]:
        """Several turns, one after the other."""
        several = (self.turn(*turn, first=first and i == 0) for i, turn in enumerate(turns))
        return list(await asyncio.gather(*several))


async def make_filler(encoder: Encoder, tokens: int, rng: random.Random, story_share: float = 0.6) -> Filler:
    """Different filler turns of at least so many tokens: small talk, and stories by share of tokens."""
    made: list[list[int]] = []
    total = stories = 0
    while total < tokens:
        tell_stories = stories < story_share * total
        if tell_stories:
            turns = [story_turn(rng, int(3 + 27 * rng.random() ** 2)) for _ in range(24)]
        else:
            turns = [chatter(rng) for _ in range(64)]
        encoded = await encoder.turns(turns)
        made.extend(encoded)
        length = sum(map(len, encoded))
        total += length
        stories += length if tell_stories else 0
    return Filler.of(made)


class Conversation:
    """A session of the server that is fed given turns, and forked to be asked."""

    def __init__(self, client: AsyncClient, name: str, limits: asyncio.Semaphore, max_answer: int) -> None:
        self._session = client.session(name, exclusive=True)
        self._asking = limits
        self._max_answer = max_answer
        self.name = name
        self.position = 0
        """Tokens of the conversation, as the server counts them."""

    async def feed(self, ids: Sequence[int]) -> None:
        """Goes on with these tokens; long texts in several requests."""
        for start in range(0, len(ids), MAX_PIECE):
            piece = list(ids[start : start + MAX_PIECE])
            completion = await self._session.send(piece, max_tokens=0)
            expected = self.position + len(piece)
            self.position = completion.session.position if completion.session else 0
            if self.position != expected:
                raise RuntimeError(f"{self.name} is at {self.position}, expected {expected}")

    async def ask(self, question: str) -> Completion:
        """The greedy answer of a fork, which is forgotten; this conversation does not hear of it."""
        async with self._asking:
            fork = await self._session.fork(ttl=600)
            try:
                return await fork.send(
                    turn_text(question, first=self.position == 0), max_tokens=self._max_answer, temperature=0
                )
            finally:
                await fork.delete()

    async def close(self) -> None:
        """Forgets the conversation."""
        if self.position:
            await self._session.delete()
