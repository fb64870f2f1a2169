"""Sessions that go back to where they were, by every door."""

import json

import pytest

import mneme

from http_requests import ask


def say(client, session, prompt, tokens=4):
    answer = client.generate(
        prompt, session=session, max_tokens=tokens, temperature=0, ignore_eos=True
    )
    return list(answer.token_ids)


@pytest.fixture
def stored(start, tmp_path):
    return start("--session-dir", str(tmp_path / "sessions"), "--max-checkpoints", "2")


def test_a_session_goes_back_and_says_what_it_said_then(stored):
    with stored.client() as client:
        first = say(client, "s", [1, 2, 3])
        session = client.session("s")
        checkpoint = session.checkpoint("first")
        assert (checkpoint.name, checkpoint.position) == ("first", 7)
        assert checkpoint.has_pending_token
        second = say(client, "s", [4])
        third = say(client, "s", [5])

        fork = session.fork("f", at="first")
        assert fork.position == 7
        assert say(client, "f", [4]) == second
        assert session.rewind("first").position == session.position == 7
        assert say(client, "s", [4]) == second
        assert say(client, "s", [5]) == third
        # Within a request: as one that was fed no more.
        assert session.rewind(5).has_pending_token is False
        say(client, "fed", [1, 2, 3, *first[:2]], tokens=0)
        assert say(client, "s", [9]) == say(client, "fed", [9])
        # And where a token was pending, from that.
        session.rewind(5)
        say(client, "s", [6])
        more = say(client, "s", [])
        session.rewind(5 + 1 + 4)
        assert say(client, "s", []) == more
        assert [c.name for c in session.checkpoints()] == [], "they were of what is gone"

        session.checkpoint("a")
        assert session.checkpoint().name.startswith("checkpoint-")
        with pytest.raises(mneme.ResourceExhausted) as refused:
            session.checkpoint("c")
        assert refused.value.reason == "CHECKPOINT_LIMIT"
        assert "has 2 checkpoints, and may have 2" in str(refused.value)
        assert refused.value.retry_after is None and not isinstance(refused.value, mneme.Overloaded)
        client.sessions.delete_checkpoint("s", "a")
        with pytest.raises(mneme.MnemeError) as refused:
            session.rewind(1000)
        assert refused.value.reason == "POSITION_GONE"
        assert "its log leads to positions 0 to 14" in str(refused.value)
        with pytest.raises(mneme.NotFound) as refused:
            session.rewind("a")
        assert refused.value.reason == "NO_SUCH_CHECKPOINT"


def test_http_takes_sessions_back(stored):
    base = f"http://127.0.0.1:{stored.http_port}"

    def call(path, body=None, method=None):
        status, _, text = ask(base, "/v1/sessions" + path, body=body, method=method)
        return status, json.loads(text)

    with stored.client() as client:
        say(client, "s", [1, 2, 3])
        second = None
        status, made = call("/s/checkpoints", {"name": "first"})
        assert (status, made["position"]) == (200, 7)
        second = say(client, "s", [4])
        assert [c["id"] for c in call("/s/checkpoints")[1]["data"]] == ["first"]
        status, fork = call("", {"session_id": "f", "fork_of": "s", "fork_checkpoint": "first"})
        assert (status, fork["position"]) == (200, 7)
        status, back = call("/s/rewind", {"checkpoint": "first"})
        assert (status, back["position"], back["has_pending_token"]) == (200, 7, True)
        assert say(client, "s", [4]) == say(client, "f", [4]) == second
        assert call("/s/rewind", {"position": 3})[1]["position"] == 3
        status, error = call("/s/rewind", {"position": 4})
        assert (status, error["error"]["code"]) == (400, "position_gone")
        assert "forgot" not in error["error"]["message"]
        client.sessions.create("s/checkpoints")
        for path in ("/s/checkpoints", "/s/checkpoints?nmae=first"):
            status, error = call(path, method="DELETE")
            assert (status, error["error"]["param"]) == (400, "name")
        assert call("/s%2Fcheckpoints")[1]["id"] == "s/checkpoints"
        status, error = call("/s/checkpoints", {"name": ""})
        assert (status, error["error"]["param"]) == (400, "name")
        status, error = call("/s/export")
        assert (status, error["error"]["param"]) == (400, "format")
        assert call("/s%2Fcheckpoints", method="DELETE")[0] == 200
        status, error = call("/s/checkpoints?name=first", method="DELETE")
        assert (status, error["error"]["code"]) == (404, "no_such_checkpoint")


def test_the_command_line_takes_sessions_back(stored, run):
    def session(*words):
        return run("mneme", "session", *words, "--json", MNEME_SERVER=stored.target)

    with stored.client() as client:
        say(client, "s", [1, 2, 3])
        code, out, err = session("checkpoint", "s", "first")
        assert code == 0, err
        assert json.loads(out)["position"] == "7"
        second = say(client, "s", [4])
        code, out, _ = session("checkpoints", "s")
        assert [json.loads(line)["name"] for line in out.splitlines()] == ["first"]
        code, out, err = session("fork", "s", "f", "--at", "first")
        assert code == 0, err
        code, out, err = session("rewind", "s", "7")
        assert code == 0, err
        assert json.loads(out)["position"] == "7"
        assert say(client, "s", [4]) == say(client, "f", [4]) == second
        assert session("uncheckpoint", "s", "first")[0] == 0
        code, _, err = session("rewind", "s", "first")
        assert code == 4 and "no checkpoint first" in err
        code, _, err = run("mneme", "session", "list", "--at", "3", MNEME_SERVER=stored.target)
        assert code == 2 and "--at" in err


@pytest.mark.parametrize(
    ("words", "faults"),
    [
        (["fork", "a", "b", "--at", ""], ["--at", "position or the name of a checkpoint"]),
        (["fork", "a", "b", "--at", "-3"], ["--at", "position -3 is below 0"]),
        (["checkpoint", "a", ""], ["CHECKPOINT is empty", "session checkpoint NAME [CHECKPOINT]"]),
        (["rewind", "a", "-1"], ["PLACE: position -1 is below 0"]),
        (["usage", "a"], ['unexpected argument "a"; usage: mneme session usage']),
        (["rewind", "a"], ["PLACE is missing; usage: mneme session rewind NAME PLACE"]),
        (["uncheckpoint", "a"], ["CHECKPOINT is missing"]),
        (["delete"], ["NAME is missing"]),
        (["delete", "a", ""], ["NAME is empty"]),
        (["get", "a", "b"], ['unexpected argument "b"', "session get NAME"]),
        (["rewnd", "a", "1"], ["did you mean rewind?"]),
        (["get", "a", "--replace-lost"], ["--replace-lost is for create"]),
    ],
)
def test_what_the_command_line_cannot_do_is_named(golden_server, run, words, faults):
    code, out, err = run("mneme", "session", *words, MNEME_SERVER=golden_server.target)
    assert (code, out) == (2, "")
    for fault in faults:
        assert fault in err


def test_a_chat_goes_back(stored, run):
    # What is said again behind the same place is answered alike.
    said = "/rewind first\nHello\n/checkpoint first\nAgain\n/rewind first\nAgain\n/rewind -1\n"
    code, out, err = run(
        "mneme", "chat", "--session", "c", "--max-tokens", "4", "--temperature", "0",
        "--ignore-eos", "--no-default-stop", MNEME_SERVER=stored.target, stdin=said,
    )
    assert code == 0, err
    assert out.startswith("[c begins with the next turn]\n")
    assert "[position -1 is below 0" in out
    before, again = out.split("[checkpoint first after ")
    place, again = again.split(" tokens]\n", 1)
    second, third = again.split(f"[back after {place} tokens]\n")
    assert second == third.split("[position")[0]
    with stored.client() as client:
        assert [c.position for c in client.session("c").checkpoints()] == [int(place)]


def test_without_a_folder_the_error_names_the_flag(golden_server, name):
    with golden_server.client() as client:
        say(client, name, [1])
        session = client.session(name)
        for call in (session.checkpoint, session.checkpoints, lambda: session.rewind(1),
                     lambda: session.fork("f", at=1)):
            with pytest.raises(mneme.FailedPrecondition, match="--session-dir") as refused:
                call()
            assert refused.value.reason == "NO_STORE"


def test_going_back_is_durable(start, tmp_path):
    flags = ("--session-dir", str(tmp_path / "sessions"))
    server = start(*flags)
    client = server.client()
    say(client, "s", [1, 2, 3])
    second = say(client, "s", [4])
    client.session("s").rewind(7)
    server.process.kill()
    server.kill()
    client = start(*flags).client()
    assert client.session("s").info().position == 7
    assert say(client, "s", [4]) == second
