"""A thousand streams at once, all open before the first one ends."""

import asyncio
import struct

import mneme
import pytest

from many import Gate, over_grpc, over_http, raise_file_limit
from waiting import wait_for_value
from wire import ask

STREAMS = 1000
OPTIONS = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
PROMPTS = [[i, 7 * i % 256, 3] for i in range(20)]


@pytest.fixture(scope="module")
def server(start_any, golden_model):
    # Streams that nobody reads pause with events left, instead of ending behind their reader's back.
    return start_any(golden_model, "--stream-capacity", "4")


@pytest.fixture(scope="module")
def alone(server):
    """Each prompt by itself: token ids, and log-probabilities to the bit."""
    client = server.client()
    answers = [client.generate(prompt, logprobs=0, **OPTIONS) for prompt in PROMPTS]
    wait_for_value(lambda: completed(server), len(PROMPTS))
    return [(list(a.token_ids), [entry.logprob for entry in a.logprobs]) for a in answers]


def completed(server) -> int:
    text = asyncio.run(ask(server.http_port, "GET", "/metrics")).body.decode()
    line = next(x for x in text.splitlines() if "mneme_requests_total{" in x and '"completed"' in x)
    return int(float(line.rsplit(" ", 1)[1]))


def test_over_grpc(server, alone):
    before = completed(server)

    async def run():
        async with mneme.AsyncClient(server.target, api_key="", retry=None) as client:
            gate = Gate(STREAMS)
            return await asyncio.gather(
                *(
                    over_grpc(client, PROMPTS[i % len(PROMPTS)], gate, **OPTIONS)
                    for i in range(STREAMS)
                )
            )

    answers = asyncio.run(run())
    assert {reason for _, _, reason in answers} == {"length"}
    wrong = [
        i
        for i, (tokens, logprobs, _) in enumerate(answers)
        if (tokens, logprobs) != alone[i % len(PROMPTS)]
    ]
    assert wrong == []
    wait_for_value(lambda: completed(server), before + STREAMS)


def test_over_http(server, alone):
    raise_file_limit()
    before = completed(server)

    async def run():
        gate, places = Gate(STREAMS), asyncio.Semaphore(100)
        return await asyncio.gather(
            *(
                over_http(
                    server.http_port, PROMPTS[i % len(PROMPTS)], gate, places=places, **OPTIONS
                )
                for i in range(STREAMS)
            )
        )

    answers = asyncio.run(run())
    assert {reason for _, reason in answers} == {"length"}

    def as_float(values):  # JSON holds the shortest digits that give the float again
        return [struct.pack("f", value) for value in values]

    wrong = [
        i
        for i, (logprobs, _) in enumerate(answers)
        if as_float(logprobs) != as_float(alone[i % len(PROMPTS)][1])
    ]
    assert wrong == []
    wait_for_value(lambda: completed(server), before + STREAMS)
