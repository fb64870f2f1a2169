"""Requests over HTTP, without a client that knows better."""

import json
import urllib.error
import urllib.request


def ask(base, path, key="", body=None, context=None, headers=None, method=None):
    """Status, headers and text of one request. A `body` of bytes is sent as it is, others as JSON."""
    request = urllib.request.Request(base + path, headers=headers or {}, method=method)
    if body is not None:
        request.data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request.add_header("content-type", "application/json")
    if key:
        request.add_header("authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()
