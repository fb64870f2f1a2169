#include "models/families/titans.h"

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "models/families/families.h"
#include "models/families/titans_parts.h"
#include "models/mixers/memory_and_attention.h"
#include "models/mixers/memory_as_context.h"
#include "models/mixers/neural_memory.h"

namespace mneme {
namespace {

using nlohmann::json;

// Refuses a key that is there with another value than the one of models without what it asks for.
void RefuseUnless(ConfigReader& reader, const char* key, const json& off) {
  if (reader.Has(key) && *reader.Find(key) != off) {
    reader.Unsupported(key, *reader.Find(key), off.dump());
  }
}

// Options of titans-pytorch beyond the paper, which the neutral format has keys for.
void RefuseOptions(ConfigReader& reader, int layers) {
  RefuseUnless(reader, "mixer", "neural_memory");
  RefuseUnless(reader, "memory_rule", "gradient");
  RefuseUnless(reader, "hidden_act", "silu");
  RefuseUnless(reader, "memory_state_dtype", "float32");
  RefuseUnless(reader, "hyper_connection", "none");
  for (const char* key :
       {"mlp_bias", "value_residual", "memory_momentum_mix", "memory_momentum_mix_zeroth",
        "memory_spectral_norm", "memory_weight_residual", "memory_gated_transition",
        "memory_view_selector", "memory_output_norm"}) {
    RefuseUnless(reader, key, false);
  }
  for (const char* key : {"memory_max_grad_norm", "memory_layer_lr_max"}) {
    RefuseUnless(reader, key, nullptr);
  }
  for (const char* key : {"num_longterm_tokens", "axial_position"}) RefuseUnless(reader, key, 0);
  for (const char* key : {"memory_kv_per_token", "residual_streams"}) RefuseUnless(reader, key, 1);
  RefuseUnless(reader, "memory_output_proj", true);
  json all = json::array();
  for (int i = 0; i < layers; ++i) all.push_back(i);
  if (!reader.IsNull("memory_layers")) RefuseUnless(reader, "memory_layers", all);
}

MemoryNetwork ReadMemoryNetwork(ConfigReader& reader, int dim) {
  MemoryNetwork network;
  network.depth = reader.Int("memory_depth", 1, 1, kMaxMemoryDepth);
  const double expansion = reader.Number("memory_expansion", 1, 0, 4096);
  if (network.depth > 1) {
    network.hidden = static_cast<int>(dim * expansion);
    if (network.hidden < 1 || network.hidden > MaxMemoryWidth(network.depth)) {
      reader.Invalid(
          "memory_expansion", expansion,
          absl::StrCat("a factor that makes memory_head_dim (", dim, ") times it, ", network.hidden,
                       ", at least 1 and at most ", MaxMemoryWidth(network.depth)));
      network.hidden = 1;
    }
  }
  network.activation = ReadChoice(reader, "memory_activation", {"gelu_erf", "silu"}) == 0
                           ? MemoryNetwork::Activation::kGelu
                           : MemoryNetwork::Activation::kSilu;
  constexpr MemoryNetwork::Norm kNorms[] = {MemoryNetwork::Norm::kNone, MemoryNetwork::Norm::kLayer,
                                            MemoryNetwork::Norm::kRms};
  network.norm = kNorms[ReadChoice(reader, "memory_norm", {"none", "layer", "rms"})];
  const bool layer = network.norm == MemoryNetwork::Norm::kLayer;
  network.trains_gain = network.norm != MemoryNetwork::Norm::kNone;
  network.eps =
      static_cast<float>(reader.Number("memory_norm_eps", layer ? 1e-5 : 1e-6, kLeastNumber, 1));
  network.gain_offset = static_cast<float>(reader.Int("memory_norm_offset", layer ? 1 : 0, 0, 1));
  return network;
}

NeuralMemoryConfig ReadNeuralMemory(ConfigReader& reader, ModelConfig& config) {
  NeuralMemoryConfig memory;
  TrainedMemoryConfig& trained = memory.memory;
  trained.heads = reader.Int("memory_num_heads", 1, 1, kMaxHeads);
  trained.dim = reader.Int("memory_head_dim", 1, 1, MaxMemoryWidth(1));
  CheckChannels(reader, int64_t{trained.heads} * trained.dim, "memory_num_heads");
  trained.network = ReadMemoryNetwork(reader, trained.dim);
  if (trained.dim > MaxMemoryWidth(trained.network.depth)) {
    reader.Invalid("memory_head_dim", trained.dim,
                   absl::StrCat("at most ", MaxMemoryWidth(trained.network.depth),
                                " with a memory_depth of ", trained.network.depth));
  }
  // Twice, of a square; and 1/2 |..|^2 is what the operation takes the gradient of.
  const bool mean = ReadChoice(reader, "memory_loss", {"mean", "sum"}) == 0;
  trained.loss_scale = mean ? 1.0 / trained.dim : 1.0;
  trained.rate_scale =
      reader.Number("memory_theta_max", 1, kLeastNumber, 1e6) * 2 * trained.loss_scale;
  trained.step = reader.Int("memory_step_size", 1, 1, kMaxMemoryPeriod);
  trained.anchor_period =
      reader.NullableInt("memory_anchor_period", 1, kMaxMemoryPeriod).value_or(0);
  if (trained.anchor_period % trained.step != 0) {
    reader.Invalid("memory_anchor_period", trained.anchor_period,
                   absl::StrCat("a multiple of memory_step_size (", trained.step, "), or null"));
    trained.anchor_period = trained.step;
  }
  trained.read = ReadChoice(reader, "memory_read", {"running", "anchor"}) == 0
                     ? NeuralMemoryArgs::Read::kRunning
                     : NeuralMemoryArgs::Read::kAnchor;
  trained.orders = reader.Int("memory_momentum_order", 1, 0, 1);
  if (trained.orders == 0) NoteLeftOut(config, "memory_momentum_order", 0, ".memory.m_proj.");
  memory.forgets = ReadSwitch(reader, config, "memory_forget", true, ".memory.a_proj.");
  memory.exponential_decay = ReadChoice(reader, "memory_decay", {"sigmoid", "gdn"}) == 1;
  constexpr NeuralMemoryConfig::Pooling kPoolings[] = {NeuralMemoryConfig::Pooling::kToken,
                                                       NeuralMemoryConfig::Pooling::kGates,
                                                       NeuralMemoryConfig::Pooling::kInputs};
  if (trained.step > 1) reader.Require({"memory_gate_pooling"});
  memory.pooling =
      kPoolings[ReadChoice(reader, "memory_gate_pooling", {"token", "gate_mean", "input_mean"})];
  if ((trained.step == 1) != (memory.pooling == NeuralMemoryConfig::Pooling::kToken)) {
    reader.Invalid("memory_gate_pooling", reader.String("memory_gate_pooling", "token"),
                   trained.step == 1
                       ? "\"token\" with a memory_step_size of 1"
                       : "\"gate_mean\" or \"input_mean\" with steps of several tokens");
  }
  memory.conv_width = reader.Int("memory_conv_kernel", 4, 0, kMaxConvWidth);
  if (memory.conv_width == 0) NoteLeftOut(config, "memory_conv_kernel", 0, "_conv.");
  memory.conv_bias = ReadSwitch(reader, config, "memory_conv_bias", false, "_conv.bias");
  memory.silu = ReadChoice(reader, "memory_qkv_activation", {"silu", "none"}) == 0;
  memory.l2_norm = ReadChoice(reader, "memory_qk_norm", {"l2", "none"}) == 0;
  memory.gated_output = ReadChoice(reader, "memory_output", {"gated_rms", "none"}) == 0;
  if (!memory.gated_output) NoteLeftOut(config, "memory_output", "none", ".memory.g_proj.");
  return memory;
}

enum Variant { kMemoryAlone, kMemoryAsContext, kMemoryAsGate, kMemoryAsLayer };

// Attention of the variants that have it, but for its window and what precedes it.
PrefixAttentionConfig ReadAttentionHeads(ConfigReader& reader) {
  reader.Require({"num_attention_heads", "head_dim"});
  PrefixAttentionConfig attention;
  attention.heads = reader.Int("num_attention_heads", 1, 1, kMaxHeads);
  attention.head_dim = reader.Int("head_dim", 2, 1, kMaxHeadDim);
  if (attention.head_dim % 2 != 0) {
    reader.Invalid("head_dim", attention.head_dim, "an even width, whose pairs are rotated");
    attention.head_dim = 2;
  }
  CheckChannels(reader, int64_t{attention.heads} * attention.head_dim, "num_attention_heads");
  attention.rope_theta = reader.Number("rope_theta", 10000, 1, 1e30);
  attention.rope_interleaved = reader.Bool("rope_interleaved", true);
  return attention;
}

PrefixAttentionConfig ReadAttention(ConfigReader& reader, ModelConfig& config) {
  PrefixAttentionConfig attention = ReadAttentionHeads(reader);
  ReadChoice(reader, "rope_position", {"absolute"});
  if (ReadChoice(reader, "attention_kind", {"sliding", "full"}) == 0) {
    reader.Require({"sliding_window"});
    // A token sees keys at most so far away, and itself.
    attention.window = reader.Int("sliding_window", 1, 0, kMaxWindow - 1) + 1;
  } else {
    WarnOfUnused(reader, config, {"sliding_window"}, "attention_kind \"full\" has no window");
  }
  return attention;
}

Activation ReadFusion(ConfigReader& reader) {
  reader.Require({"mag_activation", "mag_gate_both"});
  constexpr Activation kActivations[] = {Activation::kSilu, Activation::kSigmoid,
                                         Activation::kIdentity};
  return kActivations[ReadChoice(reader, "mag_activation", {"silu", "sigmoid", "identity"})];
}

MemoryAsContextConfig ReadContext(ConfigReader& reader, ModelConfig& config,
                                  NeuralMemoryConfig memory, int persistent) {
  reader.Require({"segment_length", "mac_context", "mac_output_memory"});
  ReadChoice(reader, "attention_kind", {"segmented"});
  ReadChoice(reader, "rope_position", {"segment"});
  ReadChoice(reader, "memory_integration", {"context"});
  ReadChoice(reader, "mac_context", {"aligned_causal"});
  WarnOfUnused(reader, config, {"sliding_window"}, "a token attends to its segment alone");
  WarnOfUnused(reader, config, {"mal_inner_residual"}, "it is of the variant \"mal\"");
  const PrefixAttentionConfig heads = ReadAttentionHeads(reader);
  MemoryAsContextConfig context = {.heads = heads.heads,
                                   .head_dim = heads.head_dim,
                                   .rope_theta = heads.rope_theta,
                                   .rope_interleaved = heads.rope_interleaved,
                                   .segment = reader.Int("segment_length", 1, 1, kMaxMemoryPeriod),
                                   .persistent = persistent,
                                   .activation = ReadFusion(reader),
                                   .activates_both = reader.Bool("mag_gate_both", true)};
  // The memory as it was when the segment began. An anchor that is refreshed then is that.
  TrainedMemoryConfig& trained = memory.memory;
  const bool is_anchor =
      trained.anchor_period == context.segment && trained.anchor_period != trained.step;
  if (!is_anchor) trained.frozen_period = context.segment;
  memory.recalls = true;
  if (ReadChoice(reader, "mac_output_memory", {"running", "segment_start"}) == 1) {
    if (trained.read != NeuralMemoryArgs::Read::kRunning) {
      reader.Invalid("mac_output_memory", "segment_start",
                     "\"running\" with a memory_read of \"anchor\"");
    }
    trained.read = is_anchor ? NeuralMemoryArgs::Read::kAnchor : NeuralMemoryArgs::Read::kFrozen;
  }
  context.memory = memory;
  return context;
}

MixerMaker ReadMixer(ConfigReader& reader, ModelConfig& config, Variant variant,
                     const NeuralMemoryConfig& memory, int prefix) {
  if (variant == kMemoryAlone) {
    ReadChoice(reader, "attention_kind", {"none"});
    ReadChoice(reader, "memory_integration", {"residual"});
    WarnOfUnused(reader, config,
                 {"num_attention_heads", "head_dim", "rope_theta", "rope_interleaved",
                  "rope_position", "sliding_window", "segment_length", "mag_activation",
                  "mag_gate_both", "mal_inner_residual", "mac_context", "mac_output_memory"},
                 "the variant \"lmm\" is a memory without attention");
    return [memory](const LayerBuilder& builder) { return MakeNeuralMemory(builder, memory); };
  }
  if (variant == kMemoryAsContext) {
    const MemoryAsContextConfig context = ReadContext(reader, config, memory, prefix);
    return [context](const LayerBuilder& builder) { return MakeMemoryAsContext(builder, context); };
  }
  PrefixAttentionConfig attention = ReadAttention(reader, config);
  attention.prefix = prefix;
  WarnOfUnused(reader, config, {"segment_length", "mac_context", "mac_output_memory"},
               "it is of the variant \"mac\"");
  if (variant == kMemoryAsGate) {
    ReadChoice(reader, "memory_integration", {"product"});
    WarnOfUnused(reader, config, {"mal_inner_residual"}, "it is of the variant \"mal\"");
    const MemoryAsGateConfig mixer = {.memory = memory,
                                      .attention = attention,
                                      .activation = ReadFusion(reader),
                                      .activates_both = reader.Bool("mag_gate_both", true)};
    return [mixer](const LayerBuilder& builder) { return MakeMemoryAsGate(builder, mixer); };
  }
  reader.Require({"mal_inner_residual"});
  ReadChoice(reader, "memory_integration", {"residual"});
  WarnOfUnused(reader, config, {"mag_activation", "mag_gate_both"},
               "they are of the variants \"mac\" and \"mag\"");
  const MemoryAsLayerConfig mixer = {.memory = memory,
                                     .attention = attention,
                                     .inner_residual = reader.Bool("mal_inner_residual", true)};
  return [mixer](const LayerBuilder& builder) { return MakeMemoryAsLayer(builder, mixer); };
}

NetworkMaker ReadTitans(absl::string_view, ConfigReader& reader, ModelConfig& config) {
  if (reader.Has("architecture_variant")) {
    if (reader.Has("variant")) {
      reader.Invalid("architecture_variant", *reader.Find("architecture_variant"),
                     "no such key beside \"variant\": the one is NeMo Automodel's, the other the "
                     "neutral format's");
    }
    return ReadTitansOfAutomodel(reader, config);
  }
  reader.Require({"variant", "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size",
                  "attention_kind", "memory_num_heads", "memory_head_dim", "memory_depth",
                  "memory_expansion", "memory_norm", "memory_loss", "memory_step_size",
                  "memory_anchor_period", "memory_read", "memory_theta_max"});
  const auto variant =
      static_cast<Variant>(ReadChoice(reader, "variant", {"lmm", "mac", "mag", "mal"}));
  StackKeys stack;
  stack.vocab = reader.Int("vocab_size", 1, 1, kMaxVocab);
  stack.model_dim = reader.Int("hidden_size", 1, 1, kMaxModelDim);
  stack.layers = reader.Int("num_hidden_layers", 1, 1, kMaxLayers);
  stack.mlp_dim = reader.Int("intermediate_size", 1, 1, kMaxMlpDim);
  stack.norm_eps = static_cast<float>(reader.Number("rms_norm_eps", 1e-6, kLeastNumber, 1));
  constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  ReadTokensAndTies(reader, stack, config, {.bos = kNone, .eos = kNone});
  RefuseOptions(reader, stack.layers);
  NeuralMemoryConfig memory = ReadNeuralMemory(reader, config);
  memory.output_norm_eps = stack.norm_eps;
  const int prefix = reader.Int("num_persistent_tokens", 0, 0, kMaxPersistentTokens);
  if (prefix == 0) NoteLeftOut(config, "num_persistent_tokens", 0, "persistent_memory");
  const char* kind = variant == kMemoryAsContext ? "segment" : "prefix";
  if (prefix > 0) {
    reader.Require({"persistent_kind"});
    ReadChoice(reader, "persistent_kind", {kind});
  } else if (!reader.IsNull("persistent_kind") && *reader.Find("persistent_kind") != kind) {
    WarnOfUnused(reader, config, {"persistent_kind"}, "there are no persistent tokens");
  }
  memory.memory.prefix = variant == kMemoryAsContext ? 0 : prefix;
  const MixerMaker mixer = ReadMixer(reader, config, variant, memory, prefix);
  reader.Disregard({"architectures", "transformers_version", "_name_or_path", "use_cache",
                    "initializer_range", "max_position_embeddings", "persistent_kind"});
  reader.RefuseUnknown();

  return TitansNetwork(stack, memory.memory.prefix, mixer);
}

}  // namespace

const Architecture kTitans = {.model_type = "titans", .read = ReadTitans};

}  // namespace mneme
