"""Connections that lead nowhere, and calls that are too large."""

import contextlib
import re
import socket
import struct

import grpc
import pytest

import mneme
from mneme.v1 import inference_pb2

from certificates import tls_flags
from http2_frames import DATA, END_STREAM, begin_call, connect, frame
from http_requests import ask
from waiting import wait_for

GENERATE = "/mneme.v1.Inference/Generate"


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
        for connection in sockets:
            connection.settimeout(120)
            with contextlib.suppress(ConnectionError):
                while connection.recv(4096):
                    pass
            connection.close()
        client = server.client()
        client.wait_until_ready()  # its own handshake may take longer than a second, too
        assert client.generate("abc", max_tokens=1)


def test_strangers_are_refused_before_their_message_is_there(start):
    server = start(environment={"MNEME_API_KEY": "a-key-of-enough-length"})
    with connect(server.port) as connection:
        begin_call(connection, 1, GENERATE)
        # The header of a message whose body never comes.
        connection.sendall(frame(DATA, 0, 1, struct.pack(">BI", 0, 10_000_000)))
        received = b""
        while b"API key is needed" not in received:
            more = connection.recv(4096)
            assert more, "the server closed the connection without a word"
            received += more


def test_a_client_that_is_gone_without_a_word_is_noticed(start):
    server = start("--keepalive-time", "1s", "--keepalive-timeout", "500ms")
    request = inference_pb2.GenerateRequest(text="abc")
    request.stopping.max_tokens = 100_000_000
    request.stopping.ignore_eos = True
    message = request.SerializeToString()

    def has_ended():
        # Over HTTP, where no client has to answer within half a second.
        lines = ask(f"http://127.0.0.1:{server.http_port}", "/metrics")[2].decode().splitlines()
        ended = [line for line in lines if re.match(r"mneme_rpcs_total{.*Generate.*} 1$", line)]
        return len(ended) == 1

    with connect(server.port) as connection:
        begin_call(connection, 1, GENERATE)
        data = struct.pack(">BI", 0, len(message)) + message
        connection.sendall(frame(DATA, END_STREAM, 1, data))
        wait_for(has_ended, "the end of a call whose client answers nothing")


def test_headers_have_a_size(start):
    server = start("--max-header-size", "2KiB")
    with grpc.insecure_channel(server.target) as channel:
        info = channel.unary_unary("/mneme.v1.Inference/GetInfo")
        assert info(b"", timeout=60, metadata=[("x-small", "x" * 500)])
        with pytest.raises(grpc.RpcError) as caught:
            info(b"", timeout=60, metadata=[("x-large", "x" * 5000)])
        # gRPC refuses the call, and closes its connection.
        refusals = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
        assert caught.value.code() in refusals
    own = [("grpc.use_local_subchannel_pool", 1)]  # not the connection that is being closed
    with grpc.insecure_channel(server.target, options=own) as channel:
        assert channel.unary_unary("/mneme.v1.Inference/GetInfo")(b"", timeout=60)


def test_prompts_have_a_size(start):
    client = start("--max-prompt-tokens", "10").client()
    assert client.generate("a" * 9, max_tokens=1)
    with pytest.raises(mneme.InvalidArgument, match="--max-prompt-tokens"):
        client.generate("a" * 20, max_tokens=1)


def test_strangers_who_stay_keep_nobody_out(start):
    key = "a-key-of-enough-length"
    limits = ("--http-max-connections", "3", "--grpc-max-connections", "3")
    server = start(*limits, environment={"MNEME_API_KEY": key})
    base = f"http://127.0.0.1:{server.http_port}"
    client = server.client(api_key=key)
    assert client.generate("abc", max_tokens=1)  # its connection is known from now on
    with contextlib.ExitStack() as stack:
        for port in (server.port, server.http_port):
            for _ in range(6):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert ask(base, "/health")[0] == 200
        with grpc.insecure_channel(server.target, options=[("grpc.use_local_subchannel_pool", 1)]) as probe:
            check = probe.unary_unary("/grpc.health.v1.Health/Check")
            assert check(b"", timeout=60) == b"\x08\x01"  # SERVING
        assert client.generate("abc", max_tokens=1)
    for api in ("grpc", "http"):
        text = f"an idle one was closed to make room (--{api}-max-connections) api={api} open=3\n"
        wait_for(lambda: f"too_many_connections: {text}" in server.log, text)
    lines = ask(base, "/metrics", key)[2].decode().splitlines()
    assert 'mneme_connections_refused_total{api="grpc"} 0' in lines
    assert 'mneme_connections_refused_total{api="http"} 0' in lines
