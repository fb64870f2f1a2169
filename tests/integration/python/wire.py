"""HTTP/1.1 on a bare socket, so that a client can stop anywhere: in a header, a body or a stream."""

import asyncio
import json
import socket
import struct
from typing import Any, AsyncIterator, Optional


class Answer:
    """Status, header and what came of the body."""

    def __init__(self, status: int, fields: dict[str, str]) -> None:
        self.status = status
        self.fields = fields
        self.body = b""

    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """One connection; requests follow each other on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, *, receive_buffer: int = 0) -> "Connection":
        """`receive_buffer`: bytes the kernel keeps for a reader who does not read; 0: as usual."""
        wire = socket.socket()
        wire.setblocking(False)
        if receive_buffer:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(wire, ("127.0.0.1", port))
            return cls(*await asyncio.open_connection(sock=wire, limit=1 << 20))
        except BaseException:
            wire.close()
            raise

    async def send(
        self, method: str, path: str, body: Optional[object] = None, **fields: str
    ) -> None:
        """`body`: bytes as they are, anything else as JSON. `fields`: "_" in a name stands for "-"."""
        data = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        head = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(data)}"]
        if body is not None:
            head.append("content-type: application/json")
        head += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
        self.writer.write("\r\n".join([*head, "", ""]).encode() + data)
        await self.writer.drain()

    async def head(self) -> Answer:
        """The answer's first line and header."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.split(":", 1) for line in lines[1:] if line)
        return Answer(
            int(lines[0].split(" ")[1]),
            {name.strip().lower(): value.strip() for name, value in pairs},
        )

    async def pieces(self, answer: Answer) -> AsyncIterator[bytes]:
        """The body as it comes."""
        if answer.fields.get("transfer-encoding") != "chunked":
            size = int(answer.fields.get("content-length", 0))
            if size:
                yield await self.reader.readexactly(size)
            return
        while True:
            size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
            piece = (await self.reader.readexactly(size + 2))[:-2]
            if not size:
                return
            yield piece

    async def answer(self) -> Answer:
        """The whole answer."""
        answer = await self.head()
        async for piece in self.pieces(answer):
            answer.body += piece
        return answer

    def close(self, *, reset: bool = False) -> None:
        """`reset`: without a word to the peer's application, as a process that was killed."""
        if reset:
            wire = self.writer.get_extra_info("socket")
            if wire is not None:
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
        else:
            self.writer.close()


async def ask(
    port: int, method: str, path: str, body: Optional[object] = None, **fields: str
) -> Answer:
    """One request on a connection of its own."""
    connection = await Connection.open(port)
    try:
        await connection.send(method, path, body, **fields)
        return await connection.answer()
    finally:
        connection.close()


def events(body: bytes) -> list[Any]:
    """The JSON of server-sent events, without the closing [DONE]."""
    lines = (line[6:] for line in body.split(b"\n") if line.startswith(b"data: "))
    return [json.loads(line) for line in lines if line != b"[DONE]"]
