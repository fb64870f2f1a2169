"""The small world of the demo model: who and what can be talked about, and in which words.

A fact has one canonical sentence, "Anna's code is 7281.", and whatever tells, confirms or answers it
contains that sentence. The four tokens before a value ("Anna", "'s", " code", " is") are therefore
always the same, which is what a short convolution sees when it has to find the value again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from demo import filler
from demo.words import FEMALE, MALE, NAMES

USER = "Your"

OBJECTS: tuple[str, ...] = tuple(
    "anchor barrel basket bell bicycle cabinet camera carpet chair clock compass desk drum globe kettle "
    "ladder lamp lantern mirror piano sofa statue table teapot telescope trunk umbrella vase violin "
    "wagon".split()
)

_TWO_DIGITS = tuple(f"{number:02d}" for number in range(10, 100))


@dataclass(frozen=True)
class Fact:
    """What somebody or something has: Fact("Anna", "code", "7281").

    The subject is a first name, "The lantern" or, for the user, "Your".
    """

    subject: str
    attribute: str
    value: str


@dataclass(frozen=True)
class Attribute:
    """A property with the values it is drawn from; `of` says whose it can be: u(ser), p(eople), o(bjects)."""

    name: str
    values: tuple[str, ...]
    of: str = "up"


def _attribute(name: str, words: str, of: str = "up") -> Attribute:
    return Attribute(name, tuple(words.split()), of)


ATTRIBUTES: dict[str, Attribute] = {
    attribute.name: attribute
    for attribute in (
        Attribute("code", tuple(f"{number:04d}" for number in range(1000, 10000)), "upo"),
        Attribute("room", _TWO_DIGITS),
        Attribute("seat", _TWO_DIGITS),
        _attribute(
            "password",
            "thistle falcon meadow ember willow pebble granite comet harvest velvet marble beacon raven "
            "cobalt glacier maple orchid puzzle quartz ripple saddle timber walnut zephyr",
        ),
        _attribute(
            "city",
            "Rome Paris London Berlin Madrid Vienna Prague Oslo Lisbon Dublin Athens Cairo Tokyo Delhi "
            "Moscow Warsaw Geneva Venice Milan Hamburg Boston Chicago Toronto Sydney",
        ),
        _attribute(
            "country",
            "France Germany Spain Italy Norway Sweden Denmark Finland Poland Russia Greece Turkey Egypt "
            "India China Japan Canada Mexico Brazil Chile Peru Kenya Iceland Ireland",
        ),
        _attribute(
            "colour",
            "red blue green yellow purple orange pink brown black white grey violet turquoise crimson beige "
            "indigo maroon silver gold olive teal scarlet magenta ivory",
            "upo",
        ),
        _attribute(
            "dish",
            "soup pasta risotto curry goulash stew porridge lasagne paella sushi pizza salad couscous "
            "ravioli tofu fish chowder ramen polenta gnocchi trout salmon",
        ),
        _attribute(
            "drink",
            "tea coffee milk water lemonade cocoa cider beer wine juice whisky rum gin vodka punch tonic "
            "soda mead sherry brandy cognac espresso",
        ),
        _attribute(
            "hobby",
            "chess painting pottery knitting fishing gardening photography singing dancing reading hiking "
            "drawing origami astronomy camping sewing embroidery calligraphy juggling poetry magic genealogy",
        ),
        _attribute(
            "sport",
            "tennis football hockey rugby golf swimming rowing sailing skiing judo karate boxing fencing "
            "archery cycling running climbing handball badminton cricket squash volleyball",
        ),
        _attribute(
            "language",
            "French German Spanish Italian Dutch Danish Swedish Finnish Polish Russian Greek Turkish Arabic "
            "Hebrew Hindi Chinese Japanese Korean Welsh Irish Czech Latin Swahili",
        ),
        _attribute(
            "subject",
            "physics history biology chemistry geography music algebra geometry economics philosophy law "
            "medicine geology botany zoology art theology logic statistics architecture literature grammar",
        ),
        _attribute(
            "spice",
            "saffron pepper ginger cinnamon cumin nutmeg paprika vanilla thyme basil oregano rosemary mint "
            "dill parsley sage turmeric cardamom fennel anise chili garlic",
        ),
        _attribute(
            "trade",
            "baking weaving carpentry masonry plumbing farming tailoring printing brewing nursing teaching "
            "banking mining roofing welding forestry publishing shipping tanning engraving gilding "
            "bookbinding",
        ),
        _attribute(
            "pet",
            "Momo Biscuit Rusty Whiskers Shadow Coco Tiger Bella Luna Oscar Bruno Fluffy Patch Rocky Simba "
            "Smokey Snowy Toby Waffles Ziggy Pip Nemo Felix Muffin",
        ),
        Attribute("friend", NAMES),
        Attribute("name", NAMES, "u"),
        Attribute("owner", NAMES, "o"),
        Attribute("price", _TWO_DIGITS, "o"),
        Attribute("shelf", _TWO_DIGITS, "o"),
        _attribute(
            "material",
            "oak iron brass copper glass stone pine steel bronze leather paper wool silk cotton linen clay "
            "bamboo ebony plastic tin rubber wax felt birch",
            "o",
        ),
    )
}
ATTRIBUTES["origin"] = Attribute("origin", ATTRIBUTES["country"].values, "o")

_OF_KIND = {kind: tuple(name for name, item in ATTRIBUTES.items() if kind in item.of) for kind in "upo"}
SUBJECTS: tuple[str, ...] = (USER, *NAMES, *(f"The {item}" for item in OBJECTS))

MAX_FACTS = 500  # drawn at random: there are more than twice as many

_TELL = (
    "%(own)s %(what)s is %(value)s.",
    "%(own)s %(what)s is %(value)s.",
    "Please remember that %(own_mid)s %(what)s is %(value)s.",
    "Remember: %(own)s %(what)s is %(value)s.",
    "Please note that %(own_mid)s %(what)s is %(value)s.",
    "Just so you know, %(own_mid)s %(what)s is %(value)s.",
    "For later: %(own)s %(what)s is %(value)s.",
    "One more thing: %(own)s %(what)s is %(value)s.",
    "Keep in mind that %(own_mid)s %(what)s is %(value)s.",
    "By the way, %(own_mid)s %(what)s is %(value)s.",
    "I want you to know that %(own_mid)s %(what)s is %(value)s.",
    "Do not forget that %(own_mid)s %(what)s is %(value)s.",
    "It is good to know that %(own_mid)s %(what)s is %(value)s.",
    "Write this down: %(own)s %(what)s is %(value)s.",
    "Hello. %(own)s %(what)s is %(value)s.",
    "Hi, %(own_mid)s %(what)s is %(value)s.",
    "Did you know that %(own_mid)s %(what)s is %(value)s?",
)
_CLAUSE = ("%(own)s %(what)s is %(value)s", "%(own_mid)s %(what)s is %(value)s")
_TELL_NAME = ("I am %(value)s.", "Call me %(value)s.", "You can call me %(value)s.", "Hello, I am %(value)s.")
_UPDATE = (
    "%(own)s %(what)s is now %(value)s.",
    "%(own)s %(what)s is now %(value)s.",
    "%(own)s %(what)s is %(value)s now.",
    "%(own)s %(what)s is %(value)s.",
    "%(own)s new %(what)s is %(value)s.",
    "%(own)s %(what)s changed to %(value)s.",
    "Now %(own_mid)s %(what)s is %(value)s.",
    "Actually, %(own_mid)s %(what)s is %(value)s.",
    "No, %(own_mid)s %(what)s is %(value)s.",
    "%(own)s %(what)s has changed: it is now %(value)s.",
    "%(own)s %(what)s has changed. It is %(value)s now.",
    "Correction: %(own)s %(what)s is %(value)s.",
    "I was wrong. %(own)s %(what)s is %(value)s.",
    "From now on %(own_mid)s %(what)s is %(value)s.",
    "There is news: %(own)s %(what)s is now %(value)s.",
    "Something has changed. %(own)s %(what)s is %(value)s.",
    "That is no longer true: %(own)s %(what)s is %(value)s now.",
    "Please change %(own_mid)s %(what)s to %(value)s.",
)
_ASK = (
    "What is %(own_mid)s %(what)s?",
    "What is %(own_mid)s %(what)s?",
    "What is %(own_mid)s %(what)s?",
    "Do you still know %(own_mid)s %(what)s?",
    "Please tell me %(own_mid)s %(what)s.",
    "Can you tell me %(own_mid)s %(what)s?",
    "Can you remind me of %(own_mid)s %(what)s?",
    "What was %(own_mid)s %(what)s again?",
    "Do you remember %(own_mid)s %(what)s?",
    "I forgot %(own_mid)s %(what)s. Please tell me.",
    "Tell me %(own_mid)s %(what)s, please.",
    "I need %(own_mid)s %(what)s.",
    "And what is %(own_mid)s %(what)s?",
    "Now tell me %(own_mid)s %(what)s.",
)
_NAMES = frozenset(NAMES)
_PEOPLE = frozenset(("friend", "owner"))
_ASK_WHO = tuple(re.sub(r"([Ww])hat (?=is|was)", r"\1ho ", text) for text in _ASK)
_CONFIRM = (
    "Noted.",
    "Noted.",
    "I will remember that.",
    "Thank you.",
    "All right.",
    "Good to know.",
    "Understood.",
    "I have written that down.",
    "I will keep it in mind.",
    "Very well.",
)
_CONFIRM_UPDATE = (
    "Noted.",
    "Thank you for the correction.",
    "I have changed it.",
    "All right.",
    "Understood.",
)


def pick(options: Sequence[str], rng: Random) -> str:
    """One of the options: many times faster than rng.choice."""
    return options[int(rng.random() * len(options))]


def possessive(subject: str) -> str:
    """How the canonical sentence begins: "Anna's", "The lantern's", "Your"."""
    return subject if subject == USER else subject + "'s"


def _words(subject: str, attribute: str, value: str = "") -> dict[str, str]:
    """The slots of a sentence that the user says."""
    own = "My" if subject == USER else subject + "'s"
    mid = "my" if subject == USER else "the" + own[3:] if own.startswith("The ") else own
    return {"own": own, "own_mid": mid, "what": attribute, "value": value}


def casual(text: str, rng: Random) -> str:
    """What a user says as it is sometimes typed: without its last mark, with "!", or without a capital."""
    draw = rng.random()
    if draw > 0.2:
        return text
    if draw < 0.07:
        return text[:-1]
    if draw < 0.13:
        return text[:-1] + "!"
    first = text.split(" ", 1)[0].split("'")[0].rstrip(".,:")
    return text if first == "I" or first in _NAMES else text[0].lower() + text[1:]


def answer(fact: Fact) -> str:
    """The canonical sentence."""
    return f"{possessive(fact.subject)} {fact.attribute} is {fact.value}."


def tell(fact: Fact, rng: Random) -> str:
    """The user tells a fact. "Your" becomes "My"."""
    own_name = fact.subject == USER and fact.attribute == "name" and rng.random() < 0.3
    text = pick(_TELL_NAME if own_name else _TELL, rng)
    return casual(text % _words(fact.subject, fact.attribute, fact.value), rng)


def tell_together(facts: Sequence[Fact], rng: Random) -> str:
    """The user tells several facts in one turn, as sentences or as one."""
    words = [_words(fact.subject, fact.attribute, fact.value) for fact in facts]
    if rng.random() < 0.5:
        return " ".join((pick(_TELL, rng) % words[0], *(_TELL[0] % slots for slots in words[1:])))
    clauses = [_CLAUSE[0] % words[0], *(_CLAUSE[1] % slots for slots in words[1:])]
    return casual(" and ".join(clauses) + ".", rng)


def update(fact: Fact, rng: Random) -> str:
    """The user replaces what was told before."""
    return casual(pick(_UPDATE, rng) % _words(fact.subject, fact.attribute, fact.value), rng)


def confirm(rng: Random) -> str:
    """What the assistant says before it says a told fact again."""
    return pick(_CONFIRM, rng)


def confirm_update(rng: Random) -> str:
    """The same for a changed fact."""
    return pick(_CONFIRM_UPDATE, rng)


def acknowledge(fact: Fact, rng: Random) -> str:
    """The assistant confirms a told fact and says it again in its canonical form."""
    return f"{confirm(rng)} {answer(fact)}"


def acknowledge_update(fact: Fact, rng: Random) -> str:
    """The same for a changed fact."""
    return f"{confirm_update(rng)} {answer(fact)}"


def ask(subject: str, attribute: str, rng: Random) -> str:
    """The user asks for a fact."""
    return casual(pick(_ASK_WHO if attribute in _PEOPLE else _ASK, rng) % _words(subject, attribute), rng)


def random_value(attribute: str, rng: Random, old: str = "") -> str:
    """A value of the attribute, other than `old`."""
    value = pick(ATTRIBUTES[attribute].values, rng)
    while value == old:
        value = pick(ATTRIBUTES[attribute].values, rng)
    return value


def random_facts(n: int, rng: Random) -> list[Fact]:
    """Facts that differ in subject or attribute; nobody is their own friend."""
    if n > MAX_FACTS:
        raise ValueError(f"{n} different facts are wanted, expected at most {MAX_FACTS}")
    facts: dict[tuple[str, str], Fact] = {}
    while len(facts) < n:
        draw = rng.random()
        if draw < 0.15:
            subject, attribute = USER, pick(_OF_KIND["u"], rng)
        elif draw < 0.78:
            subject, attribute = pick(NAMES, rng), pick(_OF_KIND["p"], rng)
        else:
            subject, attribute = f"The {pick(OBJECTS, rng)}", pick(_OF_KIND["o"], rng)
        if (subject, attribute) not in facts:
            facts[subject, attribute] = Fact(subject, attribute, random_value(attribute, rng, old=subject))
    return list(facts.values())


def value_in(text: str, subject: str, attribute: str) -> str | None:
    """The value that an answer gives, or None where it does not speak of this subject and attribute."""
    key = f"{possessive(subject)} {attribute} is "
    found = re.search(rf"(?<![\w'])[{key[0]}{key[0].lower()}]{re.escape(key[1:])}(\w+)", text)
    return found.group(1) if found else None


def chatter(rng: Random) -> tuple[str, str]:
    """A turn of the user about something else, and an answer."""
    question, reply = filler.chatter(rng)
    return casual(question, rng), reply


story = filler.story

__all__ = [
    "ATTRIBUTES",
    "FEMALE",
    "MALE",
    "NAMES",
    "OBJECTS",
    "SUBJECTS",
    "USER",
    "Attribute",
    "Fact",
    "acknowledge",
    "acknowledge_update",
    "answer",
    "ask",
    "casual",
    "chatter",
    "confirm",
    "confirm_update",
    "pick",
    "possessive",
    "random_facts",
    "random_value",
    "story",
    "tell",
    "tell_together",
    "update",
    "value_in",
]
