#include "models/model_config.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/config_reader.h"
#include "base/json_text.h"
#include "base/mapped_file.h"
#include "base/spelling.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

using nlohmann::json;

// Far beyond any model of these families, and small enough that products of a few stay within 63
// bits.
constexpr int kMaxModelDim = 1 << 17;
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxLayers = 4096;
constexpr int kMaxHeads = 4096;
constexpr int kMaxHeadDim = 4096;
constexpr int kMaxChannels = 1 << 20;
constexpr int kMaxMemories = 1024;
constexpr int kMaxConvWidth = 64;
constexpr int kMaxMlpDim = 1 << 22;
// Numbers that must not be zero must not become zero as f32 either.
constexpr double kTiny = 1e-30;

// The values of missing keys for one model_type (upstream's configuration classes).
struct Defaults {
  const char* model_type;
  const char* mixer;
  int layers;
  int heads;
  double expand_v;
  int memories;
  bool shared_memory;
  const char* output_gate_key;
};
constexpr Defaults kDefaults[] = {
    {"mom", "mixture_of_memories", 24, 4, 1.0, 4, true, "use_output_gate"},
    {"mom_gated_deltanet", "mixture_of_memories", 21, 6, 2.0, 8, false, "use_gate"},
    {"gated_deltanet", "gated_delta_net", 21, 6, 2.0, 0, true, "use_gate"},
};

absl::StatusOr<const Defaults*> FindDefaults(const json& object, absl::string_view path) {
  std::string known;
  const auto it = object.find("model_type");
  for (const Defaults& defaults : kDefaults) {
    if (it != object.end() && *it == defaults.model_type) return &defaults;
    absl::StrAppend(&known, known.empty() ? "" : ", ", defaults.model_type);
  }
  if (it == object.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": key \"model_type\" is missing, expected one of ", known));
  }
  return absl::UnimplementedError(absl::StrCat(path, ": key \"model_type\" is ", Shown(*it),
                                               ", which is not supported; expected one of ",
                                               known));
}

// Options of upstream that change the network and are not implemented.
void RefuseUnsupported(ConfigReader& reader, const Defaults& defaults) {
  const auto refuse_unless_null = [&](const char* key, const char* expected) {
    if (!reader.IsNull(key)) reader.Unsupported(key, *reader.Find(key), expected);
  };
  refuse_unless_null("attn", "null: layers with attention are not implemented");
  refuse_unless_null("attnres_block_size", "null: attention residuals are not implemented");
  refuse_unless_null("quantization_config", "null: only f32, bf16 and f16 weights are read");
  if (reader.String("hidden_act", "swish") != "swish") {
    reader.Unsupported("hidden_act", *reader.Find("hidden_act"), "\"swish\"");
  }
  if (defaults.memories == 0) return;
  if (reader.String("mom_backend", "gated_deltanet") != "gated_deltanet") {
    reader.Unsupported("mom_backend", *reader.Find("mom_backend"), "\"gated_deltanet\"");
  }
  if (!reader.Bool("use_short_conv", true)) {
    reader.Unsupported("use_short_conv", *reader.Find("use_short_conv"),
                       "true: MoM layers exist only with it");
  }
  if (reader.Bool("norm_first", false)) {
    reader.Unsupported("norm_first", *reader.Find("norm_first"), "false");
  }
}

void ReadDelta(ConfigReader& reader, const Defaults& defaults, DeltaMixerConfig& delta) {
  const bool routed = defaults.memories > 0;
  delta.heads = reader.Int("num_heads", defaults.heads, 1, kMaxHeads);
  delta.value_heads = delta.heads;
  delta.key_dim = reader.Int("head_dim", 256, 1, kMaxHeadDim);
  const double expand_v = reader.Number("expand_v", defaults.expand_v, 0, 64);
  const double value_dim = delta.key_dim * expand_v;
  delta.value_dim = static_cast<int>(std::lround(value_dim));
  if (delta.value_dim < 1 || delta.value_dim > kMaxHeadDim ||
      std::abs(value_dim - delta.value_dim) > 1e-5 * value_dim) {
    reader.Invalid("expand_v", expand_v,
                   absl::StrCat("a factor that makes head_dim (", delta.key_dim,
                                ") times it an integer from 1 to ", kMaxHeadDim));
  }
  if (!routed) {
    if (const auto value_heads = reader.NullableInt("num_v_heads", 1, kMaxHeads)) {
      delta.value_heads = *value_heads;
      if (delta.value_heads % delta.heads != 0) {
        reader.Invalid("num_v_heads", delta.value_heads,
                       absl::StrCat("a multiple of num_heads (", delta.heads, ")"));
      }
    }
    delta.allow_negative_eigenvalues = reader.Bool("allow_neg_eigval", false);
  }
  for (const auto& [key, channels] :
       {std::pair("num_heads", int64_t{delta.heads} * delta.key_dim),
        std::pair("expand_v", int64_t{delta.value_heads} * delta.value_dim)}) {
    if (channels > kMaxChannels) {
      reader.Invalid(
          key, reader.Has(key) ? *reader.Find(key) : json(nullptr),
          absl::StrCat("at most ", kMaxChannels, " channels over all heads, not ", channels));
    }
  }
  delta.conv_width = reader.Int("conv_size", 4, 1, kMaxConvWidth);
  if (!reader.Bool("use_short_conv", true)) delta.conv_width = 0;
  delta.output_gate = reader.Bool(defaults.output_gate_key, true);
  delta.shared_memory = defaults.shared_memory;
  if (!routed) return;
  delta.memories = reader.Int("num_memories", defaults.memories, 1, kMaxMemories);
  delta.top_k = reader.Int("topk", 2, 1, delta.memories);
  delta.shared_memory = reader.Bool("shared_mem", defaults.shared_memory);
  delta.single_kv_proj = reader.Bool("single_kv_proj", false);
}

int MlpDim(ConfigReader& reader, int model_dim) {
  if (const auto dim = reader.NullableInt("intermediate_size", 1, kMaxMlpDim)) return *dim;
  const double ratio = reader.IsNull("hidden_ratio") ? 4 : reader.Number("hidden_ratio", 4, 0, 64);
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

// One id, a list of ids, or null.
std::vector<int32_t> TokenIds(ConfigReader& reader, const char* key, int vocab) {
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

// Upstream's defaults of the two keys, where the vocabulary has them.
std::vector<int32_t> TokenIdsOr(ConfigReader& reader, const char* key, int vocab,
                                int32_t otherwise) {
  if (reader.Has(key)) return TokenIds(reader, key, vocab);
  return otherwise < vocab ? std::vector<int32_t>{otherwise} : std::vector<int32_t>{};
}

// Keys that are read, for one model_type or another.
constexpr absl::string_view kReadKeys[] = {
    "model_type",         "attn",
    "attnres_block_size", "quantization_config",
    "hidden_act",         "mom_backend",
    "use_short_conv",     "norm_first",
    "num_heads",          "head_dim",
    "expand_v",           "num_v_heads",
    "allow_neg_eigval",   "conv_size",
    "use_output_gate",    "use_gate",
    "num_memories",       "topk",
    "shared_mem",         "single_kv_proj",
    "hidden_ratio",       "hidden_size",
    "intermediate_size",  "vocab_size",
    "norm_eps",           "bos_token_id",
    "eos_token_id",       "num_hidden_layers",
    "capacity",           "tie_word_embeddings",
};
// Keys of upstream's files that look like one of those and mean something else.
constexpr absl::string_view kOtherKeys[] = {
    "expand_k",   "num_kv_heads", "num_beams",    "head_k_dim", "head_v_dim",
    "v_head_dim", "sep_token_id", "cls_token_id", "top_k",
};

// A misspelled key would silently leave its default in force. Other unknown keys are none of ours:
// upstream writes many that concern training only.
void WarnOfMisspelledKeys(const json& object, absl::string_view path,
                          std::vector<std::string>& warnings) {
  for (const auto& item : object.items()) {
    const std::string& key = item.key();
    const auto is_key = [&](absl::string_view known) { return known == key; };
    if (std::any_of(std::begin(kReadKeys), std::end(kReadKeys), is_key)) continue;
    if (std::any_of(std::begin(kOtherKeys), std::end(kOtherKeys), is_key)) continue;
    int best = key.size() < 8 ? 2 : 3;  // short words are near to each other by chance
    absl::string_view nearest;
    for (const absl::string_view known : kReadKeys) {
      if (key.size() >= known.size() + 3 || known.size() >= key.size() + 3) continue;
      if (const int distance = EditDistance(key, known); distance < best) {
        best = distance;
        nearest = known;
      }
    }
    if (nearest.empty()) continue;
    warnings.push_back(absl::StrCat(path, ": key ", Shown(json(key)),
                                    " is unknown and ignored; did you mean \"", nearest, "\"?"));
  }
}

// Names by which torch knows a floating-point type that checkpoints come in, and what "auto" stands
// for. Other names are an error to upstream's loaders. Here weights keep the types of their file
// whatever the key says, so that a name is only told.
constexpr absl::string_view kTorchDTypes[] = {
    "float32", "float",  "bfloat16",      "float16",     "half",
    "float64", "double", "float8_e4m3fn", "float8_e5m2", "auto",
};

void WarnOfUnknownDType(const json& object, absl::string_view path,
                        std::vector<std::string>& warnings) {
  for (const char* key : {"torch_dtype", "dtype"}) {
    const auto it = object.find(key);
    if (it == object.end() || it->is_null()) continue;
    const auto is_value = [&](absl::string_view name) { return *it == std::string(name); };
    if (std::any_of(std::begin(kTorchDTypes), std::end(kTorchDTypes), is_value)) continue;
    warnings.push_back(absl::StrCat(path, ": key \"", key, "\" is ", Shown(*it),
                                    ", which is no floating-point type of torch, and ignored: "
                                    "weights have the types of their file"));
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text, absl::string_view path) {
  MNEME_ASSIGN_OR_RETURN(const json object, ParseJsonObject(text, path));
  MNEME_ASSIGN_OR_RETURN(const Defaults* defaults, FindDefaults(object, path));
  ConfigReader reader(object, path);
  RefuseUnsupported(reader, *defaults);

  ModelConfig config;
  config.model_type = defaults->model_type;
  config.mixer = defaults->mixer;
  config.vocab = reader.Int("vocab_size", 32000, 1, kMaxVocab);
  config.model_dim = reader.Int("hidden_size", 2048, 1, kMaxModelDim);
  config.layers = reader.Int("num_hidden_layers", defaults->layers, 1, kMaxLayers);
  config.norm_eps = static_cast<float>(reader.Number("norm_eps", 1e-6, kTiny, 1));
  config.mlp_dim = MlpDim(reader, config.model_dim);
  config.tie_word_embeddings =
      !reader.IsNull("tie_word_embeddings") && reader.Bool("tie_word_embeddings", false);
  ReadDelta(reader, *defaults, config.delta);

  const std::vector<int32_t> bos = TokenIdsOr(reader, "bos_token_id", config.vocab, 1);
  if (!bos.empty()) config.bos_token = bos.front();
  config.eos_tokens = TokenIdsOr(reader, "eos_token_id", config.vocab, 2);

  // Upstream's old format dropped tokens of a prompt beyond this share, but not while decoding.
  if (reader.Number("capacity", 1.0, 0, 1e9) < 1.0 && defaults->memories > 0) {
    config.warnings.push_back(absl::StrCat(path, ": key \"capacity\" is ",
                                           Shown(*reader.Find("capacity")),
                                           " and ignored: no token is ever dropped"));
  }
  WarnOfUnknownDType(object, path, config.warnings);
  WarnOfMisspelledKeys(object, path, config.warnings);
  MNEME_RETURN_IF_ERROR(reader.status());
  return config;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& folder) {
  struct stat info;
  if (stat(folder.c_str(), &info) != 0) {
    return absl::NotFoundError(absl::StrCat("model folder \"", folder, "\" does not exist"));
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", folder, "\" is a file, expected a folder with config.json and model.safetensors"));
  }
  const std::string path = absl::StrCat(folder, "/config.json");
  MNEME_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return ParseModelConfig(file.text(), path);
}

absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(absl::string_view text,
                                                           absl::string_view path,
                                                           const ModelConfig& config) {
  MNEME_ASSIGN_OR_RETURN(const json object, ParseJsonObject(text, path));
  ConfigReader reader(object, path);
  GenerationDefaults defaults{.bos_token = config.bos_token, .eos_tokens = config.eos_tokens};
  if (!reader.IsNull("bos_token_id")) {
    const std::vector<int32_t> bos = TokenIds(reader, "bos_token_id", config.vocab);
    if (!bos.empty()) defaults.bos_token = bos.front();
  }
  if (!reader.IsNull("eos_token_id")) {
    defaults.eos_tokens = TokenIds(reader, "eos_token_id", config.vocab);
  }
  const auto number = [&](const char* key, double high, bool zero_included) {
    if (reader.IsNull(key)) return std::optional<float>();
    return std::optional<float>(
        static_cast<float>(reader.Number(key, 1, zero_included ? 0 : kTiny, high, zero_included)));
  };
  defaults.temperature = number("temperature", 100, true);
  defaults.top_p = number("top_p", 1, false);
  defaults.min_p = number("min_p", 1, true);
  defaults.repetition_penalty = number("repetition_penalty", 10, false);
  defaults.top_k = reader.NullableInt("top_k", 0, INT32_MAX);
  defaults.max_new_tokens = reader.NullableInt("max_new_tokens", 1, INT32_MAX);
  MNEME_RETURN_IF_ERROR(reader.status());
  return defaults;
}

absl::StatusOr<GenerationDefaults> ReadGenerationDefaults(const std::string& folder,
                                                          const ModelConfig& config) {
  const std::string path = absl::StrCat(folder, "/generation_config.json");
  const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (absl::IsNotFound(file.status())) {
    return GenerationDefaults{.bos_token = config.bos_token, .eos_tokens = config.eos_tokens};
  }
  MNEME_RETURN_IF_ERROR(file.status());
  return ParseGenerationDefaults(file->text(), path, config);
}

}  // namespace mneme
