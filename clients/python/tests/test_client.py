"""The blocking client against a scripted server: calls and their answers."""

import gc
import math
import sys

import grpc
import pytest

import mneme
from mneme.v1 import inference_pb2 as pb

from fake_server import answer


def test_generate_collects_the_whole_answer(server, client):
    server.says(answer("one two three", position=9, name="s"))
    completion = client.generate("go", session="s", temperature=0)
    assert completion.text == str(completion) == "one two three"
    assert completion.token_ids == (100, 101, 102)
    assert completion.finish_reason is mneme.FinishReason.LENGTH
    assert completion.usage.completion_tokens == 3
    assert completion.session == mneme.SessionState("s", 9, True)
    assert (completion.seed, completion.request_id) == (7, "r1")
    assert server.requests[0].sampling.HasField("temperature")


def test_surprise_is_told_where_the_server_tells_it(server, client):
    told = answer("one")
    told[-1].finished.usage.surprise = 0.25
    server.says(told)
    server.says(answer("one"))
    assert client.generate("go", surprise=True).usage.surprise == 0.25
    assert client.generate("go").usage.surprise is None
    assert [r.response.surprise for r in server.requests] == [True, False]


def test_what_an_answer_drew_on_is_told_where_the_server_tells_it(server, client):
    told = answer("one")
    usage = told[-1].finished.usage
    usage.memory_evicted = True
    source = usage.memory_use.sources.add(kind=3, engrams=4, weight=0.75)
    source.segment.segment, source.segment.first_token, source.segment.end_token = 3, 30, 40
    usage.memory_use.sources.add(kind=2, engrams=1, weight=0.25)
    usage.memory_use.evictions = 7
    server.says(told)
    server.says(answer("one"))
    usage = client.generate("go", memory_use=True).usage
    assert usage.memory_evicted
    assert usage.memory_use == mneme.MemoryUse(
        (
            mneme.MemorySource(
                mneme.SegmentRange(3, 30, 40), mneme.EngramKind.LONG_TERM, engrams=4, weight=0.75
            ),
            mneme.MemorySource(
                mneme.SegmentRange(0, 0, 0), mneme.EngramKind.SHORT_TERM, engrams=1, weight=0.25
            ),
        ),
        7,
    )
    plain = client.generate("go").usage
    assert (plain.memory_evicted, plain.memory_use) == (False, None)
    assert [r.response.memory_use for r in server.requests] == [True, False]


def test_choices_prompt_and_logprobs_are_kept_apart(server, client):
    scored = pb.TokenLogprob(
        token_id=5, logprob=-0.5, text="a", top=[pb.TopLogprob(token_id=5, logprob=-0.5, text="a")]
    )
    server.says(
        [
            pb.GenerateResponse(
                started=pb.Started(request_id="r"),
                outputs=[
                    pb.Output(
                        text="P",
                        token_ids=[1],
                        is_prompt=True,
                        logprobs=[pb.TokenLogprob(token_id=1, text="P")],
                    ),
                    pb.Output(choice=1, text="b", token_ids=[6]),
                    pb.Output(choice=0, text="a", token_ids=[5], logprobs=[scored]),
                ],
            ),
            pb.GenerateResponse(
                outputs=[
                    pb.Output(choice=0, finish_reason=pb.FINISH_REASON_STOP, stop_matched="."),
                    pb.Output(
                        choice=1, text="c", token_ids=[7], finish_reason=pb.FINISH_REASON_LENGTH
                    ),
                ],
                finished=pb.Finished(),
            ),
        ]
    )
    completion = client.generate("P", n=2, echo=True, logprobs=1)
    assert [c.text for c in completion.choices] == ["a", "bc"]
    assert completion.choices[0].stop_matched == "."
    assert completion.choices[1].token_ids == (6, 7)
    assert completion.logprobs[0].top[0].token_id == 5
    assert completion.prompt is not None
    assert completion.prompt.text == "P"
    assert completion.prompt.logprobs[0].logprob is None
    assert completion.session is None


def test_a_full_session_is_told_from_other_lengths(server, client):
    server.says(answer("one two"))
    messages = answer("one two")
    messages[-1].outputs[-1].context_full = True
    server.says(messages)
    server.says(messages)
    completion = client.generate("go")
    assert completion.finish_reason is mneme.FinishReason.LENGTH
    assert not completion.context_full
    full = client.generate("go", session="s")
    assert full.finish_reason is mneme.FinishReason.LENGTH
    assert full.context_full
    assert full.choices[0].context_full
    chunks = [e for e in client.stream("go", session="s") if isinstance(e, mneme.Chunk)]
    assert [c.context_full for c in chunks] == [False, True]


def test_a_closed_client_says_so(server):
    client = mneme.Client(server.target)
    server.says(answer("one two"))
    client.generate("go")
    session = client.session("s")
    client.close()
    ignored = []
    hook, sys.unraisablehook = sys.unraisablehook, ignored.append
    try:
        for call in (
            lambda: client.generate("go"),
            lambda: client.stream("go"),
            lambda: session.send("go"),
            lambda: session.info(),
            lambda: client.info(),
            lambda: client.wait_until_ready(60),
        ):
            with pytest.raises(mneme.ClientClosed, match="closed"):
                call()
        gc.collect()
    finally:
        sys.unraisablehook = hook
    assert not ignored
    assert len(server.requests) == 1


def test_classify_takes_texts_pairs_and_token_ids(server, client):
    server.says(
        pb.ClassifyResponse(
            results=[
                pb.Classification(
                    label_id=1,
                    label="good",
                    probabilities=[0.25, 0.75],
                    logits=[0.0, 1.5],
                    prompt_tokens=3,
                    memory_evicted=True,
                )
            ]
        )
    )
    documents = ["a", ("a", "b"), (5, 6, 7), ["ab", "c"]]
    answer = client.classify(documents, priority=2, parse_special=False)
    assert answer == [mneme.Classification("good", 1, (0.25, 0.75), (0.0, 1.5), 3, True)]
    request = server.requests[-1]
    assert [d.WhichOneof("content") for d in request.documents] == [
        "text",
        "text",
        "token_ids",
        "text",
    ]
    assert [d.text_pair for d in request.documents] == ["", "b", "", "c"]
    assert list(request.documents[2].token_ids.ids) == [5, 6, 7]
    assert request.priority == 2
    assert not request.parse_special
    assert request.HasField("parse_special")
    assert not request.HasField("add_special_tokens")
    with pytest.raises(TypeError, match="expected a list of documents"):
        client.classify("a")


def test_tokenize_and_detokenize(server, client):
    server.says(pb.TokenizeResponse(token_ids=[1, 5], pieces=["<s>", "a"]))
    tokens = client.tokenize("a", add_special_tokens=True, with_pieces=True)
    assert tokens == mneme.Tokens((1, 5), ("<s>", "a"))
    assert server.requests[-1].HasField("add_special_tokens")
    server.says(pb.DetokenizeResponse(text="ä"))
    assert client.detokenize((1, 5), continuation=True) == "ä"
    assert not server.requests[-1].HasField("skip_special_tokens")


def test_info_of_a_serving_and_of_a_loading_server(server, client):
    server.says(
        pb.GetInfoResponse(
            server=pb.ServerInfo(version="0.1.0", state=pb.SERVER_STATE_SERVING, device="cpu"),
            model=pb.ModelDescription(
                name="m",
                vocab_size=256,
                bos_token_id=0,
                sampling_defaults=pb.SamplingOptions(temperature=0.7, top_p=0.95, top_k=0),
            ),
            capacity=pb.Capacity(slab_bytes=1024, state_memory_bytes=4096, max_sessions=4),
            limits=pb.Limits(default_session_ttl_ms=-1),
            statistics=pb.Statistics(
                step_ms=pb.Histogram(count=2, sum=3.0, upper_bounds=[1, 2], counts=[1, 0, 1]),
                sessions_stored=5,
                stored_bytes=6,
            ),
        )
    )
    info = client.info()
    assert info.server.state is mneme.ServerState.SERVING
    assert info.model.bos_token_id == 0
    assert info.model.eos_token_id is None
    assert info.model.sampling_defaults == {"temperature": 0.7, "top_p": 0.95, "top_k": 0}
    assert info.capacity == mneme.Capacity(1024, 4096, 4)
    assert info.limits.default_session_ttl == math.inf
    assert info.statistics.step_ms.mean == 1.5
    assert (info.statistics.sessions_stored, info.statistics.stored_bytes) == (5, 6)
    assert info.statistics.queue_ms.mean == 0.0

    server.says(
        pb.GetInfoResponse(server=pb.ServerInfo(state=pb.SERVER_STATE_LOADING, total_bytes=9))
    )
    info = client.info()
    assert info.server.total_bytes == 9
    assert info.model is None
    assert info.capacity is None


def test_health(server, client):
    from grpc_health.v1 import health_pb2

    assert client.health() is mneme.ServingStatus.SERVING
    client.wait_until_ready(60)
    server.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    assert client.health() is mneme.ServingStatus.NOT_SERVING

    def says_so_after(timeout):
        with pytest.raises((TimeoutError, mneme.DeadlineExceeded)) as caught:
            client.wait_until_ready(timeout)
        return caught.type is TimeoutError  # and not that nothing was heard in that time

    assert any(says_so_after(0.1 * 2**i) for i in range(10))
    with pytest.raises(mneme.NotFound):
        client.health("no.such.Service")


def test_a_chat_sends_messages_and_collects_the_answer(server, client):
    server.says(answer("one two"))
    assert client.chat("Hello", max_tokens=5).text == "one two"
    request = server.requests[0]
    assert isinstance(request, pb.ChatRequest)
    assert [(m.role, m.content) for m in request.messages] == [("user", "Hello")]
    assert request.stopping.max_tokens == 5
    server.says(answer("one two"))
    assert list(client.stream_chat("Hello").texts()) == ["one", " two"]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("HISTORY_MISMATCH", mneme.HistoryMismatch), ("NO_CHAT_TEMPLATE", mneme.NoChatTemplate)],
)
def test_what_keeps_a_chat_from_going_on_has_a_name(server, client, reason, kind):
    server.fails(grpc.StatusCode.FAILED_PRECONDITION, "no", reason=reason)
    with pytest.raises(kind):
        client.chat("Hello", session="s", whole_conversation=True)
