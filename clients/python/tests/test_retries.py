"""What the blocking client repeats, and how long it waits."""

import grpc
import pytest

import mneme
from mneme.retry import Attempts

from fake_server import answer, session


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


def test_a_session_s_chat_is_repeated_only_with_a_key(server, client):
    server.fails(grpc.StatusCode.UNAVAILABLE, "gone")
    server.says(answer("one", position=4, name="s"))
    session = client.session("s")
    assert session.chat("Hello").text == "one"
    assert session.position == 4
    first, second = server.requests
    assert first.idempotency_key == second.idempotency_key != ""
    assert first.session.name == "s"
