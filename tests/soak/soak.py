#!/usr/bin/env python3
"""Works a server hard for a while, and then looks whether anything is left of it.

usage: soak.py --bin-dir build/ci/bin [--duration 10m] [--seed 0] [--log FILE]

Clients hold conversations, fork, expire, cancel, vanish, read slowly, repeat themselves and ask
wrongly, over gRPC and HTTP, while keys are exchanged. In the end each request has one outcome, the
server's log, its counters and the clients agree, all slots are free, files and threads are as few as
before, and memory has stopped growing. Needs the Python client (tools/python_env.sh).
"""

import argparse
import asyncio
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests/integration/python")]

import mneme
from grpc_actors import GrpcActors
from http_actors import HttpActors
from ledger import Ledger, compare_http, compare_log, read_metrics, sum_by
from server_process import ServerProcess
from watch import Watch
from wire import ask

# Short times where only strangers run out of them; a small record of repetitions, so that it is
# full.
FLAGS = (
    *("--max-sessions=64", "--max-num-queued-reqs=48", "--threads=2", "--stream-capacity=64"),
    *("--http-header-timeout=2s", "--http-body-timeout=2s"),
    *("--max-idempotency-keys=64", "--watchdog-timeout=2m"),
)
LIMIT_PER_MINUTE = 1 << 20  # bytes that memory may grow by in a long run, in its second half
LIMIT_SHORT = 64 << 20  # in all, in a run too short to have reached its full size
PATIENCE_S = 120  # for what a busy machine may take its time over
LONG_S = 300


def seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9.]+)(s|m|h|)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a time such as 20s or 10m")
    return float(found.group(1)) * {"s": 1, "": 1, "m": 60, "h": 3600}[found.group(2)]


class Keys:
    """The file of keys, rewritten now and then."""

    def __init__(self, binary: Path, path: Path) -> None:
        self._binary = binary
        self.path = path
        self.keys: dict[str, str] = {}
        self._lines: dict[str, str] = {}
        for name, options in (("alice", ""), ("bob", ""), ("carol", ":streams=2"), ("dora", "")):
            self.renew(name, options)

    def renew(self, name: str, options: str = "") -> None:
        done = subprocess.run(
            [self._binary, "--new-api-key", name], capture_output=True, text=True, check=True
        )
        self.keys[name], line = done.stdout.split()
        self._lines[name] = line + options
        self.path.write_text("".join(line + "\n" for line in self._lines.values()))


async def exchange_keys(server: ServerProcess, keys: Keys, ledger: Ledger) -> None:
    """The old key of dora ends and her new one begins, with SIGHUP and without a restart."""
    old = keys.keys["dora"]
    keys.renew("dora")
    server.signal(signal.SIGHUP)
    async with mneme.AsyncClient(server.target, api_key=keys.keys["dora"], retry=None) as client:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                await client.sessions.list_page()
                break
            except mneme.Unauthenticated:
                if time.monotonic() > deadline:
                    return ledger.check(False, "a new key is not known after SIGHUP")
                await asyncio.sleep(0.05)
    async with mneme.AsyncClient(server.target, api_key=old, retry=None) as client:
        try:
            await client.sessions.list_page()
            ledger.check(False, "an old key is still good after SIGHUP")
        except mneme.Unauthenticated:
            ledger.seen["key exchanged"] += 1
    await asyncio.sleep(1)


async def work(actor, until: float, ledger: Ledger) -> None:
    while time.monotonic() < until:
        try:
            await asyncio.wait_for(actor(), PATIENCE_S)
            ledger.seen[f"rounds of {actor.__qualname__}"] += 1
        except Exception:
            ledger.check(False, f"{actor.__qualname__}: {traceback.format_exc(limit=-3)}")
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.01)


async def metrics_of(server: ServerProcess, key: str):
    answer = await ask(server.http_port, "GET", "/metrics", authorization=f"Bearer {key}")
    assert answer.status == 200, answer.body
    return read_metrics(answer.body.decode())


def total(values, name: str) -> float:
    return sum(value for key, value in values.items() if key.split("{")[0] == name)


async def settle(server, actors: GrpcActors, ledger: Ledger):
    """Deletes all sessions and waits until nothing runs; the last metrics."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        for client in actors.clients.values():
            page = await client.sessions.list_page(page_size=1000)
            for session in page.sessions:
                try:
                    await client.sessions.delete(session.name)
                except (mneme.SessionBusy, mneme.SessionNotFound):
                    pass
        values = await metrics_of(server, actors._keys["alice"])
        gauges = ("num_requests_running", "num_requests_waiting", "slabs_used", "sessions")
        left = {name: total(values, f"mneme_{name}") for name in gauges}
        if not any(left.values()):
            return values
        ledger.http[("/metrics", "200")] += 1  # from the next time on
        if time.monotonic() > deadline:
            ledger.check(False, f"left after all clients have gone: {left}")
            return values
        await asyncio.sleep(0.2)


async def wait_for_count(count, bound: int, what: str, ledger: Ledger) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (now := count()) > bound:
        if time.monotonic() > deadline:
            return ledger.check(False, f"{now} {what}, {bound} at the start")
        await asyncio.sleep(0.2)
    return None


async def soak(server: ServerProcess, keys: Keys, duration: float, seed: int, ledger: Ledger):
    random_ = random.Random(seed)
    # Once through what makes threads and buffers, so that there is a start to compare with.
    warm = GrpcActors(server.target, keys.keys, ledger, random_)
    http = HttpActors(server.http_port, server.port, keys.keys, warm)
    await asyncio.gather(warm.overload(), *(http.complete() for _ in range(20)))
    await warm.close()
    watch = Watch(server.process.pid)
    await asyncio.sleep(2)
    files, threads = watch.files(), watch.threads()

    actors = GrpcActors(server.target, keys.keys, ledger, random_)
    http = HttpActors(server.http_port, server.port, keys.keys, actors)
    watching = asyncio.create_task(watch.run())
    until = time.monotonic() + duration
    rounds = (
        *([actors.converse] * 6 + [actors.expire] * 4 + [actors.cancel] * 4),
        *(actors.many_answers, actors.disconnect, actors.read_slowly, actors.run_out_of_time),
        *(actors.repeat, actors.ask_wrongly, actors.quarrel, actors.overload),
        *([http.complete] * 4 + [http.vanish] * 4),
        *(http.look_around, http.read_slowly, http.run_out_of_time, http.ask_wrongly),
        *[http.half_requests] * 2,
    )
    tasks = [work(actor, until, ledger) for actor in rounds]

    async def reload() -> None:
        while time.monotonic() < until:
            await exchange_keys(server, keys, ledger)

    await asyncio.gather(reload(), *tasks)
    watching.cancel()
    values = await settle(server, actors, ledger)
    await actors.close()
    await wait_for_count(watch.files, files, "open files", ledger)
    # gRPC keeps a thread or two more or less, as it likes.
    await wait_for_count(watch.threads, threads + 4, "threads", ledger)
    return watch, values


def judge(server, watch: Watch, values, duration: float, ledger: Ledger) -> None:
    per_minute = watch.growth_per_minute()
    grown = watch.resident[-1] - watch.resident[0]
    long = duration >= LONG_S
    print(
        f"memory: {watch.resident[0] / 2**20:.1f} MiB at the start, {watch.resident[-1] / 2**20:.1f}"
        f" at the end, {per_minute / 2**20:+.3f} MiB a minute in the second half"
    )
    step = max(1, len(watch.resident) // 10)
    print("in between: " + " ".join(f"{r / 2**20:.1f}" for r in watch.resident[::step]))
    if long:
        ledger.check(
            per_minute <= LIMIT_PER_MINUTE, f"memory grows by {per_minute:.0f} bytes a minute"
        )
    else:
        ledger.check(grown <= LIMIT_SHORT, f"memory has grown by {grown:.0f} bytes")
    outcomes = sum_by(values, "mneme_requests_total", "outcome")
    print("outcomes: " + ", ".join(f"{k[0]} {v:.0f}" for k, v in sorted(outcomes.items())))
    print(f"seen by clients: {dict(sorted(ledger.seen.items()))}")
    dropped = total(values, "mneme_request_log_lines_dropped_total")
    ledger.check(dropped == 0, f"{dropped:.0f} lines of the log were dropped")
    ledger.check(outcomes[("error",)] == 0, f"{outcomes[('error',)]:.0f} requests failed")
    ledger.wrong += compare_log(ledger, server.log, values) + compare_http(ledger, values)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin-dir", type=Path, required=True)
    parser.add_argument("--duration", type=seconds, default=seconds("10m"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="where the server's log is kept")
    arguments = parser.parse_args()
    ledger = Ledger()
    binary = arguments.bin_dir.resolve() / "mneme-server"
    with tempfile.TemporaryDirectory() as folder:
        keys = Keys(binary, Path(folder) / "keys")
        log = arguments.log or Path(folder) / "server.log"
        flags = (*FLAGS, "--api-key-file", str(keys.path))
        server = ServerProcess(
            *(binary, ROOT / "tests/golden/mom", log, *flags),
            client_options={"api_key": keys.keys["alice"]},
        )
        try:
            watch, values = asyncio.run(
                soak(server, keys, arguments.duration, arguments.seed, ledger)
            )
        finally:
            server.stop()
        judge(server, watch, values, arguments.duration, ledger)
    for problem in ledger.wrong[:50]:
        print(f"WRONG: {problem}")
    print(f"{len(ledger.entries)} requests, {len(ledger.wrong)} problems")
    return 1 if ledger.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
