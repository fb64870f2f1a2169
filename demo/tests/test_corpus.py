"""Documents: their shape, their speech of facts, and that they are made again the same."""

import re
from random import Random

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("sentencepiece")

from demo import filler, world  # noqa: E402
from demo.corpus import BOS, DEFAULT_TOKENIZER, EOS, UNK, Encoder, Stream  # noqa: E402

pytestmark = pytest.mark.skipif(not DEFAULT_TOKENIZER.exists(), reason="the tokenizer is not there")


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder()


def last_stated(text: str) -> dict[tuple[str, str], str]:
    """The value of every canonical sentence, the later one winning."""
    found = re.findall(r"(Your|The \w+'s|\w+'s) (\w+) is (\w+)\.", text)
    return {(key, attribute): value for key, attribute, value in found}


@pytest.mark.parametrize("length", [256, 1000, 4096, 16384])
def test_a_document_has_the_length_asked_for_and_begins_with_bos_once(encoder: Encoder, length: int) -> None:
    stream = Stream(3, length, tokenizer=encoder)
    for _ in range(20):
        ids, weights = stream.next()
        assert (ids.dtype, weights.dtype) == (np.uint16, np.uint8)
        assert len(ids) == len(weights) == length + 1
        assert ids[0] == BOS
        assert (ids == BOS).sum() == 1
        assert not (ids == UNK).any()


def test_the_same_seed_makes_the_same_documents_and_another_does_not(encoder: Encoder) -> None:
    first, same, other = (Stream(seed, 1024, tokenizer=encoder) for seed in (5, 5, 6))
    for _ in range(10):
        ids = first.next()[0]
        assert np.array_equal(ids, same.next()[0])
        assert not np.array_equal(ids, other.next()[0])


@pytest.mark.parametrize("length", [512, 4096])
def test_ids_are_those_of_sentencepiece_for_the_whole_text(encoder: Encoder, length: int) -> None:
    stream = Stream(7, length, tokenizer=encoder)
    for _ in range(30):
        ids = stream.next()[0].tolist()
        ends = [index for index, token in enumerate(ids) if token == EOS]
        ids = ids[: ends[-1]] if ends else ids
        parts, begin = [], 1
        for end in [*(index for index in ends if index < len(ids)), len(ids)]:
            parts.append(ids[begin:end])
            begin = end + 1
        assert all(encoder.model.encode(encoder.model.decode(part)) == part for part in parts)


def test_questions_are_answered_with_the_latest_value(encoder: Encoder) -> None:
    stream = Stream(11, 4096, tokenizer=encoder)
    asked = 0
    for _ in range(30):
        ids, weights, questions = stream.next_with_questions()
        valued = np.zeros(len(ids), dtype=bool)
        for question in questions:
            end = question.index + question.count
            valued[question.index : end] = True
            before = encoder.model.decode(ids[1 : question.index].tolist())
            value = encoder.model.decode(ids[question.index : end].tolist()).strip()
            key, attribute = re.search(r"(Your|The \w+'s|\w+'s) (\w+) is$", before).groups()
            told = re.sub(r"\bMy\b|\bmy\b", "Your", before[: before.rindex("\nUser:")])
            assert last_stated(told)[key, attribute] == value
            assert ids[question.index - question.distance] == ids[question.index]
            assert 0 < question.distance < question.index
            asked += 1
        assert np.array_equal(weights == 5, valued)
        assert np.array_equal(weights == 1, ~valued)
    assert asked > 600


def test_questions_are_a_fair_share_and_reach_far_back(encoder: Encoder) -> None:
    stream = Stream(13, 4096, tokenizer=encoder)
    items = [stream.next_with_questions() for _ in range(100)]
    distances = [question.distance for _, _, questions in items for question in questions]
    assert 0.15 < 18 * len(distances) / (100 * 4097) < 0.30
    assert min(distances) < 30
    assert np.percentile(distances, 90) > 2000
    assert max(distances) > 3500


def test_fillers_never_state_a_fact() -> None:
    rng = Random(17)
    attributes = "|".join(world.ATTRIBUTES)
    canonical = re.compile(rf"(\w's|\b[Yy]our|\b[Mm]y) ({attributes}) is ")
    for _ in range(2000):
        for text in (*filler.chatter(rng), *filler.story_turn(rng, 8)):
            assert not canonical.search(text), text
            assert "%" not in text
            assert "  " not in text
            assert not re.search(r"\ba [aeiou]", text), text
            assert not re.search(r"\b(an) [^aeiouh]", text), text


def test_stories_vary() -> None:
    rng = Random(19)
    stories = {filler.story(rng, 8) for _ in range(500)}
    assert len(stories) == 500


def test_lengths_outside_the_limits_are_refused(encoder: Encoder) -> None:
    for length in (255, 65537):
        with pytest.raises(ValueError, match="expected 256 to 65536"):
            Stream(1, length, tokenizer=encoder)
