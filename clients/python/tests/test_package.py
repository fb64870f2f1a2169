"""The requirements of the installed package, and its contents."""

import importlib.metadata

import pytest

from mneme.v1 import descriptors, inference_pb2, sessions_pb2


def test_the_releases_of_the_day_are_not_asked_for():
    """Requirements do not depend on what the package was built with."""
    needed = [
        requirement
        for requirement in importlib.metadata.requires("mneme-client") or []
        if "extra ==" not in requirement
    ]
    assert sorted(needed) == ["grpcio>=1.49", "protobuf>=4.25"]


def test_messages_are_those_of_the_proto_files():
    generate = inference_pb2.DESCRIPTOR.services_by_name["Inference"].methods_by_name["Generate"]
    assert generate.input_type is inference_pb2.GenerateRequest.DESCRIPTOR
    assert inference_pb2.FinishReason.Name(inference_pb2.FINISH_REASON_STOP) == "FINISH_REASON_STOP"
    assert sessions_pb2.Session(name="s").SerializeToString() == b"\n\x01s"


def test_packages_that_bring_the_same_messages_do_no_harm():
    theirs = pytest.importorskip("google.rpc.status_pb2")
    ours = descriptors.message_class("google.rpc.Status")
    assert ours is not theirs.Status
    assert ours.FromString(theirs.Status(code=5, message="m").SerializeToString()).message == "m"
