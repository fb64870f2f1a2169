#!/usr/bin/env python3
"""What an edited chat costs: a chat of 20 equal turns in a session, whose message 10 is edited.

usage: bench/edited_chat.py [--bin DIR] [--model DIR] [--folder DIR]

Each row is a server of its own: with a prefix cache or without, with a store or without, which was
started again before the edit or was not, with a checkpoint behind the answer in front of the edit
or without, and with a snapshot behind each turn of which so many are kept, or as many as by default. For the edited message, and for the same answer asked for anew, it prints the tokens
of the history that was sent, those of it that were fed, and the time that the request took.

--bin     the binaries (default: build/release/bin)
--model   (default: demo/model)
--folder  where sessions are stored (default: a new one)
To be run by the Python that tools/python_env.sh prints, which has the client.
"""

import argparse
import json
import tempfile
import time
import urllib.request
from pathlib import Path

from stored_sessions import ROOT, Server

TURNS = 20
EDITED = 10
CACHE = ("--prefix-cache-memory", "256MiB")


def words(seed: int) -> str:
    return " ".join(f"{(i * 37 + seed * 101) % 1000:03d}" for i in range(24))


def ask(server, messages):
    body = {
        "messages": messages,
        "session_id": "edited",
        "temperature": 0,
        "max_tokens": 64,
        "min_tokens": 64,  # no end is drawn, which would be in the session and not in the text
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.http}/v1/chat/completions", json.dumps(body).encode()
    )
    request.add_header("content-type", "application/json")
    begun = time.monotonic()
    with urllib.request.urlopen(request, timeout=600) as answer:
        reply = json.load(answer)
        reuse = answer.headers["x-session-reuse"]
    return reply, reuse, time.monotonic() - begun


def talk(server, checkpoint):
    messages = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": words(turn)})
        reply, _, _ = ask(server, messages)
        messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
        if checkpoint and turn == EDITED - 2:
            server.client.session("edited").checkpoint("before")
            while server.metric("mneme_session_snapshots_total")[0] == 0:
                time.sleep(0.01)
    return messages


def edit(server, messages, what):
    edited = messages[: 2 * (EDITED - 1)] + [{"role": "user", "content": words(99)}]
    for kind in ("edited", "anew"):
        reply, reuse, seconds = ask(server, edited)
        usage = reply["usage"]
        history = usage["prompt_tokens"]
        fed = history - usage["prompt_tokens_details"]["cached_tokens"]
        print(
            f"{what}: {kind}: {history} tokens sent, {fed} of them fed, "
            f"{history / fed:.1f} times fewer, {seconds:.2f} s, session {reuse}",
            flush=True,
        )


def measure(options, cached, stored, restarts=False, checkpoint=False, snapshots=0):
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        flags = (CACHE if cached else ()) + (("--session-dir", folder) if stored else ())
        if snapshots:
            flags += ("--snapshot-tokens", 64, "--snapshots-per-session", snapshots)
        what = ", ".join(
            text
            for text, holds in (
                ("prefix cache" if cached else "no cache", True),
                ("store" if stored else "no store", True),
                ("restarted", restarts),
                ("checkpoint", checkpoint),
                (f"{snapshots} snapshots", snapshots),
            )
            if holds
        )
        with Server(options, *flags) as server:
            messages = talk(server, checkpoint)
            if not restarts:
                edit(server, messages, what)
        if restarts:
            with Server(options, *flags) as server:
                edit(server, messages, what)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--model", type=Path, default=ROOT / "demo/model")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    measure(options, cached=False, stored=False)
    measure(options, cached=True, stored=False)
    measure(options, cached=True, stored=True)
    measure(options, cached=True, stored=True, restarts=True)
    measure(options, cached=False, stored=True)
    measure(options, cached=False, stored=True, restarts=True)
    for restarts in (False, True):
        measure(options, cached=False, stored=True, restarts=restarts, checkpoint=True)
    for snapshots in (2, 8, 24):
        measure(options, cached=False, stored=True, restarts=True, snapshots=snapshots)


if __name__ == "__main__":
    main()
