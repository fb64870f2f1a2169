// The token at position p, per head h, which has its keys and values from head h / (heads /
// kv_heads):
//   q, k = rope(norm(Wq x + bq), p), rope(norm(Wk x + bk), p);   v = Wv x + bv
//   o = sum_j softmax_j( scale q . k_j ) v_j                     j: positions up to p in its window
//   out = Wo concat(o) + bo

#include "models/mixers/attention.h"

#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/mixers/attention_context.h"
#include "models/mixers/entry_streams.h"
#include "models/mixers/rope_frequencies.h"
#include "models/projection.h"
#include "models/step_products.h"

namespace mneme {
namespace {

class Attention final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const LayerBuilder& builder,
                                                             const AttentionConfig& config) {
    auto mixer = std::make_unique<Attention>();
    mixer->config_ = config;
    MNEME_RETURN_IF_ERROR(mixer->TakeProjections(builder));
    if (config.qk_norm) {
      for (const auto& [norm, tensor] : {std::pair(&mixer->q_norm_, "q_norm.weight"),
                                         std::pair(&mixer->k_norm_, "k_norm.weight")}) {
        norm->eps = config.qk_norm_eps;
        MNEME_ASSIGN_OR_RETURN(
            norm->weight,
            builder.weights().Floats(builder.Weight(absl::StrCat(config.prefix, tensor)),
                                     {config.head_dim}, WeightInit::kOnes));
      }
    }
    if (config.rotary) {
      MNEME_ASSIGN_OR_RETURN(mixer->frequencies_,
                             builder.weights().Constant(RopeFrequenciesInF32(
                                 config.rope_theta, config.head_dim, config.rope_scaling)));
    }

    const bool segmented = config.segment > 0;
    mixer->context_ = AttentionContext(builder, {.heads = config.kv_heads,
                                                 .head_dim = config.head_dim,
                                                 .ring = segmented ? config.segment : config.window,
                                                 .always_ring = segmented});
    return mixer;
  }

  bool uses_row_index() const override { return true; }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    Kernels& kernels = ctx.kernels();
    const int tokens = ctx.batch.tokens;
    const TensorView q = ctx.Temp({tokens, config_.query_channels()});
    const TensorView k = ctx.Temp({tokens, config_.kv_channels()});
    const TensorView v = ctx.Temp({tokens, config_.kv_channels()});
    ProjectNormed(ctx, norm, hidden,
                  {{.projection = q_proj_, .y = q},
                   {.projection = k_proj_, .y = k},
                   {.projection = v_proj_, .y = v}});
    const TensorView query = ByHead(q, config_.heads), key = ByHead(k, config_.kv_heads);
    NormHeads(ctx, q_norm_, query);
    NormHeads(ctx, k_norm_, key);
    for (const TensorView& turned : {query, key}) {
      if (!config_.rotary) break;
      kernels.Rope({.x = turned,
                    .positions = ctx.row_index.token_positions,
                    .frequencies = frequencies_,
                    .y = turned});
    }
    const TensorView read = TempForStep(ctx, config_.query_channels(), o_proj_);
    AttentionArgs attention =
        context_.Args(ctx, query, key, ByHead(v, config_.kv_heads), ByHead(read, config_.heads));
    attention.window = context_.is_ring() ? config_.window : 0;
    attention.segment = config_.segment;
    attention.scale = config_.score_scale();
    kernels.Attention(attention);
    AddProjection(ctx, o_proj_, read, hidden);
  }

 private:
  absl::Status TakeProjections(const LayerBuilder& builder) {
    const int queries = config_.query_channels(), keys = config_.kv_channels();
    const int model_dim = builder.model_dim;
    const Bias bias = config_.qkv_bias ? Bias::kAdded : Bias::kNone;
    const Bias output_bias = config_.output_bias ? Bias::kAdded : Bias::kNone;
    const auto name = [&](const char* tensor) { return absl::StrCat(config_.prefix, tensor); };
    if (config_.tensors == AttentionConfig::Tensors::kConv1d) {
      MNEME_ASSIGN_OR_RETURN(
          std::vector<Projection> parts,
          TakeProjectionParts(builder, name("c_attn"), std::array{queries, keys, keys}, model_dim,
                              bias, MatrixOrder::kInOut));
      q_proj_ = std::move(parts[0]);
      k_proj_ = std::move(parts[1]);
      v_proj_ = std::move(parts[2]);
      MNEME_ASSIGN_OR_RETURN(o_proj_, TakeProjection(builder, name("c_proj"), model_dim, queries,
                                                     output_bias, MatrixOrder::kInOut));
      return absl::OkStatus();
    }
    MNEME_ASSIGN_OR_RETURN(q_proj_,
                           TakeProjection(builder, name("q_proj"), queries, model_dim, bias));
    MNEME_ASSIGN_OR_RETURN(k_proj_, TakeProjection(builder, name("k_proj"), keys, model_dim, bias));
    MNEME_ASSIGN_OR_RETURN(v_proj_, TakeProjection(builder, name("v_proj"), keys, model_dim, bias));
    MNEME_ASSIGN_OR_RETURN(
        o_proj_, TakeProjection(builder, name("o_proj"), model_dim, queries, output_bias));
    return absl::OkStatus();
  }

  // Norms each head by itself, in place.
  static void NormHeads(ForwardContext& ctx, const Norm& norm, TensorView heads) {
    if (norm.weight.empty()) return;
    heads.shape = {heads.shape[0] * heads.shape[1], heads.shape[2]};
    ctx.kernels().RmsNorm({.x = heads, .weight = norm.weight, .eps = norm.eps, .y = heads});
  }

  AttentionConfig config_;
  Projection q_proj_, k_proj_, v_proj_, o_proj_;
  Norm q_norm_, k_norm_;    // [head_dim], or empty
  TensorView frequencies_;  // [head_dim / 2] f32 of a rotary one
  AttentionContext context_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeAttention(const LayerBuilder& builder,
                                                             const AttentionConfig& config) {
  return Attention::Make(builder, config);
}

}  // namespace mneme
