// What concerns the graph of engrams, for backends whose memory the host reads: one session at a
// time, as kernels/ops/engrams.h says it. Number is float, or double in the reference.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/engrams.h"

namespace mneme {

// One session's store.
template <typename Number>
class Engrams {
 public:
  Engrams(const EngramStore& store, int slot) : store_(store), slot_(slot) {}

  int capacity() const { return store_.capacity; }
  EngramType type(int i) const {
    return static_cast<EngramType>(store_.types.as<uint8_t>(slot_, 0)[i]);
  }
  void set_type(int i, EngramType type) const {
    store_.types.as<uint8_t>(slot_, 0)[i] = static_cast<uint8_t>(type);
  }
  Number* vector(int i) const { return store_.vectors.as<Number>(slot_, i); }
  Number& lifespan(int i) const { return store_.lifespans.as<Number>(slot_, 0)[i]; }
  Number& gain(int i) const { return store_.gains.as<Number>(slot_, 0)[i]; }
  uint32_t& birth(int i) const { return store_.births.as<uint32_t>(slot_, 0)[i]; }
  int32_t* recalled() const { return store_.recalled.as<int32_t>(slot_, 0); }
  int32_t& fact(EngramFact fact) const { return store_.facts.as<int32_t>(slot_, 0)[fact]; }
  // The seed of the session's draws.
  uint64_t seed(const EngramRules& rules) const {
    if (store_.seed.base == nullptr) return rules.seed;
    const auto* words = store_.seed.as<const uint32_t>(slot_, 0);
    return rules.seed ^ (words[0] | uint64_t{words[1]} << 32);
  }
  // Slots, oldest first.
  std::vector<int> OfType(EngramType type) const;

  // Count_ij of engram i with each of `others`, at the start of `segment`.
  void CountsWith(int i, const std::vector<int>& others, int segment,
                  std::vector<uint16_t>& counts) const;
  // At the start of `segment`.
  void Fire(const std::vector<int>& active, int segment) const;
  // New engrams fired with nobody, whoever had their slots before.
  void ForgetFirings(const std::vector<int>& born) const;

 private:
  uint16_t* counts(int i) const { return store_.counts.as<uint16_t>(slot_, i); }
  uint64_t* fired(int i) const { return store_.fired.as<uint64_t>(slot_, i); }

  const EngramStore& store_;
  int slot_;
};

// Where a crossing reports: the words of its place among a step's, or null where nobody wants any.
int32_t* ReportOf(const EngramReports& reports, int64_t crossing);
// A number as a word of a report.
inline int32_t ReportWord(double x) { return std::bit_cast<int32_t>(static_cast<float>(x)); }

// The score of a vector, from its squared distances to the working engrams; of kNegSquare from that
// to their mean, and the mean of their own squared distances to it.
double ExpMeanScore(std::span<const double> distances);
double NegSquareScore(double distance_to_mean, double spread);

void FindCrossingsOnHost(const FindCrossingsArgs& args);
template <typename Number>
void CommitEngramsOnHost(const CommitEngramsArgs& args);
template <typename Number>
void ReadEncoderOnHost(const ReadEncoderArgs& args);
template <typename Number>
void WriteEngramsOnHost(const WriteEngramsArgs& args);
template <typename Number>
void RetrieveEngramsOnHost(const RetrieveEngramsArgs& args);
template <typename Number>
void GatherEngramsOnHost(const GatherEngramsArgs& args);
template <typename Number>
void StoreEngramContextOnHost(const StoreEngramContextArgs& args);

}  // namespace mneme
