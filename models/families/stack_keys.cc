#include "models/families/stack_keys.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"

namespace mneme {
namespace {

using nlohmann::json;

int ReadMlpDim(ConfigReader& reader, int model_dim, double default_ratio) {
  reader.Disregard({"hidden_ratio"});  // the width follows, and counts
  if (const auto dim = reader.NullableInt("intermediate_size", 1, kMaxMlpDim)) return *dim;
  return reader.Keep("intermediate_size", ReadRatioMlpDim(reader, model_dim, default_ratio));
}

// Upstream's defaults of the two keys, where the vocabulary has them.
std::vector<int32_t> ReadTokenIdsOr(ConfigReader& reader, const char* key, int vocab,
                                    int32_t otherwise) {
  if (reader.Has(key)) return ReadTokenIds(reader, key, vocab);
  return otherwise < vocab ? std::vector<int32_t>{otherwise} : std::vector<int32_t>{};
}

}  // namespace

int ReadRatioMlpDim(ConfigReader& reader, int model_dim, double default_ratio) {
  const double ratio = reader.IsNull("hidden_ratio")
                           ? default_ratio
                           : reader.Number("hidden_ratio", default_ratio, 0, 64);
  const auto width = static_cast<int64_t>(model_dim * ratio * 2 / 3);
  constexpr int64_t kMultiple = 256;
  const int64_t rounded = (width + kMultiple - 1) / kMultiple * kMultiple;
  if (rounded < 1 || rounded > kMaxMlpDim) {
    reader.Invalid("hidden_ratio", ratio,
                   absl::StrCat("a factor that makes the feed-forward width of ", rounded,
                                " at least 1 and at most ", kMaxMlpDim));
    return 1;
  }
  return static_cast<int>(rounded);
}

LanguageModelParts StackKeys::Parts() const {
  return {.info = {.vocab = vocab, .model_dim = model_dim, .layers = layers},
          .norm_eps = norm_eps,
          .says_tied = says_tied,
          .obeys_tied = obeys_tied};
}

void RefuseUnlessNull(ConfigReader& reader, const char* key, absl::string_view expected) {
  if (!reader.IsNull(key)) reader.Unsupported(key, *reader.Find(key), expected);
}

void WarnOfUnused(ConfigReader& reader, ModelConfig& config,
                  std::initializer_list<const char*> keys, absl::string_view why) {
  for (const char* key : keys) {
    if (reader.IsNull(key)) continue;
    config.warnings.push_back(
        absl::StrCat("key \"", key, "\" is ", Shown(*reader.Find(key)), " and ignored: ", why));
  }
  reader.Disregard(keys);
}

void NoteLeftOut(ModelConfig& config, const char* key, const json& value, const char* tensors) {
  config.leaves_out.push_back({.key = key, .value = value.dump(), .tensors = tensors});
}

bool ReadSwitch(ConfigReader& reader, ModelConfig& config, const char* key, bool otherwise,
                const char* tensors) {
  const bool on = reader.Bool(key, otherwise);
  if (!on) NoteLeftOut(config, key, false, tensors);
  return on;
}

int ReadChoice(ConfigReader& reader, const char* key, std::initializer_list<const char*> names) {
  const std::string value = reader.String(key, *names.begin());
  std::string expected;
  int i = 0;
  for (const char* name : names) {
    if (value == name) return i;
    absl::StrAppend(&expected, expected.empty() ? "" : ", ", "\"", name, "\"");
    ++i;
  }
  reader.Unsupported(key, value, names.size() == 1 ? expected : absl::StrCat("one of ", expected));
  return 0;
}

Activation ReadActivation(ConfigReader& reader, const char* key, absl::string_view otherwise) {
  // The first name of each counts for all that mean the same.
  struct Named {
    Activation activation;
    std::vector<absl::string_view> names;
  };
  static const auto* const all = new std::vector<Named>{
      {Activation::kGelu, {"gelu", "gelu_python"}},
      {Activation::kGeluTanh, {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"}},
      {Activation::kRelu, {"relu"}},
      {Activation::kSilu, {"silu", "swish"}},
      {Activation::kTanh, {"tanh"}}};
  const std::string given = reader.String(key, otherwise);
  std::string expected;
  for (const Named& one : *all) {
    for (const absl::string_view name : one.names) {
      if (given == name) {
        reader.Keep(key, std::string(one.names.front()));
        return one.activation;
      }
      absl::StrAppend(&expected, expected.empty() ? "one of " : ", ", "\"", name, "\"");
    }
  }
  reader.Unsupported(key, given, expected);
  return Activation::kGelu;
}

void ReadSilu(ConfigReader& reader, const std::string& counts) {
  const std::string activation = reader.String("hidden_act", counts);
  if (activation != "silu" && activation != "swish") {
    reader.Unsupported("hidden_act", activation, "\"swish\" or \"silu\", which are the same");
  }
  reader.Keep("hidden_act", counts);
}

int ReadValueHeads(ConfigReader& reader, int heads) {
  int value_heads = heads;
  if (const auto given = reader.NullableInt("num_v_heads", 1, kMaxHeads)) {
    value_heads = *given;
    if (value_heads % heads != 0) {
      reader.Invalid("num_v_heads", value_heads,
                     absl::StrCat("a multiple of num_heads (", heads, ")"));
    }
  }
  return reader.Keep("num_v_heads", value_heads);
}

int ReadValueDim(ConfigReader& reader, int key_dim, double default_expand_v) {
  const double expand_v = reader.Number("expand_v", default_expand_v, 0, 64);
  const double width = key_dim * expand_v;
  const int value_dim = static_cast<int>(std::lround(width));
  if (value_dim < 1 || value_dim > kMaxHeadDim || std::abs(width - value_dim) > 1e-5 * width) {
    reader.Invalid("expand_v", expand_v,
                   absl::StrCat("a factor that makes head_dim (", key_dim,
                                ") times it an integer from 1 to ", kMaxHeadDim));
  }
  return value_dim;
}

void CheckChannels(ConfigReader& reader, int64_t channels, const char* key) {
  if (channels <= kMaxChannels) return;
  reader.Invalid(
      key, reader.Has(key) ? *reader.Find(key) : json(nullptr),
      absl::StrCat("at most ", kMaxChannels, " channels over all heads, not ", channels));
}

std::vector<int32_t> ReadTokenIds(ConfigReader& reader, const char* key, int vocab) {
  std::vector<int32_t> ids;
  if (reader.IsNull(key)) return ids;
  const json& value = *reader.Find(key);
  const json list = value.is_array() ? value : json::array({value});
  for (const json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab)) {
      reader.Invalid(key, value,
                     absl::StrCat("token ids from 0 to vocab_size - 1 (", vocab - 1, ")"));
      return {};
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

void ReadTokensAndTies(ConfigReader& reader, StackKeys& keys, ModelConfig& config,
                       const TokenDefaults& defaults) {
  keys.says_tied = reader.Has("tie_word_embeddings") && reader.IsNull("tie_word_embeddings")
                       ? false
                       : reader.Bool("tie_word_embeddings", defaults.tied);
  config.vocab = keys.vocab;
  const std::vector<int32_t> bos = ReadTokenIdsOr(reader, "bos_token_id", keys.vocab, defaults.bos);
  if (!bos.empty()) config.bos_token = bos.front();
  config.eos_tokens = ReadTokenIdsOr(reader, "eos_token_id", keys.vocab, defaults.eos);
  // The checkpoint says what is tied; tokens are the request's. The others are known to look like
  // keys that are read.
  reader.Disregard({"tie_word_embeddings", "bos_token_id", "eos_token_id", "sep_token_id",
                    "cls_token_id", "pad_token_id", "num_beams", "top_k"});
}

StackKeys ReadStackKeys(ConfigReader& reader, int default_layers, double default_hidden_ratio,
                        ModelConfig& config) {
  RefuseUnlessNull(reader, "attnres_block_size", "null: attention residuals are not implemented");
  RefuseUnlessNull(reader, "quantization_config", "null: only f32, bf16 and f16 weights are read");
  ReadSilu(reader, "swish");
  StackKeys keys;
  keys.vocab = reader.Int("vocab_size", 32000, 1, kMaxVocab);
  keys.model_dim = reader.Int("hidden_size", 2048, 1, kMaxModelDim);
  keys.layers = reader.Int("num_hidden_layers", default_layers, 1, kMaxLayers);
  keys.norm_eps = static_cast<float>(reader.Number("norm_eps", 1e-6, kLeastNumber, 1));
  keys.mlp_dim = ReadMlpDim(reader, keys.model_dim, default_hidden_ratio);
  ReadTokensAndTies(reader, keys, config);
  return keys;
}

}  // namespace mneme
