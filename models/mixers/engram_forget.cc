#include "models/mixers/engram_forget.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace mneme {
namespace {

StateTensor& TensorOf(CanonicalState& state, absl::string_view name) {
  const auto it = std::find_if(state.tensors.begin(), state.tensors.end(),
                               [&](const StateTensor& tensor) { return tensor.name == name; });
  CHECK(it != state.tensors.end()) << "no tensor " << name;
  return *it;
}

template <typename T>
T* ElementsOf(CanonicalState& state, absl::string_view name) {
  return reinterpret_cast<T*>(TensorOf(state, name).bytes.data());
}

// `bytes` are lists of `rows` rows each, of which those at [begin, begin + kept.size()) are filled.
// Those that are kept move up, and the others become zeros.
void MoveUp(std::vector<std::byte>& bytes, size_t rows, size_t row_bytes, size_t begin,
            const std::vector<bool>& kept) {
  for (size_t list = 0; list < bytes.size(); list += rows * row_bytes) {
    std::byte* const from = bytes.data() + list + begin * row_bytes;
    std::byte* to = from;
    for (size_t i = 0; i < kept.size(); ++i) {
      if (!kept[i]) continue;
      std::memmove(to, from + i * row_bytes, row_bytes);
      to += row_bytes;
    }
    std::fill(to, from + kept.size() * row_bytes, std::byte{0});
  }
}

class Forgetter {
 public:
  Forgetter(const EngramConfig& config, CanonicalState& state)
      : config_(config),
        state_(state),
        capacity_(TensorOf(state, "engrams.types").bytes.size()),
        types_(ElementsOf<EngramType>(state, "engrams.types")),
        births_(ElementsOf<uint32_t>(state, "engrams.births")),
        facts_(ElementsOf<int32_t>(state, "engrams.facts")),
        is_forgotten_(capacity_) {}

  ForgottenEngrams Mark(int64_t first, int64_t end) {
    ForgottenEngrams forgotten;
    for (size_t i = 0; i < capacity_; ++i) {
      const int64_t segment = int64_t{births_[i]} / config_.rules.working;
      if (types_[i] == EngramType::kFree || segment < first || segment >= end) continue;
      is_forgotten_[i] = true;
      ++(types_[i] == EngramType::kWorking     ? forgotten.working
         : types_[i] == EngramType::kShortTerm ? forgotten.short_term
                                               : forgotten.long_term);
    }
    return forgotten;
  }

  void Forget() {
    LeaveContext();
    for (StateTensor& tensor : state_.tensors) {
      // Weights are of layers, however many slots there are.
      if (!absl::StartsWith(tensor.name, "engrams.") || tensor.name == "engrams.weights") continue;
      ClearSlots(tensor);
      if (tensor.name != "engrams.counts") continue;
      auto* const counts = reinterpret_cast<uint16_t*>(tensor.bytes.data());
      for (size_t i = 0; i < capacity_ * capacity_; ++i) {
        if (is_forgotten_[i % capacity_]) counts[i] = 0;
      }
    }
  }

 private:
  // Out of what tokens of the open segment attend to: the working engrams, oldest first, and behind
  // the room for all of them the recalled ones.
  void LeaveContext() {
    std::vector<size_t> working;
    for (size_t i = 0; i < capacity_; ++i) {
      if (types_[i] == EngramType::kWorking) working.push_back(i);
    }
    std::sort(working.begin(), working.end(),
              [&](size_t a, size_t b) { return births_[a] < births_[b]; });
    std::vector<bool> keeps_working, keeps_recalled;
    for (const size_t i : working) keeps_working.push_back(!is_forgotten_[i]);
    auto* const recalled = ElementsOf<int32_t>(state_, "engrams.recalled");
    int32_t count = 0;
    for (int32_t n = 0; n < facts_[kEngramsRecalled]; ++n) {
      const bool keeps = !is_forgotten_[static_cast<size_t>(recalled[n])];
      keeps_recalled.push_back(keeps);
      if (keeps) recalled[count++] = recalled[n];
    }
    const int32_t gone = facts_[kEngramsRecalled] - count;
    std::fill_n(recalled + count, gone, -1);
    facts_[kEngramsRecalled] = count;
    facts_[kEngramColumns] -= gone;
    facts_[kEngramsWorking] =
        static_cast<int32_t>(std::count(keeps_working.begin(), keeps_working.end(), true));

    const auto room = static_cast<size_t>(config_.rules.recalled());
    const auto attended = static_cast<size_t>(config_.rules.attended());
    for (StateTensor& tensor : state_.tensors) {
      if (tensor.name == "engrams.weights") {
        MoveUp(tensor.bytes, room, static_cast<size_t>(SizeOf(tensor.dtype)), 0, keeps_recalled);
      } else if (absl::EndsWith(tensor.name, ".engram_keys") ||
                 absl::EndsWith(tensor.name, ".engram_values")) {
        const size_t row_bytes = tensor.bytes.size() / attended;
        MoveUp(tensor.bytes, attended, row_bytes, 0, keeps_working);
        MoveUp(tensor.bytes, attended, row_bytes, attended - room, keeps_recalled);
      }
    }
  }

  // What a field of the store has for each slot.
  void ClearSlots(StateTensor& tensor) {
    if (tensor.shape.rank == 0 || tensor.shape[0] != static_cast<int64_t>(capacity_)) return;
    const size_t bytes = tensor.bytes.size() / capacity_;
    for (size_t i = 0; i < capacity_; ++i) {
      if (is_forgotten_[i]) std::fill_n(tensor.bytes.data() + i * bytes, bytes, std::byte{0});
    }
  }

  const EngramConfig& config_;
  CanonicalState& state_;
  const size_t capacity_;
  const EngramType* const types_;
  const uint32_t* const births_;
  int32_t* const facts_;
  std::vector<bool> is_forgotten_;
};

}  // namespace

absl::StatusOr<ForgottenEngrams> ForgetEngrams(const EngramConfig& config, int64_t first,
                                               int64_t end, CanonicalState& state) {
  CHECK(first >= 0 && end > first) << "segments from " << first << " to " << end;
  const int64_t open = OpenSegment(config, state.tokens);
  if (end > open) {
    return absl::FailedPreconditionError(absl::StrCat(
        "segments from ", first, " to ", end - 1, " are to be forgotten, and segment ", open,
        " is open: its tokens are not engrams yet. Expected an end of at most ", open));
  }
  Forgetter forgetter(config, state);
  const ForgottenEngrams forgotten = forgetter.Mark(first, end);
  if (forgotten.total() > 0) forgetter.Forget();
  return forgotten;
}

}  // namespace mneme
