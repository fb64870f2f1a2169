"""A session's own seed is what decides its draws: of two sessions, of a fork, after a restart."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

import mneme

SEGMENT, WORKING = 7, 3  # of the tiny shape
SEED, OTHER = 2**64 - 1, 2**64 - 2
ON_CPU = "MNEME_TEST_DEVICE" not in os.environ


@pytest.fixture(scope="module")
def drawing_model(bin_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose walks are short, so that much of what it recalls is what was drawn."""
    folder = tmp_path_factory.mktemp("models") / "memoria"
    make = [bin_dir / "mneme-make-model", "--shape", "gpt2-with-memoria-tiny", "--out", folder]
    subprocess.run(make, check=True, capture_output=True)
    config = json.loads((folder / "config.json").read_text())
    assert (config["segment_tokens"], config["memoria_num_memories"]) == (SEGMENT, WORKING)
    config |= {
        "memoria_ltm_search_depth": 0,
        "memoria_num_reminded_stm": 2,
        "memoria_num_reminded_ltm": 4,
        "memoria_stm_capacity": 9,
        "memoria_initial_lifespan": 6,
        "memoria_lifespan_extend_scale": 6.0,
        "memoria_profile": "upstream_1_0",
        "memoria_ltm_ties": "random",
        "memoria_seed": 5,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def text(segments: int, seed: int) -> list[int]:
    draws = random.Random(seed)
    return [draws.randrange(250) for _ in range(segments * SEGMENT + 2)]


class Told:
    """What a session answered, and what it holds then."""

    def __init__(self, client: mneme.Client, name: str, ids: list[int], **options):
        answer = client.generate(
            ids, session=name, max_tokens=2 * SEGMENT, temperature=0, ignore_eos=True, logprobs=0, **options
        )
        self.tokens = answer.token_ids
        self.logprobs = [one.logprob for one in answer.choices[0].logprobs]
        view = mneme.EngramsView(limit=1000)
        engrams = client.session(name).inspect_memory(engrams=view).engrams
        self.engrams = [(e.birth, e.kind, e.firings, e.recalled) for e in engrams]

    def assert_same(self, other: "Told") -> None:
        assert self.engrams == other.engrams
        assert self.tokens == other.tokens
        # A GPU adds up in another order where others are served beside it.
        assert self.logprobs == (
            other.logprobs if ON_CPU else pytest.approx(other.logprobs, rel=1e-4, abs=1e-4)
        )


def test_a_seed_decides_what_is_drawn(drawing_model, start, tmp_path):
    flags = ("--session-dir", str(tmp_path / "sessions"), "--compute-dtype", "f32")
    first, second = text(60, 1), text(25, 2)
    server = start(*flags, model=drawing_model)
    client = server.client()
    one = Told(client, "one", first, memory_seed=SEED)
    assert any(kind == mneme.EngramKind.LONG_TERM for _, kind, _, _ in one.engrams)
    Told(client, "two", first, memory_seed=SEED).assert_same(one)
    assert client.session("one").info().memory_seed == SEED

    other = Told(client, "other", first, memory_seed=OTHER)
    assert other.engrams != one.engrams, "nothing here depends on the seed"
    usual = Told(client, "usual", first)
    assert usual.engrams != one.engrams
    assert client.session("usual").info().memory_seed is None
    Told(client, "as-the-model", first, memory_seed=5).assert_same(usual)

    client.session("one").fork("fork")
    client.session("one").fork("kept")
    assert client.session("fork").info().memory_seed == SEED
    more = Told(client, "one", second)
    Told(client, "fork", second).assert_same(more)
    Told(client, "two", second).assert_same(more)
    assert Told(client, "other", second).engrams != more.engrams

    server.stop()
    server = start(*flags, model=drawing_model)
    client = server.client()
    for name in ("kept", "one"):
        assert client.session(name).info().memory_seed == SEED
    Told(client, "kept", second).assert_same(more)
    third = text(9, 3)
    after = Told(client, "one", third)
    Told(client, "kept", third).assert_same(after)
    # From its beginning again, with the seed that it keeps.
    client.session("one").rewind(0)
    assert client.session("one").info().memory_seed == SEED
    Told(client, "one", first).assert_same(one)
    with pytest.raises(mneme.FailedPrecondition) as refused:
        client.generate([1], session="one", max_tokens=1, memory_seed=OTHER)
    assert refused.value.reason == "MEMORY_SEED_MISMATCH"
