// Keys of a config.json that a family reads: what it makes of them, or refuses.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "models/model_config.h"
#include "models/state_layout.h"
#include "models/weight_recorder.h"

namespace mneme {

// The configuration of a model_type and `keys`, members of a JSON object: "\"num_heads\": 8".
absl::StatusOr<ModelConfig> ConfigOf(const std::string& model_type, const std::string& keys);
// Its fingerprint; a test fails if there is none.
uint64_t FingerprintOf(const std::string& model_type, const std::string& keys);

// A network without weights: its tensors, the state of a session, and what it warns of.
struct MadeNetwork {
  std::vector<TensorSpec> tensors;
  StateLayout state;
  std::vector<std::string> warnings;

  double millions() const;  // of parameters
};
// A test fails if the network cannot be made.
MadeNetwork MakeNetwork(const ModelConfig& config);
// That of a shape that mneme-make-model knows.
MadeNetwork MakeShape(const std::string& shape);

// Fingerprints of configurations that differ in something that counts.
class DistinctFingerprints {
 public:
  // Fails if another one was the same.
  void Add(uint64_t fingerprint, const std::string& what);

 private:
  std::map<uint64_t, std::string> seen_;
};

// Keys that a family refuses, with `code` and an error that contains `message`.
struct BadKeys {
  const char* name;  // of the test
  const char* model_type;
  const char* keys;
  absl::StatusCode code;
  const char* message;
};
constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kUnimplemented = absl::StatusCode::kUnimplemented;

void ExpectRefused(const BadKeys& bad);

// Those of the rules that have a family's example: a rule's test instantiates it with its own.
class BadMatrixKeysTest : public testing::TestWithParam<BadKeys> {};
std::string BadKeysName(const testing::TestParamInfo<BadKeys>& info);

// Keys of every stack of layers, each with another value than the default; and none.
std::vector<std::string> StackKeyChanges();
// Expects that each of `keys`, which all differ from the defaults and from each other, makes
// another fingerprint, and another one than those of a stack do.
void ExpectEachKeyCounts(const std::string& model_type, const std::vector<std::string>& keys);
void ExpectTheSame(const std::string& model_type, const std::string& a, const std::string& b);

// Bytes of a session's state in a network of one layer, whose layout shows what keys mean.
int64_t LayerBytes(const std::string& model_type, const std::string& keys);
// Expects of a shape what documents say of it: parameters, rounded, and bytes of a session's state.
void ExpectSize(const std::string& shape, double millions, int64_t slab_bytes);

}  // namespace mneme
