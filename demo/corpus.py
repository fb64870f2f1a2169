"""Documents for the demo model, as token ids with loss weights: conversations in which facts are told,
changed and asked for, with small talk and stories between, and some stories alone.

usage: python -m demo.corpus --seed 1 --length 4096 --show
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import sentencepiece

from demo import filler, world
from demo.world import Fact

UNK, BOS, EOS = 0, 1, 2
VALUE_WEIGHT = 5
STORY_SHARE = 0.05  # of documents that are a story without turns
MIN_LENGTH, MAX_LENGTH = 256, 65536
_QUESTION_TOKENS = 18  # of a question with its answer, about
DEFAULT_TOKENIZER = Path(__file__).parent / "model" / "tokenizer.model"


class Question(NamedTuple):
    """An answer that gives a value.

    `distance`: tokens back to the first token of the value where the assistant said it last, to confirm or
    to answer. `alive`: how many facts had been told by then.
    """

    index: int
    count: int
    distance: int
    alive: int


class Encoder:
    """SentencePiece word by word, with a dictionary: pieces never cross a space."""

    def __init__(self, tokenizer: str | Path | sentencepiece.SentencePieceProcessor = DEFAULT_TOKENIZER):
        if not isinstance(tokenizer, sentencepiece.SentencePieceProcessor):
            tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer))
        self.model = tokenizer
        self._words: dict[str, list[int]] = {}
        self.newline, self.user, self.assistant = (
            self.piece_id(piece) for piece in ("\n", "User:", "Assistant:")
        )

    def piece_id(self, piece: str) -> int:
        """The id of a piece that must exist."""
        found = self.model.piece_to_id(piece)
        if found == self.model.unk_id():
            raise ValueError(f"the tokenizer has no piece {piece!r}")
        return found

    def spaced(self, text: str) -> list[int]:
        """The ids of " " + text."""
        words = self._words
        ids: list[int] = []
        for word in text.split(" "):
            known = words.get(word)
            if known is None:
                known = words[word] = self.model.encode(" " + word)
            ids += known
        return ids

    def text(self, text: str) -> list[int]:
        """The ids of a text as it stands, its first word without a space."""
        first, space, rest = text.partition(" ")
        return self.model.encode(first) + (self.spaced(rest) if space else [])


class _Document:
    """A conversation that grows."""

    def __init__(self, encoder: Encoder):
        self.encoder = encoder
        self.ids: list[int] = [BOS]
        self.questions: list[Question] = []
        self.last_seen: dict[tuple[str, str], int] = {}

    def _begin(self, question: str) -> None:
        encoder = self.encoder
        if len(self.ids) > 1:
            self.ids.append(encoder.newline)
        self.ids.append(encoder.user)
        self.ids += encoder.spaced(question)
        self.ids.append(encoder.newline)
        self.ids.append(encoder.assistant)

    def turn(self, question: str, reply: str) -> None:
        """A question and a reply without facts."""
        self._begin(question)
        self.ids += self.encoder.spaced(reply)
        self.ids.append(EOS)

    def told(self, told: str, confirmation: str, facts: list[Fact]) -> None:
        """Facts told and confirmed, where the confirmation is some words and the canonical sentences."""
        self._begin(told)
        if confirmation:
            self.ids += self.encoder.spaced(confirmation)
        for fact in facts:
            self._state(fact)
        self.ids.append(EOS)

    def asked(self, question: str, fact: Fact) -> None:
        """A question for a fact, and its answer."""
        self._begin(question)
        before = self.last_seen[fact.subject, fact.attribute]
        index, count = self._state(fact)
        self.questions.append(Question(index, count, index - before, len(self.last_seen)))
        self.ids.append(EOS)

    def _state(self, fact: Fact) -> tuple[int, int]:
        sentence = self.encoder.spaced(world.answer(fact))
        value = len(self.encoder.spaced(fact.value))
        # The sentence ends with the value and a full stop, one token.
        index = len(self.ids) + len(sentence) - 1 - value
        self.ids += sentence
        self.last_seen[fact.subject, fact.attribute] = index
        return index, value


class _Event(NamedTuple):
    at: float  # planned position
    kind: str  # "tell", "update" or "ask"
    facts: tuple[int, ...]


def _fact_count(length: int, rng: Random) -> int:
    """Log-uniform; most documents have so many that questions need not be repeated often."""
    most = min(64, max(3, length // 64))
    least = min(32, max(2, length // 192))
    if rng.random() < 0.2:
        least = 2
    return min(most, int(least * ((most + 1) / least) ** rng.random()))


def _tell_groups(count: int, rng: Random) -> list[tuple[int, ...]]:
    """Facts by turns: mostly one, sometimes up to four."""
    several = rng.random() * 0.5
    groups: list[tuple[int, ...]] = []
    first = 0
    while first < count:
        size = 1 if rng.random() > several else 2 + int(rng.random() * 3)
        groups.append(tuple(range(first, min(count, first + size))))
        first += size
    return groups


def _asked(count: int, wanted: int, rng: Random) -> list[int]:
    """Which facts are asked for: every one, then some again, up to three times, or six if need be."""
    asked = list(range(count))
    most = min(6, max(3, -(-wanted // count)))
    again = [fact for fact in asked for _ in range(most - 1)]
    rng.shuffle(again)
    return asked + again[: max(0, wanted - count)]


def _plan(length: int, count: int, rng: Random) -> list[_Event]:
    """When what is told, changed and asked."""
    random = rng.random
    reach = length * (0.15 + 0.75 * random())  # facts are told up to here
    told_at = [0.0] * count
    events: list[_Event] = []
    for group in _tell_groups(count, rng):
        at = random() * reach
        events.append(_Event(at, "tell", group))
        for fact in group:
            told_at[fact] = at
    changes = random() * 0.4 if random() < 0.6 else 0.0
    for fact in range(count):
        while random() < changes:
            events.append(_Event(told_at[fact] + (length - told_at[fact]) * random(), "update", (fact,)))
    wanted = round(length * (0.16 + 0.14 * random()) / _QUESTION_TOKENS)
    late = length * 0.7 if random() < 0.4 else 0.0  # first questions come at the end only
    for number, fact in enumerate(_asked(count, wanted, rng)):
        begin = max(told_at[fact], late if number < count else 0.0)
        room = length - begin
        share = random()
        short = random() < 0.25 and room > 40  # of these as many short distances as long ones
        offset = 20 * (room / 20) ** share if short else room * share**0.7
        events.append(_Event(begin + 1 + offset, "ask", (fact,)))
    events.sort()
    return events


class Stream:
    """Documents of exactly length + 1 tokens, forever; the same for the same seed and length."""

    def __init__(
        self,
        seed: int,
        length: int,
        *,
        tokenizer: str | Path | sentencepiece.SentencePieceProcessor | Encoder = DEFAULT_TOKENIZER,
    ):
        if not MIN_LENGTH <= length <= MAX_LENGTH:
            raise ValueError(f"length is {length}, expected {MIN_LENGTH} to {MAX_LENGTH}")
        self.length = length
        self.encoder = tokenizer if isinstance(tokenizer, Encoder) else Encoder(tokenizer)
        self._rng = Random(f"{seed}/{length}")

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids (uint16) and weights (uint8) of a document."""
        ids, weights, _ = self.next_with_questions()
        return ids, weights

    def next_with_questions(self) -> tuple[np.ndarray, np.ndarray, list[Question]]:
        """The same, and the questions whose answers are in it completely, in their order."""
        size = self.length + 1
        if self._rng.random() < STORY_SHARE:
            found, questions = self._story(size), []
        else:
            document = self._conversation(size)
            found = document.ids
            questions = [
                question for question in document.questions if question.index + question.count <= size
            ]
        ids = np.array(found[:size], dtype=np.uint16)
        weights = np.ones(size, dtype=np.uint8)
        for question in questions:
            weights[question.index : question.index + question.count] = VALUE_WEIGHT
        return ids, weights, questions

    def _story(self, size: int) -> list[int]:
        ids = [BOS, *self.encoder.text(filler.story(self._rng, 8))]
        while len(ids) < size:
            ids += self.encoder.spaced(filler.story(self._rng, 40))
        return ids

    def _conversation(self, size: int) -> _Document:
        rng = self._rng
        document = _Document(self.encoder)
        facts = world.random_facts(_fact_count(size, rng), rng)
        stories = rng.random()  # share of stories among the filler
        for event in _plan(size, len(facts), rng):
            self._fill(document, min(event.at, size), stories)
            if len(document.ids) >= size:
                break
            if event.kind == "tell":
                self._tell(document, [facts[index] for index in event.facts])
            elif event.kind == "ask":
                fact = facts[event.facts[0]]
                document.asked(world.ask(fact.subject, fact.attribute, rng), fact)
            else:
                old = facts[event.facts[0]]
                fact = Fact(old.subject, old.attribute, world.random_value(old.attribute, rng, old.value))
                facts[event.facts[0]] = fact
                document.told(world.update(fact, rng), world.confirm_update(rng), [fact])
        self._fill(document, size, stories)
        while len(document.ids) < size:
            document.turn(*world.chatter(rng))
        return document

    def _tell(self, document: _Document, facts: list[Fact]) -> None:
        rng = self._rng
        told = world.tell(facts[0], rng) if len(facts) == 1 else world.tell_together(facts, rng)
        document.told(told, world.confirm(rng), facts)

    def _fill(self, document: _Document, until: float, stories: float) -> None:
        """Filler up to about `until`."""
        rng = self._rng
        while (room := until - len(document.ids)) > 25:
            if room > 80 and rng.random() < stories:
                most = min(60.0, room / 13)
                document.turn(*filler.story_turn(rng, int(4 + (most - 4) * rng.random())))
            else:
                document.turn(*world.chatter(rng))


def show(ids: np.ndarray, questions: list[Question], encoder: Encoder) -> str:
    """A document to read; values that are asked for stand in [brackets] with their distance."""
    parts: list[str] = []
    begin = 0
    for question in questions:
        end = question.index + question.count
        parts.append(encoder.model.decode(ids[begin : question.index].tolist()))
        parts.append(
            f" [{encoder.model.decode(ids[question.index : end].tolist()).strip()}|{question.distance}]"
        )
        begin = end
    parts.append(encoder.model.decode(ids[begin:].tolist()))
    return "".join(parts)


def statistics(stream: Stream, documents: int) -> str:
    """What a number of documents consist of, and how fast they came."""
    start = time.perf_counter()
    items = [stream.next_with_questions() for _ in range(documents)]
    seconds = time.perf_counter() - start
    tokens = sum(len(ids) for ids, _, _ in items)
    questions = [question for _, _, found in items for question in found]
    distances = np.array([question.distance for question in questions] or [0])
    alive = np.array([question.alive for question in questions] or [0])
    unknown = sum(int((ids == UNK).sum()) for ids, _, _ in items)
    edges = np.percentile(distances, [0, 10, 25, 50, 75, 90, 100]).astype(int).tolist()
    return "\n".join(
        (
            f"{documents} documents of {stream.length} tokens: {tokens / seconds:,.0f} tokens/s",
            f"questions a document: {len(questions) / documents:.1f}, "
            f"about {len(questions) * _QUESTION_TOKENS / tokens:.0%} of all tokens",
            f"distance, percentiles 0 10 25 50 75 90 100: {edges}",
            f"facts alive at a question: mean {alive.mean():.1f}, most {alive.max()}",
            f"unknown tokens: {unknown}",
        )
    )


def main() -> None:
    """Prints a document and numbers about many."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--tokenizer", default=DEFAULT_TOKENIZER)
    parser.add_argument("--documents", type=int, default=100, help="for the statistics")
    parser.add_argument("--show", action="store_true", help="print the first document")
    arguments = parser.parse_args()
    encoder = Encoder(arguments.tokenizer)
    if arguments.show:
        ids, _, questions = Stream(arguments.seed, arguments.length, tokenizer=encoder).next_with_questions()
        print(show(ids, questions, encoder), end="\n\n")
    print(statistics(Stream(arguments.seed, arguments.length, tokenizer=encoder), arguments.documents))


if __name__ == "__main__":
    main()
