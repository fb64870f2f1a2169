"""Everything that gRPC clients expect of any server: health, reflection, metadata, keepalive, limits."""

import threading
import time

import grpc
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

import mneme

from waiting import wait_for

SERVICES = {
    "mneme.v1.Inference",
    "mneme.v1.Sessions",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
}


@pytest.fixture
def channel(golden_server):
    with grpc.insecure_channel(golden_server.target) as channel:
        yield channel


def test_stock_reflection_finds_services_methods_and_messages(channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    assert set(database.get_services()) >= SERVICES
    pool = descriptor_pool.DescriptorPool(database)
    generate = pool.FindServiceByName("mneme.v1.Inference").FindMethodByName("Generate")
    assert generate.server_streaming
    assert "temperature" in pool.FindMessageTypeByName("mneme.v1.SamplingOptions").fields_by_name
    assert pool.FindServiceByName("mneme.v1.Sessions").FindMethodByName("Fork")


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_both_versions_of_reflection_answer(channel, version):
    # Both versions have the same messages; the stock package knows the older one.
    call = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_by_filename="mneme/v1/inference.proto"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.such.Symbol"),
    ]
    listed, file, missing = call(iter(requests), timeout=60)
    assert {s.name for s in listed.list_services_response.service} >= SERVICES
    names = {
        FileDescriptorProto.FromString(f).name
        for f in file.file_descriptor_response.file_descriptor_proto
    }
    assert "mneme/v1/inference.proto" in names
    assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_reflection_stub_of_the_stock_package_works(channel):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(
        file_containing_symbol="mneme.v1.Inference.Generate"
    )
    (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=60)
    assert answer.file_descriptor_response.file_descriptor_proto


def test_stock_health_check_and_watch(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "mneme.v1.Inference", "mneme.v1.Sessions"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="no.such"), timeout=60)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="no.such"), timeout=60)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


def test_watchers_learn_that_the_server_drains(start):
    server = start()
    with grpc.insecure_channel(server.target) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(), timeout=60
        )
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        server.signal()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
    assert server.wait() == 0


def test_every_answer_carries_a_request_id(channel):
    get_info = channel.unary_unary("/mneme.v1.Inference/GetInfo")
    _, call = get_info.with_call(b"", timeout=60)
    assert dict(call.initial_metadata())["x-request-id"]
    _, call = get_info.with_call(b"", timeout=60, metadata=[("x-request-id", "mine-1")])
    assert dict(call.initial_metadata())["x-request-id"] == "mine-1"


def test_the_request_id_of_a_request_goes_first(client):
    assert client.generate("abc", max_tokens=1, request_id="chosen").request_id == "chosen"
    assert client.generate("abc", max_tokens=1).request_id


def test_frequent_pings_are_accepted(start):
    # The rule for distances is the same at any scale; ten seconds would take a minute to show.
    server = start("--keepalive-min-interval", "100ms")
    states = []
    options = [
        ("grpc.keepalive_time_ms", 200),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    with grpc.insecure_channel(server.target, options=options) as channel:
        ready = threading.Event()

        def on_state(state):
            states.append(state)
            if state is grpc.ChannelConnectivity.READY:
                ready.set()

        channel.subscribe(on_state, try_to_connect=True)
        assert ready.wait(60)
        time.sleep(2.0)  # ten pings; a server that minds would end the connection at the third
        get_info = channel.unary_unary("/mneme.v1.Inference/GetInfo")
        assert get_info(b"", timeout=60)
        channel.unsubscribe(on_state)
    assert states.count(grpc.ChannelConnectivity.READY) == 1
    assert grpc.ChannelConnectivity.TRANSIENT_FAILURE not in states


def test_a_message_that_is_too_large_is_refused_and_the_server_lives(start):
    server = start("--max-message-size", "64KiB")
    client = server.client()
    with pytest.raises(mneme.ResourceExhausted):
        client.generate("x" * 100_000, max_tokens=1)
    assert client.generate("x" * 1000, max_tokens=1).usage.prompt_tokens >= 1000
    assert client.info().limits.max_message_bytes == 64 * 1024


def test_unknown_methods_are_unimplemented(channel):
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/mneme.v1.Inference/NoSuchMethod")(b"", timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_info_tells_model_capacity_and_limits(client):
    info = client.info()
    assert info.server.state is mneme.ServerState.SERVING
    assert info.model is not None
    assert info.model.architecture == "mom"
    assert info.model.vocab_size == 256
    assert info.model.layers == 3
    assert info.model.fingerprint
    assert info.capacity is not None
    assert info.capacity.slab_bytes > 0
    fit = info.capacity.state_memory_bytes // info.capacity.slab_bytes
    assert 1 <= info.capacity.max_sessions <= fit
    assert info.limits is not None
    assert info.limits.default_max_tokens > 0
    assert info.statistics is not None
    assert info.statistics.slabs_total == info.capacity.max_sessions
    before = info.statistics
    client.generate("abc", max_tokens=3, ignore_eos=True)

    def is_counted():
        after = client.info().statistics
        return (
            after.generated_tokens >= before.generated_tokens + 3
            and after.requests_finished >= before.requests_finished + 1
        )

    wait_for(is_counted, "the request in the statistics")
