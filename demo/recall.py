"""Recall against distance and number of facts: conversations that are told facts, flooded and asked.

A conversation is told its facts in turns of their own, each acknowledged, and then flooded with filler. A
fact is asked at a distance d when d tokens lie between the end of the turn that told it last and the
question, counted by the server, as nearly as whole turns of filler allow. All facts are told by then. Each
question is asked of a fork, so that the flood goes on to the next distance as if nobody had asked.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from mneme import AsyncClient

from demo import world
from demo.dialogue import Conversation, Encoder, Filler
from demo.tally import Cell, Question, judge, values_by_attribute
from demo.world import Fact

MIN_CONVERSATIONS = 8  # so many at least share the questions of a cell
UPDATE_FILLER = 512  # tokens between telling facts and changing them


@dataclass(frozen=True)
class Ask:
    """A question, and where it belongs."""

    target: int
    """Position of the conversation at which it is asked."""
    distance: int
    kind: str
    fact_end: int
    """Position behind the turn that told the fact last; what a control question uses, too."""
    question: Question


@dataclass
class Plan:
    """One conversation: what is fed first, and what is asked later."""

    name: str
    facts: int
    seed: int
    opening: list[int]
    asks: list[Ask] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens until the last question."""
        return max((ask.target for ask in self.asks), default=len(self.opening))


def pick(
    ends: Sequence[int], told: int, missing: dict[int, int], most: int, rng: random.Random
) -> list[tuple[int, int]]:
    """Which facts to ask at which distance: pairs of distance and index, and `missing` less these.

    `ends`: position behind each fact; `told`: behind the last one. A fact is asked once all are told.
    """
    picked: list[tuple[int, int]] = []
    for distance in missing:
        able = [i for i, end in enumerate(ends) if end + distance >= told]
        count = min(most, missing[distance], len(able))
        picked.extend((distance, i) for i in sorted(rng.sample(able, count)))
        missing[distance] -= count
    return picked


class Planner:
    """Makes conversations until every cell has its questions; the same ones for the same seed."""

    def __init__(self, encoder: Encoder, filler: Filler, seed: int, questions: int, prefix: str) -> None:
        self._encoder = encoder
        self._filler = filler
        self._seed = seed
        self._questions = questions
        self._prefix = prefix

    async def recall(self, facts: int, distances: Sequence[int]) -> list[Plan]:
        """Conversations of so many facts, asked at these distances, with as many control questions."""
        return await self._plans("recall", facts, distances, changed=0)

    async def updates(self, facts: int, distances: Sequence[int]) -> list[Plan]:
        """Conversations in which half of the facts are changed later; only these are asked."""
        return await self._plans("updates", facts, distances, changed=max(1, facts // 2))

    async def _plans(self, kind: str, facts: int, distances: Sequence[int], changed: int) -> list[Plan]:
        missing = dict.fromkeys(distances, self._questions)
        plans: list[Plan] = []
        while any(missing.values()):
            name = f"{self._prefix}-{kind}-{facts}-{len(plans)}"
            plans.append(await self._plan(name, facts, changed, missing))
        return plans

    async def _plan(self, name: str, count: int, changed: int, missing: dict[int, int]) -> Plan:
        tag = name.removeprefix(self._prefix)  # the same conversations whatever they are called
        rng = random.Random(f"{self._seed}{tag}")
        facts = world.random_facts(count, rng)
        turns = [(world.tell(fact, rng), world.acknowledge(fact, rng)) for fact in facts]
        opening, ends = _joined(await self._encoder.turns(turns, first=True))
        old: list[str] = [""] * count
        if changed:
            opening.extend(self._filler.stretch(UPDATE_FILLER, rng, []))
            facts, old, turns = self._change(facts, changed, rng)
            more, ends = _joined(await self._encoder.turns(turns), start=len(opening))
            opening.extend(more)
        plan = Plan(name, count, rng.getrandbits(32), opening)
        most = math.ceil(self._questions / MIN_CONVERSATIONS)
        for distance, i in pick(ends, len(opening), missing, most, rng):
            place = (ends[i] + distance, distance)
            question = self._question(facts[i], facts, rng, old[i])
            plan.asks.append(Ask(*place, "updated" if changed else "told", ends[i], question))
            if not changed:
                plan.asks.append(Ask(*place, "control", ends[i], self._control(facts, rng)))
        plan.asks.sort(key=lambda ask: ask.target)
        return plan

    def _change(
        self, facts: Sequence[Fact], changed: int, rng: random.Random
    ) -> tuple[list[Fact], list[str], list[tuple[str, str]]]:
        """The changed facts first, then the others; their old values; and the turns that change them."""
        order = list(facts)
        rng.shuffle(order)
        new, old, turns = [], [], []
        for fact in order[:changed]:
            value = world.random_value(fact.attribute, rng, old=fact.value)
            now = Fact(fact.subject, fact.attribute, value)
            new.append(now)
            old.append(fact.value)
            turns.append((world.update(now, rng), world.acknowledge_update(now, rng)))
        return [*new, *order[changed:]], old, turns

    def _question(self, fact: Fact, told: Iterable[Fact], rng: random.Random, old: str = "") -> Question:
        values = world.ATTRIBUTES[fact.attribute].values
        others = values_by_attribute(other for other in told if other != fact)
        return Question(
            fact.subject,
            fact.attribute,
            world.ask(fact.subject, fact.attribute, rng),
            fact.value,
            1 / len(values),
            old,
            others.get(fact.attribute, frozenset()) - {fact.value},
        )

    def _control(self, told: Sequence[Fact], rng: random.Random) -> Question:
        """About something that this conversation is never told, with a value drawn for it here."""
        keys = {(fact.subject, fact.attribute) for fact in told}
        while True:
            fact = world.random_facts(1, rng)[0]
            if (fact.subject, fact.attribute) not in keys:
                return self._question(fact, told, rng)


def _joined(turns: Sequence[Sequence[int]], start: int = 0) -> tuple[list[int], list[int]]:
    """Turns as one text, and the position behind each."""
    ids: list[int] = []
    ends = []
    for turn in turns:
        ids.extend(turn)
        ends.append(start + len(ids))
    return ids, ends


class Runner:
    """Holds planned conversations with a server, many at a time."""

    def __init__(
        self,
        client: AsyncClient,
        filler: Filler,
        *,
        conversations: int,
        forks: int,
        max_answer: int,
        answers: TextIO | None = None,
    ) -> None:
        self._client = client
        self._filler = filler
        self._running = asyncio.Semaphore(conversations)
        self._asking = asyncio.Semaphore(forks)
        self._max_answer = max_answer
        self._answers = answers
        self._cells: dict[tuple[str, int, int], Cell] = {}
        self._fed = 0
        self._total = 0
        self._shown = 0.0

    async def run(self, plans: Sequence[Plan]) -> list[dict[str, Any]]:
        """All conversations, the longest first; returns the cells, in order."""
        self._total = sum(plan.length for plan in plans)
        order = sorted(plans, key=lambda plan: -plan.length)
        async with asyncio.TaskGroup() as group:
            for plan in order:
                group.create_task(self._hold(plan))
        keys = sorted(self._cells, key=lambda key: (key[1], key[2], key[0] == "control"))
        return [
            {"kind": kind, "facts": facts, "distance": distance, **self._cells[key].summary()}
            for key in keys
            for kind, facts, distance in [key]
        ]

    async def _hold(self, plan: Plan) -> None:
        async with self._running:
            conversation = Conversation(self._client, plan.name, self._asking, self._max_answer)
            rng = random.Random(plan.seed)
            deck: list[int] = []
            try:
                await self._feed(conversation, plan.opening)
                for target in sorted({ask.target for ask in plan.asks}):
                    stretch = self._filler.stretch(target - conversation.position, rng, deck)
                    await self._feed(conversation, stretch)
                    due = [ask for ask in plan.asks if ask.target == target]
                    await asyncio.gather(*(self._ask(conversation, plan, ask) for ask in due))
            finally:
                await conversation.close()

    async def _feed(self, conversation: Conversation, ids: Sequence[int]) -> None:
        await conversation.feed(ids)
        self._fed += len(ids)
        if time.monotonic() - self._shown > 5:
            self._shown = time.monotonic()
            print(f"fed {self._fed} of {self._total} tokens", file=sys.stderr, flush=True)

    async def _ask(self, conversation: Conversation, plan: Plan, ask: Ask) -> None:
        question = ask.question
        distance = conversation.position - ask.fact_end
        answer = (await conversation.ask(question.text)).text
        outcome = judge(question, world.value_in(answer, question.subject, question.attribute))
        cell = self._cells.setdefault((ask.kind, plan.facts, ask.distance), Cell())
        cell.add(question, outcome, distance, plan.name)
        if self._answers is not None:
            line = {
                "conversation": plan.name,
                "kind": ask.kind,
                "facts": plan.facts,
                "distance": distance,
                "question": question.text,
                "expected": question.expected,
                "answer": answer,
                "outcome": outcome,
            }
            self._answers.write(json.dumps(line) + "\n")
