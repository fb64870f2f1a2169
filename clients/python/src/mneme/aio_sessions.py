"""Sessions of the asyncio client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Optional

from mneme.calls import SessionBase
from mneme.memory import (
    ContiguityView,
    EdgesView,
    EngramsView,
    ForgottenEngrams,
    HistogramView,
    MemoryReport,
    forget_segments_request,
    forgotten_engrams_of,
    inspect_memory_request,
    memory_report_of,
)
from mneme.messages import (
    checkpoint_of,
    imported_session_of,
    session_info_of,
    session_page_of,
)
from mneme.requests import (
    ChatOptions,
    Duration,
    GenerateOptions,
    Messages,
    Place,
    Prompt,
    chat_request,
    create_session_request,
    fork_session_request,
    generate_request,
    list_sessions_request,
    rewind_session_request,
)
from mneme.session_file import FileContents, FilePath, NewFile, import_requests
from mneme.types import (
    Checkpoint,
    Completion,
    ImportedSession,
    SessionInfo,
    SessionPage,
    SessionUsage,
)
from mneme.v1 import sessions_pb2

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from mneme.aio import AsyncClient, AsyncStream

__all__ = ["AsyncSession", "AsyncSessions"]


class AsyncSession(SessionBase):
    """A conversation that the server remembers under a name.

    Each `send` carries only what is new. With `exclusive`, a request says which position it
    expects wherever that is known (`position`), so that it is refused (PositionMismatch) if anybody
    else has used the session in between. Such a refusal is raised once: from then on the position
    is not known here (None), and the next request is accepted wherever the session stands. To stay
    strict, look at the error's `position` and pass `expected_position`, or call `info()`, which
    takes over the position that it finds.

    With `must_exist`, a session that has expired, was deleted or ended with the server raises
    SessionNotFound, rather than being begun anew without what it remembered.
    """

    def __init__(
        self, client: AsyncClient, name: str, *, exclusive: bool = False, must_exist: bool = False
    ) -> None:
        super().__init__(name, exclusive, must_exist)
        self._client = client

    async def chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> Completion:
        """Says something and returns the answer.

        `messages`: what is new; a text is the user's, as {"role": "user", "content": text} is. The
        server writes it in the way that the model was trained on, its chat template, behind what
        the session remembers.
        """
        expected = self._begin(options)
        completion = await self._client.chat(messages, session=self.name, **expected)
        self._follow(completion)
        return completion

    def stream_chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> AsyncStream:
        """Like `chat`, with the events as they arrive."""
        request = chat_request(messages, self.name, self._begin(options))
        return self._client._stream("chat", request, options, self._follow)

    async def send(self, prompt: Prompt = None, **options: Unpack[GenerateOptions]) -> Completion:
        """Feeds the new text (or none, to go on) as it is, and returns the answer.

        For models without a chat template, and for prompts of your own making.
        """
        expected = self._begin(options)
        completion = await self._client.generate(prompt, session=self.name, **expected)
        self._follow(completion)
        return completion

    def stream(self, prompt: Prompt = None, **options: Unpack[GenerateOptions]) -> AsyncStream:
        """Like `send`, with the events as they arrive."""
        request = generate_request(prompt, self.name, self._begin(options))
        return self._client._stream("generate", request, options, self._follow)

    async def fork(
        self, name: str = "", *, at: Optional[Place] = None, ttl: Optional[Duration] = None
    ) -> AsyncSession:
        """A second session that remembers the same; "": the server chooses its name.

        `at`: what this one remembered there, as `rewind` says.
        """
        copy = await self._client.sessions.fork(self.name, name, at=at, ttl=ttl)
        forked = AsyncSession(
            self._client, copy.name, exclusive=self._exclusive, must_exist=self._must_exist
        )
        forked.position = copy.position
        return forked

    async def checkpoint(self, name: str = "") -> Checkpoint:
        """Names the place where it stands; "": the server chooses the name."""
        return await self._client.sessions.create_checkpoint(self.name, name)

    async def checkpoints(self) -> tuple[Checkpoint, ...]:
        """All of its checkpoints, in order of names."""
        return await self._client.sessions.list_checkpoints(self.name)

    async def rewind(self, to: Place) -> SessionInfo:
        """Goes back: to a checkpoint, by its name, or to a position. What came later is gone."""
        info = await self._client.sessions.rewind(self.name, to)
        self.position = info.position
        return info

    async def delete(self) -> None:
        """Forgets the conversation."""
        await self._client.sessions.delete(self.name)
        self.position = None

    async def inspect_memory(
        self,
        *,
        engrams: Optional[EngramsView] = None,
        edges: Optional[EdgesView] = None,
        histogram: Optional[HistogramView] = None,
        contiguity: Optional[ContiguityView] = None,
    ) -> MemoryReport:
        """The contents of its memory, for models whose memory consists of engrams."""
        return await self._client.sessions.inspect_memory(
            self.name, engrams=engrams, edges=edges, histogram=histogram, contiguity=contiguity
        )

    async def forget_segments(self, first: int, end: int) -> ForgottenEngrams:
        """Deletes the engrams that were made of segments [first, end) of the conversation."""
        return await self._client.sessions.forget_segments(self.name, first, end)

    async def export_file(self, path: FilePath, *, overwrite: bool = False) -> int:
        """Writes it to a file, from which `client.sessions.import_file` makes a session."""
        return await self._client.sessions.export_file(self.name, path, overwrite=overwrite)

    async def info(self) -> SessionInfo:
        """How the server sees it."""
        info = await self._client.sessions.get(self.name)
        self.position = info.position
        return info


class AsyncSessions:
    """All named sessions that the server remembers."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(
        self,
        name: str = "",
        *,
        ttl: Optional[Duration] = None,
        memory_seed: Optional[int] = None,
        durability: Optional[str] = None,
        replace_lost: bool = False,
    ) -> SessionInfo:
        """Takes a place for a session; "": the server chooses a name. `memory_seed`: what it draws
        from as it recalls, of a model that draws at random (Memoria). `durability`: "turn" or
        "none", where the server stores sessions; not given, what its --durability says.
        `replace_lost`: a new one will do where the server lost a session of that name."""
        request = create_session_request(name, ttl, memory_seed, durability, replace_lost)
        return session_info_of(
            await self._client._unary("create_session", request, repeatable=False)
        )

    async def get(self, name: str) -> SessionInfo:
        """One session."""
        request = sessions_pb2.GetSessionRequest(name=name)
        return session_info_of(await self._client._unary("get_session", request))

    async def list(self, prefix: str = "", *, page_size: int = 0) -> AsyncIterator[SessionInfo]:
        """All sessions whose names begin with `prefix`, in order of names."""
        token = ""
        while True:
            page = await self.list_page(prefix, page_size=page_size, page_token=token)
            for session in page.sessions:
                yield session
            token = page.next_page_token
            if not token:
                return

    async def list_page(
        self, prefix: str = "", *, page_size: int = 0, page_token: str = ""
    ) -> SessionPage:
        """One page of that list."""
        request = list_sessions_request(prefix, page_size, page_token)
        return session_page_of(await self._client._unary("list_sessions", request))

    async def usage(self) -> SessionUsage:
        """The number and bytes of all sessions of the caller's key, and their limits."""
        return (await self.list_page(page_size=1)).usage

    async def fork(
        self,
        source: str,
        target: str = "",
        *,
        at: Optional[Place] = None,
        ttl: Optional[Duration] = None,
    ) -> SessionInfo:
        """Copies a session; "": the server chooses the copy's name.

        `at`: as it was there, as `rewind` says.
        """
        request = fork_session_request(source, target, ttl, at)
        return session_info_of(await self._client._unary("fork_session", request, repeatable=False))

    async def rewind(self, name: str, to: Place) -> SessionInfo:
        """Takes a session of a server that stores them back to where it was.

        `to`: the name of a checkpoint, or a position, that is, how many tokens of the conversation
        stay. What came later is gone. Where the session stood there at the end of a request, it is
        what it was then, and its last token may be pending (`SessionInfo.has_pending_token`):
        an empty prompt goes on from there. Elsewhere all of these tokens have been fed.
        """
        request = rewind_session_request(name, to)
        return session_info_of(
            await self._client._unary("rewind_session", request, repeatable=False)
        )

    async def create_checkpoint(self, session: str, name: str = "") -> Checkpoint:
        """Names the place where a session stands; "": the server chooses the name."""
        request = sessions_pb2.CreateCheckpointRequest(session=session, name=name)
        return checkpoint_of(
            await self._client._unary("create_checkpoint", request, repeatable=False)
        )

    async def list_checkpoints(self, session: str) -> tuple[Checkpoint, ...]:
        """All checkpoints of a session, in order of names."""
        request = sessions_pb2.ListCheckpointsRequest(session=session)
        response = await self._client._unary("list_checkpoints", request)
        return tuple(checkpoint_of(m) for m in response.checkpoints)

    async def delete_checkpoint(self, session: str, name: str) -> None:
        """Forgets a checkpoint; its position can be gone back to still, while the log has it."""
        request = sessions_pb2.DeleteCheckpointRequest(session=session, name=name)
        await self._client._unary("delete_checkpoint", request, repeatable=False)

    async def delete(self, name: str) -> None:
        """Forgets a session."""
        request = sessions_pb2.DeleteSessionRequest(name=name)
        await self._client._unary("delete_session", request, repeatable=False)

    async def export_file(self, name: str, path: FilePath, *, overwrite: bool = False) -> int:
        """Writes the session to a file, from which another server may go on; returns its size.

        The file holds the memory of the conversation in clear. It is a safetensors file, written
        whole or not at all, for its owner alone to read; FileExistsError if there is one already,
        unless `overwrite`.
        """
        file = NewFile(path, overwrite)
        try:
            async for piece in self._client._export(name):
                file.write(piece)
            return file.finish()
        finally:
            file.close()

    async def export_bytes(self, name: str) -> bytes:
        """The bytes that `export_file` writes."""
        return b"".join([piece async for piece in self._client._export(name)])

    async def import_file(
        self, file: FileContents, name: str = "", *, ttl: Optional[Duration] = None
    ) -> ImportedSession:
        """Makes a session of a file, here or elsewhere; "": the server chooses its name.

        `file`: the path of a file that `export_file` wrote, or its bytes. The model has to be the
        same; device and state dtype need not be.
        """
        return imported_session_of(await self._client._import(import_requests(file, name, ttl)))

    async def inspect_memory(
        self,
        name: str,
        *,
        engrams: Optional[EngramsView] = None,
        edges: Optional[EdgesView] = None,
        histogram: Optional[HistogramView] = None,
        contiguity: Optional[ContiguityView] = None,
    ) -> MemoryReport:
        """The contents of the session's memory: a summary, and the views that are given.

        For models whose memory consists of engrams; of others, and while a request uses the
        session, it raises an error.
        """
        request = inspect_memory_request(name, engrams, edges, histogram, contiguity)
        return memory_report_of(await self._client._unary("inspect_memory", request))

    async def forget_segments(self, name: str, first: int, end: int) -> ForgottenEngrams:
        """Deletes the engrams that were made of segments [first, end) of the conversation."""
        request = forget_segments_request(name, first, end)
        return forgotten_engrams_of(
            await self._client._unary("forget_segments", request, repeatable=False)
        )
