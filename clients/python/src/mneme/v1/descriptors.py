"""Message classes from descriptors, by what every release of protobuf can do.

Generated code refuses to run with protobuf or grpcio of other releases than it was made for; a
descriptor is data, which the wire format's own rules keep readable.

The descriptors are in a pool of their own, so that they cannot clash with other packages that bring
the same messages, as grpcio-health-checking and googleapis-common-protos do.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

__all__ = ["message_class", "namespace"]


@lru_cache(maxsize=None)
def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    path = Path(__file__).with_name("descriptors.binpb")
    if not path.is_file():
        raise ImportError(
            f"{path} is missing: install the package, or write it with clients/python/generate.sh"
        )
    for file in descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())  # protoc puts imports first
    return pool


def message_class(name: str) -> Any:
    """The class of the message of that full name."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(name))


def namespace(proto: str) -> dict[str, Any]:
    """The contents that a generated module for that proto file would have."""
    file = _pool().FindFileByName(proto)
    names: dict[str, Any] = {"DESCRIPTOR": file}
    for name, message in file.message_types_by_name.items():
        names[name] = message_factory.GetMessageClass(message)
    for name, enum in file.enum_types_by_name.items():
        names[name] = EnumTypeWrapper(enum)
        names.update((value.name, value.number) for value in enum.values)
    return names
