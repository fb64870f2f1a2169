"""Far more sessions than places: all are served, and neither memory nor files grow.

MNEME_PARKED_SECONDS=600 is the long form, of 10,000 sessions; the short one has 600.
"""

import os
import random
import threading
import time
from pathlib import Path

import pytest

SECONDS = float(os.environ.get("MNEME_PARKED_SECONDS", "0"))
SESSIONS = 10_000 if SECONDS > 0 else 600
PLACES = 64
WORKERS = 16
MEGABYTE = 1 << 20


def resident_bytes(process):
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def open_files(process):
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


@pytest.mark.timeout(240 + SECONDS)
@pytest.mark.parametrize("host_states", [0, 100])
def test_memory_and_files_stay_flat(start, tmp_path, host_states):
    flags = ["--session-dir", str(tmp_path / "sessions"), "--max-sessions", str(PLACES)]
    probe = start("--session-dir", str(tmp_path / "probe"))
    probe.client().generate([1], session="s", max_tokens=1)
    slab = probe.client().sessions.get("s").state_bytes
    probe.stop()
    if host_states > 0:
        flags += ["--host-state-memory", str((host_states + 1) * slab)]
    server = start(*flags)
    positions = [0] * SESSIONS
    failures = []
    turns = [0]
    end = time.monotonic() + 86_400
    first_round = threading.Barrier(WORKERS + 1)

    def turn(client, i):
        answer = client.generate(
            [i % 250],
            session=f"s{i}",
            max_tokens=2,
            temperature=0,
            ignore_eos=True,
            expected_position=positions[i],
        )
        assert answer.session.position == positions[i] + 3
        positions[i] += 3
        turns[0] += 1

    def work(worker):
        try:
            client = server.client()
            mine = range(worker, SESSIONS, WORKERS)
            for i in mine:
                turn(client, i)
            first_round.wait()
            chosen = random.Random(worker)
            while time.monotonic() < end:
                turn(client, chosen.choice(mine))
        except BaseException as error:
            failures.append(error)
            first_round.abort()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(WORKERS)]
    for thread in threads:
        thread.start()
    try:
        first_round.wait()
    except threading.BrokenBarrierError:
        raise failures[0] from None
    seconds = SECONDS / 2 if SECONDS > 0 else 8.0  # there are two cases
    end = time.monotonic() + seconds
    time.sleep(seconds / 3)
    memory, files, before = resident_bytes(server.process), open_files(server.process), turns[0]
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    assert turns[0] > before + 50
    grown = resident_bytes(server.process) - memory
    print(
        f"{SESSIONS} sessions, {turns[0]} turns; {memory >> 20} MiB, {grown >> 10} KiB more later; "
        f"{files} files, then {open_files(server.process)}"
    )
    # Answers to look back on, histories of who is here, the allocator's slack.
    assert grown < 16 * MEGABYTE
    assert abs(open_files(server.process) - files) <= 8

    client = server.client()
    listed = list(client.sessions.list())
    assert len(listed) == SESSIONS
    assert {info.name: info.position for info in listed} == {
        f"s{i}": positions[i] for i in range(SESSIONS)
    }
    residencies = [info.residency for info in listed]
    assert residencies.count("device") <= PLACES
    assert residencies.count("host") <= host_states
    assert residencies.count("store") >= SESSIONS - PLACES - host_states
