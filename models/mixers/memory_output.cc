#include "models/mixers/memory_output.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/mixers/entry_streams.h"

namespace mneme {

absl::StatusOr<MemoryOutput> MemoryOutput::Make(const LayerBuilder& builder,
                                                const MemoryOutputOptions& options) {
  Weights& weights = builder.weights();
  MemoryOutput output;
  output.options_ = options;
  if (options.affine) {
    MNEME_ASSIGN_OR_RETURN(output.norm_,
                           weights.Floats(builder.Weight(absl::StrCat(options.norm, ".weight")),
                                          {options.dim}, WeightInit::kOnes));
  } else {
    MNEME_ASSIGN_OR_RETURN(
        output.norm_, weights.Constant(std::vector<float>(static_cast<size_t>(options.dim), 1.0f)));
  }
  MNEME_ASSIGN_OR_RETURN(output.projection_,
                         weights.Matrix(builder.Weight("attn.o_proj.weight"), builder.model_dim,
                                        options.heads * options.dim));
  return output;
}

void MemoryOutput::Emit(ForwardContext& ctx, const StepEntries& entries, TensorView read,
                        TensorView gate, TensorView residual) const {
  Kernels& kernels = ctx.kernels();
  const Shape shape{entries.tokens, projection_.in_features};
  const TensorView y = entries.routed() ? ctx.Temp(shape) : read;
  const TensorView normed = ctx.TempForProducts(shape, {{&projection_, 1}});
  const MixMemoriesArgs mix = {
      .x = read, .token_entries = entries.token_entries, .weights = entries.weights, .y = y};
  const GatedRmsNormArgs norm = {.x = ByHead(y, options_.heads),
                                 .gate = gate.empty() ? TensorView{} : ByHead(gate, options_.heads),
                                 .weight = norm_,
                                 .eps = options_.eps,
                                 .activation = options_.gate,
                                 .y = ByHead(normed, options_.heads)};
  const bool plain = options_.before == Activation::kIdentity;
  if (!entries.routed() || !plain || !kernels.MixAndNorm(mix, norm)) {
    if (entries.routed()) kernels.MixMemories(mix);
    if (!plain) {
      const ActivateArgs before[] = {{.x = y, .activation = options_.before, .y = y}};
      kernels.Activate(before);
    }
    kernels.GatedRmsNorm(norm);
  }
  const LinearArgs out[] = {
      {.x = normed, .weights = {&projection_, 1}, .y = residual, .accumulate = true}};
  kernels.Linear(out);
}

std::string EitherNorm(const LayerBuilder& builder, const char* fused, const char* plain) {
  const Weights& weights = builder.weights();
  const auto has = [&](const char* norm) {
    return weights.Has(builder.Weight(absl::StrCat(norm, ".weight")));
  };
  return !has(fused) && has(plain) ? plain : fused;
}

}  // namespace mneme
