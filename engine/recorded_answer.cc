#include "engine/recorded_answer.h"

#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "store/record.h"

namespace mneme {
namespace {

constexpr uint64_t kVersion = 1;

// One description of the fields, for both ways: `io` writes or reads each of them.
class Writer {
 public:
  void Number(int64_t value) { out_.Signed(value); }
  void Flag(bool value) { out_.Varint(value ? 1 : 0); }
  void Word(uint64_t value) { out_.Fixed64(value); }
  void Real(double value) { out_.Fixed64(std::bit_cast<uint64_t>(value)); }
  void Text(const std::string& value) { out_.Bytes(value); }
  template <typename T>
  void Int(T value) {
    out_.Signed(static_cast<int64_t>(value));
  }
  void Time(absl::Duration value) { out_.Signed(absl::ToInt64Nanoseconds(value)); }
  template <typename T, typename Each>
  void List(const std::vector<T>& list, const Each& each) {
    out_.Varint(list.size());
    for (const T& one : list) each(one);
  }
  template <typename T, typename Each>
  void Optional(const std::optional<T>& value, const Each& each) {
    Flag(value.has_value());
    if (value.has_value()) each(*value);
  }
  std::string Take() { return std::move(out_).Values(); }

 private:
  RecordWriter out_;
};

class Reader {
 public:
  explicit Reader(absl::string_view text) : in_(text) {}
  void Number(int64_t& value) { value = in_.Signed(); }
  void Flag(bool& value) { value = in_.Varint() != 0; }
  void Word(uint64_t& value) { value = in_.Fixed64(); }
  void Real(double& value) { value = std::bit_cast<double>(in_.Fixed64()); }
  void Text(std::string& value) { value = std::string(in_.Bytes()); }
  template <typename T>
  void Int(T& value) {
    value = static_cast<T>(in_.Signed());
  }
  void Time(absl::Duration& value) { value = absl::Nanoseconds(in_.Signed()); }
  template <typename T, typename Each>
  void List(std::vector<T>& list, const Each& each) {
    list.resize(in_.Count(1));
    for (T& one : list) each(one);
  }
  template <typename T, typename Each>
  void Optional(std::optional<T>& value, const Each& each) {
    bool there = false;
    Flag(there);
    if (there) each(value.emplace());
  }
  absl::Status End() const { return in_.End("a recorded answer"); }

 private:
  RecordReader in_;
};

template <typename Io, typename Use>
void DoUsage(Io& io, Use& usage) {
  io.Number(usage.prompt_tokens);
  io.Number(usage.completion_tokens);
  io.Number(usage.resumed_tokens);
  io.Number(usage.fed_tokens);
  io.Number(usage.replayed_tokens);
  io.Number(usage.cached_tokens);
  io.Optional(usage.surprise, [&](auto& value) { io.Real(value); });
  io.Flag(usage.memory_evicted);
  io.Optional(usage.memory_use, [&](auto& use) {
    io.List(use.sources, [&](auto& source) {
      io.Number(source.segment);
      io.Number(source.first_token);
      io.Number(source.end_token);
      io.Flag(source.long_term);
      io.Int(source.engrams);
      io.Real(source.weight);
    });
    io.Number(use.evictions);
  });
}

template <typename Io, typename Entry>
void DoLogprob(Io& io, Entry& entry) {
  io.Int(entry.token);
  if constexpr (std::is_same_v<Io, Writer>) {
    io.Real(static_cast<double>(entry.logprob));
  } else {
    double value = 0;
    io.Real(value);
    entry.logprob = static_cast<float>(value);
  }
  io.Text(entry.text);
}

// The answer ended with OK, as all do that are kept.
template <typename Io, typename Event>
void DoEvent(Io& io, Event& event) {
  io.Int(event.choice);
  io.Text(event.text);
  io.List(event.token_ids, [&](auto& id) { io.Int(id); });
  io.List(event.logprobs, [&](auto& entry) {
    DoLogprob(io, entry);
    io.List(entry.top, [&](auto& top) { DoLogprob(io, top); });
  });
  io.Flag(event.is_prompt);
  io.Flag(event.is_start);
  io.Int(event.finish);
  io.Text(event.stop_matched);
  io.Flag(event.stop_is_token);
  io.Flag(event.context_full);
  io.Flag(event.is_last);
  DoUsage(io, event.usage);
  io.Time(event.timings.queue);
  io.Time(event.timings.prefill);
  io.Time(event.timings.decode);
  io.Number(event.session_position);
  io.Flag(event.has_pending_token);
  io.Word(event.seed);
}

}  // namespace

std::string EncodeAnswer(const std::vector<TokenEvent>& events) {
  Writer io;
  io.Word(kVersion);
  io.List(events, [&](const TokenEvent& event) { DoEvent(io, event); });
  return io.Take();
}

absl::StatusOr<std::vector<TokenEvent>> DecodeAnswer(absl::string_view answer) {
  std::vector<TokenEvent> events;
  if (answer.empty()) return events;
  Reader io(answer);
  uint64_t version = 0;
  io.Word(version);
  if (version > kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("a recorded answer has version ", version, ", expected at most ", kVersion));
  }
  io.List(events, [&](TokenEvent& event) { DoEvent(io, event); });
  MNEME_RETURN_IF_ERROR(io.End());
  return events;
}

}  // namespace mneme
