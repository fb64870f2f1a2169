"""From the server's messages to what the clients return."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from mneme.memory import memory_use_of
from mneme.types import (
    Capacity,
    Checkpoint,
    Chunk,
    Classification,
    Event,
    Finished,
    FinishReason,
    Histogram,
    ImportedSession,
    Info,
    Limits,
    ModelDescription,
    ServerInfo,
    ServerState,
    SessionInfo,
    SessionPage,
    SessionState,
    SessionUsage,
    Started,
    Statistics,
    Timings,
    TokenLogprob,
    Tokens,
    TopLogprob,
    Usage,
)
from mneme.v1 import inference_pb2, sessions_pb2

_RESIDENCIES = {
    sessions_pb2.RESIDENCY_HOST: "host",
    sessions_pb2.RESIDENCY_STORE: "store",
    sessions_pb2.RESIDENCY_LOST: "lost",
    sessions_pb2.RESIDENCY_OTHER_MODEL: "other_model",
}
_DURABILITIES = {sessions_pb2.DURABILITY_TURN: "turn", sessions_pb2.DURABILITY_NONE: "none"}

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp


def _seconds(milliseconds: int) -> float:
    return math.inf if milliseconds < 0 else milliseconds / 1000.0


def _time(timestamp: Timestamp) -> datetime:
    time: datetime = timestamp.ToDatetime(tzinfo=timezone.utc)
    return time


def _logprobs(messages: Iterable[inference_pb2.TokenLogprob]) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            m.token_id,
            m.logprob if m.HasField("logprob") else None,
            m.text,
            tuple(TopLogprob(t.token_id, t.logprob, t.text) for t in m.top),
        )
        for m in messages
    )


def _chunk(m: inference_pb2.Output) -> Chunk:
    return Chunk(
        choice=m.choice,
        text=m.text,
        token_ids=tuple(m.token_ids),
        logprobs=_logprobs(m.logprobs),
        is_prompt=m.is_prompt,
        finish_reason=FinishReason(m.finish_reason) if m.finish_reason else None,
        stop_matched=m.stop_matched,
        context_full=m.context_full,
    )


def _started(m: inference_pb2.Started) -> Started:
    return Started(
        m.request_id, m.seed, m.resumed_tokens, m.prompt_tokens, cached_tokens=m.cached_tokens
    )


def _finished(m: inference_pb2.Finished) -> Finished:
    usage, timings, state = m.usage, m.timings, m.session
    return Finished(
        usage=Usage(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.resumed_tokens,
            usage.fed_tokens,
            usage.surprise if usage.HasField("surprise") else None,
            usage.memory_evicted,
            memory_use_of(usage.memory_use) if usage.HasField("memory_use") else None,
            usage.cached_tokens,
            usage.replayed_tokens,
            usage.rewound_from,
        ),
        timings=Timings(timings.queue_ms, timings.prefill_ms, timings.decode_ms),
        session=(
            SessionState(state.name, state.position, state.has_pending_token)
            if m.HasField("session")
            else None
        ),
        seed=m.seed,
        replayed=m.replayed,
        session_gone=m.session_gone,
    )


def events_of(m: inference_pb2.GenerateResponse) -> list[Event]:
    """The events that one message of a stream carries, in order."""
    events: list[Event] = []
    if m.HasField("started"):
        events.append(_started(m.started))
    events += [_chunk(output) for output in m.outputs]
    if m.HasField("finished"):
        events.append(_finished(m.finished))
    return events


def session_info_of(m: sessions_pb2.Session) -> SessionInfo:
    """A session from its message."""
    return SessionInfo(
        name=m.name,
        position=m.position,
        has_pending_token=m.has_pending_token,
        busy=m.busy,
        create_time=_time(m.create_time),
        last_use_time=_time(m.last_use_time),
        ttl=_seconds(m.ttl_ms),
        state_bytes=m.state_bytes,
        max_context=m.max_context,
        context_full=m.context_full,
        residency=_RESIDENCIES.get(m.residency, "device"),
        durability=_DURABILITIES.get(m.durability),
        memory_seed=m.memory_seed if m.HasField("memory_seed") else None,
        may_have_been_at=m.may_have_been_at if m.HasField("may_have_been_at") else None,
        stored_bytes=m.stored_bytes,
    )


def checkpoint_of(m: sessions_pb2.Checkpoint) -> Checkpoint:
    """A checkpoint from its message."""
    return Checkpoint(
        name=m.name,
        position=m.position,
        has_pending_token=m.has_pending_token,
        create_time=_time(m.create_time),
    )


def imported_session_of(m: sessions_pb2.ImportSessionResponse) -> ImportedSession:
    """An imported session from its message."""
    return ImportedSession(
        session=session_info_of(m.session),
        file_state_dtype=m.file_state_dtype,
        state_dtype=m.state_dtype,
        rounded_tensors=m.rounded_tensors,
        file_engram_capacity=m.file_engram_capacity,
        engram_capacity=m.engram_capacity,
    )


def session_page_of(m: sessions_pb2.ListSessionsResponse) -> SessionPage:
    """A page from its message."""
    usage = m.usage
    return SessionPage(
        tuple(session_info_of(s) for s in m.sessions),
        m.next_page_token,
        m.total_count,
        SessionUsage(
            sessions=usage.sessions,
            max_sessions=usage.max_sessions or None,
            stored_bytes=usage.stored_bytes,
            max_stored_bytes=usage.max_stored_bytes or None,
            checkpoints=usage.checkpoints,
            max_checkpoints=usage.max_checkpoints or None,
        ),
    )


def _histogram(m: inference_pb2.Histogram) -> Histogram:
    return Histogram(m.count, m.sum, tuple(m.upper_bounds), tuple(m.counts))


def _statistics(m: inference_pb2.Statistics) -> Statistics:
    return Statistics(
        requests_running=m.requests_running,
        requests_waiting=m.requests_waiting,
        slabs_used=m.slabs_used,
        slabs_total=m.slabs_total,
        sessions=m.sessions,
        steps=m.steps,
        prompt_tokens=m.prompt_tokens,
        generated_tokens=m.generated_tokens,
        requests_finished=m.requests_finished,
        requests_cancelled=m.requests_cancelled,
        requests_expired=m.requests_expired,
        requests_failed=m.requests_failed,
        requests_rejected=m.requests_rejected,
        decode_rows=_histogram(m.decode_rows),
        step_ms=_histogram(m.step_ms),
        queue_ms=_histogram(m.queue_ms),
        first_token_ms=_histogram(m.first_token_ms),
        inter_token_ms=_histogram(m.inter_token_ms),
        session_store_error=m.session_store_error,
        sessions_stored=m.sessions_stored,
        stored_bytes=m.stored_bytes,
    )


def _shortest(value: float) -> float:
    """The number that was written: 0.7, of which a float of the message makes 0.699999988079071."""
    single = struct.pack("f", value)
    for digits in range(6, 9):
        written = float(f"{value:.{digits}g}")
        if struct.pack("f", written) == single:
            return written
    return value


def _model(m: inference_pb2.ModelDescription) -> ModelDescription:
    return ModelDescription(
        name=m.name,
        architecture=m.architecture,
        vocab_size=m.vocab_size,
        model_dim=m.model_dim,
        layers=m.layers,
        parameters=m.parameters,
        weight_bytes=m.weight_bytes,
        weight_dtype=m.weight_dtype,
        fingerprint=m.fingerprint,
        tokenizer=m.tokenizer,
        bos_token_id=m.bos_token_id if m.HasField("bos_token_id") else None,
        eos_token_id=m.eos_token_id if m.HasField("eos_token_id") else None,
        adds_bos=m.adds_bos,
        sampling_defaults={
            field.name: _shortest(value) if isinstance(value, float) else value
            for field, value in m.sampling_defaults.ListFields()
            if isinstance(value, (int, float))
        },
        has_chat_template=m.has_chat_template,
        classes=tuple(m.classes),
        class_scores=m.class_scores,
        segment_tokens=m.segment_tokens,
        takes_long_documents=m.takes_long_documents,
    )


def _limits(m: inference_pb2.Limits) -> Limits:
    return Limits(
        max_rows_per_step=m.max_rows_per_step,
        max_tokens_per_step=m.max_tokens_per_step,
        max_queued_requests=m.max_queued_requests,
        max_request_tokens=m.max_request_tokens,
        default_max_tokens=m.default_max_tokens,
        default_session_ttl=_seconds(m.default_session_ttl_ms),
        penalty_history_tokens=m.penalty_history_tokens,
        max_message_bytes=m.max_message_bytes,
        max_context=m.max_context,
    )


def info_of(m: inference_pb2.GetInfoResponse) -> Info:
    """The server's description from its message."""
    server, capacity = m.server, m.capacity
    return Info(
        server=ServerInfo(
            version=server.version,
            state=ServerState(server.state),
            start_time=_time(server.start_time),
            loaded_bytes=server.loaded_bytes,
            total_bytes=server.total_bytes,
            device=server.device,
        ),
        model=_model(m.model) if m.HasField("model") else None,
        capacity=(
            Capacity(capacity.slab_bytes, capacity.state_memory_bytes, capacity.max_sessions)
            if m.HasField("capacity")
            else None
        ),
        limits=_limits(m.limits) if m.HasField("limits") else None,
        statistics=_statistics(m.statistics) if m.HasField("statistics") else None,
    )


def classifications_of(m: inference_pb2.ClassifyResponse) -> list[Classification]:
    """The classes of documents from their message, in the documents' order."""
    return [
        Classification(
            r.label,
            r.label_id,
            tuple(r.probabilities),
            tuple(r.logits),
            r.prompt_tokens,
            r.memory_evicted,
        )
        for r in m.results
    ]


def tokens_of(m: inference_pb2.TokenizeResponse) -> Tokens:
    """The tokens of a text from their message."""
    return Tokens(tuple(m.token_ids), tuple(m.pieces), tuple(m.type_ids))
