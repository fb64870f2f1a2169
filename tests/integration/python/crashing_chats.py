"""Clients over HTTP who edit their conversations while the server is killed (crashing_clients.py).

Each sends whole conversations. One that says something else than the session was told takes its
place from where they part, with its answer; until that answer ends, the session is as it was.
"""

import http.client
import json
import urllib.error
from dataclasses import dataclass, field

import mneme

from crashing_clients import SESSIONS, CrashingClient
from http_requests import ask

WORDS = ["river", "stone", "lamp", "seven", "green", "walks", "under", "snow"]


@dataclass
class Chat:
    """A session, as its client knows it."""

    name: str
    position: int = 0
    messages: list[str] = field(default_factory=list)  # the user's and the answers, in turns
    past: list[tuple] = field(default_factory=list)  # what was sent, what was answered, position
    checkpoints: dict[str, int] = field(default_factory=dict)  # none

    def tell(self, base: str, messages: list[str], key: str = "") -> tuple[str, int]:
        body = {
            "messages": [
                {"role": ("user", "assistant")[i % 2], "content": text}
                for i, text in enumerate(messages)
            ],
            "session_id": self.name,
            "on_mismatch": "replace",
            "max_tokens": 6,
            "temperature": 0,
        }
        if key:
            body["idempotency_key"] = key
        try:
            status, _, text = ask(base, "/v1/chat/completions", body=body)
            answer = json.loads(text)
        except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
            raise mneme.Unavailable(str(error)) from None
        assert status == 200, f"{self.name}: {status}, {text}"
        return answer["choices"][0]["message"]["content"], answer["session"]["position"]

    def note(self, messages: list[str], said: str, position: int) -> None:
        self.past.append((messages, said, position))
        self.messages = [*messages, said]
        self.position = position


class CrashingChat(CrashingClient):
    def send_whole(self, chat: Chat, messages: list[str]):
        before = chat.position
        key = f"{chat.name}-{len(chat.past)}-{self.random.random()}"

        def send(client):
            chat.note(messages, *chat.tell(self.http, messages, key))

        def settle(client):
            stands = self.position_of(client, chat.name)
            said, position = chat.tell(self.http, messages, key)
            assert stands in (before, position), (
                f"{chat.name} is at {stands}, neither {before} nor {position}"
            )
            assert self.position_of(client, chat.name) == position
            chat.note(messages, said, position)

        return send, settle

    def something(self) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, 5)))

    def generate(self):
        """Goes on."""
        chat = self.pick()
        if chat is None or len(chat.messages) > 12:
            return self.edit()
        return self.send_whole(chat, [*chat.messages, self.something()])

    def edit(self):
        """Another message in the place of an earlier one, and nothing of what followed."""
        chat = self.pick()
        if chat is None or (len(self.conversations) < SESSIONS and self.random.random() < 0.2):
            name = self.new_name()
            chat = self.conversations.setdefault(name, Chat(name))
        turns = len(chat.messages) // 2
        kept = 2 * self.random.randint(0, max(0, turns - 1))
        return self.send_whole(chat, [*chat.messages[:kept], self.something()])

    def regenerate(self):
        """The same once more: the answer, and what follows from it, is given anew."""
        chat = self.pick()
        if chat is None:
            return self.edit()
        turns = len(chat.messages) // 2
        return self.send_whole(chat, chat.messages[: 2 * self.random.randint(1, turns) - 1])

    OPERATIONS = [generate, generate, generate, edit, edit, regenerate, CrashingClient.delete]

    def compare(self, client, peer) -> None:
        """`peer`: the same server, never killed, by where it listens."""
        for chat in self.conversations.values():
            for messages, said, position in chat.past:
                assert chat.tell(peer, messages) == (said, position), chat.name
            if chat.past:
                more = [*chat.messages, "snow"]
                assert chat.tell(self.http, more) == chat.tell(peer, more), chat.name
