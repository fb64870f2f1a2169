"""Clients of a server that is killed at random moments, who know what they were promised.

Each has a few sessions of its own and one operation under way at a time. What the server has
answered has to be so from then on. The operation that was under way when the server was killed is
whole, or as if it had never been asked for; once that is settled, it is repeated or counts as done.
Of sessions that are not durable less is promised: each is where it was, or lost, and says so; whoever
has seen an answer of one is never told that there is none.

In the end another server, that was never killed, is told all that each session has been through,
and both have to say the same: a token that was lost, doubled or mixed up would change what they say.
"""

import random
import threading
from dataclasses import dataclass, field
from typing import Callable, Optional

import mneme

TOKENS = 4
SESSIONS = 3  # of a client
LIGHT = 2  # of these that are not durable, beside them
CHECKPOINTS = 3  # of a session


@dataclass
class Conversation:
    """A session, as its client knows it."""

    name: str
    position: int = 0
    # In order: ("turn", prompt, what was said), ("forget", first, end), and ("fed", tokens), the
    # beginning of a turn that it went back into.
    past: list[tuple] = field(default_factory=list)
    floor: int = 1  # the first position to which it can go back
    checkpoints: dict[str, int] = field(default_factory=dict)  # to positions
    durability: str = "turn"

    def copied_as(self, name: str) -> "Conversation":
        return Conversation(name, self.position, list(self.past), self.floor)

    def go_back(self, position: int) -> None:
        """It has been fed no more than that. Checkpoints of what is gone are gone."""
        kept, at = [], 0
        for event in self.past:
            tokens = [] if event[0] == "forget" else [t for part in event[1:] for t in part]
            if at + len(tokens) <= position:
                kept.append(event)
                at += len(tokens)
                continue
            if position > at:
                kept.append(("fed", tokens[: position - at]))
            break
        self.past = kept
        self.position = position
        self.checkpoints = {k: p for k, p in self.checkpoints.items() if p <= position}

    def note_forgotten(self, first: int) -> None:
        """Nothing leads back to before that."""
        self.past.append(("forget", first, first + 1))
        self.floor = self.position
        self.checkpoints.clear()

    def tell(self, client: mneme.Client, prompt: list[int], key: str = "") -> list[int]:
        answer = client.generate(
            prompt,
            session=self.name,
            max_tokens=TOKENS,
            temperature=0,
            ignore_eos=True,
            expected_position=self.position,
            idempotency_key=key,
            durability=self.durability,
        )
        assert answer.session.position == self.position + len(prompt) + TOKENS, self.name
        return list(answer.choices[0].token_ids)

    def note_turn(self, prompt: list[int], said: list[int]) -> None:
        self.position += len(prompt) + TOKENS
        self.past.append(("turn", prompt, said))

    def relive(self, client: mneme.Client) -> None:
        """On a server that was never killed."""
        peer = Conversation(self.name)
        for event in self.past:
            if event[0] == "turn":
                assert peer.tell(client, event[1]) == event[2], self.name
                peer.note_turn(event[1], event[2])
            elif event[0] == "fed":
                client.generate(event[1], session=self.name, max_tokens=0)
                peer.position += len(event[1])
            else:
                try:
                    client.sessions.forget_segments(self.name, *event[1:])
                except mneme.NotFound:  # all of it had died by itself
                    pass


class CrashingClient:
    """Works until the server is gone, and goes on when it is there again.

    An operation is a pair: what is done, and what is done instead where it was under way when the
    server went. Both return when it is done for good.
    """

    def __init__(self, number: int, segment: int) -> None:
        self.random = random.Random(number)
        self.prefix = f"c{number}-"
        self.segment = segment
        self.conversations: dict[str, Conversation] = {}
        self.light_prefix = f"l{number}-"
        self.light: dict[str, Conversation] = {}  # those that are not durable
        self.lost = 0  # of them
        self.gone: set[str] = set()
        self.under_way: Optional[Callable[[mneme.Client], None]] = None
        self.done: dict[str, int] = {}
        self.names = 0
        self.http = ""  # where the server is that it works with
        self.failure: Optional[BaseException] = None

    # --- Operations: each returns (first try, try after a crash) ---

    def generate(self):
        conversation = self.pick() or self.begin()
        prompt = [self.random.randrange(250) for _ in range(self.random.randint(1, 12))]
        key = f"{conversation.name}-{len(conversation.past)}-{self.random.random()}"

        def send(client):
            # With its key it is fed once, and answered however often it is asked.
            conversation.note_turn(prompt, conversation.tell(client, prompt, key))

        def settle(client):
            whole = conversation.position + len(prompt) + TOKENS
            stands = self.position_of(client, conversation.name)
            assert stands in (conversation.position, whole), (
                f"{conversation.name} is at {stands}, a part of a turn from {conversation.position}"
            )
            said = conversation.tell(client, prompt, key)
            assert self.position_of(client, conversation.name) == whole
            conversation.note_turn(prompt, said)

        return send, settle

    def generate_lightly(self):
        """In a session that is not durable."""
        if len(self.light) < LIGHT:
            name = f"{self.light_prefix}{self.new_name()}"
            self.light[name] = Conversation(name, durability="none")
        conversation = self.random.choice(sorted(self.light.values(), key=lambda c: c.name))
        prompt = [self.random.randrange(250) for _ in range(self.random.randint(1, 12))]

        def send(client):
            conversation.note_turn(prompt, conversation.tell(client, prompt))

        def settle(client):
            whole = conversation.position + len(prompt) + TOKENS
            stands = self.light_position(client, conversation)
            if stands != conversation.position:
                # It was lost, or what it said in the end nobody has heard.
                assert stands in (None, whole), f"{conversation.name} is at {stands}"
                self.give_up(client, conversation)

        return send, settle

    @staticmethod
    def light_position(client: mneme.Client, conversation: Conversation) -> Optional[int]:
        """None: it is lost."""
        try:
            return client.sessions.get(conversation.name).position
        except mneme.NotFound:
            assert conversation.position == 0, f"{conversation.name} is gone in silence"
            return 0
        except mneme.DataLoss as lost:
            assert lost.reason == "SESSION_LOST"
            assert int(lost.metadata["position"]) > 0
            return None

    def give_up(self, client: mneme.Client, conversation: Conversation) -> None:
        """Nobody begins it anew without saying so."""
        if self.light_position(client, conversation) is None:
            try:
                client.generate([1], session=conversation.name, max_tokens=1)
                raise AssertionError(f"{conversation.name} began anew in silence")
            except mneme.DataLoss:
                self.lost += 1
        del self.light[conversation.name]

    def look_at_light(self, client: mneme.Client) -> None:
        for conversation in list(self.light.values()):
            if conversation.position == 0:  # nothing is known of it
                continue
            stands = self.light_position(client, conversation)
            assert stands in (None, conversation.position), f"{conversation.name} is at {stands}"
            if stands is None:
                self.give_up(client, conversation)

    def fork(self):
        parent = self.pick()
        if parent is None or len(self.conversations) >= SESSIONS:
            return self.generate()
        child = parent.copied_as(self.new_name())

        def send(client):
            assert client.sessions.fork(parent.name, child.name).position == parent.position
            self.conversations[child.name] = child

        return send, self.unless_it_is_there(child, send)

    def move(self):
        """To a file and back, under another name."""
        source = self.pick()
        if source is None or len(self.conversations) >= SESSIONS:
            return self.generate()
        copy = source.copied_as(self.new_name())
        copy.floor = copy.position
        file = []

        def send(client):
            if not file:
                file.append(client.sessions.export_bytes(source.name))
            imported = client.sessions.import_file(file[0], copy.name)
            assert imported.session.position == source.position
            self.conversations[copy.name] = copy

        return send, self.unless_it_is_there(copy, send)

    def unless_it_is_there(self, made: Conversation, send):
        def settle(client):
            stands = self.position_of(client, made.name)
            assert stands in (0, made.position), f"{made.name} is at {stands}, a part of a copy"
            if stands == 0:
                return send(client)
            self.conversations[made.name] = made

        return settle

    def delete(self):
        conversation = self.pick()
        if conversation is None or len(self.conversations) < SESSIONS:
            return self.generate()

        def forget():
            del self.conversations[conversation.name]
            self.gone.add(conversation.name)

        def send(client):
            client.sessions.delete(conversation.name)
            forget()

        def settle(client):
            stands = self.position_of(client, conversation.name)
            assert stands in (0, conversation.position), f"a part of {conversation.name} is left"
            if stands == 0:
                return forget()
            send(client)

        return send, settle

    def forget(self):
        """A segment of it. Its tokens are gone from the disk when that is answered."""
        conversation = self.pick()
        segments = 0 if conversation is None else (conversation.position - 2) // self.segment
        past = [] if conversation is None else conversation.past
        known = [event[1] for event in past if event[0] == "forget"]
        left = [one for one in range(max(0, segments - 4), segments) if one not in known]
        if not left:
            return self.generate()
        first = self.random.choice(left)
        checkpoints = dict(conversation.checkpoints)

        def forget(client):
            client.sessions.forget_segments(conversation.name, first, first + 1)
            conversation.note_forgotten(first)

        def send(client):
            try:
                forget(client)
            except mneme.NotFound:  # all of it has died by itself
                pass

        def settle(client):
            try:
                forget(client)
            except mneme.NotFound:  # or is forgotten already, with all that led there
                left = self.checkpoints_of(client, conversation)
                assert left in ({}, checkpoints), f"a part of {checkpoints} is left: {left}"
                if not left:  # otherwise it has died by itself
                    conversation.note_forgotten(first)

        return send, settle

    def checkpoint(self):
        conversation = self.pick()
        if conversation is None or len(conversation.checkpoints) >= CHECKPOINTS:
            return self.generate()
        name = self.new_name()

        def send(client):
            made = client.sessions.create_checkpoint(conversation.name, name)
            assert made.position == conversation.position
            conversation.checkpoints[name] = made.position

        after = {**conversation.checkpoints, name: conversation.position}
        return send, self.settling_checkpoints(conversation, after, send)

    def delete_checkpoint(self):
        conversation = self.pick()
        if conversation is None or not conversation.checkpoints:
            return self.checkpoint()
        name = self.random.choice(sorted(conversation.checkpoints))

        def send(client):
            client.sessions.delete_checkpoint(conversation.name, name)
            del conversation.checkpoints[name]

        after = {k: p for k, p in conversation.checkpoints.items() if k != name}
        return send, self.settling_checkpoints(conversation, after, send)

    def settling_checkpoints(self, conversation: Conversation, after, send):
        """Sees whether a command that changes checkpoints has come through; else sends it again."""

        def settle(client):
            before = conversation.checkpoints
            left = self.checkpoints_of(client, conversation)
            assert left in (before, after), f"{left} is neither {before} nor {after}"
            if left == before:
                return send(client)
            conversation.checkpoints = after

        return settle

    def place(self, conversation: Conversation):
        """Somewhere in its past: as it is asked for, and the position."""
        if conversation.checkpoints and self.random.random() < 0.5:
            name = self.random.choice(sorted(conversation.checkpoints))
            return name, conversation.checkpoints[name]
        position = self.random.randint(conversation.floor, conversation.position)
        return position, position

    def rewind(self):
        conversation = self.pick()
        if conversation is None:
            return self.generate()
        before, checkpoints = conversation.position, dict(conversation.checkpoints)
        to, position = self.place(conversation)

        def note(client):
            left = self.checkpoints_of(client, conversation)
            conversation.go_back(position)
            assert left.items() <= conversation.checkpoints.items(), "of what is gone"
            for name, there in conversation.checkpoints.items():
                assert name in left or there == position, f"{name} of {left} is lost"
            conversation.checkpoints = left

        def send(client):
            assert client.sessions.rewind(conversation.name, to).position == position
            self.under_way = gone_back
            note(client)

        def gone_back(client):
            assert self.position_of(client, conversation.name) == position
            note(client)

        def settle(client):
            stands = self.position_of(client, conversation.name)
            assert stands in (before, position), (
                f"{conversation.name} is at {stands}, on its way from {before} to {position}"
            )
            if stands == before:
                assert before == position or (
                    self.checkpoints_of(client, conversation) == checkpoints
                ), "a part of what went back is gone"
                return send(client)
            gone_back(client)

        return send, settle

    def fork_at(self):
        parent = self.pick()
        if parent is None or len(self.conversations) >= SESSIONS:
            return self.rewind()
        to, position = self.place(parent)
        child = parent.copied_as(self.new_name())
        child.go_back(position)

        def send(client):
            made = client.sessions.fork(parent.name, child.name, at=to)
            assert made.position == position
            self.conversations[child.name] = child

        return send, self.unless_it_is_there(child, send)

    # Whatever else can be done to sessions joins here, with what is done after a crash.
    OPERATIONS = 4 * [generate] + 2 * [generate_lightly] + [fork, move, delete, forget]
    OPERATIONS += [checkpoint, checkpoint, delete_checkpoint, rewind, rewind, fork_at]

    # --- Work ---

    def work(self, client: mneme.Client) -> None:
        try:
            if self.under_way is not None:
                self.under_way(client)
                self.under_way = None
            self.look_at_light(client)
            while True:
                operation = self.random.choice(self.OPERATIONS)
                send, settle = operation(self)
                self.under_way = settle
                send(client)
                self.under_way = None
                self.done[operation.__name__] = self.done.get(operation.__name__, 0) + 1
        except mneme.Unavailable:
            pass
        except BaseException as error:
            self.failure = error

    def settle(self, client: mneme.Client) -> None:
        """Ends what was under way, and looks at everything that it was promised."""
        if self.under_way is not None:
            self.under_way(client)
            self.under_way = None
        self.look_at_light(client)
        listed = {info.name: info.position for info in client.sessions.list(self.prefix)}
        assert listed == {c.name: c.position for c in self.conversations.values() if c.position > 0}
        for conversation in self.conversations.values():
            if conversation.position > 0:
                left = self.checkpoints_of(client, conversation)
                assert left == conversation.checkpoints, conversation.name

    def compare(self, client: mneme.Client, peer: mneme.Client) -> None:
        light = [one for one in self.light.values() if one.position > 0]
        for conversation in [*self.conversations.values(), *light]:
            conversation.relive(peer)
            again = Conversation(conversation.name, conversation.position)
            again.durability = conversation.durability
            assert conversation.tell(client, [1, 2, 3]) == again.tell(peer, [1, 2, 3])

    # --- Names ---

    def pick(self) -> Optional[Conversation]:
        begun = [c for c in self.conversations.values() if c.position > 0]
        return self.random.choice(begun) if begun else None

    def begin(self) -> Conversation:
        conversation = Conversation(self.new_name())
        return self.conversations.setdefault(conversation.name, conversation)

    def new_name(self) -> str:
        self.names += 1
        return f"{self.prefix}{self.names}"

    @staticmethod
    def checkpoints_of(client: mneme.Client, conversation: Conversation) -> dict[str, int]:
        return {c.name: c.position for c in client.sessions.list_checkpoints(conversation.name)}

    @staticmethod
    def position_of(client: mneme.Client, name: str) -> int:
        try:
            return client.sessions.get(name).position
        except mneme.NotFound:
            return 0


def work_until_killed(clients: list[CrashingClient], server, seconds: float) -> None:
    for client in clients:
        client.http = f"http://127.0.0.1:{server.http_port}"
    threads = [
        threading.Thread(target=client.work, args=(server.client(),), daemon=True)
        for client in clients
    ]
    for thread in threads:
        thread.start()
    threads[0].join(seconds)
    server.process.kill()
    for thread in threads:
        thread.join()
    server.kill()
    for client in clients:
        if client.failure is not None:
            raise client.failure
