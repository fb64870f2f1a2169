"""SIGTERM under load: whatever was accepted is answered, whatever comes later is told to go elsewhere."""

import asyncio

import mneme
import pytest

from many import Gate, over_grpc, over_http, raise_file_limit
from wire import Connection

OPTIONS = {"max_tokens": 60, "ignore_eos": True}
LONG = {"max_tokens": 1500, "ignore_eos": True}  # keeps the server busy while others are refused


async def refused(server, client, kept) -> None:
    """New work, over both protocols, on connections old and new."""
    while await client.health() is not mneme.ServingStatus.NOT_SERVING:
        await asyncio.sleep(0.005)
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
    server = start("--shutdown-timeout", "60s", "--stream-capacity", "4")
    streams = 60

    async def run():
        async with mneme.AsyncClient(server.target, api_key="", retry=None, timeout=60) as client:
            kept = await Connection.open(server.http_port)
            await kept.send("GET", "/health")
            assert (await kept.answer()).status == 200
            checked = asyncio.Event()

            async def drain():
                server.signal()
                await refused(server, client, kept)
                checked.set()

            gate = Gate(2 * streams + 2, then=drain)
            answers = await asyncio.gather(
                *(over_grpc(client, [i], gate, **OPTIONS) for i in range(streams)),
                over_grpc(client, [1], gate, **LONG),
                *(over_http(server.http_port, [i], gate, **OPTIONS) for i in range(streams)),
                over_http(server.http_port, [2], gate, **LONG),
            )
            assert checked.is_set()
            return answers

    answers = asyncio.run(run())
    assert server.wait() == 0, server.log[-2000:]
    for *_, logprobs, reason in answers:
        assert reason == "length"
        assert len(logprobs) in (OPTIONS["max_tokens"], LONG["max_tokens"])
    assert sum(len(logprobs) for *_, logprobs, _ in answers) == 2 * (streams * 60 + 1500)


def test_requests_in_the_queue_are_answered_too(start):
    server = start("--shutdown-timeout", "60s", "--stream-capacity", "4", "--max-sessions", "2")
    waiting = 20

    async def run():
        async with mneme.AsyncClient(server.target, api_key="", retry=None, timeout=60) as client:
            nobody = Gate(1)
            await nobody.wait()
            queued = []

            async def drain():
                # The two that run are held; these wait for their places.
                queued.extend(
                    asyncio.create_task(over_grpc(client, [i], nobody, **OPTIONS))
                    if i % 2
                    else asyncio.create_task(over_http(server.http_port, [i], nobody, **OPTIONS))
                    for i in range(waiting)
                )
                while (await client.info()).statistics.requests_waiting < waiting:
                    await asyncio.sleep(0.005)
                server.signal()
                while await client.health() is not mneme.ServingStatus.NOT_SERVING:
                    await asyncio.sleep(0.005)

            gate = Gate(2, then=drain)
            running = await asyncio.gather(
                over_grpc(client, [1], gate, **LONG),
                over_http(server.http_port, [2], gate, **LONG),
            )
            return running + list(await asyncio.gather(*queued))

    answers = asyncio.run(run())
    assert server.wait() == 0, server.log[-2000:]
    assert len(answers) == waiting + 2
    assert {answer[-1] for answer in answers} == {"length"}
    assert "running=2" in server.log
    assert f"waiting={waiting}" in server.log
