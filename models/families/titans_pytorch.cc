// Checkpoints of titans-pytorch's MemoryAsContextTransformer: its state dict, beside a config.json
// that has the arguments of its constructor. Keys that are missing have the constructor's defaults.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "models/families/families.h"
#include "models/families/stack_keys.h"
#include "models/families/titans_parts.h"
#include "models/networks/titans_pytorch_network.h"

namespace mneme {
namespace {

using nlohmann::json;

constexpr int kMaxMemoryStep = 1 << 16;
constexpr int kMaxKeysOfToken = 64;
constexpr int kMaxInserted = 1 << 16;

const json& ObjectOf(ConfigReader& reader, const char* key) {
  static const json kEmpty = json::object();
  if (reader.IsNull(key)) return kEmpty;
  const json& value = *reader.Find(key);
  if (value.is_object()) return value;
  reader.Invalid(key, value, "an object, or null");
  return kEmpty;
}

std::string PathOf(const ConfigReader& reader, const char* key) {
  return absl::StrCat(reader.path(), ": ", key);
}

// Depth and hidden width of a MemoryMLP for heads of `dim`.
MemoryNetwork ReadMlp(ConfigReader& reader, int dim, int default_depth, double default_expansion) {
  MemoryNetwork network;
  network.depth = reader.Int("depth", default_depth, 1, kMaxMemoryDepth);
  const double expansion = reader.Number("expansion_factor", default_expansion, 0, 4096);
  if (network.depth == 1) return network;
  network.hidden = static_cast<int>(dim * expansion);
  if (network.hidden < 1 || network.hidden > MaxMemoryWidth(network.depth)) {
    reader.Invalid(
        "expansion_factor", expansion,
        absl::StrCat("a factor that makes the heads' width (", dim, ") times it, ", network.hidden,
                     ", at least 1 and at most ", MaxMemoryWidth(network.depth)));
    network.hidden = 1;
  }
  return network;
}

// The network of a memory: neural_memory_model, or what the memory makes itself.
MemoryNetwork ReadMemoryModel(ConfigReader& reader, ConfigReader& memory, int dim) {
  constexpr const char* kModel = "neural_memory_model";
  constexpr const char* kDefault = "default_model_kwargs";
  MemoryNetwork network;
  if (!reader.IsNull(kModel)) {
    ConfigReader part(ObjectOf(reader, kModel), PathOf(reader, kModel));
    // Other classes have other arguments.
    if (part.String("class", "MemoryMLP") != "MemoryMLP") {
      part.Unsupported("class", *part.Find("class"), "\"MemoryMLP\"");
    }
    part.Require({"class", "dim", "depth"});
    if (const int width = part.Int("dim", dim, 1, kMaxChannels); width != dim) {
      part.Invalid("dim", width, absl::StrCat("the width of the memory's heads, ", dim));
    }
    network = ReadMlp(part, dim, /*default_depth=*/2, /*default_expansion=*/2);
    part.RefuseUnknown();
    reader.Adopt(part);
    memory.Disregard({kDefault});
  } else if (!memory.IsNull(kDefault)) {
    ConfigReader part(ObjectOf(memory, kDefault), PathOf(memory, kDefault));
    part.Require({"depth"});
    network = ReadMlp(part, dim, /*default_depth=*/2, /*default_expansion=*/2);
    part.RefuseUnknown();
    memory.Adopt(part);
  } else {
    network.depth = 2;
    network.hidden = 4 * dim;
  }
  reader.Keep(kModel, json{network.depth, network.hidden});
  if (dim > MaxMemoryWidth(network.depth) || network.hidden > MaxMemoryWidth(network.depth)) {
    reader.Invalid(kModel, json{{"dim", dim}, {"depth", network.depth}},
                   absl::StrCat("a network at most ", MaxMemoryWidth(network.depth), " wide"));
  }
  return network;
}

// What upstream sets itself, or what no checkpoint says.
void RefuseMemoryKeys(ConfigReader& memory) {
  for (const char* key : {"dim", "chunk_size", "batch_size", "model", "qkv_receives_diff_views",
                          "accept_weight_residual"}) {
    if (!memory.Has(key)) continue;
    memory.Unsupported(key, *memory.Find(key),
                       "no such key: it follows from the arguments of the transformer");
  }
  for (const char* key : {"store_memory_loss_fn", "adaptive_step_transform"}) {
    RefuseUnlessNull(memory, key, "null: no function that is given instead");
  }
}

TitansPytorchMemoryConfig ReadMemory(ConfigReader& reader, ModelConfig& model, int model_dim,
                                     int step, int anchor) {
  constexpr const char* kKey = "neural_memory_kwargs";
  ConfigReader part(ObjectOf(reader, kKey), PathOf(reader, kKey));
  RefuseMemoryKeys(part);
  TitansPytorchMemoryConfig config;
  TrainedMemoryConfig& memory = config.memory;
  memory.heads = part.Int("heads", 1, 1, kMaxHeads);
  memory.dim = part.NullableInt("dim_head", 1, kMaxChannels).value_or(model_dim);
  part.Keep("dim_head", memory.dim);
  if (memory.heads == 1 && memory.dim != model_dim) {
    part.Invalid("dim_head", memory.dim,
                 absl::StrCat("dim (", model_dim, ") with a memory of one head"));
  }
  CheckChannels(part, int64_t{memory.heads} * memory.dim, "heads");
  memory.network = ReadMemoryModel(reader, part, memory.dim);
  memory.network.activation = MemoryNetwork::Activation::kGelu;
  if (part.Bool("mem_model_norm_add_residual", true)) {
    memory.network.norm = MemoryNetwork::Norm::kLayer;
    memory.network.trains_gain = true;
    memory.network.gain_offset = 1;
    memory.network.eps = 1e-5f;
  }
  memory.step = step;
  memory.anchor_period = anchor;
  memory.keys = part.Int("num_kv_per_token", 1, 1, kMaxKeysOfToken);
  CheckChannels(part, int64_t{memory.heads} * memory.dim * memory.keys, "num_kv_per_token");
  // Twice, of a mean of squares; and 1/2 |..|^2 is what the operation takes the gradient of.
  memory.loss_scale = 1.0 / memory.dim;
  memory.rate_scale =
      part.Number("default_step_transform_max_lr", 1, kLeastNumber, 1e6) * 2 * memory.loss_scale;
  const bool momentum = ReadSwitch(part, model, "momentum", true, ".4.to_momentum.");
  const int order = part.Int("momentum_order", 1, 1, kMaxMomentumOrders);
  memory.orders = momentum ? order : 0;
  config.mixes_momenta =
      ReadSwitch(part, model, "learned_momentum_combine", false, ".4.to_learned_momentum_combine.");
  config.mixes_surprise = part.Bool("learned_combine_include_zeroth", false);
  if (config.mixes_momenta && memory.orders < 2) {
    part.Invalid("learned_momentum_combine", true,
                 "false without \"momentum\", and with a momentum_order of 1");
  }
  if (!momentum) part.Disregard({"momentum_order"});
  if (!config.mixes_momenta) part.Disregard({"learned_combine_include_zeroth"});
  if (!part.IsNull("max_grad_norm")) {
    memory.max_grad_norm = part.Number("max_grad_norm", 1, kLeastNumber, 1e6);
  }
  memory.spectral_norm = part.Bool("spectral_norm_surprises", false);
  config.gated_transition =
      ReadSwitch(part, model, "gated_transition", false, ".4.transition_gate");
  config.same_start = !part.Bool("per_head_learned_parameters", true);
  config.input_norms = ReadSwitch(part, model, "pre_rmsnorm", true, ".4.retrieve_norm.");
  config.qk_norm = ReadSwitch(part, model, "qk_rmsnorm", false, ".4.q_norm.");
  config.output_norm = ReadSwitch(part, model, "post_rmsnorm", false, ".4.multihead_rmsnorm.");
  if (!part.IsNull("activation")) {
    config.silu = true;
    if (part.String("activation", "silu") != "silu") {
      part.Unsupported("activation", *part.Find("activation"), "null or \"silu\"");
    }
  }
  if (ReadSwitch(part, model, "attn_pool_chunks", false, ".4.reduce_to_chunk_rep.")) {
    config.pooling = TitansPytorchMemoryConfig::Pooling::kAttention;
    if (step == 1) {
      part.Invalid("attn_pool_chunks", true, "false where a memory takes steps of one token");
    }
  }
  const bool tensor_rates =
      ReadSwitch(part, model, "per_parameter_lr_modulation", false, ".4.to_layer_modulation.");
  const double most = part.Number("max_mem_layer_modulation", 1, kLeastNumber, 1e6);
  if (tensor_rates) config.tensor_rate_max = most;
  if (!tensor_rates) part.Disregard({"max_mem_layer_modulation"});
  part.Disregard(
      {"use_accelerated_scan", "init_adaptive_step_bias", "init_momentum_bias", "init_decay_bias"});
  part.RefuseUnknown();
  reader.Adopt(part);
  reader.Keep(kKey, part.values());
  return config;
}

std::vector<bool> ReadMemoryLayers(ConfigReader& reader, int layers, ModelConfig& config) {
  constexpr const char* kKey = "neural_memory_layers";
  std::vector<bool> has_memory(static_cast<size_t>(layers), true);
  if (!reader.IsNull(kKey)) {
    const json& list = *reader.Find(kKey);
    has_memory.assign(has_memory.size(), false);
    bool right = list.is_array();
    for (const json& layer : right ? list : json::array()) {
      if (!layer.is_number_integer() || layer < 1 || layer > layers) {
        right = false;
        break;
      }
      const size_t index = layer.get<size_t>() - 1;
      if (has_memory[index]) {
        config.warnings.push_back(absl::StrCat("key \"", kKey, "\" is ", Shown(list),
                                               ", which has layer ", index + 1, " twice"));
      }
      has_memory[index] = true;
    }
    if (!right) {
      reader.Invalid(kKey, list,
                     absl::StrCat("a list of layers, which count from 1 to ", layers, ", or null"));
    }
  }
  reader.Keep(kKey, json(has_memory));
  return has_memory;
}

// Whether the version, which is written down for people, is before 0.5.0.
bool IsBeforeConstrained(ConfigReader& reader) {
  const json* version = reader.Find("titans_pytorch_version");
  if (version == nullptr || !version->is_string()) return false;
  const std::vector<std::string> numbers = absl::StrSplit(version->get<std::string>(), '.');
  int major = 0, minor = 0;
  return numbers.size() >= 2 && absl::SimpleAtoi(numbers[0], &major) &&
         absl::SimpleAtoi(numbers[1], &minor) && major == 0 && minor < 5;
}

ResidualStreamsConfig ReadStreams(ConfigReader& reader, ModelConfig& config) {
  constexpr const char* kKey = "hyper_connections";
  ResidualStreamsConfig settings;
  settings.streams = reader.Int("num_residual_streams", 4, 1, kMaxResidualStreams);
  if (settings.streams == 1) {
    NoteLeftOut(config, "num_residual_streams", 1, ".static_alpha");
    reader.Disregard({kKey});
    return settings;
  }
  if (reader.IsNull(kKey)) {
    constexpr absl::string_view kWanted =
        "the kind of the checkpoint's hyper-connections, which it does not record: \"hc\" "
        "(titans-pytorch before 0.5.0), \"mhc_0_3_11\" (the package hyper-connections 0.3.11) or "
        "\"mhc\" (0.3.12 and later)";
    if (reader.Has(kKey)) {
      reader.Invalid(kKey, nullptr, kWanted);
    } else {
      reader.Missing(kKey, absl::StrCat("expected ", kWanted));
    }
    return settings;
  }
  constexpr StreamMixing::Kind kKinds[] = {StreamMixing::Kind::kConstrained,
                                           StreamMixing::Kind::kSum, StreamMixing::Kind::kDynamic};
  settings.mixing = kKinds[ReadChoice(reader, kKey, {"mhc", "mhc_0_3_11", "hc"})];
  if (settings.mixing != StreamMixing::Kind::kDynamic && IsBeforeConstrained(reader)) {
    WarnOfUnused(reader, config, {"titans_pytorch_version"},
                 "before 0.5.0 there was \"hc\" alone, and hyper_connections says otherwise");
  }
  return settings;
}

PersistentAttentionConfig ReadAttention(ConfigReader& reader, int positions) {
  PersistentAttentionConfig attention;
  attention.heads = reader.Int("heads", 8, 1, kMaxHeads);
  attention.head_dim = reader.Int("dim_head", 64, 1, kMaxHeadDim);
  if (attention.head_dim % 2 != 0) {
    reader.Invalid("dim_head", attention.head_dim, "an even width, whose pairs are rotated");
    attention.head_dim = 2;
  }
  CheckChannels(reader, int64_t{attention.heads} * attention.head_dim, "heads");
  attention.persistent = reader.Int("num_persist_mem_tokens", 0, 0, kMaxPersistentTokens);
  // A token sees keys at most so far away, and itself.
  if (reader.Bool("sliding_window_attn", false)) {
    attention.window = positions + 1;
  } else {
    attention.segment = positions;
  }
  return attention;
}

NetworkMaker ReadTitansPytorch(absl::string_view, ConfigReader& reader, ModelConfig& config) {
  reader.Require({"num_tokens", "dim", "depth", "segment_len"});
  RefuseUnlessNull(reader, "token_emb", "null: the embedding is \"token_emb.weight\"");
  TitansPytorchParts parts;
  parts.info = {.vocab = reader.Int("num_tokens", 1, 1, kMaxVocab),
                .model_dim = reader.Int("dim", 1, 1, kMaxModelDim),
                .layers = reader.Int("depth", 1, 1, kMaxLayers)};
  const int dim = parts.info.model_dim;
  const int segment = reader.Int("segment_len", 1, 1, kMaxMemoryPeriod);
  const int longterm = reader.Int("num_longterm_mem_tokens", 0, 0, kMaxInserted);
  if (longterm > 0) parts.info.inserted = {.every = segment, .count = longterm};
  const auto given = reader.NullableInt("neural_memory_segment_len", 1, kMaxMemoryStep);
  const int step = reader.Keep("neural_memory_segment_len", given.value_or(segment + longterm));
  if (step > kMaxMemoryStep) {
    reader.Invalid("segment_len", segment,
                   absl::StrCat("at most ", kMaxMemoryStep,
                                " with the longterm tokens, or a neural_memory_segment_len"));
  }
  const int anchor =
      reader.NullableInt("neural_memory_batch_size", 1, kMaxMemoryPeriod).value_or(0);
  if (anchor % step != 0) {
    reader.Invalid("neural_memory_batch_size", anchor,
                   absl::StrCat("a multiple of neural_memory_segment_len (", step, "), or null"));
  }
  parts.norm_eps =
      static_cast<float>(reader.Number("rms_norm_eps", 1.1920928955078125e-07, kLeastNumber, 1));
  const auto inner = int64_t{dim} * reader.Int("ff_mult", 4, 1, 1024) * 2 / 3;
  if (inner < 1 || inner > kMaxMlpDim) {
    reader.Invalid("ff_mult", inner,
                   absl::StrCat("a factor that makes dim times 2/3 of it, ", inner,
                                ", at least 1 and at most ", kMaxMlpDim));
  }
  parts.mlp_dim = static_cast<int>(inner);
  parts.streams = ReadStreams(reader, config);
  parts.has_memory = ReadMemoryLayers(reader, parts.info.layers, config);
  parts.memory = ReadMemory(reader, config, dim, step, anchor % step == 0 ? anchor : 0);
  parts.attention = ReadAttention(reader, segment + longterm);
  parts.attention.inserted = parts.info.inserted;
  parts.gates_attention = reader.Bool("neural_mem_gate_attn_output", false);
  parts.weight_residual = ReadSwitch(reader, config, "neural_mem_weight_residual", false,
                                     ".4.to_learned_weight_residual_mix.");
  parts.views =
      ReadSwitch(reader, config, "neural_memory_qkv_receives_diff_views", false, ".3.1.weight");
  config.vocab = parts.info.vocab;
  const std::vector<int32_t> bos = ReadTokenIds(reader, "bos_token_id", config.vocab);
  if (!bos.empty()) config.bos_token = bos.front();
  config.eos_tokens = ReadTokenIds(reader, "eos_token_id", config.vocab);
  reader.Disregard({"architectures", "titans_pytorch_version", "bos_token_id", "eos_token_id",
                    "use_flex_attn", "use_accelerated_scan", "neural_memory_add_value_residual",
                    "init_adaptive_step_bias", "init_momentum_bias", "init_decay_bias"});
  reader.RefuseUnknown();
  return
      [parts](const NetworkBuilder& builder) { return MakeTitansPytorchNetwork(builder, parts); };
}

}  // namespace

const Architecture kTitansPytorch = {.model_type = "titans_mac_lucidrains",
                                     .read = ReadTitansPytorch};

}  // namespace mneme
