"""Sessions over HTTP: the same as over gRPC."""

import json

import pytest

import mneme

from http_requests import ask


class Sessions:
    def __init__(self, server, key=""):
        self.base = f"http://127.0.0.1:{server.http_port}"
        self.key = key

    def call(self, method, path="", body=None):
        status, _, text = ask(self.base, "/v1/sessions" + path, self.key, body, method=method)
        return status, json.loads(text)

    def feed(self, name, prompt, **fields):
        body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "session_id": name} | fields
        status, _, text = ask(self.base, "/v1/completions", self.key, body)
        assert status == 200, text
        return json.loads(text)["choices"][0]["text"]


def test_a_session_is_made_forked_listed_and_deleted(text_server, name):
    sessions = Sessions(text_server)
    status, made = sessions.call("POST", body={"session_id": name, "session_ttl_ms": 60000})
    assert status == 200
    assert (made["id"], made["object"], made["position"]) == (name, "session", 0)
    assert made["ttl_ms"] == 60000
    assert made["state_bytes"] > 0

    sessions.feed(name, "Once upon a time")
    status, fork = sessions.call("POST", body={"session_id": f"{name}-fork", "fork_of": name})
    assert status == 200
    assert fork["position"] == sessions.call("GET", f"/{name}")[1]["position"] > 4
    # Both go on alike, and over either protocol.
    assert sessions.feed(name, " there") == sessions.feed(f"{name}-fork", " there")
    over_grpc = text_server.client().sessions.get(f"{name}-fork")
    assert over_grpc.position == sessions.call("GET", f"/{name}-fork")[1]["position"]

    status, random_name = sessions.call("POST", body={})
    assert status == 200
    assert random_name["id"].startswith("session-")
    assert sessions.call("DELETE", f"/{random_name['id']}")[0] == 200

    status, page = sessions.call("GET", f"?prefix={name}&limit=1")
    assert status == 200
    assert [one["id"] for one in page["data"]] == [name]
    assert (page["has_more"], page["last_id"], page["total"]) == (True, name, 2)
    status, page = sessions.call("GET", f"?prefix={name}&after={name}")
    assert [one["id"] for one in page["data"]] == [f"{name}-fork"]
    assert not page["has_more"]

    for one in (name, f"{name}-fork"):
        deleted = {"id": one, "object": "session.deleted", "deleted": True}
        assert sessions.call("DELETE", f"/{one}") == (200, deleted)
    assert sessions.call("GET", f"?prefix={name}")[1]["data"] == []


def test_what_is_wrong_is_named(text_server, name):
    sessions = Sessions(text_server)
    assert sessions.call("POST", body={"session_id": name})[0] == 200
    for method, path, body, status, param in (
        ("POST", "", {"session_id": name}, 409, None),
        ("POST", "", {"session_id": "not a name"}, 400, "session_id"),
        ("POST", "", {"session_id": 7}, 400, "session_id"),
        ("POST", "", {"session_ttl_ms": -2}, 400, "session_ttl_ms"),
        ("POST", "", {"fork_of": "not a name"}, 400, "fork_of"),
        ("POST", "", {"fork_of": f"{name}-none"}, 404, None),
        ("POST", "", {"name": name}, 400, "name"),
        ("GET", f"/{name}-none", None, 404, None),
        ("GET", "/not%20a%20name", None, 400, "session_id"),
        ("DELETE", f"/{name}-none", None, 404, None),
        ("GET", "?limit=0", None, 400, "limit"),
        ("GET", "?limit=many", None, 400, "limit"),
        ("GET", "?page=2", None, 400, "page"),
        ("GET", "?after=a&after=b", None, 400, "after"),
        ("GET", "?after=%zz", None, 400, None),
        ("PUT", f"/{name}", {}, 405, None),
    ):
        got, answer = sessions.call(method, path, body)
        assert (got, answer["error"]["param"]) == (status, param), (method, path, body, answer)
    assert sessions.call("DELETE", f"/{name}")[0] == 200


def test_they_belong_to_the_key(start, new_key, tmp_path, name):
    keys = {who: new_key(who, options) for who, options in (("alice", ":sessions=2"), ("bob", ""))}
    file = tmp_path / "keys"
    file.write_text("".join(line + "\n" for _, line in keys.values()))
    server = start("--api-key-file", file)
    assert Sessions(server).call("GET")[0] == 401
    alice, bob = (Sessions(server, keys[who][0]) for who in ("alice", "bob"))
    assert alice.call("POST", body={"session_id": name})[0] == 200
    assert bob.call("GET")[1]["data"] == []
    assert bob.call("GET", f"/{name}")[0] == 404
    assert bob.call("DELETE", f"/{name}")[0] == 404
    assert bob.call("POST", body={"fork_of": name})[0] == 404
    assert alice.call("POST", body={"fork_of": name})[0] == 200
    status, answer = alice.call("POST", body={"fork_of": name})
    assert (status, answer["error"]["code"]) == (429, "key_session_limit")


def test_how_long_a_session_may_idle_has_a_limit(start, text_server, name):
    ten_years = 10 * 365 * 24 * 3600 * 1000
    sessions = Sessions(text_server)
    status, refused = sessions.call(
        "POST", body={"session_id": name, "session_ttl_ms": ten_years + 1}
    )
    assert (status, refused["error"]["param"]) == (400, "session_ttl_ms")
    assert str(ten_years) in refused["error"]["message"]

    server = start("--max-session-ttl", "1h")
    sessions = Sessions(server)
    for ttl in (3_600_001, -1):
        status, refused = sessions.call("POST", body={"session_id": "s", "session_ttl_ms": ttl})
        assert (status, refused["error"]["param"]) == (400, "session_ttl_ms")
        assert "3600000 (--max-session-ttl)" in refused["error"]["message"]
        body = {"prompt": "a", "session_id": "s", "session_ttl_ms": ttl, "max_tokens": 1}
        status, _, text = ask(sessions.base, "/v1/completions", body=body)
        assert (status, json.loads(text)["error"]["param"]) == (400, "session_ttl_ms")
    with pytest.raises(mneme.InvalidArgument, match="--max-session-ttl"):
        server.client().sessions.create("s", ttl=3601)
    assert sessions.call("POST", body={"session_id": "s", "session_ttl_ms": 3_600_000})[0] == 200
