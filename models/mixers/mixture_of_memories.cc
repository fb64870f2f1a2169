// Mixture-of-Memories (Du et al., arXiv:2502.13685): a router sends each token to top_k of several
// memories, and usually to one more that all tokens share. Where a token does not go, nothing is
// read, decayed or shifted.

#include "models/mixers/mixture_of_memories.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/mixers/delta_memory.h"

namespace mneme {
namespace {

class MixtureOfMemories final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const LayerBuilder& builder,
                                                             const GatedDeltaConfig& config) {
    const int model_dim = builder.model_dim;
    Weights& weights = builder.weights();
    auto mixer = std::make_unique<MixtureOfMemories>();
    mixer->layer_ = builder.layer;
    mixer->config_ = config;

    MNEME_ASSIGN_OR_RETURN(mixer->router_, weights.Matrix(builder.Weight("attn.gate.weight"),
                                                          config.memories, model_dim));
    // A bf16 model rounds its router's logits, which decides near-ties.
    const bool rounds =
        builder.network.compute_dtype == DType::kBF16 && mixer->router_.dtype == DType::kBF16;
    mixer->round_logits_ = rounds ? DType::kBF16 : DType::kF32;

    MNEME_ASSIGN_OR_RETURN(mixer->q_proj_, weights.Matrix(builder.Weight("attn.q_proj.weight"),
                                                          config.key_channels(), model_dim));
    MNEME_ASSIGN_OR_RETURN(mixer->k_proj_,
                           TakePerMemory(builder, config, 'k', config.key_channels()));
    MNEME_ASSIGN_OR_RETURN(mixer->v_proj_,
                           TakePerMemory(builder, config, 'v', config.value_channels()));
    MNEME_ASSIGN_OR_RETURN(mixer->a_proj_, TakePerMemory(builder, config, 'a', config.value_heads));
    MNEME_ASSIGN_OR_RETURN(mixer->b_proj_, TakePerMemory(builder, config, 'b', config.value_heads));
    if (config.output_gate) {
      MNEME_ASSIGN_OR_RETURN(mixer->g_proj_, weights.Matrix(builder.Weight("attn.g_proj.weight"),
                                                            config.value_channels(), model_dim));
    }
    MNEME_ASSIGN_OR_RETURN(mixer->memory_, DeltaMemory::Make(builder, config,
                                                             {&mixer->q_proj_, &mixer->k_proj_[0],
                                                              &mixer->v_proj_[0]}));
    return mixer;
  }

  absl::Status InitState(Backend&, std::byte*) const override {
    return absl::OkStatus();  // the flags of unwritten memories are zeros
  }

  void Settle(ForwardContext& ctx, const TensorView& slots) const override {
    memory_.Settle(ctx, slots);
  }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    const int tokens = ctx.batch.tokens;
    const int64_t columns = config_.top_k + (config_.shared_memory ? 1 : 0);
    const int64_t entries = tokens * columns;

    const DeltaMixerStepArgs step = MakeStepArgs(ctx, norm, hidden);
    const TensorView indices = step.indices, weights = step.weights;
    if (ctx.batch.longest_row == 1 && ctx.kernels().DeltaMixerStep(step)) {
      if (ctx.routing != nullptr) ctx.routing->OnRouted(layer_, indices, weights);
      return;
    }
    const TensorView x =
        ctx.TempForProducts(hidden.shape, {{&router_, 1},
                                           {&q_proj_, 1},
                                           {&g_proj_, config_.output_gate ? 1u : 0u},
                                           k_proj_,
                                           v_proj_,
                                           a_proj_,
                                           b_proj_});
    Route(ctx, {.x = hidden, .weight = norm.weight, .eps = norm.eps, .y = x},
          {.round_logits = round_logits_,
           .forced = step.forced,
           .indices = indices,
           .weights = weights});
    if (ctx.routing != nullptr) ctx.routing->OnRouted(layer_, indices, weights);

    const TensorView entry_tokens = ctx.TempIndices({entries});
    const TensorView token_entries = ctx.TempIndices({tokens, columns});
    const TensorView group_offsets = ctx.TempIndices({config_.all_memories() + 1});
    const Segments segments = TempSegments(ctx, config_.all_memories());
    ctx.kernels().Dispatch({.row_offsets = ctx.batch.row_offsets,
                            .slots = ctx.batch.slots,
                            .indices = indices,
                            .memories = config_.memories,
                            .shared = config_.shared_memory,
                            .written = memory_.Written(ctx),
                            .entry_tokens = entry_tokens,
                            .token_entries = token_entries,
                            .group_offsets = group_offsets,
                            .segments = segments});

    TensorView gate;
    const DeltaStreams streams = Project(ctx, x, entry_tokens, group_offsets, &gate);
    const TensorView read = memory_.WriteAndRead(ctx, streams, segments, entries);
    const MixMemoriesArgs mix = {.x = read,
                                 .token_entries = token_entries,
                                 .weights = weights,
                                 .y = ctx.Temp({tokens, config_.value_channels()})};
    memory_.Emit(ctx, mix.y, gate, hidden, &mix);
  }

  std::optional<DeltaMixerStepArgs> StepArgs(ForwardContext& ctx, const Norm& norm,
                                             TensorView hidden) const override {
    return MakeStepArgs(ctx, norm, hidden);
  }

 private:
  // The projections "<stream>_proj" of all memories, the shared one's last; just the shared one's
  // where memories have none of their own.
  static absl::StatusOr<std::vector<PackedMatrix>> TakePerMemory(const LayerBuilder& builder,
                                                                 const GatedDeltaConfig& config,
                                                                 char stream, int out) {
    const std::string letter(1, stream);
    std::vector<std::string> names;
    if (!config.single_kv_proj) {
      for (int m = 0; m < config.memories; ++m) {
        names.push_back(builder.Weight(absl::StrCat("attn.", letter, "_proj.", m, ".weight")));
      }
    }
    if (config.single_kv_proj || config.shared_memory) {
      names.push_back(builder.Weight(absl::StrCat("attn.shared_", letter, ".weight")));
    }
    return builder.weights().MatrixGroup(names, out, builder.model_dim);
  }

  DeltaMixerStepArgs MakeStepArgs(ForwardContext& ctx, const Norm& norm, TensorView hidden) const {
    const int tokens = ctx.batch.tokens;
    DeltaMixerStepArgs step = memory_.StepArgs(ctx, norm, hidden);
    if (ctx.routing != nullptr) step.forced = ctx.routing->Forced(layer_, tokens, config_.top_k);
    step.indices = ctx.TempIndices({tokens, config_.top_k});
    step.weights = ctx.Temp({tokens, config_.top_k});
    step.router = router_;
    step.round_logits = round_logits_;
    step.memories = config_.memories;
    step.top_k = config_.top_k;
    step.shared = config_.shared_memory;
    step.q_proj = q_proj_;
    step.g_proj = g_proj_;
    step.k_proj = k_proj_;
    step.v_proj = v_proj_;
    step.a_proj = a_proj_;
    step.b_proj = b_proj_;
    return step;
  }

  // Norms the tokens and finds out which memories each of them goes to, and the weights of what it
  // reads there; `route` is without logits.
  void Route(ForwardContext& ctx, const RmsNormArgs& norm, RouteTopKArgs route) const {
    if (ctx.kernels().NormAndRoute(norm, router_, route)) return;
    ctx.kernels().RmsNorm(norm);
    const Workspace::Scope scope(ctx.workspace);
    route.logits = ctx.Temp({ctx.batch.tokens, config_.memories});
    const LinearArgs products[] = {{.x = norm.y, .weights = {&router_, 1}, .y = route.logits}};
    ctx.kernels().Linear(products);
    ctx.kernels().RouteTopK(route);
  }

  // All projections of the step's tokens as one parallel operation. q and the output gate are the
  // same for every memory; k, v, a and b are projected per entry with the weights of its memory, or
  // once per token.
  DeltaStreams Project(ForwardContext& ctx, TensorView x, TensorView entry_tokens,
                       TensorView group_offsets, TensorView* gate) const {
    const int tokens = ctx.batch.tokens;
    const bool per_entry = !config_.single_kv_proj;
    const int64_t rows = per_entry ? entry_tokens.shape[0] : tokens;
    const DeltaStreams streams{
        .q = ctx.TempOfProducts(x, {&q_proj_, 1}, {tokens, config_.key_channels()}),
        .k = ctx.TempOfProducts(x, k_proj_, {rows, config_.key_channels()}),
        .v = ctx.TempOfProducts(x, v_proj_, {rows, config_.value_channels()}),
        .a = ctx.Temp({rows, config_.value_heads}),
        .b = ctx.Temp({rows, config_.value_heads}),
        .q_rows = entry_tokens,
        .kv_rows = per_entry ? TensorView{} : entry_tokens};
    if (config_.output_gate) {
      *gate = ctx.TempOfProducts(x, {&g_proj_, 1}, {tokens, config_.value_channels()});
    }
    const TensorView from = per_entry ? entry_tokens : TensorView{};
    const TensorView groups = per_entry ? group_offsets : TensorView{};
    const auto grouped = [&](std::span<const PackedMatrix> weights, TensorView y) {
      return LinearArgs{
          .x = x, .weights = weights, .entry_rows = from, .group_offsets = groups, .y = y};
    };
    const LinearArgs products[] = {{.x = x, .weights = {&q_proj_, 1}, .y = streams.q},
                                   grouped(k_proj_, streams.k),
                                   grouped(v_proj_, streams.v),
                                   grouped(a_proj_, streams.a),
                                   grouped(b_proj_, streams.b),
                                   {.x = x, .weights = {&g_proj_, 1}, .y = *gate}};
    const size_t count = std::size(products) - (config_.output_gate ? 0 : 1);
    ctx.kernels().Linear(std::span(products).first(count));
    return streams;
  }

  int layer_ = 0;
  GatedDeltaConfig config_;
  DType round_logits_ = DType::kF32;
  PackedMatrix router_;                        // [memories, model_dim]
  PackedMatrix q_proj_, g_proj_;               // [channels, model_dim]
  std::vector<PackedMatrix> k_proj_, v_proj_;  // per memory: [channels, model_dim]
  std::vector<PackedMatrix> a_proj_, b_proj_;  // per memory: [value_heads, model_dim]
  DeltaMemory memory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeMixtureOfMemories(
    const LayerBuilder& builder, const GatedDeltaConfig& config) {
  return MixtureOfMemories::Make(builder, config);
}

}  // namespace mneme
