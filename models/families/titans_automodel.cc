// Titans as NVIDIA's NeMo Automodel writes it: model_type "titans", too, with
// `architecture_variant`. A key that is missing has the default of its configuration class.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "models/families/titans.h"
#include "models/families/titans_parts.h"
#include "models/mixers/memory_and_attention.h"
#include "models/mixers/neural_memory.h"

namespace mneme {
namespace {

// The epsilon of the memory's network and of its output's norm, whatever rms_norm_eps says.
constexpr float kMemoryNormEps = 1e-6f;

MemoryNetwork ReadNetwork(ConfigReader& reader, int dim) {
  MemoryNetwork network;
  network.depth = reader.Int("mem_depth", 1, 1, kMaxMemoryDepth);
  if (network.depth == 1) {  // has neither a hidden layer nor a norm
    reader.Disregard({"memory_expansion_factor", "memory_residual_norm"});
    return network;
  }
  const double expansion = reader.Number("memory_expansion_factor", 4, 0, 4096);
  network.hidden = std::max(1, static_cast<int>(dim * expansion));
  const int widest = MaxMemoryWidth(network.depth);
  if (network.hidden > widest) {
    reader.Invalid("memory_expansion_factor", expansion,
                   absl::StrCat("a factor that makes head_dim (", dim, ") times it, ",
                                network.hidden, ", at most ", widest));
    network.hidden = widest;
  }
  if (dim > widest) {
    reader.Invalid("head_dim", dim,
                   absl::StrCat("at most ", widest, " with a mem_depth of ", network.depth));
  }
  if (reader.Bool("memory_residual_norm", true)) {
    network.norm = MemoryNetwork::Norm::kRms;
    network.eps = kMemoryNormEps;
    network.trains_gain = true;
  }
  return network;
}

// When a memory takes its steps, and from where: "reference" has steps of a token with the gradient
// at the chunk's start, where all of the chunk reads, too; "titans_pytorch" has a step a chunk.
void ReadSteps(ConfigReader& reader, NeuralMemoryConfig& memory) {
  TrainedMemoryConfig& trained = memory.memory;
  const int chunk = reader.Int("chunk_size", 16, 1, kMaxMemoryPeriod);
  if (ReadChoice(reader, "deep_memory_backend", {"reference", "titans_pytorch"}) == 0) {
    reader.Disregard({"memory_batch_size"});
    trained.step = 1;
    trained.anchor_period = chunk;
    trained.read = NeuralMemoryArgs::Read::kAnchor;
    return;
  }
  const auto period = reader.NullableInt("memory_batch_size", 1, kMaxMemoryPeriod);
  trained.step = chunk;
  trained.anchor_period = period.value_or(chunk);
  if (!period) {
    reader.Unsupported("memory_batch_size", nullptr,
                       "a number of tokens: without one the gradient's weights change where a call "
                       "ends, and what the model says depends on how its input is cut");
  } else if (*period % chunk != 0) {
    reader.Invalid("memory_batch_size", *period,
                   absl::StrCat("a multiple of chunk_size (", chunk, ")"));
    trained.anchor_period = chunk;
  }
  memory.pooling =
      chunk == 1 ? NeuralMemoryConfig::Pooling::kToken : NeuralMemoryConfig::Pooling::kGates;
}

// A memory of one matrix follows another rule there, the gated delta rule with momentum: its steps
// are of a token, forget before they learn, and begin at zeros; the loss is half the sum of
// squares.
void SetLinearRule(ConfigReader& reader, NeuralMemoryConfig& memory) {
  TrainedMemoryConfig& trained = memory.memory;
  reader.Disregard({"chunk_size", "deep_memory_backend", "memory_batch_size"});
  trained.decays_first = true;
  trained.loss_scale = 0.5;
  memory.starts_at_zero = true;
  memory.query_scale = 1.0f / std::sqrt(static_cast<float>(trained.dim));
}

NeuralMemoryConfig ReadMemory(ConfigReader& reader, ModelConfig& config, int heads, int dim) {
  NeuralMemoryConfig memory;
  TrainedMemoryConfig& trained = memory.memory;
  trained.heads = heads;
  trained.dim = dim;
  trained.network = ReadNetwork(reader, dim);
  // The loss is the mean of squares. Automodel's own rates go up to 1; the neutral format's key may
  // say otherwise.
  trained.loss_scale = 1.0 / dim;
  if (trained.network.depth == 1) {
    SetLinearRule(reader, memory);
  } else {
    ReadSteps(reader, memory);
  }
  trained.rate_scale =
      reader.Number("memory_theta_max", 1, kLeastNumber, 1e6) * 2 * trained.loss_scale;
  trained.orders = ReadSwitch(reader, config, "momentum", true, ".memory.m_proj.") ? 1 : 0;
  memory.forgets = ReadSwitch(reader, config, "forget", true, ".memory.a_proj.");
  memory.may_have_forget_gate = true;
  memory.exponential_decay = true;
  memory.conv_width = reader.Int("qkv_conv_kernel_size", 4, 0, kMaxConvWidth);
  if (memory.conv_width == 0) NoteLeftOut(config, "qkv_conv_kernel_size", 0, "_conv.");
  memory.silu = false;
  memory.output_norm_eps = kMemoryNormEps;
  return memory;
}

PrefixAttentionConfig ReadAttention(ConfigReader& reader, int heads, int dim, int prefix) {
  if (dim % 2 != 0) {
    reader.Invalid("head_dim", dim, "an even width, whose pairs are rotated");
    dim = 2;
  }
  return {.heads = heads, .head_dim = dim, .prefix = prefix};
}

enum class AutomodelVariant : uint8_t { kLmm, kMag, kMal };

AutomodelVariant ReadVariant(ConfigReader& reader) {
  if (*reader.Find("architecture_variant") != "mac") {
    return static_cast<AutomodelVariant>(
        ReadChoice(reader, "architecture_variant", {"lmm", "mag", "mal"}));
  }
  reader.Unsupported("architecture_variant", "mac",
                     "one of \"lmm\", \"mag\", \"mal\": there \"mac\" adds what the memory says to "
                     "the tokens of a segment and to long-term tokens behind them, whose positions "
                     "begin anew in each segment, and is neither the \"mac\" of the neutral format "
                     "nor that of titans-pytorch");
  return AutomodelVariant::kLmm;
}

}  // namespace

NetworkMaker ReadTitansOfAutomodel(ConfigReader& reader, ModelConfig& config) {
  const AutomodelVariant variant = ReadVariant(reader);
  StackKeys stack;
  stack.vocab = reader.Int("vocab_size", 256, 1, kMaxVocab);
  stack.model_dim = reader.Int("hidden_size", 512, 1, kMaxModelDim);
  stack.layers = reader.Int("num_hidden_layers", 6, 1, kMaxLayers);
  stack.mlp_dim = reader.Int("intermediate_size", 1376, 1, kMaxMlpDim);
  stack.norm_eps = static_cast<float>(reader.Number("rms_norm_eps", 1e-6, kLeastNumber, 1));
  ReadChoice(reader, "hidden_act", {"silu"});
  ReadTokensAndTies(reader, stack, config, {.bos = 0, .eos = 1, .tied = true});
  const int heads = reader.Int("num_attention_heads", 8, 1, kMaxHeads);
  const int dim = reader.Int("head_dim", 64, 1, kMaxHeadDim);
  CheckChannels(reader, int64_t{heads} * dim, "num_attention_heads");
  NeuralMemoryConfig memory = ReadMemory(reader, config, heads, dim);
  const int prefix = reader.Int("num_persistent_memory_tokens", 0, 0, kMaxPersistentTokens);
  memory.memory.prefix = prefix;
  reader.Disregard({"attention_segment_size", "num_longterm_memory_tokens", "architectures",
                    "transformers_version", "_name_or_path", "use_cache", "initializer_range",
                    "max_position_embeddings"});

  MixerMaker mixer = [memory](const LayerBuilder& builder) {
    return MakeNeuralMemory(builder, memory);
  };
  if (variant != AutomodelVariant::kLmm) {
    const PrefixAttentionConfig attention = ReadAttention(reader, heads, dim, prefix);
    if (variant == AutomodelVariant::kMag) {
      mixer = [gate = MemoryAsGateConfig{.memory = memory, .attention = attention}](
                  const LayerBuilder& builder) { return MakeMemoryAsGate(builder, gate); };
    } else {
      mixer = [layer = MemoryAsLayerConfig{.memory = memory, .attention = attention}](
                  const LayerBuilder& builder) { return MakeMemoryAsLayer(builder, layer); };
    }
  }
  reader.RefuseUnknown();
  return TitansNetwork(stack, prefix, mixer);
}

}  // namespace mneme
