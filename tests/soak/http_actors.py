"""Clients over HTTP, and strangers at both ports."""

import asyncio

from grpc_actors import GrpcActors
from wire import Answer, Connection, ask, events

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


class HttpActors:
    """Each method is one round of something."""

    def __init__(self, port: int, grpc_port: int, keys: dict[str, str], grpc: GrpcActors) -> None:
        self.port = port
        self._grpc_port = grpc_port
        self._keys = keys
        self._grpc = grpc  # deletes sessions
        self.ledger = grpc.ledger
        self.random = grpc.random

    def fields(self, request: str, who: str = "") -> dict[str, str]:
        key = self._keys[who or self.random.choice(["alice", "bob"])]
        return {"authorization": f"Bearer {key}", "x_request_id": request}

    def note(self, request: str, route: str, answer: Answer, tokens: int) -> bool:
        """Whether the answer is there; false if there was no room for it."""
        self.ledger.http[(route, str(answer.status))] += 1
        if answer.status == 429:
            self.refused(request)
            self.ledger.check("retry-after" in answer.fields, f"{request}: 429 without a hint")
            return False
        self.ledger.check(answer.status == 200, f"{request}: {answer.status} {answer.body[:200]!r}")
        self.ledger.expect(request, "completed", tokens=tokens)
        return answer.status == 200

    def refused(self, request: str) -> None:
        self.ledger.expect(request, "rejected")

    async def complete(self) -> None:
        """Several requests on one connection, whole and streamed, going on in a session."""
        connection = await Connection.open(self.port)
        name, position = f"http-{self.ledger.new_id()}", 0
        who = self.random.choice(["alice", "bob"])
        for turn in range(self.random.randint(1, 4)):
            request, length = self.ledger.new_id(), self.random.randint(1, 20)
            body = {"prompt": [turn + 1, 2, 3], "max_tokens": length, "ignore_eos": True}
            body |= {"session_id": name, "expected_position": position}
            body |= {"stream": True, "stream_options": {"include_usage": True}} if turn % 2 else {}
            await connection.send("POST", COMPLETIONS, body, **self.fields(request, who))
            answer = await connection.answer()
            if not self.note(request, COMPLETIONS, answer, length):
                break
            last = events(answer.body)[-1] if turn % 2 else answer.json()
            usage = last["usage"]
            self.ledger.check(usage["completion_tokens"] == length, f"{request}: {usage}")
            position = last["session"]["position"]
        connection.close()
        await self._grpc.delete_when_idle(self._grpc.clients[who], name)

    async def look_around(self) -> None:
        for path in ("/health", "/v1/models", "/version", "/metrics", "/tokenizer_info"):
            answer = await ask(self.port, "GET", path, **self.fields(self.ledger.new_id()))
            self.ledger.http[(path, str(answer.status))] += 1
            self.ledger.check(answer.status == 200, f"{path}: {answer.status}")
        body = {"prompt": "abc"}
        answer = await ask(self.port, "POST", "/tokenize", body, **self.fields("soak-tokenize"))
        self.ledger.http[("/tokenize", str(answer.status))] += 1
        self.ledger.check(answer.json()["tokens"] == [97, 98, 99], f"{answer.body!r}")

    async def vanish(self) -> None:
        """In the middle of a stream, or while the answer is made."""
        request = self.ledger.new_id()
        stream = self.random.random() < 0.7
        body = {"prompt": [1], "max_tokens": 1_000_000, "ignore_eos": True, "stream": stream}
        connection = await Connection.open(self.port)
        await connection.send("POST", COMPLETIONS, body, **self.fields(request))
        if stream:
            await connection.reader.read(self.random.choice([1, 400, 20000]))
        else:
            await asyncio.sleep(self.random.random() * 0.05)
        connection.close(reset=self.random.random() < 0.5)
        self.ledger.http_abandoned[COMPLETIONS] += 1
        self.ledger.expect(request, "cancelled", "rejected", is_logged=False)

    async def read_slowly(self) -> None:
        """With so little room that the server has to wait."""
        request = self.ledger.new_id()
        body = {"prompt": [1], "max_tokens": 700, "ignore_eos": True, "stream": True, "logprobs": 2}
        connection = await Connection.open(self.port, receive_buffer=4096)
        await connection.send("POST", COMPLETIONS, body, **self.fields(request))
        answer = await connection.head()
        await asyncio.sleep(1)
        async for piece in connection.pieces(answer):
            answer.body += piece
        if self.note(request, COMPLETIONS, answer, 700):
            chunks = [e["choices"][0]["logprobs"] for e in events(answer.body) if e["choices"]]
            tokens = sum(len(c["token_logprobs"]) for c in chunks if c)
            self.ledger.check(tokens == 700, f"{request}: {tokens} of 700 tokens")
        connection.close()

    async def run_out_of_time(self) -> None:
        request = self.ledger.new_id()
        body = {"prompt": [1], "max_tokens": 1_000_000, "ignore_eos": True}
        answer = await ask(
            *(self.port, "POST", COMPLETIONS, body),
            **self.fields(request),
            x_request_timeout_ms="50",
        )
        self.ledger.http[(COMPLETIONS, str(answer.status))] += 1
        self.ledger.check(answer.status in (408, 429), f"{request}: {answer.status}")
        if answer.status == 429:
            self.refused(request)
        else:
            self.ledger.expect(request, "deadline")

    async def ask_wrongly(self) -> None:
        post = ("POST", COMPLETIONS)
        cases = [
            (*post, b"{", 400),
            (*post, b'{"prompt": "\xff"}', 400),
            (*post, [], 400),
            (*post, {}, 400),
            (*post, {"prompt": [1], "temperature": -1}, 400),
            (*post, {"prompt": [256]}, 400),
            (*post, {"prompt": [1], "tools": [1]}, 400),
            (*post, {"prompt": [1], "max_tokens": "many"}, 400),
            (*post, {"prompt": [1], "model": "another"}, 404),
            (*post, {"prompt": [1], "session_id": "none", "create_session": False}, 404),
            (*post, {"prompt": [1], "session_id": "not a name"}, 400),
            ("POST", CHAT, {"messages": [{"role": "user", "content": "hello"}]}, 412),
            ("POST", CHAT, {"messages": 7}, 400),
        ]
        for method, path, body, status in cases:
            request = self.ledger.new_id()
            answer = await ask(self.port, method, path, body, **self.fields(request))
            self.ledger.http[(path, str(answer.status))] += 1
            self.refused(request)
            self.ledger.check(
                answer.status in (status, 429) and "message" in answer.json()["error"],
                f"{path} {body}: {answer.status} {answer.body[:200]!r}",
            )
        for method, path, status in (("GET", "/nowhere", 404), ("GET", COMPLETIONS, 405)):
            answer = await ask(self.port, method, path, **self.fields(self.ledger.new_id()))
            self.ledger.check(answer.status == status, f"{method} {path}: {answer.status}")
        answer = await ask(self.port, *post, {"prompt": [1]}, authorization="Bearer nobody")
        self.ledger.http[(COMPLETIONS, str(answer.status))] += 1
        self.ledger.check(answer.status == 401, f"a stranger gets {answer.status}")

    async def half_requests(self) -> None:
        """Bytes that never become a request, on either port; some are closed, some left open."""
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
        garbage = bytes(self.random.randrange(256) for _ in range(300))
        for port, text in (
            (self.port, b""),
            (self.port, head),
            (self.port, head + b"content-length: 1000\r\n\r\n{"),
            (self.port, head + b"transfer-encoding: chunked\r\n\r\n5\r\nab"),
            (self.port, head + b"content-length: -1\r\n\r\n"),
            (self.port, garbage),
            (self._grpc_port, b""),
            (self._grpc_port, b"PRI * HTTP/2.0\r\n"),
            (self._grpc_port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"),
            (self._grpc_port, garbage),
        ):
            connection = await Connection.open(port)
            if text.startswith(head) and port == self.port:  # the server may answer, or give up
                self.ledger.http_abandoned[COMPLETIONS] += 1
            try:
                connection.writer.write(text)
                await connection.writer.drain()
                if self.random.random() < 0.3:  # until the server has enough of it
                    await asyncio.wait_for(connection.reader.read(), 3)
            except (ConnectionError, asyncio.TimeoutError):
                pass
            connection.close(reset=self.random.random() < 0.5)
