// The engrams that an answer drew on, of models that make some.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "models/engrams.h"

namespace mneme {

// The engrams that tokens of a request attended to, by what they were made of.
struct MemoryUse {
  struct Source {
    int64_t segment = 0;
    int64_t first_token = 0, end_token = 0;  // of the segment: positions in the conversation
    bool long_term = false;                  // or short-term, when it was recalled
    int engrams = 0;                         // that were recalled of this segment
    // Share of the attention to recalled engrams that went to these: all of them add up to 1.
    double weight = 0;
  };
  std::vector<Source> sources;  // the largest weight first
  int64_t evictions = 0;        // of the session, since its birth
};

// Adds up what one sequence attends to while a request feeds it.
class MemoryUseTally {
 public:
  // What tokens of the open segment attended to before the request: not its own.
  void Leave(std::span<const RecalledEngram> before);
  // What those of a segment attended to, whether it has ended or is open as the request ends.
  void Add(std::span<const RecalledEngram> recalled);

  // `segment_tokens`: of a whole one.
  MemoryUse Result(int segment_tokens, int64_t evictions) const;

 private:
  struct Source {
    int64_t segment = 0;
    bool long_term = false;
    friend auto operator<=>(const Source&, const Source&) = default;
  };
  struct Use {
    std::set<uint32_t> births;
    double weight = 0;
  };

  std::map<uint32_t, double> before_;  // by birth; of the next segment to be added
  std::map<Source, Use> uses_;
};

}  // namespace mneme
