"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional

import grpc

from mneme.calls import (
    DEFAULT_TARGET,
    ClientBase,
    ReadyWait,
    Request,
    StreamBase,
    delay_or_raise,
    first_text,
    once,
    start,
)
from mneme.channel import ChannelOptions, Methods, channel_options, key_metadata
from mneme.errors import MnemeError, error_from_call
from mneme.messages import (
    classifications_of,
    info_of,
    tokens_of,
)
from mneme.requests import (
    ChatOptions,
    Document,
    GenerateOptions,
    Messages,
    Prompt,
    RequestOptions,
    chat_request,
    classify_request,
    detokenize_request,
    generate_request,
    tokenize_request,
)
from mneme.retry import RetryPolicy
from mneme.rpc import HealthCheckRequest
from mneme.session_file import Incoming
from mneme.sessions import Session, Sessions
from mneme.types import (
    Classification,
    Completion,
    Event,
    Finished,
    Info,
    ServingStatus,
    Tokens,
)
from mneme.v1 import inference_pb2, sessions_pb2

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["Client", "Stream"]


class Stream(StreamBase):
    """The events of one request, as they arrive.

    Iterate over it; leaving the loop early cancels the request. `next()` takes single events
    instead, `texts()` only the first choice's text, and `result()` waits for the rest.
    """

    def texts(self) -> Generator[str, None, None]:
        """The first choice's text, piece by piece."""
        for event in self:
            if text := first_text(event):
                yield text

    def result(self) -> Completion:
        """Waits for the end; returns all that arrived, earlier events included."""
        try:
            for _ in self:
                pass
        except MnemeError as error:
            error.choices = self._collector.choices()
            raise
        return self._collector.completion()

    def __iter__(self) -> Generator[Event, None, None]:
        # A generator, because leaving a `for` loop closes it at once.
        try:
            with suppress(StopIteration):
                while True:
                    yield next(self)
        finally:
            self.cancel()

    def __next__(self) -> Event:
        while not self._pending:
            if self._is_over():
                raise StopIteration
            try:
                response = next(self._call)
            except StopIteration:
                self._done = True
                raise
            except grpc.RpcError as rpc_error:
                time.sleep(self._delay_after(rpc_error))
                self._reopen()
                continue
            self._receive(response)
        return self._take()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        if not getattr(self, "_done", True):
            self.cancel()


class Client(ClientBase):
    """A connection to a Mneme server. Threads may share it."""

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
        metadata = key_metadata(api_key)
        settings = channel_options(options)
        self._channel: grpc.Channel = (
            grpc.insecure_channel(target, options=settings)
            if credentials is None
            else grpc.secure_channel(target, credentials, options=settings)
        )
        self._methods = Methods(self._channel, metadata)
        self.sessions = Sessions(self)

    def close(self) -> None:
        """Ends running calls and the connection; later calls raise ClientClosed."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def generate(
        self,
        prompt: Prompt = None,
        *,
        session: Optional[str] = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """Feeds a prompt and returns the whole answer.

        With the name of a `session`, the prompt continues its conversation.
        """
        return self._whole("generate", generate_request(prompt, session, options), options)

    def stream(
        self,
        prompt: Prompt = None,
        *,
        session: Optional[str] = None,
        **options: Unpack[GenerateOptions],
    ) -> Stream:
        """Like `generate`, with the events as they arrive. Repeated only before the first one."""
        return self._stream("generate", generate_request(prompt, session, options), options)

    def chat(
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
        return self._whole("chat", chat_request(messages, session, options), options)

    def stream_chat(
        self,
        messages: Messages,
        *,
        session: Optional[str] = None,
        **options: Unpack[ChatOptions],
    ) -> Stream:
        """Like `chat`, with the events as they arrive. Repeated only before the first one."""
        return self._stream("chat", chat_request(messages, session, options), options)

    def session(self, name: str, *, exclusive: bool = False, must_exist: bool = False) -> Session:
        """The conversation of that name; the first `chat` or `send` creates it.

        `exclusive`: notice when somebody else has used it in between. `must_exist`: never create
        it, and notice when it is gone. See Session.
        """
        return Session(self, name, exclusive=exclusive, must_exist=must_exist)

    def classify(
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

        `add_special_tokens`: whether [CLS], [SEP] and the like are put around texts (None: yes).
        """
        request = classify_request(documents, priority, add_special_tokens, parse_special)
        return classifications_of(self._unary("classify", request))

    def tokenize(
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
        return tokens_of(self._unary("tokenize", request))

    def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: Optional[bool] = None,
        continuation: bool = False,
    ) -> str:
        """Token ids to text."""
        request = detokenize_request(token_ids, skip_special_tokens, continuation)
        answer: inference_pb2.DetokenizeResponse = self._unary("detokenize", request)
        return answer.text

    def info(self) -> Info:
        """The model that is served, how many sessions fit, and what the engine is doing."""
        return info_of(self._unary("get_info", inference_pb2.GetInfoRequest()))

    def health(self, service: str = "") -> ServingStatus:
        """Whether the server takes work; the whole of it, or one of its services."""
        request = HealthCheckRequest(service=service)
        return ServingStatus(self._unary("check_health", request).status)

    def wait_until_ready(self, timeout: float = 60.0) -> None:
        """Returns as soon as the server takes work; raises what stood in the way if it does not."""
        wait = ReadyWait(timeout)
        while True:
            error: Optional[grpc.RpcError] = None
            try:
                answer = start(
                    self._methods.check_health,
                    wait.request,
                    timeout=wait.remaining(),
                    wait_for_ready=True,
                )
                if wait.is_ready(answer):
                    return
            except grpc.RpcError as rpc_error:
                error = rpc_error
            time.sleep(wait.pause(error))

    def _whole(self, method: str, request: Request, options: RequestOptions) -> Completion:
        attempts = self._prepare(request, options)
        call = getattr(self._methods, method)
        while True:
            try:
                return Stream(call, request, once(attempts)).result()
            except MnemeError as error:
                delay = attempts.delay_after(error)
                if delay is None:
                    raise
            time.sleep(delay)

    def _export(self, name: str) -> Iterator[bytes]:
        request = sessions_pb2.ExportSessionRequest(name=name)
        incoming = Incoming()
        call = start(self._methods.export_session, request, timeout=self._timeout)
        try:
            for response in call:
                yield incoming.take(response)
        except grpc.RpcError as rpc_error:
            raise error_from_call(rpc_error) from rpc_error
        finally:
            call.cancel()
        incoming.finish()

    def _import(
        self, requests: Iterator[sessions_pb2.ImportSessionRequest]
    ) -> sessions_pb2.ImportSessionResponse:
        try:
            answer: sessions_pb2.ImportSessionResponse = start(
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
    ) -> Stream:
        attempts = self._prepare(request, options)
        return Stream(getattr(self._methods, method), request, attempts, on_finished)

    def _unary(self, method: str, request: Any, *, repeatable: bool = True) -> Any:
        attempts = self._attempts(repeatable)
        call = getattr(self._methods, method)
        while True:
            try:
                return start(call, request, timeout=attempts.begin())
            except grpc.RpcError as rpc_error:
                delay = delay_or_raise(attempts, rpc_error)
            time.sleep(delay)
