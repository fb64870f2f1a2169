#include "models/mixers/engram_state.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/engrams/firing_counts.h"

namespace mneme {
namespace {

class Checker {
 public:
  Checker(const CanonicalState& state, const EngramConfig& config)
      : state_(state),
        config_(config),
        types_(Tensor("types").Elements<uint8_t>()),
        births_(Tensor("births").Elements<uint32_t>()),
        counts_(FiringCounts::Read(state)) {}

  absl::Status Check() {
    MNEME_RETURN_IF_ERROR(CheckTypes());
    MNEME_RETURN_IF_ERROR(CheckBirths());
    MNEME_RETURN_IF_ERROR(CheckLifespans());
    MNEME_RETURN_IF_ERROR(counts_.steps() > 0 ? CheckFirings() : CheckCounts());
    return CheckRecalled();
  }

 private:
  static absl::Status Wrong(absl::string_view name, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("state tensor \"engrams.", name, "\": ", what));
  }
  const StateTensor& Tensor(absl::string_view name) const {
    return state_.Get(absl::StrCat("engrams.", name));
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
    const int32_t counted = Tensor("facts").Elements<int32_t>()[kEngramsWorking];
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
    const std::vector<double> lifespans = Tensor("lifespans").Numbers();
    const std::vector<double> gains = Tensor("gains").Numbers();
    for (const size_t i : alive_) {
      if (!(lifespans[i] > 0) || !std::isfinite(lifespans[i])) {
        return Wrong("lifespans", absl::StrCat("engram ", i, " has ", lifespans[i],
                                               ", expected a finite number above 0"));
      }
      if (!(gains[i] >= 0) || !std::isfinite(gains[i])) {
        return Wrong("gains", absl::StrCat("engram ", i, " has ", gains[i],
                                           ", expected a finite number from 0 on"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckCounts() const {
    for (const size_t i : alive_) {
      for (const size_t j : alive_) {
        const int there = counts_.Together(i, j), back = counts_.Together(j, i);
        if (there == back) continue;
        return Wrong("counts", absl::StrCat("engrams ", i, " and ", j, " fired together ", there,
                                            " times, and ", back, " times the other way"));
      }
    }
    return absl::OkStatus();
  }

  // An engram fires from its birth on, and when it is born.
  absl::Status CheckFirings() const {
    const int64_t now = segment(), steps = counts_.steps();
    for (const size_t i : alive_) {
      const int64_t birth = births_[i] / static_cast<uint32_t>(config_.rules.working) + 1;
      for (int bit = 0; bit < steps; ++bit) {
        const int64_t segment = now - (now - bit + steps) % steps;  // whose bit it was last
        const bool fired = counts_.fired(i, bit);
        if (fired && segment < birth) {
          return Wrong("fired", absl::StrCat("engram ", i, " of segment ", birth,
                                             " fired at the start of segment ", segment));
        }
        if (!fired && segment == birth) {
          return Wrong("fired", absl::StrCat("engram ", i, " did not fire at the start of segment ",
                                             birth, ", in which it was new"));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckRecalled() const {
    const auto facts = Tensor("facts").Elements<int32_t>();
    const auto recalled = Tensor("recalled").Elements<int32_t>();
    const auto most = static_cast<int32_t>(recalled.size());
    const auto capacity = static_cast<int32_t>(types_.size());
    const int32_t count = facts[kEngramsRecalled], columns = facts[kEngramColumns];
    const auto forgotten = static_cast<int32_t>(
        counts_.steps() > 0 ? std::max<int64_t>(0, segment() - counts_.steps()) : 0);
    struct {
      const char* what;
      int32_t value, low, high;
    } const kBounds[] = {{"recalled engrams", count, 0, most},
                         {"columns", columns, count, count + 1},
                         {"engrams found", facts[kEngramsFound], 0, capacity},
                         {"null candidates", facts[kEngramNullCandidate], 0, 1},
                         {"null candidates recalled", facts[kEngramNullRecalled], 0, 1},
                         {"engrams evicted", facts[kEngramsEvicted], 0, INT32_MAX},
                         {"steps forgotten", facts[kEngramHistoryWrapped], forgotten, forgotten}};
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
  const FiringCounts counts_;
  std::vector<size_t> alive_;  // oldest first, once births were seen
};

}  // namespace

absl::Status CheckEngramState(const CanonicalState& state, const EngramConfig& config) {
  return Checker(state, config).Check();
}

}  // namespace mneme
