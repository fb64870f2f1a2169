"""What is said between facts: small stories in ten places and short exchanges about nothing in particular.

The sentences are in stories.py and chatter.py, their words in words.py. Slots are drawn once per episode, so
that an episode stays with its people and things.
"""

from __future__ import annotations

from random import Random

from demo.chatter import CHATTER, GREETINGS
from demo.stories import LINKS, STORY_INTRODUCTIONS, STORY_REPLIES, STORY_REQUESTS, STYLES
from demo.words import FEMALE, NAMES, POOLS, PRONOUNS

_TOPICS = tuple(STYLES)


class _Slots(dict[str, str]):
    """Draws a slot when it is first asked for, and then keeps it."""

    def __init__(self, rng: Random, bound: dict[str, str] | None = None):
        super().__init__(bound or {})
        self._random = rng.random

    def __missing__(self, name: str) -> str:
        key = name.rstrip("2")
        pool = POOLS[key]
        other = None if key == name else self[key]
        value = pool[int(self._random() * len(pool))]
        while value == other:
            value = pool[int(self._random() * len(pool))]
        self[name] = value
        return value


def _cast(rng: Random, protagonist: str = "") -> dict[str, str]:
    """A protagonist with pronouns, and somebody else."""
    index = int(rng.random() * len(NAMES)) if not protagonist else NAMES.index(protagonist)
    other = (index + 1 + int(rng.random() * (len(NAMES) - 1))) % len(NAMES)
    return {"p": NAMES[index], "q": NAMES[other], **PRONOUNS[index >= len(FEMALE)]}


def _episode(rng: Random, topic: str, sentences: int, protagonist: str) -> list[str]:
    """Up to `sentences` sentences of one topic: of each phase some, none twice."""
    slots = _Slots(rng, _cast(rng, protagonist))
    random = rng.random
    told: list[str] = []
    phases = STYLES[topic]
    for number, phase in enumerate(phases):
        wanted = -(-sentences * (number + 1) // len(phases)) - -(-sentences * number // len(phases))
        rest = list(phase)
        for _ in range(min(wanted, len(rest))):
            told.append(rest.pop(int(random() * len(rest))) % slots)
    if told and protagonist and not any(protagonist in sentence for sentence in told):
        told.insert(0, f"This is a story about {protagonist}.")
    return told


def story(rng: Random, sentences: int, topic: str = "", protagonist: str = "") -> str:
    """About so many sentences in episodes of 4 to 16; topic and protagonist are those of the first one."""
    random = rng.random
    told: list[str] = []
    while len(told) < sentences:
        length = min(4 + int(random() * 13), max(2, sentences - len(told)))
        if told:
            link = LINKS[int(random() * len(LINKS))]
            if link:
                told.append(link)
        topic = topic or _TOPICS[int(random() * len(_TOPICS))]
        told += _episode(rng, topic, length, protagonist)
        topic = protagonist = ""
    return " ".join(told)


def chatter(rng: Random) -> tuple[str, str]:
    """A turn of the user about something else, and an answer."""
    first = 0 if rng.random() < 0.1 else GREETINGS
    question, reply = CHATTER[first + int(rng.random() * (len(CHATTER) - first))]
    slots = _Slots(rng)
    return question % slots, reply % slots


def story_turn(rng: Random, sentences: int) -> tuple[str, str]:
    """The user asks for a story and gets it, or tells one."""
    random = rng.random
    topic = _TOPICS[int(random() * len(_TOPICS))]
    protagonist = NAMES[int(random() * len(NAMES))]
    slots = {"topic": topic, "p": protagonist}
    if random() < 0.5:
        request = STORY_REQUESTS[int(random() * len(STORY_REQUESTS))]
        hero = protagonist if "%(p)s" in request else ""
        return request % slots, story(rng, sentences, topic, hero)
    introduction = STORY_INTRODUCTIONS[int(random() * len(STORY_INTRODUCTIONS))]
    reply = STORY_REPLIES[int(random() * len(STORY_REPLIES))]
    return (
        f"{introduction % slots} {story(rng, sentences, topic, protagonist)}",
        reply % slots,
    )


def all_words() -> list[str]:
    """Every word that can be said here, without what surrounds it."""
    texts = [text for style in STYLES.values() for phase in style for text in phase]
    texts += [text for pair in CHATTER for text in pair]
    texts += [*LINKS, *STORY_REQUESTS, *STORY_INTRODUCTIONS, *STORY_REPLIES, *STYLES]
    texts += [text for pool in POOLS.values() for text in pool]
    texts += [text for pronouns in PRONOUNS for text in pronouns.values()]
    words = {word.strip(".,?!:") for text in texts for word in text.split(" ") if "%(" not in word}
    return sorted(words - {""})
