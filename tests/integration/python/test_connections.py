"""Connections that lead nowhere, and calls that are too large."""

import contextlib
import signal
import socket
import subprocess
import time

import grpc
import pytest

import mneme

from certificates import tls_flags
from waiting import wait_for


def test_silent_connections_are_closed(start, certificates):
    plain = start("--handshake-timeout", "1s")
    trusted = mneme.tls_credentials(certificates.path("ca.pem"))
    secure = start(
        *("--handshake-timeout", "1s", *tls_flags(certificates)),
        client_options={"credentials": trusted},
    )
    for server in (plain, secure):
        sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
        sockets[0].sendall(b"PRI * HTTP/2.0\r\n")  # half a greeting
        start_time = time.monotonic()
        for connection in sockets:
            connection.settimeout(10)
            with contextlib.suppress(ConnectionError):
                while connection.recv(4096):
                    pass
            connection.close()
        assert time.monotonic() - start_time < 8
        assert server.client().generate("abc", max_tokens=1)


def frame(kind, flags, stream, payload):
    """Of HTTP/2."""
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


def test_strangers_are_refused_before_their_message_is_there(start):
    server = start(environment={"MNEME_API_KEY": "a-key-of-enough-length"})
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/mneme.v1.Inference/Generate",
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    header = b"".join(
        bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
    announced = b"\x00" + (10_000_000).to_bytes(4, "big")  # of which nothing more comes
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(4, 0, 0, b"")  # SETTINGS
            + frame(1, 4, 1, header)  # HEADERS
            + frame(0, 0, 1, announced)  # DATA
        )
        received = b""
        while b"API key is needed" not in received:
            more = connection.recv(4096)
            assert more, "the server closed the connection without a word"
            received += more


def test_a_client_that_is_gone_without_a_word_is_noticed(start, bin_dir):
    server = start("--keepalive-time", "1s", "--keepalive-timeout", "500ms")
    client = server.client()
    words = ("generate", "abc", "--max-tokens", "100000000", "--ignore-eos")
    with subprocess.Popen(
        [bin_dir / "mneme", *words, "--server", server.target],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as frozen:
        try:
            wait_for(lambda: client.info().statistics.requests_running == 1, "its request")
            frozen.send_signal(signal.SIGSTOP)
            wait_for(lambda: client.info().statistics.requests_running == 0, "its end")
        finally:
            frozen.kill()


def test_headers_have_a_size(start):
    server = start("--max-header-size", "2KiB")
    with grpc.insecure_channel(server.target) as channel:
        info = channel.unary_unary("/mneme.v1.Inference/GetInfo")
        assert info(b"", timeout=10, metadata=[("x-small", "x" * 500)])
        with pytest.raises(grpc.RpcError) as caught:
            info(b"", timeout=10, metadata=[("x-large", "x" * 5000)])
        # gRPC refuses the call, and closes its connection.
        refusals = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
        assert caught.value.code() in refusals
    own = [("grpc.use_local_subchannel_pool", 1)]  # not the connection that is being closed
    with grpc.insecure_channel(server.target, options=own) as channel:
        assert channel.unary_unary("/mneme.v1.Inference/GetInfo")(b"", timeout=10)


def test_prompts_have_a_size(start):
    client = start("--max-prompt-tokens", "10").client()
    assert client.generate("a" * 9, max_tokens=1)
    with pytest.raises(mneme.InvalidArgument, match="--max-prompt-tokens"):
        client.generate("a" * 20, max_tokens=1)
