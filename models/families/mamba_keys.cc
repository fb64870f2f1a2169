#include "models/families/mamba_keys.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace mneme {
namespace {

using nlohmann::json;

// Each writes the first of its keys always and the other one's never. The others tell only where a
// file has neither: flash-linear-attention once called them as transformers does, which also writes
// keys of its converter's that it does not read.
constexpr const char* kTransformersKeys[] = {"layer_norm_epsilon", "time_step_rank",
                                             "time_step_limit"};
constexpr const char* kFlaKeys[] = {"norm_eps", "dt_rank", "dt_limit", "rmsnorm", "D_has_hdim"};

template <size_t kCount>
const char* FirstOf(const ConfigReader& reader, const char* const (&keys)[kCount]) {
  for (const char* key : keys) {
    if (reader.Has(key)) return key;
  }
  return nullptr;
}

// A number, or what ParseJsonObject makes of Infinity; NaN for anything else.
double LimitOf(const json& value) {
  if (value.is_number()) return value.get<double>();
  return value == "Infinity" ? std::numeric_limits<double>::infinity() : std::nan("");
}

}  // namespace

MambaFormat ReadMambaFormat(ConfigReader& reader) {
  const char* transformers = FirstOf(reader, kTransformersKeys);
  const char* fla = FirstOf(reader, kFlaKeys);
  const bool transformers_norm = transformers == kTransformersKeys[0],
             fla_norm = fla == kFlaKeys[0];
  if (transformers != nullptr && fla != nullptr && transformers_norm == fla_norm) {
    reader.Invalid(fla, *reader.Find(fla),
                   absl::StrCat("no key of flash-linear-attention beside \"", transformers,
                                "\", one of transformers"));
  }
  reader.Disregard({"rms_norm"});  // both have stored it, and neither reads it
  if (fla_norm || (fla != nullptr && !transformers_norm)) return MambaFormat::kFla;
  reader.Disregard({"dt_rank", "dt_limit", "rmsnorm", "norm_before_gate", "D_has_hdim"});
  return MambaFormat::kTransformers;
}

const char* ReadRenamedKey(ConfigReader& reader, const char* key, const char* former) {
  if (!reader.Has(former)) return key;
  if (reader.Has(key)) {
    reader.Invalid(former, *reader.Find(former),
                   absl::StrCat("no such key beside \"", key, "\", its newer name"));
  }
  return former;
}

StackKeys ReadMambaStack(ConfigReader& reader, const MambaStackDefaults& defaults,
                         ModelConfig& config) {
  RefuseUnlessNull(reader, "attnres_block_size", "null: attention residuals are not implemented");
  RefuseUnlessNull(reader, "quantization_config", "null: only f32, bf16 and f16 weights are read");
  ReadSilu(reader, "silu");
  StackKeys stack;
  stack.vocab = reader.Int("vocab_size", defaults.vocab, 1, kMaxVocab);
  stack.model_dim = reader.Int("hidden_size", defaults.model_dim, 1, kMaxModelDim);
  stack.layers = reader.Int("num_hidden_layers", defaults.layers, 1, kMaxLayers);
  stack.norm_eps = static_cast<float>(reader.Number(defaults.norm_eps_key, 1e-5, kLeastNumber, 1));
  ReadTokensAndTies(reader, stack, config, defaults.tokens);
  // These keys concern training, or choose one of upstream's ways to the same result. The residual
  // stream has all its bits here anyway.
  reader.Disregard({"residual_in_fp32", "chunk_size", "rescale_prenorm_residual", "use_mambapy",
                    "use_falcon_mambapy", "time_step_min", "time_step_max", "time_step_floor",
                    "time_step_scale", "time_step_init_scheme", "dt_min", "dt_max", "dt_init_floor",
                    "dt_scale", "dt_init_scheme", "A_init_range", "conv_init", "initializer_range",
                    "fuse_norm"});
  return stack;
}

int ReadExpandedWidth(ConfigReader& reader, int model_dim) {
  const double expand = reader.Number("expand", 2, 0, 64);
  const auto width = static_cast<int64_t>(model_dim * expand);
  if (width < 1 || width > kMaxChannels) {
    reader.Invalid("expand", expand,
                   absl::StrCat("a factor that makes hidden_size (", model_dim, ") times it, ",
                                width, ", at least 1 and at most ", kMaxChannels));
    return 1;
  }
  reader.Disregard({"expand"});  // the width follows, and counts
  return static_cast<int>(width);
}

MambaConfig ReadMambaMixer(ConfigReader& reader, ModelConfig& config, int model_dim,
                           const char* rank_key) {
  MambaConfig mixer;
  // Upstream sets the one from the other, and then whatever the file says.
  const int expanded = ReadExpandedWidth(reader, model_dim);
  mixer.channels = reader.NullableInt("intermediate_size", 1, kMaxChannels).value_or(expanded);
  reader.Keep("intermediate_size", mixer.channels);
  mixer.states = reader.Int("state_size", 16, 1, kMaxScanStates);
  mixer.conv_width = reader.Int("conv_kernel", 4, 1, kMaxConvWidth);
  const json* rank = reader.Find(rank_key);
  const bool automatic = rank == nullptr || *rank == "auto";
  mixer.rank = automatic ? reader.Keep(rank_key, (model_dim + 15) / 16)
                         : reader.Int(rank_key, 1, 1, kMaxChannels);
  mixer.bias = ReadSwitch(reader, config, "use_bias", false, ".in_proj.bias");
  return mixer;
}

std::pair<float, float> ReadStepLimit(ConfigReader& reader, const char* key, const char* name) {
  std::pair<double, double> limit = {0, std::numeric_limits<double>::infinity()};
  if (!reader.IsNull(key)) {
    const json& value = *reader.Find(key);
    if (value.is_array() && value.size() == 2) limit = {LimitOf(value[0]), LimitOf(value[1])};
    if (!value.is_array() || value.size() != 2 || !(limit.first >= 0) ||
        !std::isfinite(limit.first) || !(limit.first <= limit.second)) {
      reader.Invalid(key, value, "two numbers from 0 on, the first at most the second");
      limit = {0, 1};
    }
  }
  reader.Keep(name, absl::StrCat(limit.first, " ", limit.second));
  return {static_cast<float>(limit.first), static_cast<float>(limit.second)};
}

NetworkMaker MambaNetwork(const StackKeys& stack, ResidualBlockParts block) {
  LanguageModelParts parts = stack.Parts();
  parts.embeddings = "backbone.embeddings.weight";
  parts.layer_prefix = "backbone.layers.";
  parts.norm = {"backbone.norm_f.weight"};
  parts.block = [block = std::move(block)](const LayerBuilder& builder) {
    return MakeResidualBlock(builder, block);
  };
  return [parts](const NetworkBuilder& builder) {
    LanguageModelParts own = parts;
    const char* former = "backbone.embedding.weight";  // of old files
    if (!builder.weights.Has(own.embeddings) && builder.weights.Has(former)) {
      own.embeddings = former;
    }
    return MakeLanguageModel(builder, own);
  };
}

}  // namespace mneme
