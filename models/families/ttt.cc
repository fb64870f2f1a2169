#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "models/blocks/residual_block.h"
#include "models/families/families.h"
#include "models/families/stack_keys.h"
#include "models/feed_forwards/gated_mlp.h"
#include "models/mixers/test_time_training.h"

namespace mneme {
namespace {

constexpr int kMaxMiniBatch = 1 << 16;

TestTimeTrainingConfig ReadMemory(ConfigReader& reader, ModelConfig& config, int model_dim) {
  TestTimeTrainingConfig memory;
  const std::string type = reader.String("ttt_layer_type", "linear");
  if (type != "linear" && type != "mlp") {
    reader.Unsupported("ttt_layer_type", type, "\"linear\" or \"mlp\"");
  }
  memory.mlp = type == "mlp";
  memory.heads = reader.Int("num_attention_heads", 32, 1, kMaxHeads);
  const int most = MaxMemoryWidth(memory.mlp ? 2 : 1) / (memory.mlp ? 4 : 1);
  if (model_dim % memory.heads != 0 || model_dim / memory.heads % 2 != 0 ||
      model_dim / memory.heads > most) {
    reader.Invalid("num_attention_heads", memory.heads,
                   absl::StrCat("a number that divides hidden_size (", model_dim,
                                ") into heads of an even width of at most ", most));
    memory.heads = 1;
  }
  memory.mini_batch = reader.Int("mini_batch_size", 16, 1, kMaxMiniBatch);
  memory.base_rate = reader.Number("ttt_base_lr", 1, kLeastNumber, 1e6);
  memory.rope_theta = reader.Number("rope_theta", 10000, 1, 1e30);
  memory.gate = ReadSwitch(reader, config, "use_gate", false, ".g_proj.");
  memory.share_qk = ReadSwitch(reader, config, "share_qk", false, ".conv_q.");
  if (memory.share_qk) NoteLeftOut(config, "share_qk", true, "seq_modeling_block.k_proj.");
  memory.pre_conv = ReadSwitch(reader, config, "pre_conv", false, ".conv.norm.");
  memory.conv_width = reader.Int("conv_kernel", 4, 1, kMaxConvWidth);
  if (!memory.share_qk && !memory.pre_conv) reader.Disregard({"conv_kernel"});
  return memory;
}

NetworkMaker ReadTtt(absl::string_view, ConfigReader& reader, ModelConfig& config) {
  RefuseUnlessNull(reader, "quantization_config", "null: only f32, bf16 and f16 weights are read");
  RefuseUnlessNull(reader, "rope_scaling", "null: frequencies are those of rope_theta alone");
  RefuseUnlessNull(reader, "attention_kind", "null: there is no attention; the key is of Titans");
  ReadSilu(reader, "silu");
  StackKeys stack;
  stack.vocab = reader.Int("vocab_size", 32000, 1, kMaxVocab);
  stack.model_dim = reader.Int("hidden_size", 2048, 1, kMaxModelDim);
  stack.layers = reader.Int("num_hidden_layers", 24, 1, kMaxLayers);
  stack.mlp_dim = reader.Int("intermediate_size", 5504, 1, kMaxMlpDim);
  stack.norm_eps = static_cast<float>(reader.Number("rms_norm_eps", 1e-6, kLeastNumber, 1));
  ReadTokensAndTies(reader, stack, config, {.tied = true});
  stack.obeys_tied = true;
  const TestTimeTrainingConfig memory = ReadMemory(reader, config, stack.model_dim);
  // These slice the same products, concern training, or choose one of upstream's ways.
  reader.Disregard({"pretraining_tp", "scan_checkpoint_group_size", "max_position_embeddings",
                    "initializer_range", "use_cache"});
  LanguageModelParts parts = stack.Parts();
  parts.embeddings = "model.embed_tokens.weight";
  const ResidualBlockParts block = {
      .mixer_norm = {"seq_norm.weight"},
      .mixer =
          [memory](const LayerBuilder& builder) { return MakeTestTimeTraining(builder, memory); },
      .feed_forward_norm = {"ffn_norm.weight"},
      .feed_forward = [mlp_dim = stack.mlp_dim](
                          const LayerBuilder& builder) { return MakeGatedMlp(builder, mlp_dim); }};
  parts.block = [block](const LayerBuilder& builder) { return MakeResidualBlock(builder, block); };
  return [parts](const NetworkBuilder& builder) { return MakeLanguageModel(builder, parts); };
}

}  // namespace

const Architecture kTtt = {.model_type = "ttt", .read = ReadTtt};

}  // namespace mneme
