#include "models/mixers/memory_router.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {

absl::StatusOr<Projection> TakeForMemories(const LayerBuilder& builder,
                                           const RoutingConfig& routing, const MemoryNames& names,
                                           int out, int in, Bias bias) {
  const std::string shared = names.shared.empty()
                                 ? absl::StrCat(names.list, ".", routing.memories, names.end)
                                 : absl::StrCat(names.shared, names.end);
  if (!routing.routed()) {
    return TakeProjection(builder, absl::StrCat(names.list, names.end), out, in, bias);
  }
  if (routing.single_projection) return TakeProjection(builder, shared, out, in, bias);
  std::vector<std::string> all;
  for (int m = 0; m < routing.memories; ++m) {
    all.push_back(absl::StrCat(names.list, ".", m, names.end));
  }
  if (routing.shared) all.push_back(shared);
  return TakeProjections(builder, all, out, in, bias);
}

absl::StatusOr<MemoryRouter> MemoryRouter::Make(const LayerBuilder& builder,
                                                const RoutingConfig& config) {
  MemoryRouter router;
  router.layer_ = builder.layer;
  router.config_ = config;
  if (!config.routed()) return router;
  MNEME_ASSIGN_OR_RETURN(
      router.matrix_, builder.weights().Matrix(builder.Weight("attn.gate.weight"), config.memories,
                                               builder.model_dim));
  // A bf16 model rounds its router's logits, which decides near-ties.
  const bool rounds =
      builder.network.compute_dtype == DType::kBF16 && router.matrix_.dtype == DType::kBF16;
  router.round_logits_ = rounds ? DType::kBF16 : DType::kF32;
  return router;
}

StepEntries MemoryRouter::Enter(ForwardContext& ctx, const Norm& norm, const TensorView& hidden,
                                std::vector<std::span<const PackedMatrix>> products,
                                const StateView& written) const {
  if (!config_.routed()) return EnterRows(ctx, norm, hidden, products);
  products.push_back({&matrix_, 1});
  const RmsNormArgs normed = {.x = hidden,
                              .weight = norm.weight,
                              .eps = norm.eps,
                              .y = ctx.TempForProducts(hidden.shape, products)};
  const RoutingChoice choice = NewChoice(ctx);
  Route(ctx, normed, choice);
  return Dispatch(ctx, normed.y, choice, written);
}

void MemoryRouter::Route(ForwardContext& ctx, const RmsNormArgs& norm,
                         const RoutingChoice& choice) const {
  RouteTopKArgs route = {.round_logits = round_logits_,
                         .forced = choice.forced,
                         .indices = choice.indices,
                         .weights = choice.weights};
  if (!ctx.kernels().NormAndRoute(norm, matrix_, route)) {
    ctx.kernels().RmsNorm(norm);
    const Workspace::Scope scope(ctx.workspace);
    route.logits = ctx.Temp({ctx.batch.tokens, config_.memories});
    const LinearArgs products[] = {{.x = norm.y, .weights = {&matrix_, 1}, .y = route.logits}};
    ctx.kernels().Linear(products);
    ctx.kernels().RouteTopK(route);
  }
  Tell(ctx, choice);
}

StepEntries MemoryRouter::Dispatch(ForwardContext& ctx, const TensorView& x,
                                   const RoutingChoice& choice, const StateView& written) const {
  const int tokens = ctx.batch.tokens;
  const int64_t choices = config_.top_k + (config_.shared ? 1 : 0);
  const StepEntries entries = {.x = x,
                               .tokens = tokens,
                               .count = tokens * choices,
                               .segments = TempSegments(ctx, config_.all_memories()),
                               .entry_tokens = ctx.TempIndices({tokens * choices}),
                               .token_entries = ctx.TempIndices({tokens, choices}),
                               .group_offsets = ctx.TempIndices({config_.all_memories() + 1}),
                               .weights = choice.weights};
  ctx.kernels().Dispatch({.row_offsets = ctx.batch.row_offsets,
                          .slots = ctx.batch.slots,
                          .indices = choice.indices,
                          .memories = config_.memories,
                          .shared = config_.shared,
                          .written = written,
                          .entry_tokens = entries.entry_tokens,
                          .token_entries = entries.token_entries,
                          .group_offsets = entries.group_offsets,
                          .segments = entries.segments});
  return entries;
}

}  // namespace mneme
