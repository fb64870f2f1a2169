// The reports of a step's crossings on their sessions' engrams, on the host.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/engrams.h"
#include "models/engrams.h"

namespace mneme {

// One crossing's report (EngramReportWord).
class CrossingReport {
 public:
  CrossingReport(const int32_t* words, int working) : words_(words), working_(working) {}

  int operator[](EngramReportWord word) const { return words_[word]; }
  double number(EngramReportWord word) const { return std::bit_cast<float>(words_[word]); }
  // The engrams that tokens of the segment that ended attended to, oldest first.
  std::vector<RecalledEngram> Attended() const {
    std::vector<RecalledEngram> engrams;
    const int32_t* word = words_ + kEngramReportWords;
    for (int i = 0; i < words_[kReportAttended]; ++i, word += 3) {
      const auto birth = static_cast<uint32_t>(word[0]);
      engrams.push_back({.segment = birth / static_cast<uint32_t>(working_),
                         .birth = birth,
                         .long_term = static_cast<EngramType>(word[1]) == EngramType::kLongTerm,
                         .weight = std::bit_cast<float>(word[2])});
    }
    return engrams;
  }

 private:
  const int32_t* words_;
  int working_;
};

// Those of a step; of one session in the order of its segments. There until results of the step
// after the next are begun.
class StepReports {
 public:
  // EngramReports::range lies in the first ones, and so many words further the reports begin.
  static constexpr int64_t kHeaderWords = 16;

  StepReports() = default;  // none
  StepReports(std::span<const int32_t> words, int recalled, int working)
      : words_(words), size_(EngramReportSize(recalled)), working_(working) {}

  int count() const { return words_.empty() ? 0 : words_[1]; }
  CrossingReport operator[](int i) const {
    return {words_.data() + kHeaderWords + i * size_, working_};
  }

 private:
  std::span<const int32_t> words_;
  int64_t size_ = 0;
  int working_ = 1;
};

}  // namespace mneme
