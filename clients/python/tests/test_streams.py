"""Streams of the blocking client: their events, and their ends."""

import gc
import threading

import grpc
import pytest

import mneme

from fake_server import answer


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
