"""A scripted server: says what a test tells it to, and records what it was asked."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent import futures
from typing import Any, Callable, Optional

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from mneme.v1 import inference_pb2 as pb
from mneme.v1 import sessions_pb2

from generic_service import add_service


def fail(
    context: Any,
    code: grpc.StatusCode,
    message: str,
    reason: str = "",
    metadata: Optional[dict[str, str]] = None,
    fields: tuple[tuple[str, str], ...] = (),
    retry_ms: Optional[int] = None,
) -> None:
    """Ends a call with a status whose details are those of the real server."""
    status = status_pb2.Status(code=code.value[0], message=message)

    def add(detail: Any) -> None:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)

    if reason:
        info = error_details_pb2.ErrorInfo(domain="mneme", reason=reason)
        info.metadata.update(metadata or {})
        add(info)
    if fields:
        bad = error_details_pb2.BadRequest()
        for field, description in fields:
            bad.field_violations.add(field=field, description=description)
        add(bad)
    if retry_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(retry_ms)
        add(error_details_pb2.RetryInfo(retry_delay=delay))
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, message)


def answer(text: str, position: int = 0, name: str = "", **finished: Any) -> list[Any]:
    """The messages of an ordinary answer, a word each."""
    messages: list[Any] = [pb.GenerateResponse(started=pb.Started(request_id="r1", seed=7))]
    words = text.split(" ")
    for i, word in enumerate(words):
        output = pb.Output(text=word if i == 0 else " " + word, token_ids=[100 + i])
        if i + 1 == len(words):
            output.finish_reason = pb.FINISH_REASON_LENGTH
        messages.append(pb.GenerateResponse(outputs=[output]))
    messages[-1].finished.MergeFrom(
        pb.Finished(usage=pb.Usage(completion_tokens=len(words)), seed=7, **finished)
    )
    if name:
        messages[-1].finished.session.MergeFrom(
            pb.SessionState(name=name, position=position, has_pending_token=True)
        )
    return messages


Step = Callable[[Any, Any], Any]
"""The server's part in a call: (request, context) -> answer."""


class FakeServer:
    """Answers call after call from `script`."""

    def __init__(self) -> None:
        self.script: deque[Step] = deque()
        self.requests: list[Any] = []
        self.times_left: list[Optional[float]] = []
        self.called = threading.Event()
        self.cancelled = threading.Event()
        self.health = health.HealthServicer()
        self.health.set("", health_pb2.HealthCheckResponse.SERVING)
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        add_service(self._server, self, pb, "Inference")
        add_service(self._server, self, sessions_pb2, "Sessions")
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()

    def says(self, messages: Any) -> None:
        """The next call gets these messages, or this one."""
        self.script.append(lambda request, context: messages)

    def fails(self, *args: Any, **kwargs: Any) -> None:
        """The next call fails."""
        self.script.append(lambda request, context: fail(context, *args, **kwargs))

    def says_and_fails(self, messages: list[Any], *args: Any, **kwargs: Any) -> None:
        """The next call gets these messages, then fails."""

        def step(request: Any, context: Any) -> Any:
            yield from messages
            fail(context, *args, **kwargs)

        self.script.append(step)

    def babbles(self) -> None:
        """The next call gets a word every few milliseconds until it is cancelled."""

        def step(request: Any, context: Any) -> Any:
            if not context.add_callback(self.cancelled.set):
                self.cancelled.set()  # the call has ended already
            yield answer("x")[0]
            while context.is_active():
                yield pb.GenerateResponse(outputs=[pb.Output(text="bla ", token_ids=[1])])
                time.sleep(0.005)

        self.script.append(step)

    def _next(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        self.times_left.append(context.time_remaining())
        self.called.set()
        return self.script.popleft()(request, context)

    def Generate(self, request: Any, context: Any) -> Any:
        yield from self._next(request, context)

    Chat = Export = Generate

    def Import(self, requests: Any, context: Any) -> Any:
        return self._next(list(requests), context)

    Classify = Tokenize = Detokenize = GetInfo = _next
    Create = Get = List = Fork = Delete = InspectMemory = ForgetSegments = _next
    Rewind = CreateCheckpoint = ListCheckpoints = DeleteCheckpoint = _next


def session(name: str, position: int = 0, ttl_ms: int = -1, **more: Any) -> sessions_pb2.Session:
    return sessions_pb2.Session(
        name=name, position=position, ttl_ms=ttl_ms, state_bytes=1024, **more
    )
