"""Answers to a browser that runs a page of another origin."""

from http_requests import ask

PAGE = "https://a.example"
ASK = {"origin": PAGE, "access-control-request-method": "POST"}
# Pages may read these of every answer, or have no use for them.
ALWAYS = {
    "cache-control",
    "connection",
    "content-length",
    "content-type",
    "date",
    "server",
    "transfer-encoding",
    "vary",
    "www-authenticate",
    "x-accel-buffering",
}


def names(value):
    return {name.strip() for name in value.split(",")}


def test_a_page_of_an_allowed_origin_calls_the_server(start, new_key, tmp_path, name):
    key, line = new_key("alice", ":sessions=1")
    keys = tmp_path / "keys"
    keys.write_text(line + "\n")
    server = start("--api-key-file", keys, "--http-allowed-origins", f"http://localhost:1,{PAGE}")
    base = f"http://127.0.0.1:{server.http_port}"

    for path, methods in (
        ("/v1/completions", {"POST"}),
        ("/v1/sessions", {"GET", "HEAD", "POST"}),
        (f"/v1/sessions/{name}", {"GET", "HEAD", "POST", "DELETE"}),
        ("/health", {"GET", "HEAD"}),
    ):
        status, headers, text = ask(base, path, headers=ASK, method="OPTIONS")
        assert (status, text) == (204, b""), path
        assert headers["access-control-allow-origin"] == PAGE
        assert names(headers["access-control-allow-methods"]) == methods

    body = {"prompt": "abc", "max_tokens": 2, "session_id": name}
    page = {"origin": PAGE, "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    for status, data, with_key in (
        (200, body, key),
        (200, {**body, "stream": True}, key),
        (401, body, ""),
        (400, {"prompt": 1.5}, key),
        (429, {**body, "session_id": name + "-2"}, key),
    ):
        got, headers, text = ask(base, "/v1/completions", with_key, data, headers=page)
        assert got == status, text
        assert headers["access-control-allow-origin"] == PAGE
        own = {field.lower() for field in headers if not field.lower().startswith("access-")}
        assert own - ALWAYS <= names(headers["access-control-expose-headers"])

    for headers in ({**ASK, "origin": "https://b.example"}, {}):
        status, headers, _ = ask(base, "/v1/completions", headers=headers, method="OPTIONS")
        assert status == 401
        assert not [field for field in headers if field.lower().startswith("access-")]
