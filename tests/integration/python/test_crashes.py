"""Servers killed with -9 at random moments, under clients that do all there is to do to sessions.

MNEME_CRASHES says how often; without it, as often as half a minute has room for.
"""

import os
import random
import subprocess
import time

import pytest

from crashing_chats import CrashingChat
from crashing_clients import CrashingClient, work_until_killed

KILLS = int(os.environ.get("MNEME_CRASHES", "0"))
SECONDS = 30.0
CLIENTS = 6


@pytest.fixture(scope="module")
def memoria(bin_dir, tmp_path_factory):
    """A model whose sessions can forget segments, of 7 tokens."""
    folder = tmp_path_factory.mktemp("models") / "memoria"
    make = [bin_dir / "mneme-make-model", "--shape", "gpt2-with-memoria-tiny", "--out", folder]
    subprocess.run(make, check=True, capture_output=True)
    return folder


def crash(clients, start, flags, model):
    """Kills servers under the clients, as often as is asked for; then one that lives, and how often."""
    moments = random.Random(7)
    end = time.monotonic() + SECONDS
    kills = 0
    while kills < KILLS if KILLS > 0 else time.monotonic() < end:
        work_until_killed(clients, start(*flags, model=model), moments.uniform(0.1, 0.8))
        kills += 1
    server = start(*flags, model=model)
    for one in clients:
        one.http = f"http://127.0.0.1:{server.http_port}"
        one.settle(server.client())
    return server, kills


def check_all_was_done(clients, kills):
    done = {}
    for one in clients:
        for operation, times in one.done.items():
            done[operation] = done.get(operation, 0) + times
    print(f"{kills} kills; {done}")
    for operation in {one.__name__ for one in clients[0].OPERATIONS}:
        assert done.get(operation, 0) > kills / 10, f"{operation}: {done}"


@pytest.mark.timeout(120 + 4 * KILLS)
@pytest.mark.parametrize("which", ["golden_model", "memoria"])
def test_what_was_answered_survives_kill_9_at_random_moments(which, request, start, tmp_path):
    model = request.getfixturevalue(which)
    clients = [CrashingClient(i, segment=7) for i in range(CLIENTS)]
    if which != "memoria":  # its memory is of one piece
        for client in clients:
            client.OPERATIONS = [one for one in client.OPERATIONS if one.__name__ != "forget"]
    flags = ["--session-dir", str(tmp_path / "sessions"), "--max-sessions", "5"]
    flags += ["--snapshot-tokens", "40"]
    peer_flags = ["--max-sessions", str(6 * CLIENTS)]
    if which == "memoria":
        flags += ["--engram-capacity", "15"]
        peer_flags += ["--engram-capacity", "15"]
    server, kills = crash(clients, start, flags, model)
    peer = start(*peer_flags, model=model).client()
    for one in clients:
        one.compare(server.client(), peer)
    check_all_was_done(clients, kills)
    assert sum(one.lost for one in clients) > 0, "sessions that are not durable were lost, aloud"


@pytest.mark.timeout(120 + 4 * KILLS)
def test_edits_of_whole_conversations_are_whole_or_have_not_happened(start, chat_model, tmp_path):
    clients = [CrashingChat(i, segment=0) for i in range(CLIENTS)]
    flags = ("--max-sessions", "5", "--snapshot-tokens", "40")
    there = ("--session-dir", str(tmp_path / "sessions"))
    server, kills = crash(clients, start, (*flags, *there), chat_model)
    peer = start("--session-dir", str(tmp_path / "peer"), *flags, model=chat_model)
    for one in clients:
        one.compare(server.client(), f"http://127.0.0.1:{peer.http_port}")
    check_all_was_done(clients, kills)
