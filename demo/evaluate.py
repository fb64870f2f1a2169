"""Measures what a served model remembers, through the Python client, and writes the numbers as JSON.

    mneme-server --model demo/model &
    python -m demo.evaluate --server 127.0.0.1:50051 --name MoM --out demo/results/demo.json

Run it in the repository's root, with clients/python installed. docs/demo_model.md says what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import random
import sys
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mneme import AsyncClient, Info

from demo.dialogue import Encoder, Filler, make_filler
from demo.recall import Plan, Planner, Runner
from demo.sessions import Suite

SUITES = ("recall", "updates", "sessions")
FORMAT = 1


@dataclasses.dataclass
class Settings:
    """What is asked how often; written beside the results."""

    distances: list[int]
    facts: list[int]
    questions: int
    update_facts: int
    update_distances: list[int]
    come_back: int
    forks: int
    interleaved: int
    conversations: int
    max_answer: int
    seed: int
    suites: list[str]

    @property
    def filler_tokens(self) -> int:
        """So much different filler that no conversation hears a turn twice, within reason."""
        return min(80_000, max(8_000, max([*self.distances, *self.update_distances]) * 5 // 4))


QUICK = {
    "distances": [256, 1024],
    "facts": [4],
    "questions": 24,
    "update_facts": 4,
    "update_distances": [256],
    "come_back": 4,
    "forks": 2,
    "interleaved": 24,
}
FULL = {
    "distances": [256, 1024, 4096, 16384, 65536],
    "facts": [4, 16, 64],
    "questions": 200,
    "update_facts": 16,
    "update_distances": [256, 1024, 4096],
    "come_back": 50,
    "forks": 34,
    "interleaved": 200,
}


def numbers(text: str) -> list[int]:
    """Positive numbers with commas between them."""
    found = [int(part) for part in text.split(",")]
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"expected positive numbers with commas between, got {text!r}")
    return found


def note(text: str) -> tuple[str, str]:
    """KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    return key, value


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--server", default="127.0.0.1:50051", metavar="ADDRESS")
    parser.add_argument("--name", required=True, help="of the model, in tables and plots")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.json")
    parser.add_argument("--answers", type=Path, metavar="FILE.jsonl", help="every question with its answer")
    parser.add_argument(
        "--note",
        type=note,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="what the server does not tell, such as state_dtype=f16 or active_parameters=5500000",
    )
    parser.add_argument("--quick", action="store_true", help="few questions, short distances: a minute")
    parser.add_argument("--suites", type=lambda text: text.split(","), default=list(SUITES))
    parser.add_argument("--distances", type=numbers, help="tokens between fact and question")
    parser.add_argument("--facts", type=numbers, help="facts told in a conversation")
    parser.add_argument("--questions", type=int, help="in each cell, and as many for its control")
    parser.add_argument("--update-facts", type=int, help="facts told, half of which are changed later")
    parser.add_argument("--update-distances", type=numbers)
    parser.add_argument("--come-back", type=int, help="conversations that are told, left and asked")
    parser.add_argument("--forks", type=int, help="conversations that are forked")
    parser.add_argument("--interleaved", type=int, help="conversations held at once")
    parser.add_argument("--conversations", type=int, default=16, help="of the recall suite, at once")
    parser.add_argument("--max-answer", type=int, default=24, help="tokens")
    parser.add_argument("--seed", type=int, default=20)
    options = parser.parse_args(arguments)
    unknown = set(options.suites) - set(SUITES)
    if unknown:
        parser.error(f"--suites: no such suite: {', '.join(sorted(unknown))}")
    return options


def settings_of(options: argparse.Namespace) -> Settings:
    """Defaults, quick or full, and what the command line says instead."""
    defaults = QUICK if options.quick else FULL
    names = [field.name for field in dataclasses.fields(Settings)]
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return Settings(**{**defaults, **given})


def described(info: Info) -> dict[str, Any]:
    """The model and the server, as far as they tell."""
    if info.model is None or info.capacity is None or info.limits is None:
        raise SystemExit("the server is still loading its model")
    model = dataclasses.asdict(info.model)
    model["sampling_defaults"] = dict(info.model.sampling_defaults)
    return {
        "model": model,
        "state_bytes": info.capacity.slab_bytes,
        "server": {
            "version": info.server.version,
            "device": info.server.device,
            "max_sessions": info.capacity.max_sessions,
            "max_rows_per_step": info.limits.max_rows_per_step,
            "max_tokens_per_step": info.limits.max_tokens_per_step,
        },
    }


class Evaluation:
    """One run against one server."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._settings = settings_of(options)
        self._prefix = f"eval-{uuid.uuid4().hex[:8]}"

    def run(self) -> dict[str, Any]:
        """All suites; returns what is written to the file."""
        began = time.monotonic()
        result: dict[str, Any] = {
            "format": FORMAT,
            "name": self._options.name,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "notes": dict(self._options.note),
            "settings": dataclasses.asdict(self._settings),
            "seconds": {},
        }
        result.update(asyncio.run(self._floods(result["seconds"])))
        if "sessions" in self._settings.suites:
            start = time.monotonic()
            result["sessions"] = self._sessions(result["server"]["max_sessions"])
            result["seconds"]["sessions"] = time.monotonic() - start
        result["seconds"]["all"] = time.monotonic() - began
        return result

    async def _floods(self, seconds: dict[str, float]) -> dict[str, Any]:
        """The suites that flood conversations with filler."""
        async with AsyncClient(self._options.server) as client:
            await client.wait_until_ready()
            result = described(await client.info())
            wanted = [suite for suite in ("recall", "updates") if suite in self._settings.suites]
            if not wanted:
                return result
            encoder = await Encoder.create(client)
            rng = random.Random(f"{self._settings.seed} filler")
            filler = await make_filler(encoder, self._settings.filler_tokens, rng)
            with contextlib.ExitStack() as stack:
                answers = None
                if self._options.answers is not None:
                    answers = stack.enter_context(self._options.answers.open("w", encoding="utf-8"))
                for suite in wanted:
                    start = time.monotonic()
                    plans = await self._plans(suite, encoder, filler)
                    runner = self._runner(client, filler, result["server"]["max_sessions"], answers)
                    result[suite] = await runner.run(plans)
                    result[f"{suite}_tokens"] = sum(plan.length for plan in plans)
                    seconds[suite] = time.monotonic() - start
        return result

    async def _plans(self, suite: str, encoder: Encoder, filler: Filler) -> list[Plan]:
        s = self._settings
        planner = Planner(encoder, filler, s.seed, s.questions, self._prefix)
        if suite == "updates":
            return await planner.updates(s.update_facts, s.update_distances)
        return [plan for facts in s.facts for plan in await planner.recall(facts, s.distances)]

    def _runner(self, client: AsyncClient, filler: Filler, room: int, answers: Any) -> Runner:
        """Holds so many conversations at once that they and their forks fit."""
        if room < 2:
            raise SystemExit("the server has room for one session; forks need a second one")
        conversations = max(1, min(self._settings.conversations, room // 3))
        return Runner(
            client,
            filler,
            conversations=conversations,
            forks=min(2 * self._settings.conversations, room - conversations),
            max_answer=self._settings.max_answer,
            answers=answers,
        )

    def _sessions(self, room: int) -> dict[str, Any]:
        s = self._settings
        suite = Suite(self._options.server, s.seed, self._prefix)
        return {
            "come_back": suite.come_back(min(s.come_back, room)),
            "diverge": suite.diverge(s.forks),
            "interleaved": asyncio.run(suite.interleave(min(s.interleaved, room))),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluates, writes the file, and says in a line per cell what came out."""
    options = parse(arguments)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    result = Evaluation(options).run()
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for suite in ("recall", "updates"):
        for cell in result.get(suite, []):
            print(
                f"{cell['kind']:8} {cell['facts']:3} facts {cell['distance']:6} tokens: "
                f"{100 * cell['accuracy']:5.1f} % ({100 * cell['low']:.1f} to {100 * cell['high']:.1f}) "
                f"of {cell['questions']}, chance {100 * cell['chance']:.1f} %"
            )
    for name, counts in result.get("sessions", {}).items():
        print(f"{name:12} {counts['right']} of {counts['questions']} right")
    print(f"{result['seconds']['all']:.0f} s; written to {options.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
