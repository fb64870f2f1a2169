#!/usr/bin/env python3
"""What it costs that sessions last: ratios of one run each, of real servers on this machine.

usage: bench/stored_sessions.py WHAT [--bin DIR] [--model DIR] [--folder DIR] [--probes N]
                               [--pause SECONDS] [--parked N] [--where WHERE]
                               [--cold]

WHAT  turn        latency of a durable turn beside one with --durability none, in syncs of that disk
      many        256 sessions at once: tokens per second of both, commits a turn
      resume      first token of a session that was parked (host, disk) beside one that is there,
                  while 64 others decode
      restart     time to serving and memory with 100,000 stored sessions beside an empty store
      neighbours  decoding while snapshots are written, beside the same without
      listing     tokens of one that decodes while another client lists 100,000 stored sessions,
                  page by page, beside the same without

--bin     the binaries (default: build/release/bin)
--model   (default: demo/model)
--folder  where sessions are stored: a disk whose syncs are real (default: a new one here)
--probes  of resume (default: 300)
--pause   seconds between two of them, in which what leaves is written (default: 0.2)
--parked  sessions that resume takes turns with (default: 200); each is on the disk up to three times
--where   of resume: host, disk or both (default: host,disk)
--cold    resume reads from the disk, not from the page cache, and a plain file before each
Each takes one to three minutes, and wants the machine to itself. To be run by the Python that
tools/python_env.sh prints, which has the client.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import mneme

ROOT = Path(__file__).resolve().parent.parent
SESSIONS = 100_000


class Server:
    """A server with these flags; ends with its block."""

    def __init__(self, options, *flags):
        self.began = time.monotonic()
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [options.bin / "mneme-server", "--model", options.model]
            + ["--grpc-port", "0", "--http-port", "0", *map(str, flags)],
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        self.port, self.http = self._port("listening"), self._port("http")
        self.target = f"127.0.0.1:{self.port}"
        self.client = mneme.Client(self.target, retry=None, timeout=600)
        self.client.wait_until_ready(600)
        self.serving_after = time.monotonic() - self.began

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.log.close()

    def _port(self, what):
        while True:
            self.log.seek(0)
            text = self.log.read()
            found = re.search(rf"^{what} on [^\n]*?:(\d+)$", text, re.MULTILINE)
            if found:
                return int(found.group(1))
            if self.process.poll() is not None:
                sys.exit(text)
            time.sleep(0.002)

    def metric(self, name):
        """The sum over all labels, and by label."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics") as answer:
            text = answer.read().decode()
        found = re.findall(rf"^{name}(\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        return sum(float(value) for _, value in found), dict(found)

    def resident_bytes(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) * 1024

    def turn(self, session, tokens=2):
        return self.client.generate(
            [7], session=session, max_tokens=tokens, temperature=0, ignore_eos=True
        )


def load(options, server, *flags):
    """`mneme bench`, and what it measured."""
    result = options.folder / "load.json"
    subprocess.run(
        [options.bin / "mneme", "bench", "--server", server.target, "--ignore-eos"]
        + ["--save-result", "--result-dir", options.folder, "--result-filename", result.name]
        + [*map(str, flags)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return json.loads(result.read_text())


def sync_ms(folder):
    """Of 4 KiB that were appended: the median of 200."""
    times = []
    path = folder / "sync"
    with path.open("wb", buffering=0) as file:
        for _ in range(200):
            begin = time.perf_counter()
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            times.append(1e3 * (time.perf_counter() - begin))
    path.unlink()
    return statistics.median(times)


def forget_pages(folder):
    """What lies on the disk of these files is read from there again."""
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        try:
            file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # a snapshot that another has replaced
            continue
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


class PlainFile:
    """A file of so many bytes, to be read beside what the server reads."""

    def __init__(self, path, size):
        self.path, self.room = path, bytearray(1 << 22)
        with path.open("wb") as file:
            file.write(os.urandom(size))
            os.fsync(file.fileno())

    def cold_read_ms(self):
        with self.path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            begin = time.perf_counter()
            while file.readinto(self.room):
                pass
            return 1e3 * (time.perf_counter() - begin)


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def stored(options, name, *flags):
    return ("--session-dir", options.folder / name, "--snapshot-tokens", 0, *flags)


def turn(options):
    times = {"none": [], "turn": []}
    with Server(options, *stored(options, "none", "--durability", "none")) as none:
        with Server(options, *stored(options, "turn")) as durable:
            servers = {"none": none, "turn": durable}
            for server in servers.values():
                for _ in range(20):
                    server.turn("warm")
            for _ in range(10):  # in turns, so that both see the machine as it is
                for name, server in servers.items():
                    for _ in range(40):
                        begin = time.perf_counter()
                        server.turn("s")
                        times[name].append(1e3 * (time.perf_counter() - begin))
    sync = sync_ms(options.folder)
    none, durable = (statistics.median(times[name]) for name in ("none", "turn"))
    more = durable - none
    print(f"a sync of 4 KiB: {sync:.2f} ms (median of 200)")
    print(f"a turn, p50 of 400: {none:.2f} ms with durability none, {durable:.2f} ms durable")
    print(f"that is {more:.2f} ms more: {more / sync:.2f} syncs (pass: 2 syncs + 1 ms = ", end="")
    print(f"{2 * sync + 1:.2f} ms; aim: one + 0.5 ms = {sync + 0.5:.2f} ms)")


def commits_of_turns(server, sessions=256, turns=4):
    """Turns of sessions that all talk at once, and commits meanwhile. `mneme bench` forks and
    deletes sessions, too, which are commits of their own."""

    def counts():
        names = ("mneme_session_store_turns_total", "mneme_session_store_commits_total")
        return [server.metric(name)[0] for name in names]

    def work(i):
        for _ in range(turns):
            server.turn(f"commits{i}", tokens=8)

    before = counts()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [after - was for after, was in zip(counts(), before)]


def many(options):
    flags = ("--num-prompts", 256, "--max-concurrency", 256, "--turns", 2)
    flags += ("--random-input-len", 16, "--random-output-len", 32)
    rates = {"none": [], "turn": []}
    with Server(options, *stored(options, "none", "--durability", "none")) as none:
        with Server(options, *stored(options, "turn")) as durable:
            servers = {"none": none, "turn": durable}
            for round_number in range(3):
                for name, server in servers.items():
                    measured = load(options, server, *flags, "--seed", round_number)
                    rates[name].append(measured["output_throughput"])
            turns, commits = commits_of_turns(durable)
    none, durable = (statistics.median(rates[name]) for name in ("none", "turn"))
    print(f"256 conversations of 2 turns: {none:.0f} tokens/s with durability none,")
    print(f"{durable:.0f} durable: {durable / none:.1%} (pass: 95 %; aim: 99 %)")
    print(f"{commits / turns:.3f} commits a turn, of {turns:.0f} (pass: below 0.25)")
    print(f"rounds: {rates}")


def first_token_ms(server, session):
    begin = time.perf_counter()
    first = None
    options = {"session": session, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    for event in server.client.stream([7], **options):
        if first is None and getattr(event, "token_ids", None):
            first = 1e3 * (time.perf_counter() - begin)
    return first


def resume(options):
    neighbours, parked = 64, options.parked
    with Server(options, *stored(options, "probe")) as probe:
        probe.turn("s")
        slab = probe.client.sessions.get("s").state_bytes
    plain = PlainFile(options.folder / "plain", slab) if options.cold else None
    for where in options.where.split(","):
        flags = list(stored(options, where, "--max-sessions", neighbours + 8))
        if where == "host":
            flags += ["--host-state-memory", (parked + 2) * slab]
        with Server(options, *flags) as server:
            for i in range(parked):
                server.turn(f"s{i}")
            others = subprocess.Popen(
                [options.bin / "mneme", "bench", "--server", server.target, "--ignore-eos"]
                + ["--num-prompts", str(neighbours), "--max-concurrency", str(neighbours)]
                + ["--random-input-len", "4", "--random-output-len", "1000000"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            while server.metric("mneme_num_requests_running")[0] < neighbours:
                time.sleep(0.05)
            time.sleep(1)
            before = server.metric("mneme_session_resumes_total")[1]
            away, there, read = [], [], []
            for i in range(options.probes):
                time.sleep(options.pause)
                if options.cold and where == "disk":
                    read.append(plain.cold_read_ms())
                    forget_pages(options.folder / where)
                away.append(first_token_ms(server, f"s{i % parked}"))
                there.append(first_token_ms(server, f"s{i % parked}"))
            after = server.metric("mneme_session_resumes_total")[1]
            moved = "fetch" if where == "host" else "load"
            total, count = (
                server.metric(f"mneme_session_{moved}_seconds_{part}")[0]
                for part in ("sum", "count")
            )
            others.terminate()
            others.wait()
        found = {
            re.search(r'outcome="(\w+)"', label).group(1): float(value) - float(before[label])
            for label, value in after.items()
        }
        print(f"{where}: first token of {options.probes}, beside {neighbours} that decode; states of")
        print(f"  {slab:,} bytes, found {({k: int(v) for k, v in found.items() if v})}")
        for share in (0.5, 0.99):
            one, two = percentile(away, share), percentile(there, share)
            print(f"  p{100 * share:.0f}: parked {one:.1f} ms, there {two:.1f} ms: {one - two:.1f} more")
        bound = 10 if where == "host" else 30
        print(f"  moving took {1e3 * total / count:.1f} ms on average (pass: p99 copy + {bound} ms)")
        if read:
            half, most = percentile(read, 0.5), percentile(read, 0.99)
            print(f"  a plain file of that size, read before each: p50 {half:.1f} ms, p99 {most:.1f} ms")
            print("  (pass: 80 % of its rate)")


def restart(options):
    full, empty = options.folder / "full", options.folder / "empty"
    began = time.monotonic()
    fill = [options.bin / "store_bench", "--fill", full, str(SESSIONS)]
    subprocess.run(fill, check=True)
    print(f"{SESSIONS} sessions stored in {time.monotonic() - began:.0f} s", file=sys.stderr)
    times, memory = {full: [], empty: []}, {full: [], empty: []}
    for folder in itertools.chain.from_iterable([(empty, full)] * 4):
        with Server(options, "--session-dir", folder) as server:
            times[folder].append(server.serving_after)
            memory[folder].append(server.resident_bytes())
            if folder == full:
                page = server.client.sessions.list_page(page_size=10)
                assert page is not None
    # The first of each reads files that are not in the system's cache, and moves a WAL.
    more = statistics.median(times[full][1:]) - statistics.median(times[empty][1:])
    bytes_each = (statistics.median(memory[full]) - statistics.median(memory[empty])) / SESSIONS
    print(f"time to serving: {[f'{t:.2f}' for t in times[empty]]} s with an empty store,")
    print(f"{[f'{t:.2f}' for t in times[full]]} s with {SESSIONS} sessions: {more:+.2f} s")
    print("(pass: + 2 s; aim: + 0.5 s)")
    print(f"{bytes_each:.0f} bytes of resident memory a session (pass: 1024; aim: 300)")


def gaps_ms(server, seconds, meanwhile):
    """Between the tokens of one answer, while `meanwhile` is called over and over."""
    ended, times = threading.Event(), []

    def work():
        while not ended.is_set():
            begin = time.perf_counter()
            meanwhile()
            times.append(1e3 * (time.perf_counter() - begin))
            time.sleep(0.02)

    worker = threading.Thread(target=work)
    gaps, end, last = [], time.monotonic() + seconds, None
    with server.client.stream([7], max_tokens=1_000_000, temperature=0, ignore_eos=True) as stream:
        for event in stream:
            now = time.perf_counter()
            if last is None:
                worker.start()
            elif getattr(event, "token_ids", None):
                gaps.append(1e3 * (now - last))
            last = now
            if time.monotonic() > end:
                break
    ended.set()
    worker.join()
    return gaps, times


def listing(options):
    full = options.folder / "full"
    subprocess.run([options.bin / "store_bench", "--fill", full, str(SESSIONS)], check=True)
    with Server(options, "--session-dir", full) as server:
        lister = mneme.Client(server.target, retry=None, timeout=600)
        names = [info.name for info in lister.sessions.list_page(page_size=1000).sessions]
        pages = {
            "without": lambda: None,
            "first pages of 100": lambda: lister.sessions.list_page(page_size=100),
            "pages of 100 of a prefix": lambda: lister.sessions.list_page(names[0][:2], page_size=100),
        }
        for what, meanwhile in pages.items():
            gaps, times = gaps_ms(server, 10, meanwhile)
            print(f"{what}: tokens come after {percentile(gaps, 0.5):.1f} ms (p50), ", end="")
            print(f"{percentile(gaps, 0.99):.1f} (p99), {max(gaps):.1f} at most", end="")
            print(f"; a page takes {statistics.median(times):.1f} ms, of {len(times)}")
        lister.close()


def neighbours(options):
    flags = ("--num-prompts", 8, "--max-concurrency", 8)
    flags += ("--random-input-len", 8, "--random-output-len", 600)
    rates = {}
    for kind, tokens in (("without", 0), ("while they are written", 1)) * 2:
        # The same work beside: turns of other sessions, behind which a snapshot is due or not.
        folder = options.folder / f"{len(rates)}-{kind.split()[0]}-{time.monotonic_ns()}"
        with Server(options, "--session-dir", folder, "--snapshot-tokens", tokens) as server:
            ended = threading.Event()

            def work(server=server, ended=ended):
                for i in itertools.count():
                    if ended.is_set():
                        return
                    server.turn(f"s{i % 8}")
                    time.sleep(0.02)

            worker = threading.Thread(target=work)
            worker.start()
            measured = load(options, server, *flags)
            ended.set()
            worker.join()
            written = server.metric("mneme_session_snapshots_total")[0]
            bytes_written = server.metric("mneme_session_snapshot_bytes_total")[0]
            rate = measured["output_throughput"]
            rates.setdefault(kind, []).append(rate)
            print(f"{kind}: {rate:.0f} tokens/s; {written:.0f} snapshots", end="")
            print(f" of {bytes_written / max(1, written):,.0f} bytes")
    with_them = statistics.mean(rates["while they are written"])
    print(f"decode beside snapshots: {with_them / statistics.mean(rates['without']):.1%}", end="")
    print(" (pass on a CPU: 85 %; aim: 95 %)")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = {f.__name__: f for f in (turn, many, resume, restart, neighbours, listing)}
    parser.add_argument("what", choices=what)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--model", type=Path, default=ROOT / "demo/model")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--probes", type=int, default=300)
    parser.add_argument("--pause", type=float, default=0.2)
    parser.add_argument("--parked", type=int, default=200)
    parser.add_argument("--where", default="host,disk")
    parser.add_argument("--cold", action="store_true")
    options = parser.parse_args()
    options.folder = Path(tempfile.mkdtemp(dir=options.folder or Path.cwd(), prefix="stored-"))
    model = json.loads((options.model / "config.json").read_text()).get("model_type")
    disk = subprocess.run(
        ["df", "--output=source,fstype", options.folder], capture_output=True, text=True
    ).stdout.splitlines()[-1]
    print(f"{model} of {options.model}, {os.cpu_count()} CPUs, sessions on {disk}")
    try:
        what[options.what](options)
    finally:
        shutil.rmtree(options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
