"""Sessions as files: between servers, by every door, and as other programs read them."""

import hashlib
import json
import stat
import struct
import subprocess
import urllib.request

import pytest

import mneme


PROMPT = [5, 17, 80, 3] * 12


def feed(server, name, prompt=None, tokens=8):
    # Penalties look back on the history, which is in the file, too.
    with server.client() as client:
        return client.generate(
            prompt, session=name, max_tokens=tokens, temperature=0, repetition_penalty=1.2
        ).token_ids


def test_a_session_goes_on_on_another_server(golden_server, start, run, name, tmp_path):
    def export(*words):
        return run("mneme", "session", "export", *words, MNEME_SERVER=golden_server.target)

    path = tmp_path / "s.safetensors"
    feed(golden_server, name, PROMPT)
    code, out, err = export(name, path)
    assert (code, err) == (0, ""), out
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.glob("s.*")) == [path], "nothing else is left"

    other = start()
    code, out, err = run(
        "mneme", "session", "import", path, "moved", "--ttl", "5m", "--json", MNEME_SERVER=other.target
    )
    assert code == 0, err
    made = json.loads(out)
    assert made["session"]["name"] == "moved"
    assert made["session"]["ttl_ms"] == "300000"
    assert made["rounded_tensors"] == 0
    want = feed(golden_server, name, [9, 9], 20)
    assert feed(other, "moved", [9, 9], 20) == want

    # The name is taken there by now, and the file is not overwritten here.
    code, _, err = run("mneme", "session", "import", path, "moved", MNEME_SERVER=other.target)
    assert code == 4 and "already" in err
    code, _, err = export(name, path)
    assert code == 4 and "--force" in err
    code, _, err = export(name, path, "--force")
    assert code == 0, err
    code, _, err = export(name, "/nonexistent/e.st")
    assert code != 0 and err.rstrip().split(": ")[2] == "cannot create /nonexistent/e.st", err
    code, _, err = export("nobody", tmp_path / "n")
    assert code == 4 and not (tmp_path / "n").exists()
    assert list(tmp_path.glob("n*")) == []


def test_sessions_go_through_pipes(golden_server, bin_dir, run, name, tmp_path):
    feed(golden_server, name, PROMPT)
    environment = {"MNEME_SERVER": golden_server.target}
    session = [bin_dir / "mneme", "session"]
    exported = subprocess.run(
        [*session, "export", name, "-"],
        **{"cwd": tmp_path, "env": environment, "capture_output": True, "timeout": 60},
    )
    assert (exported.returncode, exported.stderr) == (0, b"")
    assert list(tmp_path.iterdir()) == [], 'no file is called "-"'
    imported = subprocess.run(
        [*session, "import", "-", f"{name}-2"],
        **{"input": exported.stdout, "env": environment, "capture_output": True, "timeout": 60},
    )
    assert imported.returncode == 0, imported.stderr
    assert feed(golden_server, f"{name}-2", [9, 9]) == feed(golden_server, name, [9, 9])
    for path, kind in (("/dev/zero", "a device"), (tmp_path, "a folder")):
        code, _, err = run("mneme", "session", "import", path, **environment)
        assert code == 4
        assert f"{path} is no session's file: it is {kind}" in err


def test_all_doors_give_and_take_the_same_file(golden_server, name, tmp_path):
    feed(golden_server, name, PROMPT)
    base = f"http://127.0.0.1:{golden_server.http_port}/v1/sessions"
    with urllib.request.urlopen(f"{base}/{name}/export?format=safetensors") as answer:
        over_http = answer.read()
        assert answer.headers["x-file-size"] == str(len(over_http))
    with golden_server.client() as client:
        over_grpc = client.sessions.export_bytes(name)
        # But for when it was made.
        assert len(over_http) == len(over_grpc)
        made = client.sessions.import_file(over_http, f"{name}-http", ttl=60)
        assert (made.session.name, made.session.ttl) == (f"{name}-http", 60)
        with pytest.raises(mneme.SessionExists):
            client.sessions.import_file(over_http, f"{name}-http")
        with pytest.raises(mneme.DataLoss):
            client.sessions.import_file(over_http[:-1] + b"?", f"{name}-2")
        with pytest.raises(mneme.InvalidArgument):
            client.sessions.import_file(over_http[:1000], f"{name}-2")
    request = urllib.request.Request(f"{base}/{name}-grpc/import", data=over_grpc, method="POST")
    with urllib.request.urlopen(request) as answer:
        assert json.loads(answer.read())["import"]["rounded_tensors"] == 0
    want = feed(golden_server, name, [1], 20)
    assert feed(golden_server, f"{name}-http", [1], 20) == want
    assert feed(golden_server, f"{name}-grpc", [1], 20) == want


def test_other_programs_read_the_file(golden_server, run, name, tmp_path):
    path = tmp_path / "s.safetensors"
    feed(golden_server, name, PROMPT, 3)
    with golden_server.client() as client:
        client.session(name).export_file(path)
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    facts = header.pop("__metadata__")
    assert facts["format"] == "mneme-session"
    assert facts["position"] == str(len(PROMPT) + 3)
    begin, end = header["mneme.history"]["data_offsets"]
    history = struct.unpack(f"<{(end - begin) // 4}i", data[8 + length :][begin:end])
    assert list(history[: len(PROMPT)]) == PROMPT
    assert ~history[-1] == int(facts["pending_token"])
    assert data[-32:] == hashlib.sha256(data[:-32]).digest()

    code, out, err = run("mneme-inspect", "session", path, "--json")
    assert code == 0, err
    seen = json.loads(out)
    assert seen["intact"]
    assert seen["sha256"] == data[-32:].hex()
    assert seen["position"] == len(PROMPT) + 3
    assert {t["name"] for t in seen["tensors"]} | {"mneme.history", "mneme.sha256"} == set(header)
    code, out, _ = run("mneme-inspect", "session", path)
    assert code == 0 and facts["fingerprint"] in out

    path.write_bytes(data[:-40] + b"x" + data[-39:])
    code, out, err = run("mneme-inspect", "session", path, "--json")
    assert code == 3 and "damaged" in err
    assert not json.loads(out)["intact"]
    path.write_bytes(data[:100])
    code, out, err = run("mneme-inspect", "session", path)
    assert code == 3 and out == "" and "truncated" in err


def test_another_model_says_what_differs(golden_server, text_server, name):
    feed(golden_server, name, PROMPT)
    with golden_server.client() as client, text_server.client() as other:
        with pytest.raises(mneme.FailedPrecondition) as caught:
            other.sessions.import_file(client.sessions.export_bytes(name), name)
    assert caught.value.reason == "MODEL_MISMATCH"
    assert "fingerprint" in caught.value.message
    with text_server.client() as other, pytest.raises(mneme.SessionNotFound):
        other.sessions.get(name)


def test_keys_own_what_they_import(start, new_key, tmp_path):
    keys = {who: new_key(who) for who in ("alice", "bob")}
    file = tmp_path / "keys"
    file.write_text("".join(line + "\n" for _, line in keys.values()))
    server = start("--api-key-file", file)
    alice, bob = (server.client(api_key=keys[who][0]) for who in ("alice", "bob"))
    alice.generate(PROMPT, session="s", max_tokens=2)
    with pytest.raises(mneme.SessionNotFound):
        bob.sessions.export_bytes("s")
    bob.sessions.import_file(alice.sessions.export_bytes("s"), "s")
    bob.sessions.delete("s")
    assert alice.sessions.get("s").position == len(PROMPT) + 2
    with pytest.raises(mneme.Unauthenticated):
        server.client().sessions.import_file(b"x", "s")


def test_exports_can_be_switched_off(start):
    server = start("--max-session-transfers", "0")
    feed(server, "s", PROMPT)
    with server.client() as client, pytest.raises(mneme.FailedPrecondition) as caught:
        client.sessions.export_bytes("s")
    assert "--max-session-transfers" in caught.value.message
