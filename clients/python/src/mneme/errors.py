"""All that can go wrong, as exceptions.

Every call of the clients raises a `MnemeError`, or a subclass that says more, when the server
refuses or the connection fails. The details come from the `google.rpc.Status` that the server puts
into the trailing metadata of a failed call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

import grpc

from mneme.rpc import BadRequest, ErrorInfo, RetryInfo, Status

if TYPE_CHECKING:
    from mneme.types import Choice

__all__ = [
    "Aborted",
    "AlreadyExists",
    "Cancelled",
    "ClientClosed",
    "DataLoss",
    "DeadlineExceeded",
    "FailedPrecondition",
    "FieldViolation",
    "HistoryMismatch",
    "InternalError",
    "InvalidArgument",
    "MnemeError",
    "NoChatTemplate",
    "NotFound",
    "Overloaded",
    "PermissionDenied",
    "PositionMismatch",
    "RequestBroken",
    "RequestInProgress",
    "ResourceExhausted",
    "SessionBusy",
    "SessionExists",
    "SessionNotFound",
    "StorageLimit",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
]

_DOMAIN = "mneme"
_DETAILS_KEY = "grpc-status-details-bin"


@dataclass(frozen=True)
class FieldViolation:
    """One wrong field of a request."""

    field: str
    """Path in the request message, such as "sampling.temperature"."""
    description: str


@dataclass(frozen=True)
class _Details:
    """The parts of a failed call that exceptions are made from."""

    code: grpc.StatusCode
    message: str
    reason: str = ""
    metadata: Mapping[str, str] = None  # type: ignore[assignment]
    field_violations: tuple[FieldViolation, ...] = ()
    retry_after: Optional[float] = None
    request_id: str = ""


class MnemeError(Exception):
    """A call failed."""

    code: grpc.StatusCode
    message: str
    reason: str
    """The server's reason in UPPER_SNAKE_CASE; "" if the server did not answer at all."""
    metadata: Mapping[str, str]
    """Facts that belong to the reason."""
    field_violations: tuple[FieldViolation, ...]
    retry_after: Optional[float]
    """Seconds after which a repetition may succeed; None: the server does not promise anything."""
    request_id: str
    choices: tuple[Choice, ...] = ()
    """The choices, as far as `generate` had received them."""

    def __init__(self, message: str, details: Optional[_Details] = None) -> None:
        details = details or _Details(grpc.StatusCode.UNKNOWN, message)
        super().__init__(message)
        self.message = message
        self.code = details.code
        self.reason = details.reason
        self.metadata = dict(details.metadata or {})
        self.field_violations = details.field_violations
        self.retry_after = details.retry_after
        self.request_id = details.request_id

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.code.name}{reason}: {self.message}"

    @property
    def refused_by_server(self) -> bool:
        """Whether the server itself answered, and so cannot have done half of the work."""
        return bool(self.reason)


class InvalidArgument(MnemeError):
    """A field is wrong; nothing was fed. See `field_violations`."""


class NotFound(MnemeError):
    """A thing that the request names does not exist."""


class SessionNotFound(NotFound):
    """No session of that name."""


class AlreadyExists(MnemeError):
    """A thing that the request wants to create exists."""


class SessionExists(AlreadyExists):
    """The session's name is taken."""


class FailedPrecondition(MnemeError):
    """The server is not in a state for this request."""


class NoChatTemplate(FailedPrecondition):
    """The model has no chat template that could be used: it takes prompts, not messages."""


class HistoryMismatch(FailedPrecondition):
    """The whole conversation that was sent is not what the session remembers; nothing was fed."""


class SessionBusy(FailedPrecondition):
    """The session is generating for another request."""


class Aborted(MnemeError):
    """The session is not where the request expects it; nothing was fed."""

    @property
    def position(self) -> int:
        """Tokens that the session holds; -1 if the server does not say."""
        return int(self.metadata.get("position", -1))


class PositionMismatch(Aborted):
    """The session does not hold `expected_position` tokens."""


class RequestInProgress(Aborted):
    """An earlier request with the same idempotency key still runs."""


class RequestBroken(Aborted):
    """An earlier request with the same idempotency key broke off half-way.

    Its prompt may have been fed in part or whole; `position` says how many tokens the session
    holds now. Nothing was fed by the repetition.
    """


class ResourceExhausted(MnemeError):
    """A limit was hit, such as the size of a message. Repeating the same request is of no use."""


class StorageLimit(ResourceExhausted):
    """The key's sessions have as many bytes stored as they may; the session is as it was before.

    The message says how many it has and may have. Deleting sessions helps, time does not.
    """


class Overloaded(ResourceExhausted):
    """The queue is full, or no more sessions fit. Worth repeating after `retry_after` seconds."""


class Unavailable(MnemeError):
    """No connection, or the server is loading or draining."""


class DeadlineExceeded(MnemeError):
    """The timeout passed. A named session holds exactly the tokens that were fed until then."""


class Cancelled(MnemeError):
    """The call was cancelled. A named session holds exactly the tokens that were fed until then."""


class ClientClosed(MnemeError):
    """The client was closed before this call; nothing was sent."""

    def __init__(self) -> None:
        message = "the client is closed"
        super().__init__(message, _Details(grpc.StatusCode.FAILED_PRECONDITION, message))


class Unauthenticated(MnemeError):
    """The server does not know who asks."""


class PermissionDenied(MnemeError):
    """The server knows who asks, and says no."""


class Unimplemented(MnemeError):
    """The server cannot do this."""


class DataLoss(MnemeError):
    """Stored state is damaged."""


class InternalError(MnemeError):
    """The server failed."""


_BY_REASON: Mapping[str, type[MnemeError]] = {
    "NO_SUCH_SESSION": SessionNotFound,
    "SESSION_EXISTS": SessionExists,
    "SESSION_BUSY": SessionBusy,
    "NO_CHAT_TEMPLATE": NoChatTemplate,
    "HISTORY_MISMATCH": HistoryMismatch,
    "POSITION_MISMATCH": PositionMismatch,
    "KEY_STORAGE_LIMIT": StorageLimit,
    "IDEMPOTENCY_KEY_RUNNING": RequestInProgress,
    "IDEMPOTENCY_KEY_BROKEN_OFF": RequestBroken,
}

_BY_CODE: Mapping[grpc.StatusCode, type[MnemeError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.ABORTED: Aborted,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
    grpc.StatusCode.DATA_LOSS: DataLoss,
    grpc.StatusCode.INTERNAL: InternalError,
}

Metadata = Iterable[tuple[str, Union[str, bytes]]]


def error_from_status(
    code: grpc.StatusCode,
    message: str,
    trailing_metadata: Optional[Metadata] = None,
    initial_metadata: Optional[Metadata] = None,
) -> MnemeError:
    """The exception for a call that ended with `code`."""
    details = _decode(code, message, trailing_metadata, initial_metadata)
    kind = _BY_REASON.get(details.reason) or _BY_CODE.get(code, MnemeError)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and details.retry_after is not None:
        kind = Overloaded
    return kind(message, details)


def invalid_field(field: str, description: str) -> InvalidArgument:
    """For a value that does not even fit into the request; `field` as the server would name it."""
    code, message = grpc.StatusCode.INVALID_ARGUMENT, f"{field}: {description}"
    violations = (FieldViolation(field, description),)
    return InvalidArgument(message, _Details(code, message, field_violations=violations))


@contextmanager
def filling(field: str, value: Any) -> Iterator[None]:
    """Names the field of a request that cannot hold `value`."""
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        raise invalid_field(field, f"{value!r}: {error}") from error


def error_from_call(error: BaseException) -> MnemeError:
    """The exception for what a call of grpc or grpc.aio raised."""
    call: Any = error
    return error_from_status(
        call.code(), call.details() or "", call.trailing_metadata(), call.initial_metadata()
    )


def _decode(
    code: grpc.StatusCode,
    message: str,
    trailing_metadata: Optional[Metadata],
    initial_metadata: Optional[Metadata],
) -> _Details:
    reason = ""
    metadata: dict[str, str] = {}
    violations: list[FieldViolation] = []
    retry_after: Optional[float] = None
    request_id = ""
    for key, value in [*(initial_metadata or ()), *(trailing_metadata or ())]:
        if key == "x-request-id":
            request_id = value.decode() if isinstance(value, bytes) else value
        if key != _DETAILS_KEY or not isinstance(value, bytes):
            continue
        status = Status()
        try:
            status.ParseFromString(value)
        except Exception:  # Not ours, or damaged on the way: code and message still tell enough.
            continue
        for detail in status.details:
            info = ErrorInfo()
            bad_request = BadRequest()
            retry_info = RetryInfo()
            if detail.Unpack(info) and info.domain == _DOMAIN:
                reason = info.reason
                metadata = dict(info.metadata)
            elif detail.Unpack(bad_request):
                violations += [
                    FieldViolation(v.field, v.description) for v in bad_request.field_violations
                ]
            elif detail.Unpack(retry_info):
                retry_after = retry_info.retry_delay.ToTimedelta().total_seconds()
    return _Details(code, message, reason, metadata, tuple(violations), retry_after, request_id)
