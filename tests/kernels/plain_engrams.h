// Memoria's graph as its authors' code keeps it: a list of engrams from which the dead are removed,
// chains that are followed one by one, no slots. What kernels/ops/engrams.h has to come to.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "kernels/ops/engrams.h"

namespace mneme {

class PlainEngrams {
 public:
  struct Engram {
    uint32_t birth = 0;
    EngramType type = EngramType::kWorking;
    double lifespan = 0;
    std::vector<double> x;
    std::map<uint32_t, int> counts;
    int firings = 0;
    double gain = 0;  // away from `lifespan`: GCC 12 rounds only one of two stored as a pair

    int CountWith(uint32_t other) const {
      const auto it = counts.find(other);
      return it == counts.end() ? 0 : it->second;
    }
  };

  // Lifespans are rounded to f32 with `rounds`. Capacity 0: any number of engrams. Window: counts
  // are those of so many steps; 0: of all.
  PlainEngrams(const EngramRules& rules, bool rounds, int capacity = 0, int window = 0)
      : rules_(rules), rounds_(rounds), capacity_(capacity), window_(window) {}

  std::vector<Engram> engrams;  // oldest first
  std::vector<uint32_t> recalled;
  int columns = 0, found = 0, evicted = 0, forgotten = 0;
  bool null_candidate = false, null_recalled = false;

  // `weights`: of `recalled`.
  void Commit(const std::vector<double>& weights) {
    for (size_t i = 0; i < recalled.size(); ++i) {
      Engram& engram = *Find(recalled[i]);
      const double gain = Round(weights[i] * columns * rules_.lifespan_scale);
      engram.gain = gain;
      engram.lifespan = Round(engram.lifespan + gain);
    }
    for (Engram& engram : engrams) engram.lifespan -= 1;
    if (!rules_.deaths_last) RemoveDead();
    for (Engram& engram : engrams) {
      if (engram.type == EngramType::kWorking) engram.type = EngramType::kShortTerm;
    }
    int over = Count(EngramType::kShortTerm) - rules_.short_term;
    for (Engram& engram : engrams) {
      if (engram.type == EngramType::kShortTerm && over-- > 0) engram.type = EngramType::kLongTerm;
    }
    if (rules_.deaths_last) RemoveDead();
    while (capacity_ > 0 && capacity_ - static_cast<int>(engrams.size()) < rules_.working) {
      const Engram* least = nullptr;
      for (const Engram& engram : engrams) {
        if (engram.type != EngramType::kLongTerm) continue;
        if (least == nullptr || engram.lifespan < least->lifespan) least = &engram;
      }
      Remove({least->birth});
      ++evicted;
    }
  }

  void Write(int segment, const std::vector<std::vector<double>>& x) {
    for (size_t w = 0; w < x.size(); ++w) {
      engrams.push_back(
          {.birth = static_cast<uint32_t>(static_cast<size_t>(segment - 1) * x.size() + w),
           .lifespan = rules_.lifespan,
           .x = x[w]});
    }
  }

  void Retrieve(int segment) {
    std::vector<uint32_t> short_term = Births(EngramType::kShortTerm);
    const std::vector<uint32_t> long_term = Births(EngramType::kLongTerm);
    std::vector<uint32_t> chosen = Best(short_term, rules_.recalled_short, nullptr);
    bool left_out = chosen.size() < short_term.size();
    null_candidate = null_recalled = false;
    found = 0;
    if (!long_term.empty()) {
      std::set<uint32_t> reached;
      std::vector<uint32_t> chains;
      for (const uint32_t source : short_term) {
        std::vector<uint32_t> candidates;
        if (Has(chosen, source)) {
          const Engram& engram = *Find(source);
          int most = 0;
          for (const uint32_t j : long_term) most = std::max(most, engram.CountWith(j));
          for (const uint32_t j : long_term) {
            if (engram.CountWith(j) == most) candidates.push_back(j);
          }
        } else if (rules_.extra_seeds) {
          candidates = long_term;
        } else {
          continue;
        }
        chains.push_back(candidates[Draw(segment, source, candidates.size())]);
      }
      reached.insert(chains.begin(), chains.end());
      for (int round = 0; round < rules_.depth; ++round) {
        std::vector<uint32_t> reach;
        for (const uint32_t j : long_term) {
          if (reached.count(j) == 0) reach.push_back(j);
        }
        if (reach.empty()) {
          null_candidate = rules_.null_candidate;
          break;
        }
        for (uint32_t& chain : chains) {
          const Engram& engram = *Find(chain);
          uint32_t next = reach.front();
          for (const uint32_t j : reach) {
            if (engram.CountWith(j) > engram.CountWith(next)) next = j;
          }
          chain = next;
        }
        reached.insert(chains.begin(), chains.end());
      }
      found = static_cast<int>(reached.size());
      const std::vector<uint32_t> best =
          Best({reached.begin(), reached.end()}, rules_.recalled_long,
               null_candidate ? &null_recalled : nullptr);
      chosen.insert(chosen.end(), best.begin(), best.end());
    } else if (rules_.recalls_oldest && rules_.recalled_long > 0 && !short_term.empty() &&
               !Has(chosen, short_term.front())) {
      chosen.push_back(short_term.front());
    }
    std::sort(chosen.begin(), chosen.end());
    recalled = chosen;
    columns = static_cast<int>(recalled.size());
    if (rules_.null_column && (left_out || null_recalled)) ++columns;
    std::vector<uint32_t> active = Births(EngramType::kWorking);
    active.insert(active.end(), recalled.begin(), recalled.end());
    Fire(active, 1);
    if (window_ == 0) return;
    steps_.push_back(active);
    if (static_cast<int>(steps_.size()) <= window_) return;
    Fire(steps_.front(), -1);
    steps_.pop_front();
    ++forgotten;
  }

  EngramType TypeOf(uint32_t birth) const {
    const auto it = std::find_if(engrams.begin(), engrams.end(),
                                 [birth](const Engram& engram) { return engram.birth == birth; });
    return it == engrams.end() ? EngramType::kFree : it->type;
  }

  // The engrams that were made of segments [first, end).
  void Forget(int first, int end) {
    std::vector<uint32_t> births;
    for (const Engram& engram : engrams) {
      const int segment = static_cast<int>(engram.birth) / rules_.working;
      if (segment >= first && segment < end) births.push_back(engram.birth);
    }
    Remove(births);
    columns -= static_cast<int>(
        std::erase_if(recalled, [&](uint32_t birth) { return Has(births, birth); }));
  }

  double Score(const std::vector<double>& x) const {
    double sum = 0;
    for (const Engram& engram : engrams) {
      if (engram.type != EngramType::kWorking) continue;
      double distance = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        distance += (x[i] - engram.x[i]) * (x[i] - engram.x[i]);
      }
      sum += rules_.score == EngramRules::Score::kExpMean ? std::exp(-distance) : -distance;
    }
    return sum / rules_.working;
  }

 private:
  // One more step, or less, in which `active` fired.
  void Fire(const std::vector<uint32_t>& active, int steps) {
    for (Engram& engram : engrams) {
      if (!Has(active, engram.birth)) continue;
      engram.firings += steps;
      for (const uint32_t j : active) engram.counts[j] += steps;
    }
  }
  double Round(double x) const { return rounds_ ? static_cast<float>(x) : x; }

  static bool Has(const std::vector<uint32_t>& births, uint32_t birth) {
    return std::find(births.begin(), births.end(), birth) != births.end();
  }
  Engram* Find(uint32_t birth) {
    return &*std::find_if(engrams.begin(), engrams.end(),
                          [birth](const Engram& engram) { return engram.birth == birth; });
  }
  int Count(EngramType type) const { return static_cast<int>(Births(type).size()); }
  std::vector<uint32_t> Births(EngramType type) const {
    std::vector<uint32_t> births;
    for (const Engram& engram : engrams) {
      if (engram.type == type) births.push_back(engram.birth);
    }
    return births;
  }

  // The best of some engrams, oldest first, and, with `null`, of a vector of zeros as well: whether
  // that is one of them.
  std::vector<uint32_t> Best(const std::vector<uint32_t>& births, int most, bool* null) {
    struct Candidate {
      double score;
      int64_t birth;  // -1: zeros
    };
    std::vector<Candidate> candidates;
    for (const uint32_t birth : births) candidates.push_back({Score(Find(birth)->x), birth});
    if (null != nullptr) {
      candidates.push_back({Score(std::vector<double>(engrams.front().x.size())), -1});
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
    std::vector<uint32_t> best;
    for (size_t i = 0; i < candidates.size() && i < static_cast<size_t>(most); ++i) {
      if (candidates[i].birth < 0) {
        *null = true;
      } else {
        best.push_back(static_cast<uint32_t>(candidates[i].birth));
      }
    }
    return best;
  }

  size_t Draw(int segment, uint32_t birth, size_t n) const {
    if (!rules_.random_ties) return 0;
    uint64_t z = rules_.seed;
    const uint64_t step = (uint64_t{static_cast<uint32_t>(segment)} << 32) + birth + 1;
    z += step * 0x9E3779B97F4A7C15u;
    z ^= z >> 30;
    z *= 0xBF58476D1CE4E5B9u;
    z ^= z >> 27;
    z *= 0x94D049BB133111EBu;
    z ^= z >> 31;
    return static_cast<size_t>(((z >> 32) * n) >> 32);
  }

  void RemoveDead() {
    std::vector<uint32_t> dead;
    for (const Engram& engram : engrams) {
      if (engram.lifespan <= 0) dead.push_back(engram.birth);
    }
    Remove(dead);
  }
  void Remove(const std::vector<uint32_t>& births) {
    std::erase_if(engrams, [&](const Engram& engram) { return Has(births, engram.birth); });
    for (Engram& engram : engrams) {
      for (const uint32_t birth : births) engram.counts.erase(birth);
    }
  }

  EngramRules rules_;
  bool rounds_;
  int capacity_, window_;
  std::deque<std::vector<uint32_t>> steps_;  // what fired in the last ones, with a window
};

}  // namespace mneme
