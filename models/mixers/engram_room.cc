#include "models/mixers/engram_room.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "models/engrams/firing_counts.h"
#include "models/mixers/engram_capacity.h"

namespace mneme {
namespace {

constexpr char kTypesName[] = "engrams.types", kCountsName[] = "engrams.counts",
               kFiredName[] = "engrams.fired";
// Rows of slots that nothing but their number is known of here.
constexpr const char* kSlotRows[] = {kTypesName, "engrams.vectors", "engrams.lifespans",
                                     "engrams.gains", "engrams.births"};

StateTensor* MovedTensor(CanonicalState& state, absl::string_view name) {
  const auto it = std::ranges::find(state.tensors, name, &StateTensor::name);
  return it == state.tensors.end() ? nullptr : &*it;
}

absl::Status UnknownTensor(absl::string_view name, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("state tensor \"", name, "\" ", what));
}

// Whether a tensor is there, of that dtype where one is given, with rows for `slots` slots, or of
// exactly `shape`.
absl::Status CheckMoved(const CanonicalState& state, absl::string_view name, int64_t slots,
                        std::optional<DType> dtype, std::optional<Shape> shape = std::nullopt) {
  const StateTensor* const tensor = state.Find(name);
  if (tensor == nullptr) return UnknownTensor(name, "is missing");
  if (dtype.has_value() && tensor->dtype != *dtype) {
    return UnknownTensor(name,
                         absl::StrCat("is ", Name(tensor->dtype), ", expected ", Name(*dtype)));
  }
  const bool fits = shape.has_value() ? tensor->shape == *shape
                                      : tensor->shape.rank > 0 && tensor->shape[0] == slots;
  if (!fits) {
    return UnknownTensor(
        name, absl::StrCat("has shape ", ShapeToString(tensor->shape), ", expected ",
                           shape.has_value() ? ShapeToString(*shape)
                                             : absl::StrCat("rows of ", slots, " slots")));
  }
  const int64_t bytes = tensor->shape.elements() * SizeOf(tensor->dtype);
  if (static_cast<int64_t>(tensor->bytes.size()) == bytes) return absl::OkStatus();
  return UnknownTensor(name,
                       absl::StrCat("has ", tensor->bytes.size(), " bytes, expected ", bytes));
}

class Fitter {
 public:
  Fitter(const EngramConfig& config, CanonicalState& state, int64_t had)
      : config_(config),
        state_(state),
        had_(had),
        has_(config.capacity),
        steps_had_(EngramHistorySteps(static_cast<int>(had))),
        steps_has_(EngramHistorySteps(config.capacity)) {}

  absl::Status Fit() {
    MNEME_RETURN_IF_ERROR(CheckTensors());
    const std::vector<uint8_t> types = Tensor(kTypesName).Elements<uint8_t>();
    new_slot_.assign(types.size(), -1);
    for (size_t slot = 0; slot < types.size(); ++slot) {
      if (static_cast<EngramType>(types[slot]) == EngramType::kFree) continue;
      new_slot_[slot] = static_cast<int32_t>(alive_.size());
      alive_.push_back(slot);
    }
    std::vector<int32_t> facts = Tensor("engrams.facts").Elements<int32_t>();
    std::vector<int32_t> recalled = Tensor("engrams.recalled").Elements<int32_t>();
    MNEME_RETURN_IF_ERROR(MoveRecalled(facts, recalled));
    MNEME_RETURN_IF_ERROR(CheckRoom(facts));
    // It also counts engrams that were found and then forgotten.
    facts[kEngramsFound] = std::min(facts[kEngramsFound], static_cast<int32_t>(has_));
    MoveFirings();
    for (const char* name : kSlotRows) MoveRows(Tensor(name));
    Write(facts, Tensor("engrams.facts"));
    Write(recalled, Tensor("engrams.recalled"));
    return absl::OkStatus();
  }

 private:
  absl::Status CheckTensors() const {
    MNEME_RETURN_IF_ERROR(CheckMoved(state_, kTypesName, had_, DType::kU8, Shape{had_}));
    for (const char* name : {"engrams.vectors", "engrams.lifespans", "engrams.gains"}) {
      MNEME_RETURN_IF_ERROR(CheckMoved(state_, name, had_, std::nullopt));
    }
    MNEME_RETURN_IF_ERROR(CheckMoved(state_, "engrams.births", had_, DType::kI32, Shape{had_}));
    MNEME_RETURN_IF_ERROR(
        steps_had_ > 0
            ? CheckMoved(state_, kFiredName, had_, DType::kI32, Shape{had_, steps_had_ / 32})
            : CheckMoved(state_, kCountsName, had_, DType::kU16, Shape{had_, had_}));
    const int64_t recalled = config_.rules.recalled();
    MNEME_RETURN_IF_ERROR(
        CheckMoved(state_, "engrams.recalled", 1, DType::kI32, Shape{1, recalled}));
    return CheckMoved(state_, "engrams.facts", 1, DType::kI32, Shape{1, kEngramFacts});
  }

  absl::Status MoveRecalled(const std::vector<int32_t>& facts,
                            std::vector<int32_t>& recalled) const {
    const auto most = static_cast<int32_t>(recalled.size());
    const int32_t count = facts[kEngramsRecalled];
    if (count < 0 || count > most) {
      return UnknownTensor(
          "engrams.facts",
          absl::StrCat("says that ", count, " engrams are recalled, expected from 0 to ", most));
    }
    for (int32_t n = 0; n < most; ++n) {
      int32_t& slot = recalled[static_cast<size_t>(n)];
      const bool is_engram = slot >= 0 && slot < had_ && new_slot_[static_cast<size_t>(slot)] >= 0;
      if (n < count && !is_engram) {
        return UnknownTensor("engrams.recalled",
                             absl::StrCat("says ", slot, ", where no engram is"));
      }
      slot = n < count ? new_slot_[static_cast<size_t>(slot)] : -1;
    }
    return absl::OkStatus();
  }

  absl::Status CheckRoom(const std::vector<int32_t>& facts) const {
    const auto refused = [this](absl::string_view why) {
      return absl::FailedPreconditionError(absl::StrCat(
          "it was kept with room for ", had_, " engrams, and a session here has room for ", has_,
          " (--engram-capacity): ", why));
    };
    if (static_cast<int64_t>(alive_.size()) > has_) {
      return refused(absl::StrCat("it holds ", alive_.size()));
    }
    if (steps_had_ == 0 && steps_has_ > 0 && !alive_.empty()) {
      return refused(
          "with so much room it is kept when engrams fired, and of these only how often is known");
    }
    if (steps_had_ > 0 && steps_has_ == 0 && facts[kEngramHistoryWrapped] != 0) {
      return refused("with so little room all firings are counted, and its earliest are not known");
    }
    return absl::OkStatus();
  }

  void MoveFirings() {
    if (steps_had_ > 0 && steps_has_ == 0) {
      const FiringCounts history = FiringCounts::Read(state_);
      const auto has = static_cast<size_t>(has_);
      std::vector<uint16_t> counts(has * has);
      for (size_t i = 0; i < alive_.size(); ++i) {
        const std::vector<uint16_t> together = history.TogetherWithAll(alive_[i]);
        for (size_t j = 0; j < alive_.size(); ++j) counts[i * has + j] = together[alive_[j]];
      }
      StateTensor& tensor = Tensor(kFiredName);
      tensor = {.name = kCountsName, .dtype = DType::kU16, .shape = {has_, has_}};
      Write(counts, tensor);
      return;
    }
    if (steps_had_ > 0) return MoveRows(Tensor(kFiredName));
    if (steps_has_ > 0) {  // of no engrams
      StateTensor& tensor = Tensor(kCountsName);
      tensor = {.name = kFiredName, .dtype = DType::kI32, .shape = {has_, steps_has_ / 32}};
      return Write(std::vector<int32_t>(static_cast<size_t>(tensor.shape.elements())), tensor);
    }
    StateTensor& tensor = Tensor(kCountsName);
    const std::vector<uint16_t> before = tensor.Elements<uint16_t>();
    const auto had = static_cast<size_t>(had_), has = static_cast<size_t>(has_);
    std::vector<uint16_t> counts(has * has);
    for (size_t i = 0; i < alive_.size(); ++i) {
      for (size_t j = 0; j < alive_.size(); ++j) {
        counts[i * has + j] = before[alive_[i] * had + alive_[j]];
      }
    }
    tensor.shape = {has_, has_};
    Write(counts, tensor);
  }

  // A row for each slot. Those of free slots become zeros.
  void MoveRows(StateTensor& tensor) {
    const size_t row = tensor.bytes.size() / static_cast<size_t>(had_);
    std::vector<std::byte> bytes(row * static_cast<size_t>(has_));
    for (size_t i = 0; i < alive_.size(); ++i) {
      std::memcpy(bytes.data() + i * row, tensor.bytes.data() + alive_[i] * row, row);
    }
    tensor.bytes = std::move(bytes);
    tensor.shape.dims[0] = has_;
  }

  template <typename T>
  static void Write(const std::vector<T>& values, StateTensor& tensor) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
    tensor.bytes.assign(bytes, bytes + values.size() * sizeof(T));
  }

  StateTensor& Tensor(absl::string_view name) {
    StateTensor* const tensor = MovedTensor(state_, name);
    CHECK(tensor != nullptr) << "no tensor " << name;
    return *tensor;
  }

  const EngramConfig& config_;
  CanonicalState& state_;
  const int64_t had_, has_;
  const int steps_had_, steps_has_;
  std::vector<size_t> alive_;      // slots that they have had, by the slot that they get
  std::vector<int32_t> new_slot_;  // the other way; -1: free
};

}  // namespace

absl::Status FitEngrams(const EngramConfig& config, CanonicalState& state) {
  const StateTensor* const types = state.Find(kTypesName);
  // What else is wrong with it is for who reads it.
  if (types == nullptr || types->shape.rank != 1 || types->shape[0] == config.capacity) {
    return absl::OkStatus();
  }
  if (types->shape[0] < 1 || types->shape[0] > kLargestEngramCapacity) {
    return UnknownTensor(kTypesName, absl::StrCat("has ", types->shape[0], " slots, expected 1 to ",
                                                  kLargestEngramCapacity));
  }
  return Fitter(config, state, types->shape[0]).Fit();
}

}  // namespace mneme
