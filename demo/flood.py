"""Writes demo/flood.txt: turns of a user about other things, a line each, for tools/demo.sh and the tests.

usage: python -m demo.flood
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from demo import filler, world

SEED = 1
TURNS = 64


def told_story(rng: Random) -> str:
    """A turn in which the user tells a story; where the assistant is asked for one, another is drawn."""
    while True:
        said, reply = filler.story_turn(rng, sentences=rng.randint(6, 14))
        if len(said) > len(reply):
            return said


def turns(seed: int, count: int) -> list[str]:
    """Stories and small talk in turn."""
    rng = Random(seed)
    return [world.chatter(rng)[0] if number % 2 else told_story(rng) for number in range(count)]


def main() -> None:
    """Writes the file beside this one."""
    lines = turns(SEED, TURNS)
    Path(__file__).with_name("flood.txt").write_text("".join(line + "\n" for line in lines))


if __name__ == "__main__":
    main()
