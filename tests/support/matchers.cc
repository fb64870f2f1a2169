#include "tests/support/matchers.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>

namespace mneme {
namespace {

using Values = std::vector<double>;

// Prints the size rather than thousands of numbers: the explanation names the one that matters.
class ValuesMatcher : public testing::MatcherInterface<const Values&> {
 public:
  explicit ValuesMatcher(Values want) : want_(std::move(want)) {}

 protected:
  // False, with an explanation, unless there are as many values as wanted.
  bool SizeMatches(const Values& got, testing::MatchResultListener* listener) const {
    if (got.size() == want_.size()) return true;
    *listener << "which has " << got.size() << " values instead of " << want_.size();
    return false;
  }

  const Values want_;
};

class WithinMatcher final : public ValuesMatcher {
 public:
  WithinMatcher(Values bound, Values want)
      : ValuesMatcher(std::move(want)), bound_(std::move(bound)) {}

  bool MatchAndExplain(const Values& got, testing::MatchResultListener* listener) const override {
    if (!SizeMatches(got, listener)) return false;
    size_t worst = 0, outside = 0;
    double worst_ratio = -1;
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = std::abs(got[i] - want_[i]);
      const double bound = Bound(i);
      if (!(error <= bound)) ++outside;
      double ratio = error == 0 ? 0 : error / bound;
      if (std::isnan(ratio)) ratio = INFINITY;
      if (ratio > worst_ratio) {
        worst_ratio = ratio;
        worst = i;
      }
    }
    if (!got.empty()) {
      *listener << "whose worst value, " << worst << " of " << got.size() << ", is " << got[worst]
                << " instead of " << want_[worst] << ": error "
                << std::abs(got[worst] - want_[worst]) << ", allowed " << Bound(worst) << " ("
                << worst_ratio << " times); " << outside << " values are outside";
    }
    return outside == 0;
  }

  void DescribeTo(std::ostream* out) const override { *out << "is within the bound"; }

 private:
  double Bound(size_t i) const { return bound_.size() == 1 ? bound_[0] : bound_.at(i); }

  const Values bound_;
};

class SameBitsMatcher final : public ValuesMatcher {
 public:
  using ValuesMatcher::ValuesMatcher;

  bool MatchAndExplain(const Values& got, testing::MatchResultListener* listener) const override {
    if (!SizeMatches(got, listener)) return false;
    size_t different = 0, first = 0;
    double largest = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      if (std::bit_cast<uint64_t>(got[i]) == std::bit_cast<uint64_t>(want_[i])) continue;
      if (different++ == 0) first = i;
      largest = std::fmax(largest, std::abs(got[i] - want_[i]));
    }
    if (different == 0) return true;
    *listener << "of which " << different << " of " << got.size() << " differ, by at most "
              << largest << "; the first is value " << first << ", " << got[first] << " instead of "
              << want_[first];
    return false;
  }

  void DescribeTo(std::ostream* out) const override { *out << "has the same bits"; }
};

}  // namespace

testing::Matcher<const Values&> IsWithin(Values bound, Values want) {
  return testing::Matcher<const Values&>(new WithinMatcher(std::move(bound), std::move(want)));
}

testing::Matcher<const Values&> IsWithin(double bound, Values want) {
  return IsWithin(Values{bound}, std::move(want));
}

testing::Matcher<const Values&> HasSameBits(Values want) {
  return testing::Matcher<const Values&>(new SameBitsMatcher(std::move(want)));
}

testing::Matcher<const std::vector<double>&> IsSame(bool bit_exact, std::vector<double> want,
                                                    double bound) {
  if (bit_exact) return HasSameBits(std::move(want));
  return testing::ResultOf(
      "relative error",
      [want](const std::vector<double>& got) {
        return got.size() == want.size() ? RelativeError(got, want) : INFINITY;
      },
      testing::Le(bound));
}

double RelativeError(const Values& got, const Values& want) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got.at(i) - want[i]) * (got.at(i) - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(difference / norm);
}

double WorstRowError(const Values& got, const Values& want, int width) {
  if (got.size() != want.size()) return INFINITY;
  double worst = 0;
  for (size_t row = 0; row < want.size(); row += width) {
    const double error = RelativeError({got.begin() + row, got.begin() + row + width},
                                       {want.begin() + row, want.begin() + row + width});
    if (std::isnan(error)) return error;
    worst = std::max(worst, error);
  }
  return worst;
}

}  // namespace mneme
