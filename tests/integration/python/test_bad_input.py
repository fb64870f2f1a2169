"""Each wrong request gets an error that names the thing, and the server lives."""

import grpc
import pytest

import mneme
from mneme.errors import error_from_call
from mneme.v1 import inference_pb2

INT32_MAX = 2**31 - 1

OUT_OF_RANGE = [
    ("sampling.temperature", "temperature", [-0.1, 100.5, float("nan"), float("inf")]),
    ("sampling.top_k", "top_k", [-1]),
    ("sampling.top_p", "top_p", [0.0, -0.5, 1.01, float("nan")]),
    ("sampling.min_p", "min_p", [-0.01, 1.01, float("nan")]),
    ("sampling.repetition_penalty", "repetition_penalty", [0.0, -1.0, 10.5, float("nan")]),
    ("sampling.presence_penalty", "presence_penalty", [-2.1, 2.1, float("nan")]),
    ("sampling.frequency_penalty", "frequency_penalty", [-2.1, 2.1, float("nan")]),
    (
        "sampling.logit_bias",
        "logit_bias",
        [{5: 101.0}, {5: -101.0}, {5: float("nan")}, {-1: 1.0}, {256: 1.0}],
    ),
    ("stopping.max_tokens", "max_tokens", [-1]),
    ("stopping.min_tokens", "min_tokens", [-1, 17]),
    ("stopping.stop_token_ids", "stop_token_ids", [[-1], [256], [1] * 65]),
    ("stopping.stop_strings", "stop", [[""], ["x" * 257], ["x"] * 17]),
    ("response.n", "n", [0, -1, 129]),
    ("response.logprobs", "logprobs", [-1, 21]),
    ("response.prompt_logprobs", "prompt_logprobs", [-1, 21]),
    ("expected_position", "expected_position", [-1]),
    ("priority", "priority", [-1001, 1001]),
    ("request_id", "request_id", ["x" * 129, "new\nline", "ü"]),
    ("idempotency_key", "idempotency_key", ["x" * 129]),
]


@pytest.mark.parametrize(
    ("field", "option", "value"),
    [(field, option, value) for field, option, values in OUT_OF_RANGE for value in values],
)
def test_a_field_out_of_range_is_named(client, field, option, value):
    with pytest.raises(mneme.InvalidArgument) as caught:
        client.generate([1, 2], **{"max_tokens": 16, option: value})
    violation = caught.value.field_violations[0]
    assert violation.field.startswith(field), violation
    assert violation.description
    assert field.rsplit(".", 1)[-1] in caught.value.message


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", 100.0),
        ("top_k", INT32_MAX),
        ("top_p", 1.0),
        ("min_p", 0.0),
        ("repetition_penalty", 10.0),
        ("presence_penalty", -2.0),
        ("frequency_penalty", 2.0),
        ("logit_bias", {255: -100.0}),
        ("stop_token_ids", [0] * 64),
        ("stop", ["x" * 256] * 16),
        ("logprobs", 20),
        ("prompt_logprobs", 20),
        ("priority", -1000),
        ("request_id", "x" * 128),
        ("idempotency_key", "x" * 128),
        ("seed", 2**64 - 1),
        ("n", 4),
    ],
)
def test_the_ends_of_each_range_are_accepted(client, option, value):
    client.generate([1, 2], **{"max_tokens": 2, option: value})


@pytest.mark.parametrize("ids", [[-1], [256], [1, 2, INT32_MAX], [0, -(2**31)]])
def test_a_token_outside_the_vocabulary_is_named(client, ids):
    with pytest.raises(mneme.InvalidArgument) as caught:
        client.generate(ids, max_tokens=1)
    bad = next(i for i, token in enumerate(ids) if not 0 <= token < 256)
    assert f"token_ids.ids[{bad}] is {ids[bad]}, expected 0 to 255" in caught.value.message
    assert caught.value.field_violations[0].field == f"token_ids.ids[{bad}]"
    with pytest.raises(mneme.InvalidArgument) as caught:
        client.detokenize(ids)
    assert caught.value.field_violations[0].field == f"token_ids[{bad}]"
    assert f"token_ids[{bad}] is {ids[bad]}, expected 0 to 255" in caught.value.message


def test_banning_all_tokens_is_refused(client):
    bias = dict.fromkeys(range(256), -100.0)
    with pytest.raises(mneme.InvalidArgument) as caught:
        client.generate([1], max_tokens=3, logit_bias=bias)
    assert caught.value.field_violations[0].field == "sampling.logit_bias"
    assert "all 256 tokens" in caught.value.message
    del bias[7]
    assert client.generate([1], max_tokens=3, logit_bias=bias).token_ids == (7, 7, 7)
    with pytest.raises(mneme.InvalidArgument) as caught:
        client.generate([1], max_tokens=3, min_tokens=1, logit_bias=bias, stop_token_ids=[7])
    assert caught.value.field_violations[0].field == "stopping.min_tokens"


ODD_NAMES = [
    "x" * 129,
    "with space",
    "tab\t",
    "new\nline",
    "nul\0",
    "umlaut-ü",
    "quote\"'",
    "back\\slash",
    "percent%41",
    "star*",
]


@pytest.mark.parametrize("odd", ODD_NAMES)
def test_odd_session_names_are_refused_everywhere(client, odd):
    calls = [
        lambda: client.generate([1], session=odd, max_tokens=1),
        lambda: client.sessions.create(odd),
        lambda: client.sessions.get(odd),
        lambda: client.sessions.delete(odd),
        lambda: client.sessions.fork(odd, "fine"),
    ]
    for call in calls:
        with pytest.raises(mneme.InvalidArgument) as caught:
            call()
        assert "name" in caught.value.field_violations[0].field


def test_an_odd_target_of_a_fork_is_refused(client, name):
    client.sessions.create(name)
    with pytest.raises(mneme.InvalidArgument) as caught:
        client.sessions.fork(name, "with space")
    assert caught.value.field_violations[0].field == "target_name"


@pytest.mark.parametrize("fine", ["a", "x" * 128, "A-z_0.9:/@+", "..", "/"])
def test_names_of_the_allowed_characters_work(client, fine):
    client.generate([1], session=fine, max_tokens=1, ignore_eos=True)
    assert client.sessions.get(fine).position == 2
    client.sessions.delete(fine)


def test_another_model_is_not_found(client):
    with pytest.raises(mneme.NotFound, match="gpt"):
        client.generate([1], max_tokens=1, model="gpt")
    served = client.info().model.name
    client.generate([1], max_tokens=1, model=served)


def raw_generate(server, request: bytes):
    """Sends bytes that a careful client would not."""
    with grpc.insecure_channel(server.target) as channel:
        call = channel.unary_stream("/mneme.v1.Inference/Generate")(request, timeout=10)
        try:
            list(call)
        except grpc.RpcError as error:
            return error_from_call(error)
    return None


def field(number: int, data: bytes) -> bytes:
    """A length-delimited field of a message, shorter than 128 bytes."""
    return bytes([number << 3 | 2, len(data)]) + data


@pytest.mark.parametrize("text", [b"\xff", b"ok \xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"])
def test_invalid_utf8_is_refused(golden_server, text):
    fields = {
        "prompt": field(3, text),
        "session name": field(3, b"a") + field(5, field(1, text)),
        "stop string": field(3, b"a") + field(7, field(5, text)),
        "model": field(3, b"a") + field(2, text),
        "idempotency key": field(3, b"a") + field(10, text),
    }
    for what, request in fields.items():
        error = raw_generate(golden_server, request)
        assert isinstance(error, (mneme.InvalidArgument, mneme.InternalError)), (what, error)
        assert golden_server.alive()
    # The prompt, which people do get wrong, is told about in so many words.
    error = raw_generate(golden_server, fields["prompt"])
    assert isinstance(error, mneme.InvalidArgument), error
    assert "UTF-8" in error.message


def test_bytes_that_are_no_message_are_refused(golden_server):
    assert raw_generate(golden_server, b"\xff\xff\xff\xff") is not None
    assert golden_server.alive()


def test_unknown_fields_are_ignored(golden_server):
    request = inference_pb2.GenerateRequest(text="a")
    request.stopping.max_tokens = 1
    unknown = b"\xfa\x3e\x01x"  # field 1007
    assert raw_generate(golden_server, request.SerializeToString() + unknown) is None


def test_after_all_this_the_server_still_works(client, golden_server):
    assert golden_server.alive()
    assert client.health() is mneme.ServingStatus.SERVING
    assert len(client.generate([1], max_tokens=4, ignore_eos=True).token_ids) == 4
