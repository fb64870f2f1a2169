#include "store/session_record.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

// The newest; records of kinds that have not changed are written as the first.
constexpr uint64_t kRecordVersion = 5;

enum class EventKind : uint64_t {
  kTokensFed = 1,
  kRangeForgotten = 2,
  kStateImported = 3,
  kMemorySeeded = 4,
  kAdapterChosen = 5,
};

RecordWriter NewRecord(uint64_t version = 1) {
  RecordWriter record;
  record.Varint(version);
  return record;
}

absl::StatusOr<uint64_t> ReadVersion(RecordReader& values, absl::string_view row) {
  const uint64_t version = values.Varint();
  if (version <= kRecordVersion) return version;
  return absl::FailedPreconditionError(absl::StrCat(row, ": is of version ", version,
                                                    ", this program reads up to ", kRecordVersion));
}

// 0: none; otherwise the token and one.
void WritePending(RecordWriter& record, std::optional<int32_t> token) {
  record.Varint(token.has_value() ? static_cast<uint64_t>(*token) + 1 : 0);
}
std::optional<int32_t> ReadPending(RecordReader& values) {
  const uint64_t stored = values.Varint();
  if (stored == 0) return std::nullopt;
  return static_cast<int32_t>(stored - 1);
}

void WriteTime(RecordWriter& record, absl::Time time) { record.Signed(absl::ToUnixMicros(time)); }
absl::Time ReadTime(RecordReader& values) { return absl::FromUnixMicros(values.Signed()); }

// Kind and payload, by which a payload's length is known without knowing its kind.
struct EventWriter {
  RecordWriter& record;

  void Write(EventKind kind, RecordWriter payload) {
    record.Varint(static_cast<uint64_t>(kind)).Bytes(std::move(payload).Values());
  }
  void operator()(const TokensFed& event) {
    RecordWriter payload;
    for (const int32_t token : event.tokens) payload.Varint(static_cast<uint32_t>(token));
    Write(EventKind::kTokensFed, std::move(payload));
  }
  void operator()(const RangeForgotten& event) {
    RecordWriter payload;
    payload.Signed(event.begin).Signed(event.end);
    Write(EventKind::kRangeForgotten, std::move(payload));
  }
  void operator()(const StateImported& event) {
    RecordWriter payload;
    payload.Varint(event.snapshot).Signed(event.fed_tokens);
    Write(EventKind::kStateImported, std::move(payload));
  }
  void operator()(const MemorySeeded& event) {
    RecordWriter payload;
    payload.Fixed64(event.seed);
    Write(EventKind::kMemorySeeded, std::move(payload));
  }
  void operator()(const AdapterChosen& event) {
    RecordWriter payload;
    payload.Fixed64(event.adapter);
    Write(EventKind::kAdapterChosen, std::move(payload));
  }
};

absl::StatusOr<Event> DecodeEvent(uint64_t kind, RecordReader payload, absl::string_view row) {
  Event event;
  switch (static_cast<EventKind>(kind)) {
    case EventKind::kTokensFed: {
      TokensFed fed;
      while (!payload.empty()) fed.tokens.push_back(static_cast<int32_t>(payload.Varint()));
      event = std::move(fed);
      break;
    }
    case EventKind::kRangeForgotten: {
      const int64_t begin = payload.Signed();
      event = RangeForgotten{.begin = begin, .end = payload.Signed()};
      break;
    }
    case EventKind::kStateImported: {
      const uint64_t snapshot = payload.Varint();
      event = StateImported{.snapshot = snapshot, .fed_tokens = payload.Signed()};
      break;
    }
    case EventKind::kMemorySeeded:
      event = MemorySeeded{.seed = payload.Fixed64()};
      break;
    case EventKind::kAdapterChosen:
      event = AdapterChosen{.adapter = payload.Fixed64()};
      break;
    default:
      return absl::FailedPreconditionError(absl::StrCat(row, ": has an event of kind ", kind,
                                                        ", which a newer version has written"));
  }
  MNEME_RETURN_IF_ERROR(payload.End(row));
  return event;
}

}  // namespace

std::string RequestKey(absl::string_view owner, absl::string_view key) {
  RecordWriter pair;
  pair.Bytes(owner).Bytes(key);
  return std::move(pair).Values();
}

int64_t Turn::end() const {
  int64_t fed = begin;
  for (const Event& event : events) {
    if (const auto* tokens = std::get_if<TokensFed>(&event)) {
      fed += static_cast<int64_t>(tokens->tokens.size());
    } else if (const auto* imported = std::get_if<StateImported>(&event)) {
      fed = imported->fed_tokens;
    }
  }
  return fed;
}

RecordWriter Encode(const SessionRecord& session) {
  const bool is_seeded = session.memory_seed.has_value();
  RecordWriter record = NewRecord(/*version=*/is_seeded            ? 5
                                  : session.doubted_at.has_value() ? 4
                                                                   : 1);
  record.Bytes(session.owner)
      .Bytes(session.name)
      .Varint(static_cast<uint64_t>(session.status))
      .Varint(static_cast<uint64_t>(session.durability))
      .Varint(session.parked ? 1 : 0)
      .Fixed64(session.model);
  WriteTime(record, session.created);
  WriteTime(record, session.last_used);
  record.Signed(absl::ToInt64Microseconds(session.ttl)).Signed(session.fed_tokens);
  WritePending(record, session.pending_token);
  record.Fixed64(session.state_digest)
      .Bytes(session.facts)
      .Signed(session.turns)
      .Signed(session.first_turn)
      .Signed(session.log_bytes)
      .Signed(session.snapshot_bytes);
  if (is_seeded) record.Fixed64(*session.memory_seed).Varint(session.doubted_at.has_value());
  if (session.doubted_at.has_value()) record.Signed(*session.doubted_at);
  return record;
}

absl::StatusOr<SessionRecord> DecodeSession(RecordReader values, absl::string_view row) {
  MNEME_ASSIGN_OR_RETURN(const uint64_t version, ReadVersion(values, row));
  SessionRecord session;
  session.owner = std::string(values.Bytes());
  session.name = std::string(values.Bytes());
  session.status = values.Varint() == 0 ? SessionStatus::kLive : SessionStatus::kLost;
  session.durability = values.Varint() == 0 ? Durability::kTurn : Durability::kNone;
  session.parked = values.Varint() != 0;
  session.model = values.Fixed64();
  session.created = ReadTime(values);
  session.last_used = ReadTime(values);
  const int64_t ttl = values.Signed();
  session.ttl = ttl == std::numeric_limits<int64_t>::max() ? absl::InfiniteDuration()
                                                           : absl::Microseconds(ttl);
  session.fed_tokens = values.Signed();
  session.pending_token = ReadPending(values);
  session.state_digest = values.Fixed64();
  session.facts = std::string(values.Bytes());
  session.turns = values.Signed();
  session.first_turn = values.Signed();
  session.log_bytes = values.Signed();
  session.snapshot_bytes = values.Signed();
  if (version >= 5) session.memory_seed = values.Fixed64();
  if (version == 4 || (version >= 5 && values.Varint() != 0)) session.doubted_at = values.Signed();
  MNEME_RETURN_IF_ERROR(values.End(row));
  return session;
}

RecordWriter Encode(const Turn& turn) {
  RecordWriter record = NewRecord();
  record.Signed(turn.begin);
  WritePending(record, turn.pending_token);
  record.Fixed64(turn.state_digest).Bytes(turn.facts);
  for (const Event& event : turn.events) std::visit(EventWriter{record}, event);
  return record;
}

absl::StatusOr<Turn> DecodeTurn(RecordReader values, absl::string_view row) {
  MNEME_RETURN_IF_ERROR(ReadVersion(values, row).status());
  Turn turn;
  turn.begin = values.Signed();
  turn.pending_token = ReadPending(values);
  turn.state_digest = values.Fixed64();
  turn.facts = std::string(values.Bytes());
  while (!values.empty()) {
    const uint64_t kind = values.Varint();
    MNEME_ASSIGN_OR_RETURN(Event event, DecodeEvent(kind, RecordReader(values.Bytes()), row));
    turn.events.push_back(std::move(event));
  }
  MNEME_RETURN_IF_ERROR(values.End(row));
  return turn;
}

RecordWriter Encode(const RequestRecord& request) {
  RecordWriter record = NewRecord();
  record.Bytes(request.owner)
      .Bytes(request.key)
      .Fixed64(request.digest)
      .Signed(request.outcome)
      .Signed(request.position)
      .Bytes(request.reply);
  return record;
}

absl::StatusOr<RequestRecord> DecodeRequest(RecordReader values, absl::string_view row) {
  MNEME_RETURN_IF_ERROR(ReadVersion(values, row).status());
  RequestRecord request;
  request.owner = std::string(values.Bytes());
  request.key = std::string(values.Bytes());
  request.digest = values.Fixed64();
  request.outcome = static_cast<int>(values.Signed());
  request.position = values.Signed();
  request.reply = std::string(values.Bytes());
  MNEME_RETURN_IF_ERROR(values.End(row));
  return request;
}

RecordWriter Encode(const SnapshotRecord& snapshot) {
  RecordWriter record = NewRecord(/*version=*/3);
  record.Signed(snapshot.position).Signed(snapshot.turn).Signed(snapshot.bytes);
  record.Varint(snapshot.has_facts ? 1 : 0).Bytes(snapshot.facts);
  WritePending(record, snapshot.pending_token);
  record.Varint(snapshot.base);
  return record;
}

absl::StatusOr<SnapshotRecord> DecodeSnapshot(RecordReader values, absl::string_view row) {
  MNEME_ASSIGN_OR_RETURN(const uint64_t version, ReadVersion(values, row));
  SnapshotRecord snapshot;
  snapshot.position = values.Signed();
  snapshot.turn = values.Signed();
  snapshot.bytes = values.Signed();
  if (version >= 2) {
    snapshot.has_facts = values.Varint() != 0;
    snapshot.facts = std::string(values.Bytes());
    snapshot.pending_token = ReadPending(values);
  }
  if (version >= 3) snapshot.base = values.Varint();
  MNEME_RETURN_IF_ERROR(values.End(row));
  return snapshot;
}

RecordWriter Encode(const CheckpointRecord& checkpoint) {
  RecordWriter record = NewRecord(/*version=*/2);
  record.Signed(checkpoint.position);
  WriteTime(record, checkpoint.created);
  record.Signed(checkpoint.turns).Varint(checkpoint.has_pending_token ? 1 : 0);
  return record;
}

absl::StatusOr<CheckpointRecord> DecodeCheckpoint(RecordReader values, absl::string_view row) {
  MNEME_ASSIGN_OR_RETURN(const uint64_t version, ReadVersion(values, row));
  CheckpointRecord checkpoint;
  checkpoint.position = values.Signed();
  checkpoint.created = ReadTime(values);
  if (version >= 2) {
    checkpoint.turns = values.Signed();
    checkpoint.has_pending_token = values.Varint() != 0;
  }
  MNEME_RETURN_IF_ERROR(values.End(row));
  return checkpoint;
}

}  // namespace mneme
