"""The same keys, owners, limits and certificates over HTTP."""

import ssl
import urllib.error

import pytest

import mneme

from certificates import tls_flags
from http_requests import ask
from waiting import wait_for


def test_keys_owners_and_limits(start, new_key, tmp_path, name):
    keys = {
        "alice": new_key("alice", ":tokens-per-minute=100"),
        "bob": new_key("bob"),
        "prometheus": new_key("prometheus", ":monitor"),
    }
    file = tmp_path / "keys"
    file.write_text("".join(line + "\n" for _, line in keys.values()))
    server = start("--api-key-file", file)
    base = f"http://127.0.0.1:{server.http_port}"
    alice, bob, monitor = (keys[who][0] for who in ("alice", "bob", "prometheus"))
    body = {"prompt": "abc", "max_tokens": 4, "session_id": name}

    assert ask(base, "/health")[0] == 200
    for path, data in (("/v1/completions", body), ("/v1/models", None), ("/metrics", None)):
        assert ask(base, path, body=data)[0] == 401, path
        assert ask(base, path, "nonsense", data)[0] == 401, path
    assert ask(base, "/metrics", monitor)[0] == 200
    assert ask(base, "/v1/completions", monitor, body)[0] == 403
    with pytest.raises(mneme.Unauthenticated):  # counted with those of HTTP
        server.client().info()
    refusals = {
        'mneme_auth_refusals_total{code="UNAUTHENTICATED"} 7',
        'mneme_auth_refusals_total{code="PERMISSION_DENIED"} 1',
    }
    wait_for(
        lambda: refusals.issubset(ask(base, "/metrics", monitor)[2].decode().splitlines()),
        "the counts of refusals",
    )

    assert ask(base, "/v1/completions", alice, body)[0] == 200
    # The session is hers over gRPC, too, and of nobody else.
    position = server.client(api_key=alice).sessions.get(name).position
    assert position > 0
    with pytest.raises(mneme.SessionNotFound):
        server.client(api_key=bob).sessions.get(name)
    assert ask(base, "/v1/completions", bob, body)[0] == 200  # a session of his own
    assert server.client(api_key=alice).sessions.get(name).position == position

    status, _, text = ask(base, "/v1/completions", alice, {"prompt": "abc", "max_tokens": 5000})
    assert status == 400
    assert b"100" in text
    large = {"prompt": "abc", "max_tokens": 85, "ignore_eos": True}
    assert ask(base, "/v1/completions", alice, large)[0] == 200
    status, headers, text = ask(base, "/v1/completions", alice, large)
    assert status == 429, text
    assert 0 < int(headers["retry-after"]) <= 60
    for secret in (alice, bob, monitor):
        assert secret not in server.log


def test_tls_and_client_certificates(start, certificates):
    ca = certificates.path("ca.pem")
    files = {"certificate": "alice.pem", "key": "alice.key"}
    hers = mneme.tls_credentials(ca, **{k: certificates.path(v) for k, v in files.items()})
    server = start(*tls_flags(certificates, mutual=True), client_options={"credentials": hers})
    base = f"https://127.0.0.1:{server.http_port}"
    context = ssl.create_default_context(cafile=ca)
    with pytest.raises((urllib.error.URLError, OSError)):
        ask(base, "/health", context=context)
    context.load_cert_chain(certificates.path("alice.pem"), certificates.path("alice.key"))
    assert ask(base, "/health", context=context)[0] == 200
    body = {"prompt": "abc", "max_tokens": 2, "session_id": "s"}
    assert ask(base, "/v1/completions", body=body, context=context)[0] == 200
    assert server.client().sessions.get("s").position > 0  # the same owner
    with pytest.raises((urllib.error.URLError, OSError)):
        ask(base.replace("https", "http"), "/health")
