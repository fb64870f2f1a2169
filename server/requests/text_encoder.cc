#include "server/requests/text_encoder.h"

#include <malloc.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

// Below, what the allocator keeps is little, and asking for it back costs more than it gives.
constexpr size_t kTrimBytes = 262144;
// Below, a text waits for no room: it takes little.
constexpr size_t kSmallTextBytes = 65536;
// How often whoever waits for room looks whether it is still wanted.
constexpr absl::Duration kLookEvery = absl::Milliseconds(20);

// Leaves the room again.
class InRoom {
 public:
  InRoom(EncodingRoom& room, int64_t bytes) : room_(room), bytes_(bytes) {}
  ~InRoom() { room_.Leave(bytes_); }
  InRoom(const InRoom&) = delete;
  InRoom& operator=(const InRoom&) = delete;

 private:
  EncodingRoom& room_;
  const int64_t bytes_;
};

// Runs `encode`, which takes memory for a text of `bytes`, when there is room for it. Returns its
// result.
template <typename Encode>
auto EncodeInRoom(size_t bytes, const ServingFacts& facts, WorkMeter& meter, Encode encode)
    -> decltype(encode()) {
  const auto encode_and_trim = [&] {
    auto encoded = encode();
#ifdef __GLIBC__
    if (bytes >= kTrimBytes) malloc_trim(0);
#endif
    return encoded;
  };
  MNEME_RETURN_IF_ERROR(meter.AddBytes(bytes));
  if (bytes < kSmallTextBytes || facts.encoding_room == nullptr) return encode_and_trim();
  MNEME_RETURN_IF_ERROR(meter.Look());
  MNEME_RETURN_IF_ERROR(facts.encoding_room->Enter(static_cast<int64_t>(bytes), meter));
  const InRoom in_room(*facts.encoding_room, static_cast<int64_t>(bytes));
  return encode_and_trim();
}

}  // namespace

absl::StatusOr<const Tokenizer*> NeedTokenizer(const Engine& engine, absl::string_view field) {
  if (engine.tokenizer() != nullptr) return engine.tokenizer();
  return WithReason(
      FieldError(field, "needs a tokenizer, and this model has none: it takes token ids"),
      "NO_TOKENIZER");
}

absl::Status CheckTextSize(absl::string_view text, absl::string_view field,
                           const ServingFacts& facts) {
  if (static_cast<int64_t>(text.size()) <= facts.max_text_bytes) return absl::OkStatus();
  return WithReason(FieldError(field, absl::StrCat("has ", text.size(), " bytes, expected at most ",
                                                   facts.max_text_bytes,
                                                   " (--max-text-size); send token ids instead")),
                    "TEXT_TOO_LONG");
}

absl::StatusOr<std::vector<int32_t>> EncodeText(const Tokenizer& tokenizer, absl::string_view text,
                                                EncodeOptions options, const ServingFacts& facts,
                                                WorkMeter& meter) {
  return EncodeInRoom(text.size(), facts, meter,
                      [&] { return tokenizer.Encode(text, options, meter); });
}

absl::StatusOr<Tokenizer::Pair> EncodeTextPair(const Tokenizer& tokenizer, absl::string_view text,
                                               absl::string_view pair, EncodeOptions options,
                                               const ServingFacts& facts, WorkMeter& meter) {
  return EncodeInRoom(text.size() + pair.size(), facts, meter,
                      [&] { return tokenizer.EncodePair(text, pair, options, meter); });
}

absl::Status EncodingRoom::Enter(int64_t bytes, WorkMeter& meter) {
  const int64_t taken = Taken(bytes);
  absl::MutexLock lock(&mu_);
  const int64_t ticket = next_ticket_++;
  waiting_.push_back(ticket);
  const auto fits = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return waiting_.front() == ticket && free_ >= taken;
  };
  absl::Status wanted;
  while (wanted.ok() && !mu_.AwaitWithTimeout(absl::Condition(&fits), kLookEvery)) {
    wanted = meter.Look();
  }
  waiting_.erase(std::find(waiting_.begin(), waiting_.end(), ticket));
  if (wanted.ok()) free_ -= taken;
  return wanted;
}

void EncodingRoom::Leave(int64_t bytes) {
  absl::MutexLock lock(&mu_);
  free_ += Taken(bytes);
}

std::string TextOwner(absl::string_view owner, absl::string_view peer) {
  if (!owner.empty()) return absl::StrCat("owner ", owner);
  return absl::StrCat("host ", peer.substr(0, peer.rfind(':')));
}

absl::Status TextExecutors::StillOpen() const {
  if (!abandoned_.load(std::memory_order_relaxed)) return absl::OkStatus();
  return WithReason(absl::UnavailableError("the server is shutting down"), kReasonDraining);
}

}  // namespace mneme
