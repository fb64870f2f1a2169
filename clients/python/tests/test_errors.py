"""Statuses to exceptions."""

import grpc
import pytest

import mneme
from mneme.errors import error_from_status

NO_RETRY = {"retry": None}


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        ("INVALID_ARGUMENT", "INVALID_FIELD", mneme.InvalidArgument),
        ("NOT_FOUND", "NO_SUCH_SESSION", mneme.SessionNotFound),
        ("NOT_FOUND", "MODEL_NOT_FOUND", mneme.NotFound),
        ("ALREADY_EXISTS", "SESSION_EXISTS", mneme.SessionExists),
        ("FAILED_PRECONDITION", "SESSION_BUSY", mneme.SessionBusy),
        ("FAILED_PRECONDITION", "OTHER", mneme.FailedPrecondition),
        ("ABORTED", "POSITION_MISMATCH", mneme.PositionMismatch),
        ("RESOURCE_EXHAUSTED", "KEY_STORAGE_LIMIT", mneme.StorageLimit),
        ("ABORTED", "IDEMPOTENCY_KEY_RUNNING", mneme.RequestInProgress),
        ("ABORTED", "IDEMPOTENCY_KEY_BROKEN_OFF", mneme.RequestBroken),
        ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE", mneme.ResourceExhausted),
        ("UNAVAILABLE", "DRAINING", mneme.Unavailable),
        ("DEADLINE_EXCEEDED", "DEADLINE_IN_QUEUE", mneme.DeadlineExceeded),
        ("CANCELLED", "", mneme.Cancelled),
        ("INTERNAL", "DEVICE_ERROR", mneme.InternalError),
        ("UNIMPLEMENTED", "", mneme.Unimplemented),
        ("UNAUTHENTICATED", "", mneme.Unauthenticated),
        ("PERMISSION_DENIED", "", mneme.PermissionDenied),
        ("DATA_LOSS", "", mneme.DataLoss),
        ("OUT_OF_RANGE", "", mneme.MnemeError),
    ],
)
def test_each_status_has_its_exception(server, code, reason, kind):
    server.fails(grpc.StatusCode[code], "no luck", reason)
    with mneme.Client(server.target, retry=None) as client, pytest.raises(kind) as caught:
        client.generate("x")
    assert type(caught.value) is kind
    assert caught.value.code is grpc.StatusCode[code]
    assert caught.value.reason == reason
    assert "no luck" in str(caught.value)
    assert code in str(caught.value)


def test_field_violations_are_listed(server):
    server.fails(
        grpc.StatusCode.INVALID_ARGUMENT,
        "sampling.top_p: 2, expected (0, 1]",
        "INVALID_FIELD",
        fields=(("sampling.top_p", "2, expected (0, 1]"), ("sampling.min_p", "bad")),
    )
    with mneme.Client(server.target) as client, pytest.raises(mneme.InvalidArgument) as caught:
        client.generate("x", top_p=2)
    assert [v.field for v in caught.value.field_violations] == ["sampling.top_p", "sampling.min_p"]


def test_a_mismatch_tells_the_position(server):
    server.fails(
        grpc.StatusCode.ABORTED, "elsewhere", "POSITION_MISMATCH", metadata={"position": "42"}
    )
    with mneme.Client(server.target) as client, pytest.raises(mneme.PositionMismatch) as caught:
        client.generate("x", session="s", expected_position=3)
    assert caught.value.position == 42


def test_overload_says_when_to_come_back(server):
    server.fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", "QUEUE_FULL", retry_ms=1500)
    with mneme.Client(server.target, retry=None) as client, pytest.raises(mneme.Overloaded) as e:
        client.generate("x")
    assert e.value.retry_after == 1.5


def test_damaged_details_do_not_hide_the_status():
    error = error_from_status(
        grpc.StatusCode.ABORTED, "m", [("grpc-status-details-bin", b"\xff\xff\xff"), ("a", "b")]
    )
    assert type(error) is mneme.Aborted
    assert error.position == -1


def test_reasons_of_other_domains_are_not_ours():
    from google.protobuf import any_pb2
    from google.rpc import error_details_pb2, status_pb2

    packed = any_pb2.Any()
    packed.Pack(error_details_pb2.ErrorInfo(domain="proxy", reason="SESSION_BUSY"))
    status = status_pb2.Status(details=[packed])
    error = error_from_status(
        grpc.StatusCode.UNAVAILABLE,
        "m",
        [("grpc-status-details-bin", status.SerializeToString())],
        [("x-request-id", "r9")],
    )
    assert type(error) is mneme.Unavailable
    assert not error.refused_by_server
    assert error.request_id == "r9"


def test_no_server_is_unavailable():
    with mneme.Client("127.0.0.1:1", retry=None) as client, pytest.raises(mneme.Unavailable):
        client.info()
