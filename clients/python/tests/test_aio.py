"""The asyncio client against a scripted server: what differs from the blocking one."""

import asyncio
import gc

import grpc
import pytest

import mneme
from mneme.v1 import inference_pb2 as pb
from mneme.v1 import memory_pb2, sessions_pb2

from fake_server import answer, session

FAST = mneme.RetryPolicy(initial_backoff=0.01, max_backoff=1.0)


def run(server, test):
    """Runs `await test(client)`."""

    async def main():
        async with mneme.AsyncClient(server.target, retry=FAST) as client:
            await test(client)

    asyncio.run(main())


async def soon(event):
    """Waits for a threading.Event without blocking the event loop."""
    assert await asyncio.get_running_loop().run_in_executor(None, event.wait, 60)


def test_generate_and_stream(server):
    async def test(client):
        server.says(answer("one two", position=3, name="s"))
        completion = await client.generate("go", session="s")
        assert completion.text == "one two"
        server.says(answer("one two"))
        assert [type(e) async for e in client.stream("go")] == [
            mneme.Started,
            mneme.Chunk,
            mneme.Chunk,
            mneme.Finished,
        ]
        server.says(answer("one two"))
        assert [t async for t in client.stream("go").texts()] == ["one", " two"]

    run(server, test)


def test_calls_run_side_by_side(server):
    async def test(client):
        for _ in range(5):
            server.says(answer("one two"))
        answers = await asyncio.gather(*(client.generate("go") for _ in range(5)))
        assert [a.text for a in answers] == ["one two"] * 5

    run(server, test)


def test_leaving_the_loop_cancels_the_call(server):
    async def test(client):
        server.babbles()
        async for event in client.stream("go"):
            if event.text:
                break
        await soon(server.cancelled)

    run(server, test)


def test_leaving_the_loop_over_texts_cancels_the_call(server):
    async def test(client):
        server.babbles()
        stream = client.stream("go")
        async for _ in stream.texts():
            break
        await soon(server.cancelled)
        with pytest.raises(mneme.Cancelled):
            await stream.__anext__()

    run(server, test)


def test_a_forgotten_stream_is_cancelled(server):
    async def test(client):
        server.babbles()
        stream = client.stream("go")
        await stream.__anext__()
        del stream
        gc.collect()
        await soon(server.cancelled)

    run(server, test)


def test_the_end_of_a_with_block_cancels_the_call(server):
    async def test(client):
        server.babbles()
        async with client.stream("go") as stream:
            await stream.__anext__()
        await soon(server.cancelled)

    run(server, test)


def test_cancelling_the_task_cancels_the_call(server):
    async def test(client):
        server.babbles()
        task = asyncio.create_task(client.generate("go"))
        await soon(server.called)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await soon(server.cancelled)

    run(server, test)


def test_another_task_may_cancel_the_stream(server):
    async def test(client):
        server.babbles()
        stream = client.stream("go")
        await stream.__anext__()
        asyncio.get_running_loop().call_later(0.05, stream.cancel)
        with pytest.raises(mneme.Cancelled):
            await stream.result()
        await soon(server.cancelled)

    run(server, test)


def test_retries_and_errors(server):
    async def test(client):
        server.fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", "QUEUE_FULL", retry_ms=20)
        server.says_and_fails(answer("one two")[:2], grpc.StatusCode.UNAVAILABLE, "gone")
        server.says(answer("one two"))
        assert (await client.generate("go", session="s")).text == "one two"
        assert len({r.idempotency_key for r in server.requests}) == 1

        server.fails(
            grpc.StatusCode.INVALID_ARGUMENT, "bad", "INVALID_FIELD", fields=(("sampling", "x"),)
        )
        with pytest.raises(mneme.InvalidArgument) as caught:
            await client.generate("go")
        assert caught.value.field_violations[0].field == "sampling"

        text, timeout = "", 0.1
        while not text:  # as much time as it takes to hear something
            timeout *= 2
            server.babbles()
            with pytest.raises(mneme.DeadlineExceeded) as late:
                await client.generate("go", timeout=timeout)
            text = late.value.choices[0].text
        assert text.startswith("bla")

    run(server, test)


def test_a_hint_beyond_the_longest_wait_is_raised_at_once(server):
    async def test(client):
        for call in (client.generate, lambda prompt: client.stream(prompt).result()):
            server.fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", "QUEUE_FULL", retry_ms=60_000)
            with pytest.raises(mneme.Overloaded) as caught:
                await call("go")
            assert caught.value.retry_after == 60
        assert len(server.requests) == 2

    run(server, test)


def test_a_closed_client_says_so(server):
    async def test(client):
        server.says(answer("one two"))
        await client.generate("go")
        await client.close()
        with pytest.raises(mneme.ClientClosed, match="closed"):
            await client.generate("go")
        with pytest.raises(mneme.ClientClosed):
            client.stream("go")
        with pytest.raises(mneme.ClientClosed):
            await client.info()
        with pytest.raises(mneme.ClientClosed):
            await client.wait_until_ready(60)

    run(server, test)


def test_sessions_and_the_rest(server):
    async def test(client):
        chat = client.session("s", exclusive=True)
        server.says(answer("one", position=4, name="s"))
        await chat.send("first")
        server.says(answer("two", position=7, name="s"))
        assert [t async for t in chat.stream("second").texts()] == ["two"]
        assert server.requests[-1].expected_position == 4
        assert chat.position == 7
        server.says(session("t", 7))
        assert (await chat.fork("t")).position == 7
        server.says(sessions_pb2.Checkpoint(name="c", position=7))
        checkpoint = await chat.checkpoint("c")
        made = sessions_pb2.Checkpoint(name="c", position=7)
        server.says(sessions_pb2.ListCheckpointsResponse(checkpoints=[made]))
        assert await chat.checkpoints() == (checkpoint,)
        server.says(session("s", 4))
        assert (await chat.rewind(4)).position == chat.position == 4
        server.says(session("u", 4))
        assert (await chat.fork("u", at="c")).position == 4
        assert server.requests[-1].checkpoint == "c"
        server.says(sessions_pb2.DeleteCheckpointResponse())
        await client.sessions.delete_checkpoint("s", "c")
        server.says(session("s", 7))
        assert (await chat.info()).position == 7
        server.says(sessions_pb2.DeleteSessionResponse())
        await chat.delete()

        server.says(sessions_pb2.ListSessionsResponse(sessions=[session("a")], next_page_token="t"))
        server.says(sessions_pb2.ListSessionsResponse(sessions=[session("b")]))
        assert [s.name async for s in client.sessions.list()] == ["a", "b"]
        usage = sessions_pb2.SessionUsage(sessions=2, max_stored_bytes=6)
        server.says(sessions_pb2.ListSessionsResponse(usage=usage))
        assert await client.sessions.usage() == mneme.SessionUsage(2, max_stored_bytes=6)
        server.says(session("c"))
        assert (await client.sessions.create("c", memory_seed=7)).name == "c"
        assert server.requests[-1].memory_seed == 7

        server.says(pb.ClassifyResponse(results=[pb.Classification(label="good")]))
        assert [c.label for c in await client.classify(["a"])] == ["good"]
        memory = memory_pb2.InspectMemoryResponse(summary=memory_pb2.MemorySummary(free=3))
        server.says(memory)
        report = await client.session("a").inspect_memory(edges=mneme.EdgesView())
        assert report.summary.free == 3
        assert server.requests[-1].edges.limit == 100
        server.says(memory_pb2.ForgetSegmentsResponse(short_term=2))
        gone = await client.session("a").forget_segments(0, 1)
        assert gone == mneme.ForgottenEngrams(0, 2, 0)
        server.says(pb.TokenizeResponse(token_ids=[1]))
        assert (await client.tokenize("a")).ids == (1,)
        server.says(pb.DetokenizeResponse(text="a"))
        assert await client.detokenize([1]) == "a"
        server.says(pb.GetInfoResponse(server=pb.ServerInfo(version="v")))
        assert (await client.info()).server.version == "v"
        assert await client.health() is mneme.ServingStatus.SERVING
        await client.wait_until_ready(60)

    run(server, test)


def test_both_clients_have_the_same_methods():
    def names(kind):
        return {name for name in vars(kind) if not name.startswith("_")}

    assert names(mneme.AsyncClient) == names(mneme.Client)
    assert names(mneme.AsyncSession) == names(mneme.Session)
    assert names(mneme.AsyncSessions) == names(mneme.Sessions)
    assert names(mneme.AsyncStream) == names(mneme.Stream)


def test_chats(server):
    async def test(client):
        session = client.session("s", must_exist=True)
        server.says(answer("one two", position=3, name="s"))
        assert (await session.chat("Hello")).text == "one two"
        assert session.position == 3
        server.says(answer("one two", position=5, name="s"))
        assert [text async for text in session.stream_chat("More").texts()] == ["one", " two"]
        server.says(answer("one"))
        assert (await client.chat([{"role": "user", "content": "a"}])).text == "one"
        server.says(answer("one"))
        assert (await client.stream_chat("a").result()).text == "one"
        assert [r.session.must_exist for r in server.requests] == [True, True, False, False]
        assert {type(r).__name__ for r in server.requests} == {"ChatRequest"}

    run(server, test)
