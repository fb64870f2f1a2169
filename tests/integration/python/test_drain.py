"""SIGTERM under load: whatever was accepted is answered, whatever comes later is told to go elsewhere."""

import asyncio

import mneme
import pytest

from many import Gate, over_grpc, over_http, raise_file_limit
from waiting import wait_until
from wire import Connection

OPTIONS = {"max_tokens": 60, "ignore_eos": True}
WAITING = 20


async def occupy(client, count: int):
    """Streams that run until they are cancelled: the server cannot end before."""
    streams = [client.stream([1], max_tokens=100_000_000, ignore_eos=True) for _ in range(count)]
    for stream in streams:
        while not isinstance(await stream.__anext__(), mneme.Chunk):
            pass
    return streams


async def drains(client) -> bool:
    return await client.health() is mneme.ServingStatus.NOT_SERVING


async def refused(client, kept) -> None:
    """New work, over both protocols, on connections old and new."""
    with pytest.raises(mneme.Unavailable) as caught:
        await client.generate([1], max_tokens=1)
    assert caught.value.reason == "DRAINING"
    assert caught.value.retry_after > 0
    await kept.send("POST", "/v1/completions", {"prompt": [1], "max_tokens": 1})
    answer = await kept.answer()
    assert answer.status == 503, answer.body
    assert int(answer.fields["retry-after"]) > 0
    assert "shutting down" in answer.json()["error"]["message"]


def test_no_accepted_request_is_lost(start):
    raise_file_limit()
    server = start("--shutdown-timeout", "1h", "--stream-capacity", "4")
    streams = 60

    async def run():
        async with mneme.AsyncClient(server.target, api_key="", retry=None) as client:
            (busy,) = await occupy(client, 1)
            kept = await Connection.open(server.http_port)
            await kept.send("GET", "/health")
            assert (await kept.answer()).status == 200
            checked = asyncio.Event()

            async def drain():
                server.signal()
                await wait_until(lambda: drains(client), "the beginning of the end")
                await refused(client, kept)
                busy.cancel()
                checked.set()

            gate = Gate(2 * streams, then=drain)
            answers = await asyncio.gather(
                *(over_grpc(client, [i], gate, **OPTIONS) for i in range(streams)),
                *(over_http(server.http_port, [i], gate, **OPTIONS) for i in range(streams)),
            )
            assert checked.is_set()
            return answers

    answers = asyncio.run(run())
    assert server.wait() == 0, server.log[-2000:]
    for *_, logprobs, reason in answers:
        assert reason == "length"
        assert len(logprobs) == OPTIONS["max_tokens"]
    assert len(answers) == 2 * streams


def test_requests_in_the_queue_are_answered_too(start):
    server = start("--shutdown-timeout", "1h", "--stream-capacity", "4", "--max-sessions", "2")

    async def run():
        async with mneme.AsyncClient(server.target, api_key="", retry=None) as client:
            nobody = Gate(1)
            await nobody.wait()

            async def are_queued() -> bool:
                return (await client.info()).statistics.requests_waiting == WAITING

            running = await occupy(client, 2)
            queued = [
                asyncio.create_task(over_grpc(client, [i], nobody, **OPTIONS))
                if i % 2
                else asyncio.create_task(over_http(server.http_port, [i], nobody, **OPTIONS))
                for i in range(WAITING)
            ]
            await wait_until(are_queued, "those in the queue")
            server.signal()
            await wait_until(lambda: drains(client), "the beginning of the end")
            for stream in running:
                stream.cancel()
            return await asyncio.gather(*queued)

    answers = asyncio.run(run())
    assert server.wait() == 0, server.log[-2000:]
    assert len(answers) == WAITING
    assert {answer[-1] for answer in answers} == {"length"}
    assert "running=2" in server.log
    assert f"waiting={WAITING}" in server.log
