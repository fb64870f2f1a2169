"""The connection: channel options and the typed list of the server's methods."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Optional, Union

import grpc

from mneme.rpc import HealthCheckRequest, HealthCheckResponse
from mneme.v1 import inference_pb2, memory_pb2, sessions_pb2

ChannelOptions = Sequence[tuple[str, Union[str, int]]]

# Pings keep a stream alive whose next token takes long; the server accepts one every ten seconds.
# Answers are as long as the client asked for, so they are not limited here.
_DEFAULT_OPTIONS: Mapping[str, Union[str, int]] = {
    "grpc.keepalive_time_ms": 30_000,
    "grpc.keepalive_timeout_ms": 20_000,
    "grpc.http2.max_pings_without_data": 0,
    "grpc.max_receive_message_length": -1,
}


def channel_options(options: Optional[ChannelOptions]) -> list[tuple[str, Union[str, int]]]:
    """The defaults, overridden by the user's options."""
    return list({**_DEFAULT_OPTIONS, **dict(options or ())}.items())


def tls_credentials(
    ca: Optional[Union[str, Path]] = None,
    *,
    certificate: Optional[Union[str, Path]] = None,
    key: Optional[Union[str, Path]] = None,
) -> grpc.ChannelCredentials:
    """For servers with TLS, from PEM files.

    `ca`: authorities that the server's certificate may come from; None: those of the system.
    `certificate` and `key`: of this client, for servers that ask for one (mutual TLS).
    """
    if (certificate is None) != (key is None):
        raise ValueError("certificate and key: one is given without the other")

    def read(path: Optional[Union[str, Path]]) -> Optional[bytes]:
        return None if path is None else Path(path).read_bytes()

    return grpc.ssl_channel_credentials(
        root_certificates=read(ca), private_key=read(key), certificate_chain=read(certificate)
    )


def key_metadata(api_key: Optional[str]) -> list[tuple[str, str]]:
    """The metadata that says who calls. None: the key of MNEME_API_KEY, if there is one."""
    if api_key is None:
        api_key = os.environ.get("MNEME_API_KEY", "")
    if not all(" " < character <= "~" for character in api_key):
        raise ValueError("the API key has a space or a character that is not printable ASCII")
    return [("authorization", f"Bearer {api_key}")] if api_key else []


class Methods:
    """Callables for the server's methods, on a channel of grpc or of grpc.aio."""

    def __init__(self, channel: Any, metadata: Sequence[tuple[str, str]] = ()) -> None:
        """`channel`: either kind; the callables return what that kind returns.

        `metadata` goes with every call.
        """

        def unary(service: str, name: str, request: Any, response: Any) -> Any:
            call = channel.unary_unary(
                f"/{service}/{name}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )
            return partial(call, metadata=tuple(metadata))

        def stream(name: str, request: Any) -> Any:
            call = channel.unary_stream(
                f"/{inference}/{name}",
                request_serializer=request.SerializeToString,
                response_deserializer=inference_pb2.GenerateResponse.FromString,
            )
            return partial(call, metadata=tuple(metadata))

        inference, sessions = "mneme.v1.Inference", "mneme.v1.Sessions"
        self.generate = stream("Generate", inference_pb2.GenerateRequest)
        self.chat = stream("Chat", inference_pb2.ChatRequest)
        self.classify = unary(
            inference, "Classify", inference_pb2.ClassifyRequest, inference_pb2.ClassifyResponse
        )
        self.tokenize = unary(
            inference, "Tokenize", inference_pb2.TokenizeRequest, inference_pb2.TokenizeResponse
        )
        self.detokenize = unary(
            inference,
            "Detokenize",
            inference_pb2.DetokenizeRequest,
            inference_pb2.DetokenizeResponse,
        )
        self.get_info = unary(
            inference, "GetInfo", inference_pb2.GetInfoRequest, inference_pb2.GetInfoResponse
        )
        self.create_session = unary(
            sessions, "Create", sessions_pb2.CreateSessionRequest, sessions_pb2.Session
        )
        self.get_session = unary(
            sessions, "Get", sessions_pb2.GetSessionRequest, sessions_pb2.Session
        )
        self.list_sessions = unary(
            sessions, "List", sessions_pb2.ListSessionsRequest, sessions_pb2.ListSessionsResponse
        )
        self.fork_session = unary(
            sessions, "Fork", sessions_pb2.ForkSessionRequest, sessions_pb2.Session
        )
        self.rewind_session = unary(
            sessions, "Rewind", sessions_pb2.RewindSessionRequest, sessions_pb2.Session
        )
        self.create_checkpoint = unary(
            sessions,
            "CreateCheckpoint",
            sessions_pb2.CreateCheckpointRequest,
            sessions_pb2.Checkpoint,
        )
        self.list_checkpoints = unary(
            sessions,
            "ListCheckpoints",
            sessions_pb2.ListCheckpointsRequest,
            sessions_pb2.ListCheckpointsResponse,
        )
        self.delete_checkpoint = unary(
            sessions,
            "DeleteCheckpoint",
            sessions_pb2.DeleteCheckpointRequest,
            sessions_pb2.DeleteCheckpointResponse,
        )
        self.delete_session = unary(
            sessions,
            "Delete",
            sessions_pb2.DeleteSessionRequest,
            sessions_pb2.DeleteSessionResponse,
        )
        self.inspect_memory = unary(
            sessions,
            "InspectMemory",
            memory_pb2.InspectMemoryRequest,
            memory_pb2.InspectMemoryResponse,
        )
        self.forget_segments = unary(
            sessions,
            "ForgetSegments",
            memory_pb2.ForgetSegmentsRequest,
            memory_pb2.ForgetSegmentsResponse,
        )
        self.export_session = partial(
            channel.unary_stream(
                f"/{sessions}/Export",
                request_serializer=sessions_pb2.ExportSessionRequest.SerializeToString,
                response_deserializer=sessions_pb2.ExportSessionResponse.FromString,
            ),
            metadata=tuple(metadata),
        )
        self.import_session = partial(
            channel.stream_unary(
                f"/{sessions}/Import",
                request_serializer=sessions_pb2.ImportSessionRequest.SerializeToString,
                response_deserializer=sessions_pb2.ImportSessionResponse.FromString,
            ),
            metadata=tuple(metadata),
        )
        self.check_health = unary(
            "grpc.health.v1.Health", "Check", HealthCheckRequest, HealthCheckResponse
        )
