// What the engine knows of engrams (models/mixers/engram_memory.h).
#pragma once

#include <cstdint>

namespace mneme {

// More are chosen from than the lists of a GPU's block have room for.
inline constexpr int kLargestEngramCapacity = 8192;
// A matrix of counts is larger than a history from there on, but for short sessions.
inline constexpr int kMostCountedEngrams = 2048;
inline constexpr int kEngramHistorySegments = 4096;

// The field of a session's own seed (EngramStore::seed).
inline constexpr char kEngramSeed[] = "engrams.seed";

// How many engrams of each kind were forgotten.
struct ForgottenEngrams {
  int working = 0, short_term = 0, long_term = 0;

  int total() const { return working + short_term + long_term; }
  friend bool operator==(const ForgottenEngrams&, const ForgottenEngrams&) = default;
};

// One that tokens of a session's open segment attend to, beside the working ones.
struct RecalledEngram {
  int64_t segment = 0;  // that it was made of
  uint32_t birth = 0;
  bool long_term = false;
  // The sum over the segment's tokens so far of attention's weights, mean over layers and heads.
  double weight = 0;
};

}  // namespace mneme
