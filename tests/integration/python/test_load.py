"""Many clients at once, too many, slow ones, and the end of the server under load."""

import asyncio
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import mneme

from waiting import wait_for

ENDLESS = {"max_tokens": 1_000_000, "ignore_eos": True}


def first_chunk(stream):
    """Reads until the stream's request has made a token."""
    for event in iter(stream.__next__, None):
        if isinstance(event, mneme.Chunk):
            return event
    return None


def test_64_streams_at_once_give_what_each_gives_alone(golden_server, client):
    prompts = [[i, 2 * i % 256, 7] for i in range(64)]
    options = {"max_tokens": 40, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    expected = [client.generate(prompt, **options).logprobs for prompt in prompts[:8]]

    async def run():
        async with mneme.AsyncClient(golden_server.target, retry=None) as many:
            return await asyncio.gather(
                *(many.generate(prompt, timeout=60, **options) for prompt in prompts)
            )

    answers = asyncio.run(run())
    assert all(len(answer.token_ids) == 40 for answer in answers)
    assert [answer.logprobs for answer in answers[:8]] == expected


def test_sessions_under_load_stay_apart(golden_server, client, name):
    def converse(i):
        session = golden_server.client().session(f"{name}-{i}")
        return [
            session.send([i, turn], max_tokens=6, temperature=0, ignore_eos=True).token_ids
            for turn in range(5)
        ]

    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(converse, range(16)))
    for i in (0, 9):
        client.sessions.delete(f"{name}-{i}")
        assert converse(i) == together[i]


def test_a_slow_reader_stalls_only_itself(golden_server, client):
    stalled = client.stream([1], **ENDLESS)
    first_chunk(stalled)  # and reads no more
    for _ in range(3):
        answer = client.generate([2], max_tokens=50, ignore_eos=True)
        assert len(answer.token_ids) == 50
    # It may go on where it was.
    assert first_chunk(stalled) is not None
    stalled.cancel()


def test_a_full_queue_refuses_and_says_when_to_retry(start):
    server = start("--max-sessions", "1", "--max-num-queued-reqs", "2")
    client = server.client()
    running = client.stream([1], **ENDLESS)
    first_chunk(running)
    waiting = [client.stream([2], max_tokens=1) for _ in range(2)]
    wait_for(lambda: client.info().statistics.requests_waiting == 2, "both in the queue")
    with pytest.raises(mneme.Overloaded) as caught:
        client.generate([3], max_tokens=1)
    assert caught.value.retry_after > 0
    running.cancel()
    for stream in waiting:
        assert len(stream.result().token_ids) == 1


def test_retries_get_through_an_overload(start):
    server = start("--max-sessions", "2", "--max-num-queued-reqs", "2")
    policy = mneme.RetryPolicy(max_attempts=60, initial_backoff=0.02)
    client = server.client(retry=policy, timeout=None)
    with ThreadPoolExecutor(12) as pool:
        answers = list(
            pool.map(lambda i: client.generate([i], max_tokens=5, ignore_eos=True), range(12))
        )
    assert all(len(answer.token_ids) == 5 for answer in answers)


def test_named_sessions_that_fill_the_memory_are_told_apart_from_a_full_queue(start):
    server = start("--max-sessions", "2")
    client = server.client()
    client.sessions.create("a")
    client.sessions.create("b")
    with pytest.raises(mneme.Overloaded) as caught:
        client.sessions.create("c")
    assert caught.value.retry_after > 0
    with pytest.raises(mneme.Overloaded):
        client.sessions.fork("a", "c")
    # A session that exists goes on.
    client.generate([1], session="a", max_tokens=2, ignore_eos=True)


def expires_in_the_queue(client, timeout):
    """Whether a request was in the queue when its deadline passed, or had not come so far."""
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(client.generate, [2], session="late", max_tokens=1, timeout=timeout)
        was_queued = False
        while not late.done():
            was_queued = was_queued or client.info().statistics.requests_waiting == 1
    assert isinstance(late.exception(), mneme.DeadlineExceeded)
    return was_queued


def test_a_deadline_passes_in_the_queue(start):
    server = start("--max-sessions", "1")
    client = server.client()
    running = client.stream([1], **ENDLESS)
    first_chunk(running)
    assert any(expires_in_the_queue(client, 0.2 * 2**i) for i in range(8))

    # Whether the server sees the deadline or the client that leaves at it is a matter of luck. The
    # counters move when the request ends, the gauge at the end of that turn of the engine's loop.
    def has_left():
        statistics = client.info().statistics
        ended = statistics.requests_expired + statistics.requests_cancelled
        return ended > 0 and statistics.requests_waiting == 0

    wait_for(has_left, "the end of the request")
    # Nothing was fed, so the session was not even created.
    running.cancel()
    with pytest.raises(mneme.SessionNotFound):
        client.sessions.get("late")


def test_a_client_that_leaves_frees_its_place(start):
    server = start("--max-sessions", "1")
    for _ in range(3):
        client = server.client()
        stream = client.stream([1], **ENDLESS)
        first_chunk(stream)
        client.close()
    assert len(server.client().generate([1], max_tokens=3, ignore_eos=True).token_ids) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_drains_and_exits_0(start, number):
    server = start()
    client = server.client(timeout=None)
    short = {"max_tokens": 200, "ignore_eos": True}
    started = threading.Barrier(17)

    def run(i):
        stream = client.stream([i], **short)
        next(stream)
        started.wait(120)
        return stream.result()

    with ThreadPoolExecutor(16) as pool:
        answers = [pool.submit(run, i) for i in range(16)]
        started.wait(120)
        server.signal(number)
        # Requests that run are finished.
        for answer in answers:
            assert len(answer.result(120).token_ids) == 200
    assert server.wait() == 0


def test_new_work_is_refused_while_draining(start):
    server = start("--shutdown-timeout", "1h")
    client = server.client()
    running = client.stream([1], **ENDLESS)
    first_chunk(running)
    server.signal(signal.SIGTERM)
    wait_for(lambda: client.health() is mneme.ServingStatus.NOT_SERVING, "the beginning of the end")
    with pytest.raises(mneme.Unavailable):
        client.generate([2], max_tokens=1)
    # A second signal ends it at once.
    server.signal(signal.SIGTERM)
    assert server.wait() == 143


def test_what_does_not_end_in_time_is_told_so(start):
    server = start("--shutdown-timeout", "100ms")
    running = server.client().stream([1], **ENDLESS)
    first_chunk(running)
    server.signal()
    with pytest.raises((mneme.Unavailable, mneme.Cancelled)):
        running.result()
    assert server.wait() == 0


def test_a_taken_port_is_an_error_of_its_own(start, bin_dir, golden_model):
    server = start()
    second = subprocess.run(
        [bin_dir / "mneme-server", "--model", golden_model, "--http-port", "0"]
        + ["--grpc-port", str(server.port)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 5
    assert str(server.port) in second.stderr
