// The architectures that are served, by the model_type of config.json.
#pragma once

#include <span>

#include "absl/strings/string_view.h"
#include "base/config_reader.h"
#include "kernels/tensor_view.h"
#include "models/model_config.h"
#include "models/network.h"

namespace mneme {

// A network of flash-linear-attention's kind, 1024 wide with 24 layers, and a tiny one: what
// mneme-make-model makes, as "<model_type>-340m" and "<model_type>-tiny", and tests run.
struct ExampleNetwork {
  // JSON, what config.json has beside width, depth and the like (tools/model_configs.cc). None:
  // tools/model_shapes.cc names the shapes of this model_type one by one.
  const char* keys = nullptr;
  const char* tiny = "{}";   // JSON, what the tiny one has instead, if more than two heads
  const char* summary = "";  // for people
};

// A family's file registers this of itself. Tools and tests read it here, so that they name no
// model_type.
struct Architecture {
  const char* model_type = nullptr;
  // Reads the keys that the family knows, once each, through `reader`, which keeps the first error;
  // ParseModelConfig asks for it. Sets what ModelConfig has of them: vocab, tokens, warnings.
  NetworkMaker (*read)(absl::string_view model_type, ConfigReader& reader,
                       ModelConfig& config) = nullptr;
  bool classifies = false;  // NetworkInfo::classes exist
  // The coarsest dtype that its matrices may be kept in (StateFormat::memory_dtype): f32 where a
  // session has none, int8 where writes are held back, so that they are rounded now and then only.
  DType coarsest_state = DType::kF32;
  ExampleNetwork example;
  // JSON, a list of objects: what the tiny network has instead in each of its ways to keep a state.
  // One has layers with attention (`attn`) where there may be some. Tests take each through splits,
  // forks and copies.
  const char* ways = "[]";
};

// Explicit rather than self-registering: the list is one screen, and a static library keeps every
// entry.
std::span<const Architecture> Architectures();

}  // namespace mneme
