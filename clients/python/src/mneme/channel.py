"""The connection: channel options and the typed list of the server's methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from grpc_health.v1 import health_pb2

from mneme.v1 import inference_pb2, sessions_pb2

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


class Methods:
    """Callables for the server's methods, on a channel of grpc or of grpc.aio."""

    def __init__(self, channel: Any) -> None:
        """`channel`: either kind; the callables return what that kind returns."""

        def unary(service: str, name: str, request: Any, response: Any) -> Any:
            return channel.unary_unary(
                f"/{service}/{name}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )

        inference, sessions = "mneme.v1.Inference", "mneme.v1.Sessions"
        self.generate = channel.unary_stream(
            f"/{inference}/Generate",
            request_serializer=inference_pb2.GenerateRequest.SerializeToString,
            response_deserializer=inference_pb2.GenerateResponse.FromString,
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
        self.delete_session = unary(
            sessions,
            "Delete",
            sessions_pb2.DeleteSessionRequest,
            sessions_pb2.DeleteSessionResponse,
        )
        self.check_health = unary(
            "grpc.health.v1.Health",
            "Check",
            health_pb2.HealthCheckRequest,
            health_pb2.HealthCheckResponse,
        )
