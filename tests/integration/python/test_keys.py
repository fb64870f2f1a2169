"""API keys, roles, ownership and limits, by the Python client and the command line."""

import signal

import pytest

import mneme

from waiting import wait_for


def test_keys_are_made_and_hashed(run, new_key):
    key, line = new_key("alice")
    assert key.startswith("mneme-")
    assert line.startswith("alice:sha256-")
    assert key not in line
    code, out, _ = run("mneme-server", "--hash-api-key", "alice", stdin=key + "\n")
    assert (code, out) == (0, line + "\n")
    code, out, err = run("mneme-server", "--new-api-key", "two words")
    assert (code, out) == (2, "")
    assert "two words" in err
    assert run("mneme-server", "--hash-api-key", "alice")[0] == 2


def test_sessions_belong_to_keys(start, new_key, tmp_path, run, name):
    keys = {who: new_key(who) for who in ("alice", "bob")}
    file = tmp_path / "keys"
    file.write_text("".join(line + "\n" for _, line in keys.values()))
    server = start("--api-key-file", file)
    alice, bob = (server.client(api_key=keys[who][0]) for who in ("alice", "bob"))
    assert server.client().health() is mneme.ServingStatus.SERVING
    with pytest.raises(mneme.Unauthenticated, match="API key is needed"):
        server.client().info()
    with pytest.raises(mneme.Unauthenticated, match="unknown"):
        server.client(api_key=keys["alice"][0] + "x").generate("a", max_tokens=1)

    position = (
        alice.session(name).send("secret words", max_tokens=4, ignore_eos=True).session.position
    )
    assert alice.sessions.get(name).position == position
    assert [s.name for s in alice.sessions.list()] == [name]
    assert list(bob.sessions.list()) == []
    for call in (
        lambda: bob.sessions.get(name),
        lambda: bob.sessions.delete(name),
        lambda: bob.sessions.fork(name, "copy"),
        lambda: bob.generate("x", session=name, create_if_missing=False, max_tokens=1),
    ):
        with pytest.raises(mneme.SessionNotFound):
            call()
    bob.sessions.create(name)  # his own
    assert bob.sessions.get(name).position == 0
    assert alice.sessions.get(name).position == position
    # The same idempotency key of two clients is two keys.
    first = alice.generate("abc", max_tokens=2, seed=1, idempotency_key="k")
    other = bob.generate("xyz", max_tokens=2, seed=1, idempotency_key="k")
    assert not other.replayed
    assert alice.generate("abc", max_tokens=2, seed=1, idempotency_key="k").replayed
    assert first.usage.prompt_tokens == other.usage.prompt_tokens

    # The command line takes the key from the variable.
    where = {"MNEME_SERVER": server.target}
    code, out, err = run("mneme", "session", "list", **where, MNEME_API_KEY=keys["alice"][0])
    assert code == 0, err
    assert name in out
    code, _, err = run("mneme", "session", "list", **where)
    assert code == 7
    assert "UNAUTHENTICATED" in err
    assert run("mneme", "health", **where)[0] == 0
    assert run("mneme", "info", "--api-key", keys["bob"][0], **where)[0] == 0
    for secret in (keys["alice"][0], keys["bob"][0], "secret words"):
        assert secret not in server.log


def test_keys_change_without_a_restart(start, new_key, tmp_path):
    (old, old_line), (new, new_line) = new_key("alice"), new_key("alice")
    file = tmp_path / "keys"
    file.write_text(old_line + "\n")
    server = start("--api-key-file", file)
    server.client(api_key=old).session("s").send("abc", max_tokens=1)

    def accepted(key):
        try:
            server.client(api_key=key).info()
        except mneme.Unauthenticated:
            return False
        return True

    file.write_text(f"{old_line}\n{new_line}\n")
    wait_for(lambda: accepted(new), "the new key")
    assert accepted(old)
    assert server.client(api_key=new).sessions.get("s").position > 0  # the same client
    file.write_text("nonsense\n")
    server.signal(signal.SIGHUP)
    wait_for(lambda: "nonsense" not in server.log and "keys:1:" in server.log, "the complaint")
    assert accepted(new)
    file.write_text(new_line + "\n")
    server.signal(signal.SIGHUP)
    wait_for(lambda: not accepted(old), "the end of the old key")
    assert accepted(new)
    assert server.alive()


def test_limits_of_a_key(start, new_key, tmp_path):
    key, line = new_key("alice", ":streams=2,sessions=1")
    few_tokens, few_tokens_line = new_key("bob", ":tokens-per-minute=100")
    file = tmp_path / "keys"
    file.write_text(f"{line}\n{few_tokens_line}\n")
    server = start("--api-key-file", file)
    client = server.client(api_key=key)
    running = [client.stream("abc", max_tokens=100_000_000, ignore_eos=True) for _ in range(2)]
    for stream in running:
        next(stream)
    with pytest.raises(mneme.Overloaded) as caught:
        client.generate("abc", max_tokens=1)
    assert caught.value.reason == "KEY_STREAM_LIMIT"
    assert caught.value.retry_after
    for stream in running:
        stream.cancel()
    wait_for(lambda: client.info().statistics.requests_running == 0, "the end of both")
    client.sessions.create("one")
    with pytest.raises(mneme.Overloaded) as caught:
        client.sessions.create("two")
    assert caught.value.reason == "KEY_SESSION_LIMIT"
    client.generate("abc", max_tokens=4, session="one")
    with pytest.raises(mneme.Overloaded):
        client.generate("abc", max_tokens=4, session="two")
    client = server.client(api_key=few_tokens)
    client.generate("abc", max_tokens=95, ignore_eos=True)  # of 98 tokens; 100 come in a minute
    with pytest.raises(mneme.Overloaded) as caught:
        client.generate("abc", max_tokens=95)
    assert caught.value.reason == "KEY_TOKEN_LIMIT"
    assert 0 < caught.value.retry_after <= 60
    with pytest.raises(mneme.InvalidArgument, match="100"):
        client.generate("abc", max_tokens=200)


def test_one_key_for_all_comes_from_the_variable(start):
    server = start(environment={"MNEME_API_KEY": "a-key-of-enough-length"})
    client = server.client(api_key="a-key-of-enough-length")
    assert client.generate("abc", max_tokens=1).usage.completion_tokens == 1
    with pytest.raises(mneme.Unauthenticated):
        server.client(api_key="another").info()
    assert "a-key-of-enough-length" not in server.log
    assert "command line" not in server.log
    server = start("--api-key", "short")
    assert "short" not in server.log
    assert "can be read by every user" in server.log
    assert "guessed" in server.log


def test_admin_calls_need_an_admin(start, new_key, tmp_path, run):
    (user, user_line), (admin, admin_line) = new_key("alice"), new_key("ops", ":admin")
    file = tmp_path / "keys"
    file.write_text(f"{user_line}\n{admin_line}\n")
    server = start("--api-key-file", file)
    where = {"MNEME_SERVER": server.target}
    code, _, err = run("mneme", "admin", "reload", **where, MNEME_API_KEY=user)
    assert code == 7
    assert "PERMISSION_DENIED" in err
    code, out, err = run("mneme", "admin", "reload", **where, MNEME_API_KEY=admin)
    assert (code, out) == (0, "2 API keys\n"), err
    client = server.client(api_key=user)
    client.generate("abc", max_tokens=1, request_id="logged")
    wait_for(lambda: "=logged " in server.log, "the line of the first request")
    assert run("mneme", "admin", "log-level", "warning", **where, MNEME_API_KEY=admin)[0] == 0
    client.generate("abc", max_tokens=1, request_id="not-logged")
    assert run("mneme", "admin", "log-level", "info", **where, MNEME_API_KEY=admin)[0] == 0
    client.generate("abc", max_tokens=1, request_id="logged-again")
    wait_for(lambda: "logged-again" in server.log, "the line of the last request")
    assert "not-logged" not in server.log
    assert run("mneme", "admin", "log-level", "loud", **where, MNEME_API_KEY=admin)[0] == 2
