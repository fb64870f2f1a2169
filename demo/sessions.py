"""Whether sessions keep what they were told: across clients, in forks, and among two hundred others.

Here nothing is fed that a user would not send: questions and facts go as text, and the model writes its
acknowledgements itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from typing import Any

from mneme import AsyncClient, AsyncSession, Client

from demo import world
from demo.dialogue import turn_text
from demo.tally import share
from demo.world import Fact

FACTS = 4  # told in each conversation
ANSWER_TOKENS = 24


class Suite:
    """Three trials with a server at `address`; names of sessions begin with `prefix`."""

    def __init__(self, address: str, seed: int, prefix: str) -> None:
        self._address = address
        self._seed = seed
        self._prefix = prefix

    def come_back(self, count: int) -> dict[str, Any]:
        """Tell, close the client, open another one, ask: does the session still know?"""
        told = {f"{self._prefix}-back-{i}": self._facts("back", i) for i in range(count)}
        rng = self._rng("back questions")
        acknowledged = 0
        with Client(self._address) as client:
            for name, facts in told.items():
                session = client.session(name)
                for i, fact in enumerate(facts):
                    turn = turn_text(world.tell(fact, rng), first=i == 0)
                    answer = session.send(turn, max_tokens=ANSWER_TOKENS, temperature=0).text
                    acknowledged += self._says(answer, fact)
        right = resumed = 0
        with Client(self._address) as client:
            for name, facts in told.items():
                session = client.session(name)
                for fact in rng.sample(facts, len(facts)):
                    turn = turn_text(world.ask(fact.subject, fact.attribute, rng))
                    completion = session.send(
                        turn, max_tokens=ANSWER_TOKENS, temperature=0, create_if_missing=False
                    )
                    right += self._says(completion.text, fact)
                    resumed += completion.usage.resumed_tokens > 0
                session.delete()
        total = count * FACTS
        return {
            **share(right, total),
            "conversations": count,
            "acknowledged_right": acknowledged,
            "resumed": resumed,
        }

    def diverge(self, count: int) -> dict[str, Any]:
        """Fork twice and change a fact differently in each: all three are to know their own version."""
        names = ("parent", "left", "right")
        changed = dict.fromkeys(names, 0)
        kept = dict.fromkeys(names, 0)
        all_right = still = 0
        with Client(self._address) as client:
            for i in range(count):
                rng = self._rng(f"fork {i}")
                facts = self._facts("fork", i)
                parent = client.session(f"{self._prefix}-fork-{i}")
                for number, fact in enumerate(facts):
                    turn = turn_text(world.tell(fact, rng), first=number == 0)
                    parent.send(turn, max_tokens=ANSWER_TOKENS, temperature=0)
                before = parent.info().position
                sessions = {"parent": parent, "left": parent.fork(), "right": parent.fork()}
                key = rng.choice(facts)
                versions = dict(zip(names, self._versions(key, rng), strict=True))
                for name in names[1:]:
                    turn = turn_text(world.update(versions[name], rng))
                    sessions[name].send(turn, max_tokens=ANSWER_TOKENS, temperature=0)
                still += parent.info().position == before
                other = rng.choice([fact for fact in facts if fact != key])
                good = 0
                for name in names:
                    for fact, counts in ((versions[name], changed), (other, kept)):
                        turn = turn_text(world.ask(fact.subject, fact.attribute, rng))
                        answer = sessions[name].send(turn, max_tokens=ANSWER_TOKENS, temperature=0).text
                        says = self._says(answer, fact)
                        counts[name] += says
                        good += says
                    sessions[name].delete()
                all_right += good == 2 * len(names)
        right = sum(changed.values()) + sum(kept.values())
        return {
            **share(right, 2 * len(names) * count),
            "conversations": count,
            "changed_fact": changed,
            "other_fact": kept,
            "all_six_right": all_right,
            "parent_unmoved": still,
        }

    def _versions(self, key: Fact, rng: random.Random) -> Iterator[Fact]:
        """The fact as it was told, and with two other values."""
        values = [key.value]
        while len(values) < 3:
            value = world.random_value(key.attribute, rng)
            if value not in values:
                values.append(value)
        for value in values:
            yield Fact(key.subject, key.attribute, value)

    async def interleave(self, count: int) -> dict[str, Any]:
        """Many sessions at once, turn by turn, with different values for the same keys; then one by one.

        An answer is mixed if it names a code that only another session was told. Codes are all different.
        """
        everyone = self._same_keys(count)
        async with AsyncClient(self._address) as client:
            together = await self._talk_together(client, everyone)
            alone = []
            for i, facts in enumerate(everyone):
                session = client.session(f"{self._prefix}-alone-{i}")
                alone.append(await self._talk(session, facts, i))
                await session.delete()
        right = mixed = same = 0
        codes = {fact.value for facts in everyone for fact in facts if fact.attribute == "code"}
        for facts, answers, answers_alone in zip(everyone, together, alone, strict=True):
            for fact, answer in zip(facts, answers[len(facts) :], strict=True):
                value = world.value_in(answer, fact.subject, fact.attribute)
                right += value == fact.value
                mixed += fact.attribute == "code" and value != fact.value and value in codes
            same += answers == answers_alone
        return {
            **share(right, sum(map(len, everyone))),
            "conversations": count,
            "mixed": mixed,
            "same_answers_alone": same,
        }

    async def _talk_together(self, client: AsyncClient, everyone: Sequence[list[Fact]]) -> list[list[str]]:
        """Each round, all sessions say their next turn, in another order; returns their answers."""
        rng = self._rng("order")
        scripts = [self._script(facts, i) for i, facts in enumerate(everyone)]
        sessions = [client.session(f"{self._prefix}-many-{i}") for i in range(len(everyone))]
        answers: list[list[str]] = [[] for _ in everyone]

        async def say(i: int, turn: str) -> None:
            completion = await sessions[i].send(turn, max_tokens=ANSWER_TOKENS, temperature=0)
            answers[i].append(completion.text)

        for turns in zip(*scripts, strict=True):
            order = rng.sample(range(len(everyone)), len(everyone))
            await asyncio.gather(*(say(i, turns[i]) for i in order))
        await asyncio.gather(*(session.delete() for session in sessions))
        return answers

    async def _talk(self, session: AsyncSession, facts: Sequence[Fact], number: int) -> list[str]:
        answers = []
        for turn in self._script(facts, number):
            answers.append((await session.send(turn, max_tokens=ANSWER_TOKENS, temperature=0)).text)
        return answers

    def _script(self, facts: Sequence[Fact], number: int) -> list[str]:
        """What the user says: the facts, then a question for each."""
        rng = self._rng(f"script {number}")
        turns = [turn_text(world.tell(fact, rng), first=i == 0) for i, fact in enumerate(facts)]
        turns += [turn_text(world.ask(fact.subject, fact.attribute, rng)) for fact in facts]
        return turns

    def _same_keys(self, count: int) -> list[list[Fact]]:
        """For each session facts about the same keys, the first one a code that nobody else has."""
        rng = self._rng("keys")
        codes = rng.sample(world.ATTRIBUTES["code"].values, count)
        keys = [fact for fact in world.random_facts(FACTS, rng) if fact.attribute != "code"]
        return [
            [
                Fact(world.USER, "code", code),
                *(
                    Fact(k.subject, k.attribute, world.random_value(k.attribute, rng))
                    for k in keys[: FACTS - 1]
                ),
            ]
            for code in codes
        ]

    def _facts(self, trial: str, number: int) -> list[Fact]:
        return world.random_facts(FACTS, self._rng(f"{trial} facts {number}"))

    def _rng(self, what: str) -> random.Random:
        return random.Random(f"{self._seed} sessions {what}")

    def _says(self, answer: str, fact: Fact) -> bool:
        return world.value_in(answer, fact.subject, fact.attribute) == fact.value
