"""Puts the events of a stream together to the whole answer."""

from __future__ import annotations

from typing import Optional

from mneme.errors import InternalError
from mneme.types import (
    Choice,
    Chunk,
    Completion,
    Event,
    Finished,
    FinishReason,
    Started,
    TokenLogprob,
)


class _ChoiceBuilder:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: Optional[FinishReason] = None
        self.stop_matched = ""
        self.context_full = False

    def add(self, chunk: Chunk) -> None:
        self.texts.append(chunk.text)
        self.token_ids.extend(chunk.token_ids)
        self.logprobs.extend(chunk.logprobs)
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
            self.stop_matched = chunk.stop_matched
            self.context_full = chunk.context_full

    def build(self) -> Choice:
        return Choice(
            "".join(self.texts),
            tuple(self.token_ids),
            tuple(self.logprobs),
            self.finish_reason,
            self.stop_matched,
            self.context_full,
        )


class Collector:
    """Collects the events of one stream, in order."""

    def __init__(self) -> None:
        self.started: Optional[Started] = None
        self.finished: Optional[Finished] = None
        self._choices: dict[int, _ChoiceBuilder] = {}
        self._prompt: Optional[_ChoiceBuilder] = None

    def add(self, event: Event) -> None:
        """Takes the next event."""
        if isinstance(event, Started):
            self.started = event
        elif isinstance(event, Finished):
            self.finished = event
        elif event.is_prompt:
            self._prompt = self._prompt or _ChoiceBuilder()
            self._prompt.add(event)
        else:
            self._choices.setdefault(event.choice, _ChoiceBuilder()).add(event)

    def choices(self) -> tuple[Choice, ...]:
        """Each choice, as far as it has arrived."""
        count = max(self._choices, default=0) + 1
        return tuple(self._choices.get(i, _ChoiceBuilder()).build() for i in range(count))

    def completion(self) -> Completion:
        """The whole answer, once the stream has ended."""
        if self.finished is None:
            raise InternalError("the server ended the stream without saying that it finished")
        return Completion(
            choices=self.choices(),
            prompt=self._prompt.build() if self._prompt else None,
            usage=self.finished.usage,
            timings=self.finished.timings,
            session=self.finished.session,
            seed=self.finished.seed,
            replayed=self.finished.replayed,
            request_id=self.started.request_id if self.started else "",
            session_gone=self.finished.session_gone,
        )
