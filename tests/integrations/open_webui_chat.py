"""Open WebUI's backend: it lists the server's model and chats with it, whole and streamed.

usage: open_webui_chat.py HTTP_URL MODEL_FOLDER

Run with the Python of an environment that has open-webui. Nothing is downloaded: what it has for documents
(embedding models) stays off.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

url = sys.argv[1]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]


def ask(path: str, body: object = None, token: str = "") -> bytes:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def wait_until_healthy(backend: subprocess.Popen, log: Path) -> None:
    for _ in range(900):
        if backend.poll() is not None:
            sys.exit(f"open-webui ended with {backend.returncode}:\n{log.read_text()[-4000:]}")
        try:
            ask("/health")
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(1)
    sys.exit(f"open-webui is not healthy after 15 minutes:\n{log.read_text()[-4000:]}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        environment = {
            **os.environ,
            "DATA_DIR": folder,
            "WEBUI_SECRET_KEY": "for this check",
            "WEBUI_AUTH": "False",
            "ENABLE_OLLAMA_API": "False",
            "OPENAI_API_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": "none",
            "OFFLINE_MODE": "True",
            "RAG_EMBEDDING_ENGINE": "openai",
        }
        command = [Path(sys.executable).with_name("open-webui"), "serve", "--host", "127.0.0.1"]
        with log.open("wb") as output:
            backend = subprocess.Popen(
                [*command, "--port", str(port)], stdout=output, stderr=output, env=environment
            )
        try:
            wait_until_healthy(backend, log)
            chat()
        finally:
            backend.terminate()
            backend.wait()


def chat() -> None:
    signed_in = json.loads(ask("/api/v1/auths/signin", {"email": "", "password": ""}))
    token = signed_in["token"]
    models = [model["id"] for model in json.loads(ask("/api/models", token=token))["data"]]
    assert "model" in models, models
    body = {
        "model": "model",
        "messages": [
            {"role": "user", "content": "My code is 7281."},
            {"role": "assistant", "content": "Noted. Your code is 7281."},
            {"role": "user", "content": "What is my code?"},
        ],
        "temperature": 0,
    }
    whole = json.loads(ask("/api/chat/completions", {**body, "stream": False}, token))
    text = whole["choices"][0]["message"]["content"]
    assert "7281" in text, whole
    lines = ask("/api/chat/completions", {**body, "stream": True}, token).decode().splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    pieces = (c["choices"][0]["delta"].get("content") or "" for c in chunks if c.get("choices"))
    assert "".join(pieces) == text, lines
    print(text.strip(), models)


main()
