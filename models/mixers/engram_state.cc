#include "models/mixers/engram_state.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

class Checker {
 public:
  Checker(const CanonicalState& state, const EngramConfig& config)
      : state_(state),
        config_(config),
        types_(Elements<uint8_t>("types")),
        births_(Elements<uint32_t>("births")),
        counts_(Elements<uint16_t>("counts")) {}

  absl::Status Check() {
    MNEME_RETURN_IF_ERROR(CheckTypes());
    MNEME_RETURN_IF_ERROR(CheckBirths());
    MNEME_RETURN_IF_ERROR(CheckLifespans());
    MNEME_RETURN_IF_ERROR(CheckCounts());
    return CheckRecalled();
  }

 private:
  static absl::Status Wrong(absl::string_view name, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("state tensor \"engrams.", name, "\": ", what));
  }
  const StateTensor& Tensor(absl::string_view name) const {
    const auto it = std::find_if(
        state_.tensors.begin(), state_.tensors.end(),
        [&](const StateTensor& tensor) { return tensor.name == absl::StrCat("engrams.", name); });
    CHECK(it != state_.tensors.end()) << "no tensor engrams." << name;
    return *it;
  }
  template <typename T>
  std::vector<T> Elements(absl::string_view name) const {
    const StateTensor& tensor = Tensor(name);
    std::vector<T> values(tensor.bytes.size() / sizeof(T));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    return values;
  }
  EngramType type(size_t i) const { return static_cast<EngramType>(types_[i]); }
  int64_t segment() const { return OpenSegment(config_, state_.tokens); }

  absl::Status CheckTypes() {
    int64_t of_type[4] = {};
    for (size_t i = 0; i < types_.size(); ++i) {
      if (types_[i] > 3) {
        return Wrong("types",
                     absl::StrCat("engram ", i, " is of type ", static_cast<int>(types_[i]),
                                  ", expected one from 0 to 3"));
      }
      ++of_type[types_[i]];
      if (type(i) != EngramType::kFree) alive_.push_back(i);
    }
    const EngramRules& rules = config_.rules;
    // Some may have been forgotten.
    const int64_t most = segment() > 0 ? rules.working : 0;
    const int64_t working = of_type[static_cast<int>(EngramType::kWorking)];
    if (working > most) {
      return Wrong("types", absl::StrCat(working, " working engrams after ", state_.tokens,
                                         " tokens, expected at most ", most));
    }
    const int32_t counted = Elements<int32_t>("facts")[kEngramsWorking];
    if (counted != working) {
      return Wrong("facts", absl::StrCat(counted, " working engrams, expected ", working));
    }
    const int64_t short_term = of_type[static_cast<int>(EngramType::kShortTerm)];
    if (short_term > rules.short_term) {
      return Wrong("types", absl::StrCat(short_term, " short-term engrams, expected at most ",
                                         rules.short_term));
    }
    return absl::OkStatus();
  }

  absl::Status CheckBirths() {
    std::sort(alive_.begin(), alive_.end(),
              [&](size_t a, size_t b) { return births_[a] < births_[b]; });
    const int64_t first_working = std::max<int64_t>(segment() - 1, 0) * config_.rules.working;
    for (size_t n = 0; n < alive_.size(); ++n) {
      const size_t i = alive_[n];
      if (n > 0 && births_[alive_[n - 1]] == births_[i]) {
        return Wrong("births", absl::StrCat("two engrams are number ", births_[i]));
      }
      const bool is_working = type(i) == EngramType::kWorking;
      const int64_t begin = is_working ? first_working : 0;
      const int64_t end = first_working + (is_working ? config_.rules.working : 0);
      if (births_[i] < begin || births_[i] >= end) {
        return Wrong("births",
                     absl::StrCat(is_working ? "a working" : "an older", " engram is number ",
                                  births_[i], ", expected one from ", begin, " to ", end - 1));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckLifespans() const {
    const StateTensor& tensor = Tensor("lifespans");
    for (const size_t i : alive_) {
      double lifespan = 0;
      if (tensor.dtype == DType::kF64) {
        std::memcpy(&lifespan, tensor.bytes.data() + i * sizeof(double), sizeof(double));
      } else {
        float value = 0;
        std::memcpy(&value, tensor.bytes.data() + i * sizeof(float), sizeof(float));
        lifespan = value;
      }
      if (!(lifespan > 0) || !std::isfinite(lifespan)) {
        return Wrong("lifespans", absl::StrCat("engram ", i, " has ", lifespan,
                                               ", expected a finite number above 0"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckCounts() const {
    for (const size_t i : alive_) {
      for (const size_t j : alive_) {
        const int there = counts_[i * types_.size() + j], back = counts_[j * types_.size() + i];
        if (there == back) continue;
        return Wrong("counts", absl::StrCat("engrams ", i, " and ", j, " fired together ", there,
                                            " times, and ", back, " times the other way"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckRecalled() const {
    const auto facts = Elements<int32_t>("facts");
    const auto recalled = Elements<int32_t>("recalled");
    const auto most = static_cast<int32_t>(recalled.size());
    const auto capacity = static_cast<int32_t>(types_.size());
    const int32_t count = facts[kEngramsRecalled], columns = facts[kEngramColumns];
    struct {
      const char* what;
      int32_t value, low, high;
    } const kBounds[] = {{"recalled engrams", count, 0, most},
                         {"columns", columns, count, count + 1},
                         {"engrams found", facts[kEngramsFound], 0, capacity},
                         {"null candidates", facts[kEngramNullCandidate], 0, 1},
                         {"null candidates recalled", facts[kEngramNullRecalled], 0, 1},
                         {"engrams evicted", facts[kEngramsEvicted], 0, INT32_MAX}};
    for (const auto& bound : kBounds) {
      if (bound.value >= bound.low && bound.value <= bound.high) continue;
      return Wrong("facts", absl::StrCat(bound.value, " ", bound.what, ", expected from ",
                                         bound.low, " to ", bound.high));
    }
    for (int32_t n = 0; n < count; ++n) {
      const int32_t i = recalled[static_cast<size_t>(n)];
      const bool is_older = i >= 0 && i < capacity &&
                            (type(static_cast<size_t>(i)) == EngramType::kShortTerm ||
                             type(static_cast<size_t>(i)) == EngramType::kLongTerm);
      if (!is_older) {
        return Wrong("recalled",
                     absl::StrCat(i, ", expected a short-term or long-term engram's place"));
      }
      if (n > 0 && births_[static_cast<size_t>(recalled[static_cast<size_t>(n - 1)])] >=
                       births_[static_cast<size_t>(i)]) {
        return Wrong("recalled",
                     absl::StrCat("engram ", i, " is not younger than the one before it"));
      }
    }
    return absl::OkStatus();
  }

  const CanonicalState& state_;
  const EngramConfig& config_;
  const std::vector<uint8_t> types_;
  const std::vector<uint32_t> births_;
  const std::vector<uint16_t> counts_;
  std::vector<size_t> alive_;  // oldest first, once births were seen
};

}  // namespace

absl::Status CheckEngramState(const CanonicalState& state, const EngramConfig& config) {
  return Checker(state, config).Check();
}

}  // namespace mneme
