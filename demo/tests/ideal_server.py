"""A server whose model remembers perfectly, or fails in a way that an evaluation has to notice."""

from __future__ import annotations

import random
import re
from concurrent import futures
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
from generic_service import add_service
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from mneme.v1 import inference_pb2 as pb
from mneme.v1 import sessions_pb2

from demo import world
from demo.world import Fact

BOS, EOS = 1, 2
FIRST_WORD = 3
_ATTRIBUTES = "|".join(world.ATTRIBUTES)
_STATED = re.compile(rf"(Your|[Tt]he \w+(?='s)|\w+(?='s))(?:'s)? ({_ATTRIBUTES}) is (\w+)")
_KEY = re.compile(rf"(My|my|[Tt]he \w+(?='s)|\w+(?='s))(?:'s)? ({_ATTRIBUTES})\b")

Key = tuple[str, str]


@dataclass
class Memory:
    """What a session holds: for each fact its value and where it stood last."""

    position: int = 0
    text: str = ""
    """Of a turn that is not complete yet."""
    facts: dict[Key, tuple[str, int]] = field(default_factory=dict)


class IdealServer:
    """Answers as a perfect model would.

    `span`: it forgets facts after so many tokens and guesses. `leaks`: it mixes up its sessions. `stubborn`:
    it keeps the first value of a fact. A token is a word with the space before it.
    """

    def __init__(self, span: float = float("inf"), *, leaks: bool = False, stubborn: bool = False) -> None:
        self._span = span
        self._leaks = leaks
        self._stubborn = stubborn
        self._words: list[str] = []
        self._ids: dict[str, int] = {}
        self._guesses = random.Random(5)
        self._last: dict[Key, str] = {}
        self.sessions: dict[str, Memory] = {}
        self.most_sessions = 0
        self._server = grpc.server(futures.ThreadPoolExecutor(1))  # one: no locks needed
        checks = health.HealthServicer()
        checks.set("", health_pb2.HealthCheckResponse.SERVING)
        add_service(self._server, self, pb, "Inference")
        add_service(self._server, self, sessions_pb2, "Sessions")
        health_pb2_grpc.add_HealthServicer_to_server(checks, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        """Ends all calls."""
        self._server.stop(None).wait()

    def GetInfo(self, request: Any, context: Any) -> Any:
        return pb.GetInfoResponse(
            server=pb.ServerInfo(version="0", state=pb.SERVER_STATE_SERVING, device="ideal"),
            model=pb.ModelDescription(
                name="ideal",
                architecture="ideal",
                parameters=1000,
                tokenizer="sentencepiece",
                bos_token_id=BOS,
                eos_token_id=EOS,
                adds_bos=True,
            ),
            capacity=pb.Capacity(slab_bytes=1024, max_sessions=64),
            limits=pb.Limits(max_rows_per_step=8),
        )

    def Tokenize(self, request: Any, context: Any) -> Any:
        return pb.TokenizeResponse(token_ids=self._encode(request.text))

    def Generate(self, request: Any, context: Any) -> Any:
        name = request.session.name
        if name not in self.sessions and request.session.HasField("create_if_missing"):
            context.abort(grpc.StatusCode.NOT_FOUND, name)
        memory = self.sessions.setdefault(name, Memory())
        self.most_sessions = max(self.most_sessions, len(self.sessions))
        if request.HasField("expected_position") and request.expected_position != memory.position:
            context.abort(grpc.StatusCode.ABORTED, f"at {memory.position}")
        resumed = memory.position
        if request.HasField("token_ids"):
            ids = list(request.token_ids.ids)
        else:
            ids = [*([] if resumed else [BOS]), *self._encode(request.text)]
        self._feed(memory, ids)
        answer: list[int] = []
        if request.stopping.max_tokens > 0:
            answer = [*self._encode(" " + self._answer(memory)), EOS]
            self._feed(memory, answer)
        yield pb.GenerateResponse(
            started=pb.Started(resumed_tokens=resumed, prompt_tokens=len(ids)),
            outputs=[pb.Output(text=self._decode(answer), token_ids=answer)] if answer else [],
            finished=pb.Finished(
                usage=pb.Usage(resumed_tokens=resumed),
                session=pb.SessionState(name=name, position=memory.position),
            ),
        )

    def Fork(self, request: Any, context: Any) -> Any:
        name = request.target_name or f"fork-{self._guesses.getrandbits(64)}"
        source = self.sessions[request.source_name]
        self.sessions[name] = replace(source, facts=dict(source.facts))
        return sessions_pb2.Session(name=name, position=source.position)

    def Get(self, request: Any, context: Any) -> Any:
        return sessions_pb2.Session(name=request.name, position=self.sessions[request.name].position)

    def Delete(self, request: Any, context: Any) -> Any:
        del self.sessions[request.name]
        return sessions_pb2.DeleteSessionResponse()

    def _encode(self, text: str) -> list[int]:
        pieces = re.findall(r"\n| *\S+| +", text)
        for piece in pieces:
            if piece not in self._ids:
                self._ids[piece] = FIRST_WORD + len(self._words)
                self._words.append(piece)
        return [self._ids[piece] for piece in pieces]

    def _decode(self, ids: list[int]) -> str:
        return "".join(self._words[token - FIRST_WORD] for token in ids if token >= FIRST_WORD)

    def _feed(self, memory: Memory, ids: list[int]) -> None:
        """Takes note of what the assistant states in each whole turn."""
        turn: list[int] = []
        for token in ids:
            memory.position += 1
            turn.append(token)
            if token == EOS:
                text = memory.text + self._decode(turn)
                for subject, attribute, value in _STATED.findall(text.rpartition("Assistant:")[2]):
                    self._store(memory, (_capital(subject), attribute), value)
                memory.text = ""
                turn = []
        memory.text += self._decode(turn)

    def _store(self, memory: Memory, key: Key, value: str) -> None:
        if self._stubborn and key in memory.facts:
            value = memory.facts[key][0]
        memory.facts[key] = (value, memory.position)
        self._last[key] = value

    def _answer(self, memory: Memory) -> str:
        """Confirms what the user said last, or answers it."""
        said = memory.text.rpartition("User: ")[2].partition("\nAssistant:")[0]
        found = _KEY.search(said)
        if found is None:
            return "I see."
        subject = "Your" if found[1].lower() == "my" else _capital(found[1])
        values = world.ATTRIBUTES[found[2]].values
        told = [word for word in re.findall(r"\w+", said[found.end() :]) if word in values]
        if told:
            return "Noted. " + world.answer(Fact(subject, found[2], told[-1]))
        return world.answer(Fact(subject, found[2], self._recall(memory, (subject, found[2]))))

    def _recall(self, memory: Memory, key: Key) -> str:
        if self._leaks and key in self._last:
            return self._last[key]
        value, position = memory.facts.get(key, ("", 0))
        if value and memory.position - position <= self._span:
            return value
        return self._guesses.choice(world.ATTRIBUTES[key[1]].values)


def _capital(subject: str) -> str:
    return subject[0].upper() + subject[1:]
