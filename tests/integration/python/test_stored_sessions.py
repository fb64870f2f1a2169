"""Sessions that outlive the server: two servers, ends in order, and what was not durable."""

import json
import subprocess

import pytest

import mneme
from http_requests import ask
from waiting import wait_for


def test_a_second_server_leaves_the_folder_to_the_first(start, bin_dir, golden_model, tmp_path):
    folder = str(tmp_path / "sessions")
    first = start("--session-dir", folder)
    second = subprocess.run(
        [bin_dir / "mneme-server", "--model", golden_model, "--grpc-port", "0", "--http-port", "0"]
        + ["--session-dir", folder],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert second.returncode == 2
    assert "--session-dir" in second.stderr
    assert str(first.process.pid) in second.stderr
    assert first.client().generate([1], session="s", max_tokens=2).session.position == 3


def test_sessions_end_in_order_and_come_back_from_their_snapshots(start, tmp_path):
    folder = str(tmp_path / "sessions")
    server = start("--session-dir", folder)
    client = server.client()
    client.generate([1, 2, 3], session="s", max_tokens=3, temperature=0)
    assert client.session("s").info().durability == "turn"
    server.stop()
    server = start("--session-dir", folder)
    client = server.client()
    assert client.session("s").info().residency == "store"
    answer = client.generate([4], session="s", max_tokens=3, temperature=0)
    assert answer.usage.resumed_tokens == 5
    assert answer.usage.replayed_tokens == 0
    assert answer.session.position == 10


def test_what_is_not_durable_is_lost_aloud(start, tmp_path):
    flags = ("--session-dir", str(tmp_path / "sessions"), "--durability", "none")
    server = start(*flags)
    client = server.client()
    client.generate([1, 2, 3], session="s", max_tokens=3)
    server.process.kill()  # at once: its name has been told
    server.kill()
    client = start(*flags).client()
    with pytest.raises(mneme.DataLoss) as refused:
        client.generate([4], session="s", max_tokens=3)
    assert refused.value.reason == "SESSION_LOST"
    assert refused.value.metadata["position"] == "6"
    assert [info.residency for info in client.sessions.list()] == ["lost"]
    answer = client.generate([4], session="s", max_tokens=3, replace_lost=True)
    assert answer.session.position == 4


def test_an_imported_session_that_is_not_durable_is_known_at_once(start, tmp_path):
    flags = ("--session-dir", str(tmp_path / "sessions"), "--durability", "none")
    server = start(*flags)
    client = server.client()
    client.generate([1, 2, 3], session="s", max_tokens=3)
    client.sessions.import_file(client.sessions.export_bytes("s"), "imported")
    client.sessions.fork("s", "fork")
    client.sessions.create("created")
    server.process.kill()
    server.kill()
    client = start(*flags).client()
    for name in ("s", "imported", "fork", "created"):
        with pytest.raises(mneme.DataLoss) as refused:
            client.generate([4], session=name, max_tokens=3)
        assert refused.value.reason == "SESSION_LOST"


def test_a_session_keeps_the_durability_that_it_began_with(start, tmp_path):
    client = start("--session-dir", str(tmp_path / "sessions")).client()
    client.generate([1], session="s", max_tokens=3, durability="none")
    with pytest.raises(mneme.MnemeError) as refused:
        client.generate([2], session="s", max_tokens=3, durability="turn")
    assert refused.value.reason == "DURABILITY_MISMATCH"
    assert client.generate([2], session="s", max_tokens=3).session.position == 8
    # The way to make it durable.
    client.sessions.import_file(client.sessions.export_bytes("s"), "t")
    assert client.session("t").info().durability == "turn"
    assert client.generate([2], session="t", max_tokens=3, durability="turn").session.position == 12


def test_durability_is_chosen_where_a_session_is_created(start, run, tmp_path):
    flags = ("--session-dir", str(tmp_path / "sessions"))
    server = start(*flags)
    client = server.client()
    assert client.sessions.create("a", durability="none").durability == "none"
    assert client.sessions.create("b", durability="turn").durability == "turn"
    assert client.sessions.create("c").durability == "turn"
    code, out, err = run("mneme", "session", "create", "d", "--durability", "none", "--json",
                         MNEME_SERVER=server.target)
    assert code == 0, err
    assert json.loads(out)["durability"] == "DURABILITY_NONE"
    code, _, err = run("mneme", "session", "get", "d", "--durability", "none",
                       MNEME_SERVER=server.target)
    assert code == 2 and "--durability is for create" in err
    client.generate([1], session="a", max_tokens=3)
    server.process.kill()
    server.kill()

    server = start(*flags)
    client = server.client()
    with pytest.raises(mneme.DataLoss) as refused:
        client.sessions.create("a")
    assert refused.value.reason == "SESSION_LOST"
    with pytest.raises(mneme.DataLoss) as refused:
        client.generate([1], session="a", max_tokens=3)
    status, _, text = ask(
        f"http://127.0.0.1:{server.http_port}",
        "/v1/completions",
        body={"prompt": [1], "session_id": "a", "max_tokens": 3},
    )
    error = json.loads(text)["error"]
    assert (status, error["code"]) == (410, "session_lost")
    assert error["position"] == int(refused.value.metadata["position"])
    assert client.sessions.create("a", replace_lost=True).position == 0


def test_a_limit_that_time_does_not_help_says_nothing_of_later(start, new_key, tmp_path):
    key, line = new_key("alice", ":sessions=1")
    file = tmp_path / "keys"
    file.write_text(f"{line}\n")
    server = start("--session-dir", str(tmp_path / "sessions"), "--api-key-file", file)
    client = server.client(api_key=key)
    client.sessions.create("one")
    with pytest.raises(mneme.ResourceExhausted) as refused:
        client.sessions.create("two")
    assert refused.value.reason == "KEY_SESSION_LIMIT"
    assert refused.value.retry_after is None
    status, headers, _ = ask(
        f"http://127.0.0.1:{server.http_port}",
        "/v1/sessions",
        key=key,
        body={"session_id": "two"},
    )
    assert (status, headers["x-should-retry"]) == (429, "false")
    assert "retry-after" not in headers


def metric(server, name, label="", key=""):
    status, _, text = ask(f"http://127.0.0.1:{server.http_port}", "/metrics", key=key)
    assert status == 200
    for line in text.decode().splitlines():
        if line.startswith(f"mneme_{name}{{") and label in line:
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"{name} with {label} is missing")


def health_of(server):
    status, _, text = ask(f"http://127.0.0.1:{server.http_port}", "/health")
    assert status == 200
    return json.loads(text)


def test_bytes_of_the_store_are_told_by_session_by_key_and_in_all(start, run, new_key, tmp_path):
    made = {who: new_key(who) for who in ("alice", "bob")}
    keys = tmp_path / "keys"
    keys.write_text("".join(line + "\n" for _, line in made.values()))
    flags = ("--session-dir", str(tmp_path / "sessions"), "--api-key-file", str(keys))
    limits = ("--session-bytes-per-key", "900000", "--max-sessions-per-key", "8")
    server = start(*flags, *limits, "--snapshot-tokens", "0")
    key = made["alice"][0]
    alice, bob = (server.client(api_key=made[who][0]) for who in ("alice", "bob"))
    for name, client in (("a", alice), ("b", alice), ("a", bob)):
        client.generate(list(range(20)), session=name, max_tokens=3)
    log = alice.sessions.get("a").stored_bytes
    assert alice.sessions.fork("a", "fork").stored_bytes == log > 20
    alice.sessions.create_checkpoint("a", "c")
    wait_for(lambda: alice.sessions.get("a").stored_bytes > log, "the checkpoint's snapshot")

    for ended in (False, True):  # in order: all have snapshots, too, the second time
        if ended:
            server.stop()
            server = start(*flags, *limits, "--snapshot-tokens", "0")
            alice, bob = (server.client(api_key=made[who][0]) for who in ("alice", "bob"))
        of_each = {one.name: one.stored_bytes for one in alice.sessions.list()}
        slabs = sum(f.stat().st_size for f in (tmp_path / "sessions/slabs").glob("*.slab"))
        assert min(of_each.values()) > 20
        usage = alice.sessions.usage()
        assert usage == mneme.SessionUsage(
            sessions=3,
            max_sessions=8,
            stored_bytes=sum(of_each.values()),
            max_stored_bytes=900000,
            checkpoints=1,
            max_checkpoints=usage.max_checkpoints,
        )
        statistics = alice.info().statistics
        everything = usage.stored_bytes + bob.sessions.usage().stored_bytes
        assert (statistics.sessions_stored, statistics.stored_bytes) == (4, everything)
        assert metric(server, "session_store_bytes", key=key) == everything >= slabs

        status, _, text = ask(
            f"http://127.0.0.1:{server.http_port}", "/v1/sessions?prefix=f", key=key
        )
        assert status == 200
        assert [one["stored_bytes"] for one in json.loads(text)["data"]] == [of_each["fork"]]
        told = json.loads(text)["usage"]
        assert (told["stored_bytes"], told["max_stored_bytes"]) == (usage.stored_bytes, 900000)

        where = {"MNEME_SERVER": server.target, "MNEME_API_KEY": key}
        code, out, err = run("mneme", "session", "list", **where)
        assert code == 0, err
        column = out.splitlines()[0].split().index("STORED")
        stored = {line.split()[0]: int(line.split()[column]) for line in out.splitlines()[1:]}
        assert stored == of_each
        code, out, err = run("mneme", "session", "usage", **where)
        assert code == 0, err
        assert f"{usage.stored_bytes} of 900000\n" in out
        code, out, err = run("mneme", "session", "usage", "--json", **where)
        assert code == 0, err
        assert int(json.loads(out)["stored_bytes"]) == usage.stored_bytes
        assert "4 sessions, " in run("mneme", "info", **where)[1]


def test_sessions_of_another_model_are_shown_and_left_alone(start, run, text_model, tmp_path):
    flags = ("--session-dir", str(tmp_path / "sessions"))
    server = start(*flags)
    for name in ("a", "b", "c"):
        server.client().generate([1, 2, 3], session=name, max_tokens=3)
    server.stop()

    server = start(*flags, model=text_model)
    client = server.client()
    assert metric(server, "sessions", 'residency="other_model"') == 3
    assert metric(server, "sessions", 'residency="store"') == 0
    listed = client.sessions.list()
    assert [(info.residency, info.state_bytes) for info in listed] == [("other_model", 0)] * 3
    status, _, text = ask(f"http://127.0.0.1:{server.http_port}", "/v1/sessions")
    assert status == 200
    assert {info["residency"] for info in json.loads(text)["data"]} == {"other_model"}
    code, out, _ = run("mneme", "session", "list", MNEME_SERVER=server.target)
    assert code == 0
    assert out.count("other model") == 3
    with pytest.raises(mneme.MnemeError) as refused:
        client.generate([1], session="a", max_tokens=3)
    assert refused.value.reason == "MODEL_MISMATCH"
    assert 'model "mom", of identity ' in str(refused.value)
    client.sessions.delete("a")  # as its owner says so
    server.stop()

    server = start(*flags)
    assert metric(server, "sessions", 'residency="store"') == 2, "before anything happens"
    assert [info.name for info in server.client().sessions.list()] == ["b", "c"]
    assert server.client().generate([1], session="b", max_tokens=3).session.position == 10


def test_damage_shows_until_it_is_dealt_with(start, tmp_path):
    flags = ("--session-dir", str(tmp_path / "sessions"))
    server = start(*flags)
    for name in ("a", "b", "c"):
        server.client().generate([1, 2, 3], session=name, max_tokens=3)
    assert health_of(server) == {"status": "ok"}
    server.kill()
    (wal,) = (tmp_path / "sessions").glob("catalogue.*.db-wal")
    wal.write_bytes(b"")  # the last commits, which were on the disk

    server = start(*flags)
    health = health_of(server)
    assert health["status"] == "degraded"
    assert "--trust-session-names" in health["session_store"]
    assert "damage was found" in health["session_store"]
    assert server.client().info().statistics.session_store_error == health["session_store"]
    assert metric(server, "session_store_names_in_doubt") == 1
    assert metric(server, "session_store_damaged") > 0
    assert metric(server, "session_store_written_anew_total") == 1
    with pytest.raises(mneme.DataLoss) as refused:
        server.client().generate([1], session="new", max_tokens=3)
    assert "--trust-session-names" in str(refused.value)
    server.stop()

    server = start(*flags)
    health = health_of(server)
    assert "--trust-session-names" in health["session_store"]
    assert "damage was found" not in health["session_store"], "a start that found no more"
    server.stop()

    server = start(*flags, "--trust-session-names")
    assert health_of(server) == {"status": "ok"}
    assert server.client().generate([1], session="new", max_tokens=3).session.position == 4


def test_a_session_in_doubt_is_listed_so(start, run, tmp_path):
    # A snapshot of the second turn would lead to where it ended.
    flags = ("--session-dir", str(tmp_path / "sessions"), "--snapshot-tokens", "0")
    server = start(*flags)
    client = server.client()
    client.generate([1, 2, 3], session="s", max_tokens=3)
    assert client.session("s").info().may_have_been_at is None
    (wal,) = (tmp_path / "sessions").glob("catalogue.*.db-wal")
    size = wal.stat().st_size
    client.generate([1], session="s", max_tokens=3)
    server.kill()
    with open(wal, "r+b") as file:
        file.truncate(size)

    server = start(*flags)
    client = server.client()
    (info,) = client.sessions.list()
    assert (info.position, info.may_have_been_at) == (6, 6)
    status, _, text = ask(f"http://127.0.0.1:{server.http_port}", "/v1/sessions")
    assert status == 200
    assert [one["may_have_been_at"] for one in json.loads(text)["data"]] == [6]
    code, out, _ = run("mneme", "session", "list", MNEME_SERVER=server.target)
    assert code == 0 and "in doubt: it may have been at 6" in out
    assert client.generate([1], session="s", max_tokens=3, expected_position=6).usage
    assert client.session("s").info().may_have_been_at is None


def test_a_folder_that_is_gone_is_unavailable(start, tmp_path):
    folder = tmp_path / "sessions"
    server = start("--session-dir", str(folder))
    client = server.client()
    client.generate([1, 2, 3], session="s", max_tokens=3)
    folder.rename(tmp_path / "elsewhere")
    for act in (
        lambda: client.generate([1], session="s", max_tokens=3),
        lambda: client.sessions.create_checkpoint("s", "c"),
        lambda: client.sessions.rewind("s", 2),
        lambda: client.sessions.delete("s"),
    ):
        with pytest.raises(mneme.Unavailable) as refused:
            act()
        assert refused.value.reason == "NOT_DURABLE"
    assert health_of(server)["status"] == "degraded"
    (tmp_path / "elsewhere").rename(folder)
    assert client.generate([1], session="s", max_tokens=3).session.position == 10


def test_retention_deletes_while_nobody_asks_for_anything(start, tmp_path):
    server = start("--session-dir", str(tmp_path / "sessions"), "--session-retention", "1s")
    server.client().generate([1, 2, 3], session="s", max_tokens=3)
    wait_for(lambda: "session_deleted" in server.log, "the end of the session")


def test_the_command_line_replaces_what_was_lost(start, run, tmp_path):
    flags = ("--session-dir", str(tmp_path / "sessions"))
    server = start(*flags)

    def generate(server, *words):
        return run("mneme", "generate", "--max-tokens", "2", *words, MNEME_SERVER=server.target)

    for name in ("a", "b", "c"):
        code, _, err = generate(server, "One", "--session", name, "--durability", "none")
        assert code == 0, err
    assert generate(server, "One", "--session", "d", "--durability", "turn")[0] == 0
    code, out, _ = run("mneme", "session", "list", MNEME_SERVER=server.target)
    assert code == 0
    assert [line.split()[4] for line in out.splitlines()[1:]] == ["-"] * 4, "nothing expires"
    client = server.client()
    position = client.sessions.get("d").position
    assert generate(server, "Two", "--session", "d", "--no-remember")[0] == 0
    assert client.sessions.get("d").position == position
    said = "Two\nThree\n"
    code, _, err = run("mneme", "chat", "--session", "d", "--no-remember", "--max-tokens", "2",
                       MNEME_SERVER=server.target, stdin=said)
    assert code == 0, err
    assert client.sessions.get("d").position == position
    server.process.kill()
    server.kill()

    server = start(*flags)
    assert generate(server, "Two", "--session", "d")[0] == 0
    code, _, err = generate(server, "Two", "--session", "a")
    assert code == 4
    assert "SESSION_LOST" in err and "--replace-lost" in err
    code, _, err = generate(server, "Two", "--session", "a", "--replace-lost")
    assert code == 0, err
    chat = ("chat", "--session", "b", "--max-tokens", "2")
    code, out, err = run("mneme", *chat, MNEME_SERVER=server.target, stdin="Two\n")
    assert code != 0
    assert out == "" and "--replace-lost" in err
    code, _, err = run(
        "mneme", *chat, "--replace-lost", MNEME_SERVER=server.target, stdin="Two\nThree\n"
    )
    assert code == 0, err
    assert err.startswith("[new session b]")
    code, _, err = run("mneme", "session", "create", "c", MNEME_SERVER=server.target)
    assert code != 0 and "--replace-lost" in err
    create = ("session", "create", "c", "--replace-lost")
    code, _, err = run("mneme", *create, MNEME_SERVER=server.target)
    assert code == 0, err


def test_a_plan_refuses_the_folder_that_a_start_refuses(run, golden_model, tmp_path):
    file = tmp_path / "file"
    file.write_text("no folder")
    there = tmp_path / "there"
    there.mkdir()
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")

    def plan(folder):
        words = ("--model", str(golden_model), "--device", "cpu", "--session-dir", str(folder))
        return run("mneme-server", *words, "--plan")

    none = tmp_path / "none" / "below"
    for folder in (file, file / "below", none, tmp_path / "nowhere", "/proc/none"):
        code, out, err = plan(folder)
        assert (code, out) == (2, ""), err
        assert "--session-dir" in err and str(folder) in err
    for folder in (there, tmp_path / "new", f"{tmp_path}/new/"):
        code, out, err = plan(folder)
        assert code == 0, err
        assert "store " in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "nowhere", "there"]
    assert list(there.iterdir()) == []
