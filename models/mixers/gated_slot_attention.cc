// One token of one memory, per head of M slots:
//   q, k, v = map(conv(Wq x)), map(conv(Wk x)), silu(conv(Wv x))
//   a = exp( log sigmoid(Wf x) / normalizer ),   s = 1 - a                     one for each slot
//   K <- diag(a) K + s k^T;   p = softmax(K q)                                 [M, key_dim]
//   V <- V diag(a) + v s^T;   o = V p                                          [value_dim, M]
//   out = Wo RmsNorm( silu(concat o) )

#include "models/mixers/gated_slot_attention.h"

#include "base/status_macros.h"
#include "models/mixers/entry_streams.h"
#include "models/mixers/memory_fields.h"
#include "models/mixers/memory_output.h"

namespace mneme {
namespace {

class GatedSlotAttention final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(
      const LayerBuilder& builder, const GatedSlotAttentionConfig& config) {
    const RoutingConfig& routing = config.routing;
    const int model_dim = builder.model_dim;
    const Activation map = ActivationOf(config.key_map);
    auto mixer = std::make_unique<GatedSlotAttention>();
    mixer->config_ = config;
    MNEME_ASSIGN_OR_RETURN(mixer->router_, MemoryRouter::Make(builder, routing));
    const MemoryFields fields(builder, routing);
    mixer->written_ = fields.written();
    const auto by_memory = [&](const char* name, int out) {
      return TakeForMemories(builder, routing, {name}, out, model_dim);
    };
    MNEME_ASSIGN_OR_RETURN(mixer->features_, KeyFeatures::Make(builder, config.key_map,
                                                               "attn.feature_map", config.key_dim));
    // With a convolution in between, what is projected is no factor yet.
    const auto mapped = [&](const char* name) {
      StreamOptions options = {.name = name, .conv_width = config.conv_width, .activation = map};
      if (config.conv_width == 0) options.factor_of = mixer->features_.weights();
      return options;
    };
    EntryStreams& streams = mixer->streams_;
    MNEME_RETURN_IF_ERROR(streams.Add(
        fields, TakeProjection(builder, "attn.q_proj", config.heads * config.key_dim, model_dim),
        mapped("q")));
    MNEME_RETURN_IF_ERROR(streams.Add(
        fields, by_memory("attn.k_proj", config.kv_heads * config.key_dim), mapped("k")));
    MNEME_RETURN_IF_ERROR(streams.Add(
        fields, by_memory("attn.v_proj", config.kv_heads * config.value_dim),
        {.name = "v", .conv_width = config.conv_width, .activation = Activation::kSilu}));
    MNEME_RETURN_IF_ERROR(
        streams.Add(fields, by_memory("attn.f_proj", config.kv_heads * config.slots)));
    mixer->slot_keys_ = fields.AddMatrices("slot_keys", config.heads, config.slots, config.key_dim);
    mixer->memory_ = fields.AddMatrices("memory", config.heads, config.value_dim, config.slots);
    MNEME_ASSIGN_OR_RETURN(mixer->output_,
                           MemoryOutput::Make(builder, {.norm = "attn.g_norm",
                                                        .affine = config.norm_affine,
                                                        .eps = config.norm_eps,
                                                        .dim = config.heads * config.value_dim,
                                                        .before = Activation::kSilu}));
    return mixer;
  }

  bool uses_row_index() const override { return !config_.routing.routed(); }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    Kernels& kernels = ctx.kernels();
    const StepEntries entries =
        router_.Enter(ctx, norm, hidden, streams_.products(), ctx.State(written_));
    MemoryStreams streams = streams_.Project(ctx, entries);
    const TensorView s = ctx.Temp({entries.count, config_.kv_heads, config_.slots});
    const TensorView log_decay = streams.DecayGates(
        kGate, config_.kv_heads,
        {.gate = DecayGate::kLogSigmoid, .normalizer = config_.gate_normalizer, .complement = s});
    if (features_.transforms()) streams.Finish(ctx);
    const TensorView p = ctx.Temp({entries.count, config_.heads, config_.slots});
    const auto [q, k] = KeyFeatures::Map(ctx, {features_, ByHead(streams[kQ], config_.heads)},
                                         {features_, ByHead(streams[kK], config_.kv_heads)});
    streams.Run(ctx, {.rule = kKeyRule,
                      .q = q,
                      .k = k,
                      .v = s,
                      .log_decay = log_decay,
                      .segments = entries.segments,
                      .state = ctx.State(slot_keys_),
                      .out = p});
    kernels.Softmax({.x = p, .y = p});
    const TensorView read = ctx.Temp({entries.count, config_.heads, config_.value_dim});
    kernels.MatrixMemory({.rule = kValueRule,
                          .q = p,
                          .k = s,
                          .v = ByHead(streams[kV], config_.kv_heads),
                          .log_decay = log_decay,
                          .segments = entries.segments,
                          .state = ctx.State(memory_),
                          .out = read});
    output_.Emit(ctx, entries, Flat(read), /*gate=*/{}, hidden);
  }

 private:
  // Slots are what the first memory answers with, and what the second one is asked by.
  static constexpr MatrixRule kKeyRule = {.decay = MatrixRule::Decay::kValue,
                                          .correction = MatrixRule::Correction::kNone};
  static constexpr MatrixRule kValueRule = {.decay = MatrixRule::Decay::kKey,
                                            .correction = MatrixRule::Correction::kNone};
  enum { kQ, kK, kV, kGate };

  GatedSlotAttentionConfig config_;
  MemoryRouter router_;
  EntryStreams streams_;
  KeyFeatures features_;
  StateField written_, slot_keys_, memory_;
  MemoryOutput output_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeGatedSlotAttention(
    const LayerBuilder& builder, const GatedSlotAttentionConfig& config) {
  return GatedSlotAttention::Make(builder, config);
}

}  // namespace mneme
