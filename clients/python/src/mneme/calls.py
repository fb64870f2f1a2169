"""The common part of the blocking and the asyncio client: all but the waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Optional, TypeVar, Union, cast

import grpc
import grpc.aio

from mneme.collect import Collector
from mneme.errors import Cancelled, ClientClosed, error_from_call, invalid_field
from mneme.messages import events_of
from mneme.requests import RequestOptions, make_repeatable
from mneme.retry import Attempts, RetryPolicy
from mneme.rpc import HealthCheckRequest
from mneme.types import Chunk, Completion, Event, Finished, ServingStatus, Started
from mneme.v1 import inference_pb2

DEFAULT_TARGET = "127.0.0.1:50051"

Request = Union[inference_pb2.GenerateRequest, inference_pb2.ChatRequest]
Options = TypeVar("Options", bound=RequestOptions)


def first_text(event: Event) -> str:
    """The text that the event adds to the first choice."""
    if isinstance(event, Chunk) and not (event.choice or event.is_prompt):
        return event.text
    return ""


def start(method: Any, request: Any, **settings: Any) -> Any:
    """Makes the call, or begins it where that does not wait."""
    try:
        return method(request, **settings)
    except (ValueError, grpc.aio.UsageError) as error:  # what closed channels raise
        raise ClientClosed from error


def delay_or_raise(attempts: Attempts, rpc_error: grpc.RpcError) -> float:
    """Seconds to wait before the next try; raises the error if there is to be none."""
    error = error_from_call(rpc_error)
    delay = attempts.delay_after(error)
    if delay is None:
        raise error from rpc_error
    return delay


class StreamBase:
    """A request's events, less how they are waited for."""

    def __init__(
        self,
        method: Any,
        request: Request,
        attempts: Attempts,
        on_finished: Optional[Callable[[Finished], None]] = None,
    ) -> None:
        self._method = method
        self._request = request
        self._attempts = attempts
        self._on_finished = on_finished
        self._collector = Collector()
        self._pending: list[Event] = []
        self._received = False
        self._cancelled = False
        self._call: Any = None
        self._done = True  # until it has begun
        self._open()

    @property
    def started(self) -> Optional[Started]:
        """The first event, once it has arrived."""
        return self._collector.started

    @property
    def finished(self) -> Optional[Finished]:
        """The last event, once it has arrived."""
        return self._collector.finished

    def cancel(self) -> None:
        """Ends the request; reading on raises Cancelled.

        The session then holds exactly the tokens fed until now.
        """
        if not self._done:
            self._done = self._cancelled = True
            self._call.cancel()

    def _open(self) -> None:
        self._done = True
        self._call = start(self._method, self._request, timeout=self._attempts.begin())
        self._done = False

    def _is_over(self) -> bool:
        if self._cancelled:
            raise Cancelled("the stream was cancelled")
        return self._done

    def _delay_after(self, rpc_error: grpc.RpcError) -> float:
        """Seconds to wait before `_reopen`; raises the error if the request is not repeated."""
        try:
            if self._received or self._done:
                raise error_from_call(rpc_error) from rpc_error
            return delay_or_raise(self._attempts, rpc_error)
        except BaseException:
            self._done = True
            raise

    def _reopen(self) -> None:
        if not self._cancelled:
            self._open()

    def _receive(self, response: inference_pb2.GenerateResponse) -> None:
        self._received = True
        self._pending = events_of(response)

    def _take(self) -> Event:
        """The next event that has arrived."""
        event = self._pending.pop(0)
        self._collector.add(event)
        if isinstance(event, Finished) and self._on_finished is not None:
            self._on_finished(event)
        return event


class SessionBase:
    """A named session's position, as far as it is known here."""

    def __init__(self, name: str, exclusive: bool, must_exist: bool) -> None:
        self._exclusive = exclusive
        self._must_exist = must_exist
        self.name = name
        self.position: Optional[int] = None
        """Tokens of the conversation; None: not known yet, or not any more."""

    def _begin(self, options: Options) -> Options:
        """Options for the next request; until it has ended the position is not known."""
        position, self.position = self.position, None
        given: dict[str, Any] = dict(options)
        if self._exclusive and position is not None:
            given.setdefault("expected_position", position)
        if self._must_exist:
            given.setdefault("must_exist", True)
        return cast(Options, given)

    def _follow(self, end: Union[Completion, Finished]) -> None:
        self.position = end.session.position if end.session else None


class ClientBase:
    """The settings of a client for timeouts and repetitions."""

    def __init__(self, timeout: Optional[float], retry: Optional[RetryPolicy]) -> None:
        self._timeout = timeout
        self._retry = retry

    def _prepare(self, request: Request, options: RequestOptions) -> Attempts:
        """The tries of `request`, which is made such that they do no harm."""
        retry = options.get("retry", self._retry)
        if not isinstance(retry, (RetryPolicy, type(None))):
            raise invalid_field("retry", f"{retry!r}, expected a RetryPolicy or None")
        if retry is not None:
            make_repeatable(request)
        timeout = options.get("timeout")
        if timeout is not None and not (isinstance(timeout, (int, float)) and timeout >= 0):
            raise invalid_field("timeout", f"{timeout!r}, expected seconds from 0 on")
        timeout = self._timeout if timeout is None else timeout
        return Attempts(retry, timeout, repeatable=True)

    def _attempts(self, repeatable: bool) -> Attempts:
        return Attempts(self._retry, self._timeout, repeatable=repeatable)


def once(attempts: Attempts) -> Attempts:
    """One try of a call that repeats whole answers, not openings of a stream."""
    return Attempts(RetryPolicy(max_attempts=1), attempts.begin(), repeatable=False)


class ReadyWait:
    """Health checks until the server takes work, or time is up."""

    request = HealthCheckRequest()

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._checked = False
        self._obstacle: Optional[grpc.RpcError] = None

    def remaining(self) -> float:
        """Seconds for the next check."""
        return max(0.0, self._deadline - time.monotonic())

    @staticmethod
    def is_ready(answer: Any) -> bool:
        """Whether the answer ends the wait."""
        return bool(answer.status == ServingStatus.SERVING.value)

    def pause(self, rpc_error: Optional[grpc.RpcError]) -> float:
        """Seconds before the next check; raises what stood in the way if time is up."""
        # The last check is cut short by the end of the wait; an earlier one says more.
        if not self._checked or not _is_timeout(rpc_error):
            self._obstacle = rpc_error
        self._checked = True
        remaining = self.remaining()
        if remaining > 0:
            return min(0.05, remaining)
        if self._obstacle is not None:
            raise error_from_call(self._obstacle) from self._obstacle
        raise TimeoutError(f"the server is not ready after {self._timeout} s")


def _is_timeout(rpc_error: Optional[grpc.RpcError]) -> bool:
    return rpc_error is not None and rpc_error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
