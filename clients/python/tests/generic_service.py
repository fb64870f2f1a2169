"""Services of mneme.v1 for tests that play the server."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf import descriptor_pb2

from mneme.v1.descriptors import message_class


def add_service(server: grpc.Server, servicer: Any, module: Any, name: str) -> None:
    """Serves the methods of `module`'s service that `servicer` has; others are UNIMPLEMENTED."""
    service = module.DESCRIPTOR.services_by_name[name]
    proto = descriptor_pb2.ServiceDescriptorProto()
    service.CopyToProto(proto)  # of old releases' descriptors alone it tells which methods stream
    streams = {m.name: (m.client_streaming, m.server_streaming) for m in proto.method}
    handler_of = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
    }
    handlers = {}
    for method in service.methods:
        if not hasattr(servicer, method.name):
            continue
        handlers[method.name] = handler_of[streams[method.name]](
            getattr(servicer, method.name),
            request_deserializer=message_class(method.input_type.full_name).FromString,
            response_serializer=message_class(method.output_type.full_name).SerializeToString,
        )
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service.full_name, handlers)]
    )
