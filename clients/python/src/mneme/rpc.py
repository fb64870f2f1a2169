"""Messages of gRPC's own conventions: health checks, and the details of a failed call."""

from __future__ import annotations

from typing import Any

from mneme.v1.descriptors import message_class

HealthCheckRequest: Any = message_class("grpc.health.v1.HealthCheckRequest")
HealthCheckResponse: Any = message_class("grpc.health.v1.HealthCheckResponse")
Status: Any = message_class("google.rpc.Status")
ErrorInfo: Any = message_class("google.rpc.ErrorInfo")
BadRequest: Any = message_class("google.rpc.BadRequest")
RetryInfo: Any = message_class("google.rpc.RetryInfo")
