"""The blocking client against a scripted server."""

import gc
import math
import sys
import threading

import grpc
import pytest

import mneme
from mneme.retry import Attempts
from mneme.v1 import inference_pb2 as pb
from mneme.v1 import memory_pb2, sessions_pb2

from fake_server import answer, session

FAST = mneme.RetryPolicy(initial_backoff=0.01, max_backoff=1.0)


@pytest.fixture
def client(server):
    with mneme.Client(server.target, retry=FAST) as c:
        yield c


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
            mneme.MemorySource(3, 30, 40, "long_term", 4, 0.75),
            mneme.MemorySource(0, 0, 0, "short_term", 1, 0.25),
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
    assert full.context_full and full.choices[0].context_full
    chunks = [e for e in client.stream("go", session="s") if isinstance(e, mneme.Chunk)]
    assert [c.context_full for c in chunks] == [False, True]


def test_stream_yields_typed_events_in_order(server, client):
    server.says(answer("one two"))
    kinds = [type(event) for event in client.stream("go")]
    assert kinds == [mneme.Started, mneme.Chunk, mneme.Chunk, mneme.Finished]


def test_texts_and_result_of_a_stream(server, client):
    server.says(answer("one two"))
    server.says(answer("one two three"))
    assert list(client.stream("go").texts()) == ["one", " two"]
    stream = client.stream("go")
    assert isinstance(next(stream), mneme.Started)
    assert next(stream).text == "one"
    assert stream.finished is None
    assert stream.result().text == "one two three"
    assert stream.finished is not None


def test_leaving_the_loop_cancels_the_call(server, client):
    server.babbles()
    stream = client.stream("go")
    for event in stream:
        if event.text:
            break
    assert server.cancelled.wait(60)
    with pytest.raises(mneme.Cancelled):
        next(stream)


def test_leaving_the_loop_over_texts_cancels_the_call(server, client):
    server.babbles()
    for _ in client.stream("go").texts():
        break
    assert server.cancelled.wait(60)


def test_a_forgotten_stream_is_cancelled(server, client):
    server.babbles()
    stream = client.stream("go")
    next(stream)
    del stream
    gc.collect()
    assert server.cancelled.wait(60)


def test_the_end_of_a_with_block_cancels_the_call(server, client):
    server.babbles()
    with client.stream("go") as stream:
        next(stream)
    assert server.cancelled.wait(60)


def test_an_exception_in_the_loop_cancels_the_call(server, client):
    server.babbles()

    def read():
        for event in client.stream("go"):
            raise ValueError(event)

    with pytest.raises(ValueError, match="Started"):
        read()
    assert server.cancelled.wait(60)


def test_another_thread_may_cancel(server, client):
    server.babbles()
    stream = client.stream("go")
    next(stream)
    threading.Timer(0.05, stream.cancel).start()
    with pytest.raises(mneme.Cancelled):
        for _ in stream:
            pass
    assert server.cancelled.wait(60)


def test_a_stream_without_an_end_is_an_error(server, client):
    server.says(answer("one two")[:2])
    with pytest.raises(mneme.InternalError, match="finished"):
        client.generate("go")


def test_a_broken_answer_keeps_what_had_arrived(server, client):
    server.says_and_fails(answer("one two")[:2], grpc.StatusCode.INTERNAL, "oh", "DEVICE_ERROR")
    with pytest.raises(mneme.InternalError) as caught:
        client.generate("go")
    assert caught.value.choices[0].text == "one"


def test_overload_is_retried_with_the_same_key(server, client):
    server.fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", "QUEUE_FULL", retry_ms=30)
    server.fails(grpc.StatusCode.UNAVAILABLE, "loading", "LOADING")
    server.says(answer("done"))
    assert client.generate("go", session="s").text == "done"
    keys = {request.idempotency_key for request in server.requests}
    assert len(server.requests) == 3
    assert len(keys) == 1
    assert keys != {""}


def test_a_connection_lost_half_way_is_retried_by_generate(server, client):
    server.says_and_fails(answer("one two")[:2], grpc.StatusCode.UNAVAILABLE, "gone")
    server.fails(grpc.StatusCode.ABORTED, "still runs", "IDEMPOTENCY_KEY_RUNNING")
    server.says(answer("one two", replayed=True))
    completion = client.generate("go", session="s")
    assert completion.text == "one two"
    assert completion.replayed


def test_a_request_that_broke_off_is_not_fed_twice(server, client):
    server.says_and_fails(answer("one two")[:2], grpc.StatusCode.UNAVAILABLE, "gone")
    server.fails(
        grpc.StatusCode.ABORTED,
        "broke off",
        "IDEMPOTENCY_KEY_BROKEN_OFF",
        metadata={"position": "5"},
    )
    with pytest.raises(mneme.RequestBroken) as caught:
        client.generate("go", session="s")
    assert caught.value.position == 5


def test_a_key_in_use_by_somebody_else_is_not_waited_for(server, client):
    server.fails(grpc.StatusCode.ABORTED, "still runs", "IDEMPOTENCY_KEY_RUNNING")
    with pytest.raises(mneme.RequestInProgress):
        client.generate("go", session="s", idempotency_key="k")
    assert len(server.requests) == 1


def test_a_stream_is_retried_before_its_first_event_only(server, client):
    server.fails(grpc.StatusCode.UNAVAILABLE, "loading", "LOADING")
    server.says_and_fails(answer("one two")[:2], grpc.StatusCode.UNAVAILABLE, "gone")
    stream = client.stream("go")
    assert [next(stream).text, next(stream).text] == ["", "one"]
    with pytest.raises(mneme.Unavailable):
        next(stream)
    assert len(server.requests) == 2


def test_retries_end(server, client):
    for _ in range(4):
        server.fails(grpc.StatusCode.UNAVAILABLE, "loading", "LOADING")
    with pytest.raises(mneme.Unavailable):
        client.generate("go")
    assert len(server.requests) == 4


def test_other_errors_are_not_retried(server, client):
    server.fails(grpc.StatusCode.FAILED_PRECONDITION, "busy", "SESSION_BUSY")
    with pytest.raises(mneme.SessionBusy):
        client.generate("go", session="s")
    server.fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "message too large")
    with pytest.raises(mneme.ResourceExhausted):
        client.generate("go")
    assert len(server.requests) == 2


def test_retries_can_be_switched_off(server, client):
    server.fails(grpc.StatusCode.UNAVAILABLE, "loading", "LOADING")
    with pytest.raises(mneme.Unavailable):
        client.generate("go", session="s", retry=None)
    assert server.requests[0].idempotency_key == ""


def test_a_wait_beyond_the_timeout_is_not_begun(server, client):
    server.fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", "QUEUE_FULL", retry_ms=61_000)
    with pytest.raises(mneme.Overloaded):
        client.generate("go", timeout=60, retry=mneme.RetryPolicy(max_backoff=100))
    assert len(server.requests) == 1


def test_a_hint_beyond_the_longest_wait_is_raised_at_once(server):
    calls = (
        lambda c: c.generate("go"),
        lambda c: c.stream("go").result(),
        lambda c: c.info(),
    )
    with mneme.Client(server.target) as client:  # as it comes: ten seconds, four tries
        for call in calls:
            server.fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", "QUEUE_FULL", retry_ms=10_001)
            with pytest.raises(mneme.Overloaded) as caught:
                call(client)
            assert caught.value.retry_after == 10.001
    assert len(server.requests) == len(calls)


def test_the_waits_of_a_call_are_bounded():
    policy = mneme.RetryPolicy()
    attempts = Attempts(policy, None, repeatable=True)
    error = mneme.Overloaded("full")
    error.retry_after = policy.max_backoff
    waited = 0.0
    attempts.begin()
    while (delay := attempts.delay_after(error)) is not None:
        waited += delay
        attempts.begin()
    assert waited >= (policy.max_attempts - 1) * policy.max_backoff
    assert waited <= (policy.max_attempts - 1) * policy.max_backoff * (1 + policy.jitter)


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


def test_a_mismatch_is_told_once(server, client):
    chat = client.session("s", exclusive=True)
    server.says(answer("one", position=4, name="s"))
    chat.send("first")
    server.fails(
        grpc.StatusCode.ABORTED, "elsewhere", "POSITION_MISMATCH", metadata={"position": "9"}
    )
    with pytest.raises(mneme.PositionMismatch) as caught:
        chat.send("second")
    assert caught.value.position == 9
    assert chat.position is None
    server.says(answer("two", position=12, name="s"))
    chat.send("second")
    assert [r.HasField("expected_position") for r in server.requests] == [False, True, False]
    assert chat.position == 12


def test_the_timeout_covers_all_tries(server, client):
    server.fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", "QUEUE_FULL", retry_ms=500)
    server.says(answer("done"))
    client.generate("go", timeout=9)
    first, second = server.times_left
    rounding = 0.1  # gRPC rounds a deadline up on its way to the server
    assert 0 < first <= 9 + rounding
    assert 0 < second <= first - 0.5 + rounding


def test_the_timeout_is_the_deadline_of_the_call(server, client):
    timeout = 0.05
    while not server.called.is_set():  # as much time as it takes to get there
        timeout *= 2
        server.babbles()
        with pytest.raises(mneme.DeadlineExceeded):
            client.generate("go", timeout=timeout)
    assert server.cancelled.wait(60)


def test_creating_is_repeated_only_if_the_server_refused(server, client):
    server.fails(grpc.StatusCode.UNAVAILABLE, "loading", "LOADING")
    server.says(session("a"))
    assert client.sessions.create("a").name == "a"
    server.fails(grpc.StatusCode.UNAVAILABLE, "connection lost")
    with pytest.raises(mneme.Unavailable):
        client.sessions.create("b")
    assert len(server.requests) == 3
    server.fails(grpc.StatusCode.UNAVAILABLE, "connection lost")
    server.says(session("a"))
    client.sessions.get("a")


def test_sessions(server, client):
    server.says(session("a", position=3, ttl_ms=1500))
    info = client.sessions.get("a")
    assert (info.name, info.position, info.ttl, info.state_bytes) == ("a", 3, 1.5, 1024)
    assert info.create_time.tzinfo is not None
    assert (info.max_context, info.context_full) == (0, False)
    assert info.residency == "device"
    server.says(
        session(
            "a", max_context=16, context_full=True, residency=sessions_pb2.RESIDENCY_HOST
        )
    )
    info = client.sessions.get("a")
    assert (info.max_context, info.context_full, info.residency) == (16, True, "host")

    server.says(session("a"))
    assert client.sessions.create("a", ttl=math.inf).ttl == math.inf
    assert server.requests[-1].ttl_ms == -1

    server.says(
        sessions_pb2.ListSessionsResponse(
            sessions=[session("a"), session("b")], next_page_token="t", total_count=3
        )
    )
    server.says(sessions_pb2.ListSessionsResponse(sessions=[session("c")], total_count=3))
    assert [s.name for s in client.sessions.list("p", page_size=2)] == ["a", "b", "c"]
    assert server.requests[-1].page_token == "t"
    assert server.requests[-1].name_prefix == "p"

    server.says(session("b"))
    assert client.sessions.fork("a", "b").name == "b"
    server.says(sessions_pb2.DeleteSessionResponse())
    client.sessions.delete("b")
    assert server.requests[-1].name == "b"


def test_a_session_sends_only_what_is_new(server, client):
    chat = client.session("s")
    server.says(answer("one", position=4, name="s"))
    server.says(answer("two", position=8, name="s"))
    server.says(session("t", position=8))
    assert chat.send("first").text == "one"
    assert list(chat.stream("second").texts()) == ["two"]
    assert [r.text for r in server.requests] == ["first", "second"]
    assert {r.session.name for r in server.requests} == {"s"}
    assert not server.requests[1].HasField("expected_position")
    assert chat.position == 8
    fork = chat.fork("t")
    assert (fork.name, fork.position) == ("t", 8)
    server.says(session("s", position=8))
    assert chat.info().position == 8
    server.says(sessions_pb2.DeleteSessionResponse())
    chat.delete()
    assert chat.position is None


def test_an_exclusive_session_says_where_it_expects_to_be(server, client):
    chat = client.session("s", exclusive=True)
    server.says(answer("one", position=4, name="s"))
    chat.send("first")
    server.says(answer("two", position=8, name="s"))
    for event in chat.stream("second"):
        if isinstance(event, mneme.Chunk) and event.finish_reason is None:
            break
    assert server.requests[1].expected_position == 4
    assert chat.position == 8
    server.says(answer("three", position=9, name="s"))
    chat.send(expected_position=1)
    assert server.requests[2].expected_position == 1
    server.fails(grpc.StatusCode.ABORTED, "m", "POSITION_MISMATCH", metadata={"position": "12"})
    with pytest.raises(mneme.PositionMismatch):
        chat.send("fourth")
    assert chat.position is None


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
                )
            ]
        )
    )
    documents = ["a", ("a", "b"), (5, 6, 7), ["ab", "c"]]
    answer = client.classify(documents, priority=2, parse_special=False)
    assert answer == [mneme.Classification("good", 1, (0.25, 0.75), (0.0, 1.5), 3)]
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


def test_memory_is_inspected_by_views(server, client):
    server.says(
        memory_pb2.InspectMemoryResponse(
            summary=memory_pb2.MemorySummary(position=300, segment=1, working=2, free=62),
            engrams=[
                memory_pb2.Engram(
                    birth=5,
                    kind=memory_pb2.ENGRAM_KIND_LONG_TERM,
                    lifespan=2.5,
                    recalled=True,
                    source=memory_pb2.SegmentRange(segment=2, first_token=20, end_token=30),
                )
            ],
            edges=[memory_pb2.EngramEdge(**{"from": 3}, to=5, count=4, weight=0.5, weight_back=1)],
            histogram=[memory_pb2.HistogramBin(**{"from": 1}, to=2, engrams=7)],
            contiguity=[memory_pb2.ContiguityBin(distance=1, mean_weight=0.25, pairs=8)],
        )
    )
    report = client.sessions.inspect_memory(
        "anna",
        engrams=mneme.EngramsView(
            order=mneme.EngramOrder.LIFESPAN, kind=mneme.EngramKind.LONG_TERM, limit=3
        ),
        edges=mneme.EdgesView(birth=0, min_weight=0.5),
        histogram=mneme.HistogramView(mneme.HistogramQuantity.AGE, logarithmic=True),
        contiguity=mneme.ContiguityView(),
    )
    assert report.summary.free == 62
    assert report.engrams[0].kind is mneme.EngramKind.LONG_TERM
    assert report.engrams[0].source == mneme.SegmentRange(2, 20, 30)
    assert report.edges == (mneme.EngramEdge(3, 5, 4, 0.5, 1.0),)
    assert report.histogram == (mneme.HistogramBin(1.0, 2.0, 7),)
    assert report.contiguity == (mneme.ContiguityBin(1, 0.25, 8),)
    request = server.requests[-1]
    assert request.name == "anna"
    assert request.engrams.order == memory_pb2.EngramsView.ORDER_LIFESPAN
    assert request.engrams.kind == memory_pb2.ENGRAM_KIND_LONG_TERM
    assert request.engrams.limit == 3
    assert not request.engrams.HasField("birth")
    assert request.edges.HasField("birth")
    assert request.edges.min_weight == 0.5
    assert request.histogram.quantity == memory_pb2.HistogramView.QUANTITY_AGE
    assert request.histogram.logarithmic
    assert request.contiguity.max_distance == 200

    server.says(memory_pb2.InspectMemoryResponse())
    assert client.session("anna").inspect_memory().engrams == ()
    assert not server.requests[-1].HasField("engrams")


def test_segments_are_forgotten(server, client):
    server.says(memory_pb2.ForgetSegmentsResponse(working=1, long_term=3))
    assert client.session("anna").forget_segments(2, 5) == mneme.ForgottenEngrams(1, 0, 3)
    request = server.requests[-1]
    assert (request.name, request.first, request.end) == ("anna", 2, 5)


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
                step_ms=pb.Histogram(count=2, sum=3.0, upper_bounds=[1, 2], counts=[1, 0, 1])
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


def test_a_session_s_chat_is_repeated_only_with_a_key(server, client):
    server.fails(grpc.StatusCode.UNAVAILABLE, "gone")
    server.says(answer("one", position=4, name="s"))
    session = client.session("s")
    assert session.chat("Hello").text == "one"
    assert session.position == 4
    first, second = server.requests
    assert first.idempotency_key == second.idempotency_key != ""
    assert first.session.name == "s"


def test_a_session_that_must_exist_says_so_with_every_request(server, client):
    session = client.session("s", must_exist=True)
    for call in (session.chat, session.send):
        server.says(answer("one", name="s"))
        call("Hello")
    for call in (session.stream_chat, session.stream):
        server.says(answer("one", name="s"))
        call("Hello").result()
    assert [request.session.must_exist for request in server.requests] == [True] * 4
    server.fails(grpc.StatusCode.NOT_FOUND, "no session s", reason="NO_SUCH_SESSION")
    with pytest.raises(mneme.SessionNotFound):
        session.chat("Hello")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("HISTORY_MISMATCH", mneme.HistoryMismatch), ("NO_CHAT_TEMPLATE", mneme.NoChatTemplate)],
)
def test_what_keeps_a_chat_from_going_on_has_a_name(server, client, reason, kind):
    server.fails(grpc.StatusCode.FAILED_PRECONDITION, "no", reason=reason)
    with pytest.raises(kind):
        client.chat("Hello", session="s", whole_conversation=True)
