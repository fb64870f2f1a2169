// Mixture-of-Memories (Du et al., arXiv:2502.13685): a router sends each token to top_k of several
// memories, and usually to one more that all tokens share. Where a token does not go, nothing is
// read, decayed or shifted.

#include "models/mixers/mixture_of_memories.h"

#include <memory>
#include <optional>
#include <vector>

#include "base/status_macros.h"
#include "models/mixers/delta_memory.h"
#include "models/mixers/memory_router.h"
#include "models/projection.h"
#include "models/step_entries.h"

namespace mneme {
namespace {

class MixtureOfMemories final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const LayerBuilder& builder,
                                                             const GatedDeltaConfig& config) {
    const int model_dim = builder.model_dim;
    const RoutingConfig routing = {.memories = config.memories,
                                   .top_k = config.top_k,
                                   .shared = config.shared_memory,
                                   .single_projection = config.single_kv_proj};
    const auto take = [&](const MemoryNames& names, int out) {
      return TakeForMemories(builder, routing, names, out, model_dim);
    };
    const int keys = config.key_channels(), values = config.value_channels();
    auto mixer = std::make_unique<MixtureOfMemories>();
    mixer->config_ = config;
    MNEME_ASSIGN_OR_RETURN(mixer->router_, MemoryRouter::Make(builder, routing));
    MNEME_ASSIGN_OR_RETURN(mixer->q_proj_, TakeProjection(builder, "attn.q_proj", keys, model_dim));
    MNEME_ASSIGN_OR_RETURN(mixer->k_proj_, take({"attn.k_proj", "attn.shared_k"}, keys));
    MNEME_ASSIGN_OR_RETURN(mixer->v_proj_, take({"attn.v_proj", "attn.shared_v"}, values));
    MNEME_ASSIGN_OR_RETURN(mixer->a_proj_,
                           take({"attn.a_proj", "attn.shared_a"}, config.value_heads));
    MNEME_ASSIGN_OR_RETURN(mixer->b_proj_,
                           take({"attn.b_proj", "attn.shared_b"}, config.value_heads));
    if (config.output_gate) {
      MNEME_ASSIGN_OR_RETURN(mixer->g_proj_,
                             TakeProjection(builder, "attn.g_proj", values, model_dim));
    }
    MNEME_ASSIGN_OR_RETURN(
        mixer->memory_,
        DeltaMemory::Make(builder, config, {&mixer->q_proj_, &mixer->k_proj_, &mixer->v_proj_}));
    return mixer;
  }

  void Settle(ForwardContext& ctx, const TensorView& slots) const override {
    memory_.Settle(ctx, slots);
  }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    const RoutingChoice choice = router_.NewChoice(ctx);
    if (ctx.batch.longest_row == 1 &&
        ctx.kernels().DeltaMixerStep({.mixer = *Fused(ctx.slabs, norm),
                                      .hidden = hidden,
                                      .slots = ctx.batch.slots,
                                      .choice = choice})) {
      router_.Tell(ctx, choice);
      return;
    }
    const PackedMatrix router = router_.matrix();
    const TensorView x = ctx.TempForProducts(hidden.shape, {{&router, 1},
                                                            q_proj_.weights,
                                                            g_proj_.weights,
                                                            k_proj_.weights,
                                                            v_proj_.weights,
                                                            a_proj_.weights,
                                                            b_proj_.weights});
    router_.Route(ctx, {.x = hidden, .weight = norm.weight, .eps = norm.eps, .y = x}, choice);
    const StepEntries entries = router_.Dispatch(ctx, x, choice, memory_.Written(ctx));

    TensorView gate;
    const DeltaStreams streams = ProjectStreams(ctx, entries, &gate);
    const TensorView read = memory_.WriteAndRead(ctx, streams, entries);
    memory_.output().Emit(ctx, entries, read, gate, hidden);
  }

  std::optional<DeltaMixer> Fused(const Slabs& slabs, const Norm& norm) const override {
    DeltaMixer mixer = memory_.Fused(slabs, norm);
    mixer.router = router_.matrix();
    mixer.round_logits = router_.round_logits();
    mixer.memories = config_.memories;
    mixer.top_k = config_.top_k;
    mixer.shared = config_.shared_memory;
    mixer.q_proj = q_proj_.matrix();
    mixer.g_proj = g_proj_.matrix();
    mixer.k_proj = k_proj_.weights;
    mixer.v_proj = v_proj_.weights;
    mixer.a_proj = a_proj_.weights;
    mixer.b_proj = b_proj_.weights;
    return mixer;
  }

 private:
  // All projections of the step's tokens as one parallel operation. q and the output gate are the
  // same for every memory; k, v, a and b are projected per entry with the weights of its memory, or
  // once per token.
  DeltaStreams ProjectStreams(ForwardContext& ctx, const StepEntries& entries,
                              TensorView* gate) const {
    const TensorView& x = entries.x;
    const bool per_entry = k_proj_.by_memory;
    const int64_t tokens = entries.tokens, rows = per_entry ? entries.count : tokens;
    const DeltaStreams streams{
        .q = ctx.TempOfProducts(x, q_proj_.weights, {tokens, config_.key_channels()}),
        .k = ctx.TempOfProducts(x, k_proj_.weights, {rows, config_.key_channels()}),
        .v = ctx.TempOfProducts(x, v_proj_.weights, {rows, config_.value_channels()}),
        .a = ctx.Temp({rows, config_.value_heads}),
        .b = ctx.Temp({rows, config_.value_heads}),
        .q_rows = entries.entry_tokens,
        .kv_rows = per_entry ? TensorView{} : entries.entry_tokens};
    std::vector<ProjectionArgs> products;
    const auto add = [&](const Projection& projection, TensorView y) {
      products.push_back({.projection = projection,
                          .x = x,
                          .y = y,
                          .entry_rows = entries.entry_tokens,
                          .group_offsets = entries.group_offsets});
    };
    add(q_proj_, streams.q);
    add(k_proj_, streams.k);
    add(v_proj_, streams.v);
    add(a_proj_, streams.a);
    add(b_proj_, streams.b);
    if (g_proj_.exists()) {
      *gate = ctx.TempOfProducts(x, g_proj_.weights, {tokens, config_.value_channels()});
      add(g_proj_, *gate);
    }
    Project(ctx.kernels(), products);
    return streams;
  }

  GatedDeltaConfig config_;
  MemoryRouter router_;
  Projection q_proj_, g_proj_;  // [channels, model_dim]
  Projection k_proj_, v_proj_;  // the same, by memory
  Projection a_proj_, b_proj_;  // by memory: [value_heads, model_dim]
  DeltaMemory memory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeMixtureOfMemories(
    const LayerBuilder& builder, const GatedDeltaConfig& config) {
  return MixtureOfMemories::Make(builder, config);
}

}  // namespace mneme
