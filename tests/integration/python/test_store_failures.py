"""Disks that are full, read-only or damaged under a server, and what a key may take of one."""

import json
import re
import subprocess
import time

import pytest

import mneme

from http_requests import ask
from server_process import ServerProcess
from small_disk import SmallDisk

MEGABYTE = 1 << 20
RESERVED = 16 * MEGABYTE  # for deletions


@pytest.fixture
def small_disk(tmp_path):
    disk = SmallDisk(tmp_path, megabytes=28)
    if disk.why_not is not None:
        disk.close()
        pytest.skip(disk.why_not)
    yield disk
    disk.close()


def health(server):
    _, _, text = ask(f"http://127.0.0.1:{server.http_port}", "/health", method="GET")
    return json.loads(text)


def tell(client, name, tokens=(1, 2, 3)):
    return client.generate(list(tokens), session=name, max_tokens=3, temperature=0)


@pytest.fixture
def start_there(small_disk, bin_dir, golden_model, tmp_path):
    """Starts a server whose sessions are on the small disk."""
    program = small_disk.program(bin_dir / "mneme-server")
    flags = ("--session-dir", str(small_disk.path / "sessions"), "--snapshot-tokens", "8")
    servers = []

    def start(*more):
        log = tmp_path / f"full{len(servers)}.log"
        servers.append(ServerProcess(program, golden_model, log, *flags, *more))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def test_a_full_disk_is_told_and_all_goes_on_when_there_is_room(small_disk, start_there):
    server = start_there()
    client = server.client()
    said = {}
    for name in ("a", "b", "c"):
        said[name] = tell(client, name).session.position
    assert "session_store" not in health(server)

    # Deletions still have room.
    small_disk.fill(leave=RESERVED // 2)
    with pytest.raises(mneme.ResourceExhausted) as refused:
        tell(client, "a")
    assert refused.value.reason == "NOT_DURABLE"
    client.sessions.delete("c")
    del said["c"]
    assert client.sessions.get("a").position == said["a"], "it has not happened"
    assert "are kept for deletions" in health(server)["session_store"]

    # Nothing has room.
    small_disk.fill()
    for name in ("a", "b", "new"):
        with pytest.raises(mneme.ResourceExhausted) as refused:
            tell(client, name)
        assert refused.value.reason == "NOT_DURABLE"
    with pytest.raises(mneme.NotFound):
        client.sessions.get("new")
    nameless = client.generate([1, 2], max_tokens=3)
    assert len(nameless.choices[0].token_ids) > 0, "who has no name needs no disk"

    small_disk.make_room()
    for name in ("a", "b"):
        said[name] = tell(client, name).session.position
        assert said[name] == 12
    assert "session_store" not in health(server)

    # Full once more, and killed.
    small_disk.fill()
    with pytest.raises(mneme.ResourceExhausted):
        tell(client, "b")
    server.kill()
    small_disk.make_room()
    server = start_there()
    client = server.client()
    assert {info.name: info.position for info in client.sessions.list()} == said
    for name in ("a", "b"):
        assert tell(client, name).session.position == 18
    server.stop()


def test_what_is_not_durable_stays_until_a_full_disk_has_room(small_disk, start_there):
    server = start_there("--durability", "none", "--max-sessions", "2")
    client = server.client()
    said = {name: tell(client, name).session.position for name in ("a", "b")}
    small_disk.fill()
    for _ in range(2):
        with pytest.raises(mneme.Overloaded) as refused:
            tell(client, "c")
        assert refused.value.reason == "NO_FREE_SLAB"
        assert "not durable" in refused.value.message
        assert {info.residency for info in client.sessions.list()} == {"device"}
    assert {info.name: info.position for info in client.sessions.list()} == said
    said["a"] = tell(client, "a").session.position
    assert said["a"] == 12
    small_disk.make_room()
    deadline = time.monotonic() + 30
    while "c" not in said:
        try:
            said["c"] = tell(client, "c").session.position
        except mneme.Overloaded:  # until the store is asked again
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert {info.name: info.position for info in client.sessions.list()} == said
    for name in ("a", "b", "c"):
        assert tell(client, name).session.position == said[name] + 6
    server.stop()


def test_a_folder_that_cannot_be_written_to_is_refused_at_the_start(
    small_disk, bin_dir, golden_model
):
    folder = small_disk.path / "sessions"
    (small_disk.seen / "sessions").mkdir()
    script = small_disk.program(bin_dir / "mneme-server")
    remount = script.read_text().replace(
        str(bin_dir / "mneme-server"), f"mount -o remount,ro {small_disk.path} #"
    )
    subprocess.run(["sh", "-c", remount], check=True)
    ended = subprocess.run(
        [script, "--model", golden_model, "--grpc-port", "0", "--http-port", "0"]
        + ["--session-dir", folder],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2, ended.stderr
    assert "--session-dir" in ended.stderr
    assert "ead-only" in ended.stderr


def test_a_folder_that_is_gone_takes_no_change(start, tmp_path):
    folder, elsewhere = tmp_path / "sessions", tmp_path / "elsewhere"
    server = start("--session-dir", str(folder))
    client = server.client()
    position = tell(client, "s").session.position
    folder.rename(elsewhere)
    session = client.session("s")
    changes = (
        lambda: tell(client, "s"),
        lambda: tell(client, "new"),
        lambda: session.checkpoint("here"),
        lambda: session.rewind(2),
        lambda: client.sessions.delete("s"),
    )
    for number, change in enumerate(changes):
        with pytest.raises(mneme.Unavailable) as refused:
            change()
        assert refused.value.reason == "NOT_DURABLE", number
    status, _, _ = ask(
        f"http://127.0.0.1:{server.http_port}",
        "/v1/completions",
        body={"prompt": [1], "max_tokens": 2, "session_id": "s"},
    )
    assert status == 503
    assert "catalogue" in health(server)["session_store"]
    elsewhere.rename(folder)
    assert client.sessions.get("s").position == position
    assert tell(client, "s").session.position == position + 6
    assert "session_store" not in health(server)


def test_names_are_in_doubt_after_damage_until_they_are_trusted(start, tmp_path):
    folder = tmp_path / "sessions"
    flags = ["--session-dir", str(folder)]
    server = start(*flags)
    for name in ("a", "b"):
        tell(server.client(), name)
    server.stop()
    for file in folder.glob("catalogue.*"):
        if not file.name.endswith("-wal"):
            file.write_bytes(b"rubbish" * 1000)
        else:
            file.unlink()
    server = start(*flags)
    client = server.client()
    assert list(folder.glob("*.damaged")), "it is set aside"
    # Snapshots say whose they are; whatever else there was, nobody knows.
    assert {info.name for info in client.sessions.list()} == {"a", "b"}
    with pytest.raises(mneme.DataLoss) as refused:
        tell(client, "c")
    assert refused.value.reason == "SESSION_LOST"
    answer = client.generate([1], session="c", max_tokens=2, replace_lost=True)
    assert answer.session.position == 3
    # Nor do those that are left go on as if nothing had happened.
    with pytest.raises(mneme.DataLoss) as refused:
        tell(client, "a")
    assert refused.value.reason == "SESSION_LOST"
    left = int(refused.value.metadata["position"])
    assert left == client.sessions.get("a").position
    answer = client.generate([1], session="a", max_tokens=2, expected_position=left)
    assert answer.session.position == left + 3
    assert client.generate([1], session="a", max_tokens=2).session.position == left + 6
    answer = client.generate([1], session="b", max_tokens=2, replace_lost=True)
    assert answer.session.position == left + 3, "it takes what is left"
    log = server.log_path.read_text()
    assert re.search(r'session "a" of nobody\'s key \(\d+\) fell back to position', log), log
    server.stop()
    server = start(*flags)
    with pytest.raises(mneme.DataLoss):
        tell(server.client(), "d")
    server.stop()
    server = start(*flags, "--trust-session-names")
    assert tell(server.client(), "d").session.position == 6
    server.stop()
    assert tell(start(*flags).client(), "e").session.position == 6, "once for all"


def test_a_key_takes_no_more_of_the_disk_than_it_may(start, new_key, tmp_path):
    made = {who: new_key(who) for who in ("alice", "bob")}
    keys = tmp_path / "keys"
    keys.write_text("".join(line + "\n" for _, line in made.values()))
    server = start(
        *("--session-dir", str(tmp_path / "sessions"), "--api-key-file", str(keys)),
        *("--session-bytes-per-key", "2000", "--snapshot-tokens", "0"),
    )
    alice, bob = (server.client(api_key=made[who][0]) for who in ("alice", "bob"))
    with pytest.raises(mneme.StorageLimit) as refused:
        for _ in range(100):
            tell(alice, "s", range(100))
    assert refused.value.reason == "KEY_STORAGE_LIMIT"
    assert "bytes stored of 2000 allowed" in refused.value.message
    status, headers, text = ask(
        f"http://127.0.0.1:{server.http_port}",
        "/v1/completions",
        key=made["alice"][0],
        body={"prompt": [1] * 200, "session_id": "s", "max_tokens": 3},
    )
    assert (status, json.loads(text)["error"]["code"]) == (429, "key_storage_limit")
    assert headers["x-should-retry"] == "false" and "retry-after" not in headers
    assert refused.value.retry_after is None
    assert "session_store" not in health(server), "the disk is well"
    position = alice.sessions.get("s").position
    assert position > 0
    assert tell(bob, "s").session.position == 6, "others have their own"
    with pytest.raises(mneme.ResourceExhausted) as refused:
        tell(alice, "other", range(100))
    usage = alice.sessions.usage()
    assert usage.stored_bytes == alice.sessions.get("s").stored_bytes
    assert f" has {usage.stored_bytes} bytes stored of 2000 allowed" in refused.value.message
    alice.sessions.delete("s")
    assert alice.sessions.usage().stored_bytes == 0
    assert tell(alice, "other", range(100)).session.position == 103


@pytest.mark.parametrize("seconds", [3.0])
def test_ttl_and_retention_are_told_from_times_that_pass(start, tmp_path, seconds):
    server = start(
        *("--session-dir", str(tmp_path / "sessions"), "--session-ttl", "500ms"),
        *("--session-retention", f"{int(seconds * 1000)}ms"),
    )
    client = server.client()
    tell(client, "s")
    deadline = time.monotonic() + 30
    residencies = set()
    while time.monotonic() < deadline:
        try:
            residencies.add(client.sessions.get("s").residency)
        except mneme.NotFound:
            break
        time.sleep(0.1)
    assert residencies >= {"device", "store"}
    assert time.monotonic() < deadline
    assert not list((tmp_path / "sessions" / "slabs").glob("*.slab"))
