"""Streams by the hundred, over both protocols, that can be held in the middle."""

import asyncio
import resource

import mneme

from wire import Connection, events


def raise_file_limit() -> None:
    """A stream over HTTP is a connection is a file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Gate:
    """Opens once `count` streams have made a token and `then` has run."""

    def __init__(self, count: int, then=None) -> None:
        self._missing = count
        self._then = then
        self._open = asyncio.Event()

    async def wait(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            if self._then is not None:
                await self._then()
            self._open.set()
        await self._open.wait()


async def over_grpc(client: mneme.AsyncClient, prompt, gate: Gate, **options):
    """Token ids, their log-probabilities and the reason of the end."""
    tokens, logprobs, reason = [], [], None
    async for event in client.stream(prompt, logprobs=0, **options):
        if not isinstance(event, mneme.Chunk):
            continue
        if event.token_ids and not tokens:
            await gate.wait()
        tokens += event.token_ids
        logprobs += [entry.logprob for entry in event.logprobs]
        reason = event.finish_reason or reason
    return tokens, logprobs, reason.name.lower()


async def over_http(port: int, prompt, gate: Gate, *, places=None, **options):
    """The same; token ids from what the server calls them. `places` limits connecting at once."""
    body = {
        "prompt": prompt,
        "stream": True,
        "logprobs": 0,
        "stream_options": {"include_usage": True},
    }
    async with places or asyncio.Semaphore():
        connection = await Connection.open(port)
    try:
        await connection.send("POST", "/v1/completions", body | options)
        answer = await connection.head()
        assert answer.status == 200, await connection.reader.read(1000)
        async for piece in connection.pieces(answer):
            if not answer.body:
                await gate.wait()
            answer.body += piece
    finally:
        connection.close()
    assert answer.body.endswith(b"data: [DONE]\n\n"), answer.body[-300:]
    logprobs, reason, completion_tokens = [], None, 0
    for event in events(answer.body):
        assert "error" not in event, event
        for choice in event["choices"]:
            logprobs += (choice["logprobs"] or {}).get("token_logprobs", [])
            reason = choice["finish_reason"] or reason
        if event.get("usage"):
            completion_tokens = event["usage"]["completion_tokens"]
    assert completion_tokens == len(logprobs)
    return logprobs, reason
