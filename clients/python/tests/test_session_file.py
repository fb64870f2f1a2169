"""Sessions that go to files and come from them, against a scripted server."""

import asyncio
import stat

import grpc
import pytest

import mneme
from mneme.v1 import sessions_pb2

from fake_server import session

PIECES = [b"a" * 1000, b"b" * 500]


def exported(pieces=PIECES, missing=0):
    total = sum(map(len, pieces)) + missing
    return [
        sessions_pb2.ExportSessionResponse(data=piece, file_bytes=0 if i else total)
        for i, piece in enumerate(pieces)
    ]


def imported(name):
    return sessions_pb2.ImportSessionResponse(
        session=session(name, position=12),
        file_state_dtype="f32",
        state_dtype="f16",
        rounded_tensors=4,
        file_engram_capacity=64,
        engram_capacity=128,
    )


@pytest.fixture(params=["blocking", "asyncio"])
def call(request, server):
    """A function of `use`: what `use(sessions, client)` returns, or what awaiting that does."""

    def blocking(use):
        with mneme.Client(server.target, retry=None) as client:
            return use(client.sessions, client)

    def awaited(use):
        async def run():
            async with mneme.AsyncClient(server.target, retry=None) as client:
                return await use(client.sessions, client)

        return asyncio.run(run())

    return blocking if request.param == "blocking" else awaited


def test_a_session_is_written_to_a_file_of_its_owners_alone(server, call, tmp_path):
    path = tmp_path / "anna.safetensors"
    server.says(exported())
    assert call(lambda sessions, _: sessions.export_file("anna", path)) == 1500
    assert server.requests[-1].name == "anna"
    assert path.read_bytes() == b"".join(PIECES)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    server.says(exported())
    assert call(lambda sessions, _: sessions.export_bytes("anna")) == b"".join(PIECES)


def test_nothing_is_overwritten_unless_asked(server, call, tmp_path):
    path = tmp_path / "anna.safetensors"
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        call(lambda sessions, _: sessions.export_file("anna", path))
    assert path.read_bytes() == b"precious"
    assert not server.requests, "the server was not even asked"
    server.says(exported())
    call(lambda _, client: client.session("anna").export_file(path, overwrite=True))
    assert path.read_bytes() == b"".join(PIECES)


def test_a_file_that_did_not_come_whole_leaves_nothing(server, call, tmp_path):
    path = tmp_path / "anna.safetensors"
    server.says(exported(missing=1))
    with pytest.raises(mneme.DataLoss, match="ended after 1500 bytes, expected 1501"):
        call(lambda sessions, _: sessions.export_file("anna", path))
    server.says_and_fails(exported()[:1], grpc.StatusCode.UNAVAILABLE, "gone")
    with pytest.raises(mneme.Unavailable):
        call(lambda sessions, _: sessions.export_file("anna", path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_file_becomes_a_session(server, call, tmp_path, as_bytes):
    data = bytes(range(256)) * 10000  # more than one message
    path = tmp_path / "anna.safetensors"
    path.write_bytes(data)
    server.says(imported("otto"))
    file = data if as_bytes else path
    made = call(lambda sessions, _: sessions.import_file(file, "otto", ttl=5))
    assert (made.session.name, made.session.position) == ("otto", 12)
    assert (made.file_state_dtype, made.state_dtype, made.rounded_tensors) == ("f32", "f16", 4)
    assert (made.file_engram_capacity, made.engram_capacity) == (64, 128)
    first, *rest = server.requests[-1]
    assert (first.name, first.ttl_ms, first.file_bytes) == ("otto", 5000, len(data))
    assert b"".join(r.data for r in rest) == data
    assert len(rest) == 3


def test_errors_are_those_of_the_server(server, call):
    server.fails(grpc.StatusCode.DATA_LOSS, "damaged", "CHECKSUM_MISMATCH")
    with pytest.raises(mneme.DataLoss) as caught:
        call(lambda sessions, _: sessions.import_file(b"x", "otto"))
    assert caught.value.reason == "CHECKSUM_MISMATCH"
    server.fails(grpc.StatusCode.ALREADY_EXISTS, "taken", "SESSION_EXISTS")
    with pytest.raises(mneme.SessionExists):
        call(lambda sessions, _: sessions.import_file(b"x", "otto"))
    with pytest.raises(FileNotFoundError):
        call(lambda sessions, _: sessions.import_file("/no/such/file"))
