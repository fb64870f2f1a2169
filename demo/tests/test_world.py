"""Facts and the words for them."""

import re
from random import Random

import pytest

from demo import world
from demo.world import Fact


def test_the_canonical_sentence_names_the_key_directly_before_the_value() -> None:
    assert world.answer(Fact("Anna", "code", "7281")) == "Anna's code is 7281."
    assert world.answer(Fact("Your", "name", "Clara")) == "Your name is Clara."
    assert world.answer(Fact("The lantern", "owner", "Ben")) == "The lantern's owner is Ben."


def test_a_user_speaks_of_what_is_his_as_mine() -> None:
    rng = Random(1)
    for _ in range(100):
        fact = Fact("Your", "code", "7281")
        for text in (world.tell(fact, rng), world.update(fact, rng), world.ask("Your", "code", rng)):
            assert re.search(r"\b[Mm]y (new )?code\b", text)
            assert "Your" not in text
        assert world.acknowledge(fact, rng).endswith("Your code is 7281.")


def test_several_facts_in_one_turn_are_all_named() -> None:
    rng = Random(4)
    for _ in range(100):
        facts = world.random_facts(3, rng)
        text = world.tell_together(facts, rng)
        assert all(fact.value in text and fact.attribute in text for fact in facts)


def test_careless_typing_changes_marks_and_capitals_alone() -> None:
    rng = Random(5)
    typed = {world.casual("What is my code?", rng) for _ in range(300)}
    assert typed == {"What is my code?", "What is my code", "What is my code!", "what is my code?"}
    assert all(world.casual("Anna's code is 7281.", rng).startswith("Anna's") for _ in range(300))


def test_every_telling_confirming_and_changing_names_the_value() -> None:
    rng = Random(2)
    for fact in world.random_facts(300, rng):
        assert fact.value in world.tell(fact, rng)
        assert fact.value in world.update(fact, rng)
        assert world.acknowledge(fact, rng).endswith(world.answer(fact))
        assert world.acknowledge_update(fact, rng).endswith(world.answer(fact))
        assert fact.attribute in world.ask(fact.subject, fact.attribute, rng)


def test_facts_are_distinct_and_their_values_possible() -> None:
    facts = world.random_facts(world.MAX_FACTS, Random(3))
    assert len({(fact.subject, fact.attribute) for fact in facts}) == world.MAX_FACTS
    assert all(fact.value in world.ATTRIBUTES[fact.attribute].values for fact in facts)
    with pytest.raises(ValueError, match="at most"):
        world.random_facts(world.MAX_FACTS + 1, Random(3))


def test_every_attribute_has_at_least_twenty_different_values() -> None:
    for attribute in world.ATTRIBUTES.values():
        assert len(set(attribute.values)) == len(attribute.values) >= 20


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Anna's code is 7281.", "7281"),
        ("Noted. Anna's code is 7281. Ben's city is Rome.", "7281"),
        (" Anna's code is 72", "72"),
        ("Hanna's code is 7281.", None),
        ("Anna's city is Rome.", None),
        ("Anna's code is", None),
    ],
)
def test_values_are_found_in_answers(text: str, value: str | None) -> None:
    assert world.value_in(text, "Anna", "code") == value


def test_values_are_found_for_things_within_a_sentence() -> None:
    assert world.value_in("I think the lantern's owner is Ben.", "The lantern", "owner") == "Ben"
