// Keys that the models of Mamba have in common.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/config_reader.h"
#include "models/blocks/residual_block.h"
#include "models/families/stack_keys.h"
#include "models/mixers/mamba.h"
#include "models/model_config.h"
#include "models/network.h"

namespace mneme {

// Whose configuration it is, by the name of the norms' epsilon, or by other keys where there is
// none. Names of keys and of tensors overlap, and defaults, ties and norms differ, so a file that
// has both names is refused. What the format's own library does not read is disregarded.
enum class MambaFormat { kTransformers, kFla };
MambaFormat ReadMambaFormat(ConfigReader& reader);

// `key`, or the name that flash-linear-attention had for it before, if the file has that; refuses
// both at once.
const char* ReadRenamedKey(ConfigReader& reader, const char* key, const char* former);

// The values of missing keys, which differ by model and format.
struct MambaStackDefaults {
  int vocab = 0;
  int model_dim = 0;
  int layers = 0;
  const char* norm_eps_key = "layer_norm_epsilon";
  TokenDefaults tokens;
};
// vocab_size, hidden_size, num_hidden_layers, the norms' epsilon, ties and tokens; refuses what no
// such model has.
StackKeys ReadMambaStack(ConfigReader& reader, const MambaStackDefaults& defaults,
                         ModelConfig& config);

// The mixer of Mamba-1: expand, intermediate_size, state_size, conv_kernel, `rank_key`, use_bias.
MambaConfig ReadMambaMixer(ConfigReader& reader, ModelConfig& config, int model_dim,
                           const char* rank_key);

// `key`, two numbers from 0 on in order, the second of which may be infinite; counts as `name`.
std::pair<float, float> ReadStepLimit(ConfigReader& reader, const char* key, const char* name);

// expand times hidden_size, cut off as upstream does; at least 1 and at most kMaxChannels.
int ReadExpandedWidth(ConfigReader& reader, int model_dim);

// The tensors of such a network under their names, "backbone.", and its blocks.
NetworkMaker MambaNetwork(const StackKeys& stack, ResidualBlockParts block);

}  // namespace mneme
