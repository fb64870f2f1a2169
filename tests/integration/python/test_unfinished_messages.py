"""Clients that begin large messages and do not finish them: their memory is bounded, and others go on."""

import subprocess
import threading

import mneme

from http2_frames import ENHANCE_YOUR_CALM, UnfinishedCalls
from waiting import wait_for

MIB = 1 << 20
MEMORY_MIB = 64
PART = 4 * MIB  # of messages of 8 MiB
CALLS = 64  # of each of two connections: eight times the memory in all
CALL_TIMEOUT_S = 15.0


def is_answered(client, ids):
    """Whether the server has read the request, rather than gRPC cut it off, or kept it waiting on a
    connection that it was about to close."""
    try:
        client.generate(ids, max_tokens=2, ignore_eos=True, timeout=CALL_TIMEOUT_S)
    except mneme.InvalidArgument:
        return True
    except (mneme.ResourceExhausted, mneme.Unavailable, mneme.DeadlineExceeded):
        return False
    return True


def test_the_memory_of_unfinished_messages_is_bounded(start):
    server = start("--grpc-memory", f"{MEMORY_MIB}MiB")
    client = server.client(retry=mneme.RetryPolicy())  # idle connections may be told to reconnect
    client.generate([1, 2], max_tokens=1)
    hostile = [UnfinishedCalls(server.port) for _ in range(2)]
    for connection in hostile:
        for _ in range(CALLS):
            connection.begin("/mneme.v1.Inference/Generate", PART, 2 * PART)
    stop = threading.Event()
    threads = [threading.Thread(target=c.run, args=(stop,)) for c in hostile]
    for thread in threads:
        thread.start()
    wait_for(lambda: sum(len(c.resets) for c in hostile) > 0, "calls that were cut off")
    # Others may be hit, but get through.
    wait_for(lambda: is_answered(client, [1, 2, 3]), "a short message in the flood")

    def what_is_left_fits():
        left = 2 * CALLS - sum(len(c.resets) for c in hostile)
        return left * PART <= (MEMORY_MIB + 2 * 8) * MIB

    wait_for(what_is_left_fits, "an end of the flood")
    stop.set()
    for thread in threads:
        thread.join()
    assert {code for c in hostile for code in c.resets.values()} == {ENHANCE_YOUR_CALM}

    # With the hostile calls still open there is room for large messages again. These are of two bytes
    # for each id, and no token of this model.
    wait_for(lambda: is_answered(client, [300] * MIB), "a large message among unfinished ones")
    for _ in range(10):
        wait_for(lambda: is_answered(client, [1, 2, 3]), "a short message among them")
    for connection in hostile:
        connection.close()


def test_the_memory_must_hold_some_messages(bin_dir, golden_model):
    done = subprocess.run(
        [bin_dir / "mneme-server", "--model", golden_model, "--grpc-memory", "32MiB"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "--grpc-memory: 32MiB, expected at least 64MiB" in done.stderr
