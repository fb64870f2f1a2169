"""The asyncio client: the same methods as the blocking one, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional

import grpc
import grpc.aio

from mneme.calls import (
    DEFAULT_TARGET,
    ClientBase,
    ReadyWait,
    Request,
    SessionBase,
    StreamBase,
    delay_or_raise,
    first_text,
    once,
    start,
)
from mneme.channel import ChannelOptions, Methods, channel_options, key_metadata
from mneme.errors import ClientClosed, MnemeError, error_from_call
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
    classifications_of,
    imported_session_of,
    info_of,
    session_info_of,
    session_page_of,
    tokens_of,
)
from mneme.requests import (
    ChatOptions,
    Document,
    Duration,
    GenerateOptions,
    Messages,
    Place,
    Prompt,
    RequestOptions,
    chat_request,
    classify_request,
    create_session_request,
    detokenize_request,
    fork_session_request,
    generate_request,
    list_sessions_request,
    rewind_session_request,
    tokenize_request,
)
from mneme.retry import RetryPolicy
from mneme.rpc import HealthCheckRequest
from mneme.session_file import FileContents, FilePath, Incoming, NewFile, import_requests
from mneme.types import (
    Checkpoint,
    Classification,
    Completion,
    Event,
    Finished,
    ImportedSession,
    Info,
    ServingStatus,
    SessionInfo,
    SessionPage,
    SessionUsage,
    Tokens,
)
from mneme.v1 import inference_pb2, sessions_pb2

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["AsyncClient", "AsyncSession", "AsyncSessions", "AsyncStream"]


class AsyncStream(StreamBase):
    """The events of one request, as they arrive.

    Iterate over it; leaving the loop early, or cancelling the task, cancels the request.
    `anext()` takes single events instead, `texts()` only the first choice's text, and `result()`
    waits for the rest.
    """

    def texts(self) -> AsyncIterator[str]:
        """The first choice's text, piece by piece."""
        return _Texts(self)

    async def result(self) -> Completion:
        """Waits for the end; returns all that arrived, earlier events included."""
        try:
            async for _ in self:
                pass
        except MnemeError as error:
            error.choices = self._collector.choices()
            raise
        return self._collector.completion()

    def __aiter__(self) -> AsyncIterator[Event]:
        return _Events(self)

    async def __anext__(self) -> Event:
        while not self._pending:
            if self._is_over():
                raise StopAsyncIteration
            try:
                response = await self._call.read()
            except grpc.RpcError as rpc_error:
                await asyncio.sleep(self._delay_after(rpc_error))
                self._reopen()
                continue
            except asyncio.CancelledError:
                if self._cancelled:  # by cancel(), from another task; this one is to live on
                    continue
                self.cancel()
                raise
            if response is grpc.aio.EOF:
                self._done = True
                raise StopAsyncIteration
            self._receive(response)
        return self._take()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        if not getattr(self, "_done", True):
            with suppress(RuntimeError):  # The event loop may be closed.
                self.cancel()


class _Events:
    """Cancels its stream when a loop lets go of it.

    Not an asynchronous generator, because the event loop closes those some time later.
    """

    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return await self._stream.__anext__()

    def __del__(self) -> None:
        self._stream.__del__()


class _Texts(_Events):
    """The same for the first choice's text."""

    async def __anext__(self) -> str:  # type: ignore[override]
        while True:
            if text := first_text(await self._stream.__anext__()):
                return text


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
        """What its memory holds, for models whose memory consists of engrams."""
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
        from as it recalls, of a model that draws at random (Memoria). `durability`: "turn" or "none",
        where the server stores sessions; not given, what its --durability says. `replace_lost`: a
        new one will do where the server lost a session of that name."""
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
        """What all sessions of the caller's key are and take, and what they may."""
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
        """What `export_file` writes."""
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
        """What the session's memory holds: a summary, and the views that are given.

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


class AsyncClient(ClientBase):
    """A connection to a Mneme server, for the tasks of one event loop."""

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        api_key: Optional[str] = None,
        credentials: Optional[grpc.ChannelCredentials] = None,
        options: Optional[ChannelOptions] = None,
        timeout: Optional[float] = None,
        retry: Optional[RetryPolicy] = RetryPolicy(),  # noqa: B008 (it is immutable)
    ) -> None:
        """Connects with the first call.

        `api_key`: sent with every call; None: the key of the variable MNEME_API_KEY, if it is set.
        `credentials`: for TLS, see `tls_credentials`. `options`: channel options of gRPC.
        `timeout`: seconds for calls that do not give their own; None: no limit. `retry`: None
        switches repetitions off.
        """
        super().__init__(timeout, retry)
        self._target = target
        self._metadata = key_metadata(api_key)
        self._credentials = credentials
        self._options = channel_options(options)
        self._channel: Optional[grpc.aio.Channel] = None
        self._closed = False
        self.sessions = AsyncSessions(self)

    async def close(self) -> None:
        """Ends running calls and the connection; later calls raise ClientClosed."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        await self.close()

    async def generate(
        self,
        prompt: Prompt = None,
        *,
        session: Optional[str] = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """Feeds a prompt and returns the whole answer.

        With the name of a `session`, the prompt continues its conversation.
        """
        return await self._whole("generate", generate_request(prompt, session, options), options)

    def stream(
        self,
        prompt: Prompt = None,
        *,
        session: Optional[str] = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncStream:
        """Like `generate`, with the events as they arrive. Repeated only before the first one."""
        return self._stream("generate", generate_request(prompt, session, options), options)

    async def chat(
        self,
        messages: Messages,
        *,
        session: Optional[str] = None,
        **options: Unpack[ChatOptions],
    ) -> Completion:
        """Says something in a conversation and returns the answer.

        `messages` are dictionaries with "role" and "content"; a text by itself is the user's. The
        server writes them as the model's chat template has them. Without a `session` they are the
        whole conversation, with one what is new to it (unless `whole_conversation` says otherwise).
        """
        return await self._whole("chat", chat_request(messages, session, options), options)

    def stream_chat(
        self,
        messages: Messages,
        *,
        session: Optional[str] = None,
        **options: Unpack[ChatOptions],
    ) -> AsyncStream:
        """Like `chat`, with the events as they arrive. Repeated only before the first one."""
        return self._stream("chat", chat_request(messages, session, options), options)

    def session(
        self, name: str, *, exclusive: bool = False, must_exist: bool = False
    ) -> AsyncSession:
        """The conversation of that name; the first `chat` or `send` creates it.

        `exclusive`: notice when somebody else has used it in between. `must_exist`: never create
        it, and notice when it is gone. See AsyncSession.
        """
        return AsyncSession(self, name, exclusive=exclusive, must_exist=must_exist)

    async def classify(
        self,
        documents: Sequence[Document],
        *,
        priority: int = 0,
        add_special_tokens: Optional[bool] = None,
        parse_special: Optional[bool] = None,
    ) -> list[Classification]:
        """The class of each document, by a model that classifies.

        A document is a text, a pair of texts as a tuple, or token ids. It may be longer than a
        segment of the model where that has a memory (`ModelDescription.takes_long_documents`).

        `add_special_tokens`: whether [CLS], [SEP] and the like are put around texts; None: they are.
        """
        request = classify_request(documents, priority, add_special_tokens, parse_special)
        return classifications_of(await self._unary("classify", request))

    async def tokenize(
        self,
        text: str,
        *,
        text_pair: Optional[str] = None,
        add_special_tokens: Optional[bool] = None,
        parse_special: Optional[bool] = None,
        continuation: bool = False,
        with_pieces: bool = False,
    ) -> Tokens:
        """Text to token ids. `continuation`: as text that continues a session.

        `text_pair`: a second text, put together with the first as the model's tokenizer does it.

        `parse_special`: whether "</s>" and the like are the tokens they spell; None: they are.
        """
        request = tokenize_request(
            text, text_pair, add_special_tokens, parse_special, continuation, with_pieces
        )
        return tokens_of(await self._unary("tokenize", request))

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: Optional[bool] = None,
        continuation: bool = False,
    ) -> str:
        """Token ids to text."""
        request = detokenize_request(token_ids, skip_special_tokens, continuation)
        answer: inference_pb2.DetokenizeResponse = await self._unary("detokenize", request)
        return answer.text

    async def info(self) -> Info:
        """The model that is served, how many sessions fit, and what the engine is doing."""
        return info_of(await self._unary("get_info", inference_pb2.GetInfoRequest()))

    async def health(self, service: str = "") -> ServingStatus:
        """Whether the server takes work; the whole of it, or one of its services."""
        request = HealthCheckRequest(service=service)
        return ServingStatus((await self._unary("check_health", request)).status)

    async def wait_until_ready(self, timeout: float = 60.0) -> None:
        """Returns as soon as the server takes work; raises what stood in the way if it does not."""
        wait = ReadyWait(timeout)
        while True:
            error: Optional[grpc.RpcError] = None
            try:
                answer = await start(
                    self._methods.check_health,
                    wait.request,
                    timeout=wait.remaining(),
                    wait_for_ready=True,
                )
                if wait.is_ready(answer):
                    return
            except grpc.RpcError as rpc_error:
                error = rpc_error
            await asyncio.sleep(wait.pause(error))

    @cached_property
    def _methods(self) -> Methods:
        # Not in the constructor: a channel belongs to the event loop that runs when it is made.
        if self._closed:
            raise ClientClosed
        self._channel = (
            grpc.aio.insecure_channel(self._target, options=self._options)
            if self._credentials is None
            else grpc.aio.secure_channel(self._target, self._credentials, options=self._options)
        )
        return Methods(self._channel, self._metadata)

    async def _whole(self, method: str, request: Request, options: RequestOptions) -> Completion:
        attempts = self._prepare(request, options)
        call = getattr(self._methods, method)
        while True:
            try:
                return await AsyncStream(call, request, once(attempts)).result()
            except MnemeError as error:
                delay = attempts.delay_after(error)
                if delay is None:
                    raise
            await asyncio.sleep(delay)

    async def _export(self, name: str) -> AsyncIterator[bytes]:
        request = sessions_pb2.ExportSessionRequest(name=name)
        incoming = Incoming()
        call = start(self._methods.export_session, request, timeout=self._timeout)
        try:
            async for response in call:
                yield incoming.take(response)
        except grpc.RpcError as rpc_error:
            raise error_from_call(rpc_error) from rpc_error
        finally:
            call.cancel()
        incoming.finish()

    async def _import(
        self, requests: Iterator[sessions_pb2.ImportSessionRequest]
    ) -> sessions_pb2.ImportSessionResponse:
        try:
            answer: sessions_pb2.ImportSessionResponse = await start(
                self._methods.import_session, requests, timeout=self._timeout
            )
        except grpc.RpcError as rpc_error:
            raise error_from_call(rpc_error) from rpc_error
        return answer

    def _stream(
        self,
        method: str,
        request: Request,
        options: RequestOptions,
        on_finished: Optional[Callable[[Finished], None]] = None,
    ) -> AsyncStream:
        attempts = self._prepare(request, options)
        return AsyncStream(getattr(self._methods, method), request, attempts, on_finished)

    async def _unary(self, method: str, request: Any, *, repeatable: bool = True) -> Any:
        attempts = self._attempts(repeatable)
        call = getattr(self._methods, method)
        while True:
            try:
                return await start(call, request, timeout=attempts.begin())
            except grpc.RpcError as rpc_error:
                delay = delay_or_raise(attempts, rpc_error)
            await asyncio.sleep(delay)
