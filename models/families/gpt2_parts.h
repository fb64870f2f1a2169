// The parts that GPT-2 and the models that grew from it share.
#pragma once

#include "base/config_reader.h"
#include "models/families/stack_keys.h"
#include "models/feed_forwards/mlp.h"
#include "models/mixers/attention.h"
#include "models/model_config.h"

namespace mneme {

struct Gpt2Keys {
  StackKeys stack;
  int positions = 1;  // that were learned
  AttentionConfig attention;
  MlpConfig mlp;
};

// All keys but those of the scale of scores.
Gpt2Keys ReadGpt2Keys(ConfigReader& reader, ModelConfig& config);

}  // namespace mneme
