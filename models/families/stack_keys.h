// Keys of config.json that most families have, and what bounds them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/config_reader.h"
#include "kernels/ops/dense.h"
#include "models/model_config.h"
#include "models/networks/language_model.h"

namespace mneme {

// Far beyond any model of these families, and small enough that products of a few stay within 63
// bits.
inline constexpr int kMaxModelDim = 1 << 17;
inline constexpr int kMaxVocab = 1 << 24;
inline constexpr int kMaxLayers = 4096;
inline constexpr int kMaxHeads = 4096;
inline constexpr int kMaxHeadDim = 4096;
inline constexpr int kMaxChannels = 1 << 20;
inline constexpr int kMaxMemories = 1024;
inline constexpr int kMaxWindow = 1 << 24;
inline constexpr int kMaxMlpDim = 1 << 22;
// Numbers that must not be zero must not become zero as f32 either.
inline constexpr double kLeastNumber = 1e-30;

struct StackKeys {
  int vocab = 0;
  int model_dim = 0;
  int layers = 0;
  int mlp_dim = 0;
  float norm_eps = 1e-6f;
  bool says_tied = false;
  bool obeys_tied = false;  // as LanguageModelParts::obeys_tied

  // The network around the blocks.
  LanguageModelParts Parts() const;
};

// vocab_size, hidden_size, num_hidden_layers, norm_eps, intermediate_size or hidden_ratio,
// tie_word_embeddings, bos_token_id, eos_token_id; and refuses what no such family has yet:
// attention residuals, quantised weights, other activations. Sets the config's vocabulary and
// tokens.
StackKeys ReadStackKeys(ConfigReader& reader, int default_layers, double default_hidden_ratio,
                        ModelConfig& config);

// The part of it that is the same elsewhere: tie_word_embeddings, bos_token_id, eos_token_id. And
// what they mean where they are missing.
struct TokenDefaults {
  int32_t bos = 1, eos = 2;
  bool tied = false;
};
void ReadTokensAndTies(ConfigReader& reader, StackKeys& keys, ModelConfig& config,
                       const TokenDefaults& defaults = {});

// The width of a gated MLP that follows from hidden_ratio, as flash-linear-attention rounds it.
int ReadRatioMlpDim(ConfigReader& reader, int model_dim, double default_ratio);

// Heads of values, where several may share the keys of one head: num_v_heads, a multiple of
// `heads`.
int ReadValueHeads(ConfigReader& reader, int heads);
// The width of a head's values: expand_v times that of its keys, an integer.
int ReadValueDim(ConfigReader& reader, int key_dim, double default_expand_v);
// Refuses `key` where it makes more channels over all heads than kMaxChannels.
void CheckChannels(ConfigReader& reader, int64_t channels, const char* key);

// Refuses a key that is there and not null.
void RefuseUnlessNull(ConfigReader& reader, const char* key, absl::string_view expected);

// Disregards these keys, and warns of those that are there and not null: "... and ignored: `why`".
void WarnOfUnused(ConfigReader& reader, ModelConfig& config,
                  std::initializer_list<const char*> keys, absl::string_view why);

// Remembers that `key`, of this value, leaves tensors out whose names contain `tensors`.
void NoteLeftOut(ModelConfig& config, const char* key, const nlohmann::json& value,
                 const char* tensors);
// A switch of the network that leaves such tensors out when it is off.
bool ReadSwitch(ConfigReader& reader, ModelConfig& config, const char* key, bool otherwise,
                const char* tensors);

// One of several names, as its place among them; the first one where the key is missing.
int ReadChoice(ConfigReader& reader, const char* key, std::initializer_list<const char*> names);

// The activation of a gated MLP, hidden_act: x sigmoid(x), which libraries call silu or swish.
// `counts`: the name that makes the fingerprint, whichever the file has.
void ReadSilu(ConfigReader& reader, const std::string& counts);

// The activation between the two layers of an ungated MLP, by transformers' names for it.
Activation ReadActivation(ConfigReader& reader, const char* key, absl::string_view otherwise);

// One id, a list of ids, or null; none without the key.
std::vector<int32_t> ReadTokenIds(ConfigReader& reader, const char* key, int vocab);

}  // namespace mneme
