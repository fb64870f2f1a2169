// Keys of a config.json that a family reads: what it makes of them, or refuses.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

}  // namespace mneme
