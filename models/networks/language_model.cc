#include "models/networks/language_model.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/tensor.h"

namespace mneme {
namespace {

class LanguageModel final : public Network {
 public:
  static absl::StatusOr<std::unique_ptr<Network>> Make(const NetworkBuilder& builder,
                                                       const LanguageModelParts& parts) {
    Weights& weights = builder.weights;
    const int vocab = parts.info.vocab, model_dim = parts.info.model_dim;
    auto network = std::make_unique<LanguageModel>();
    network->info_ = parts.info;
    network->first_values_ = parts.first_values;
    MNEME_ASSIGN_OR_RETURN(network->embeddings_, weights.Table(parts.embeddings, vocab, model_dim));
    if (const int count = parts.info.positions; count > 0) {
      MNEME_ASSIGN_OR_RETURN(network->positions_, weights.Table(parts.positions, count, model_dim));
      network->uses_row_index_ = true;
    }
    for (int i = 0; i < parts.info.layers; ++i) {
      const LayerBuilder layer{.network = builder,
                               .layer = i,
                               .vocab = vocab,
                               .model_dim = model_dim,
                               .norm_eps = parts.norm_eps,
                               .prefix = absl::StrCat(parts.layer_prefix, i, ".")};
      MNEME_ASSIGN_OR_RETURN(std::unique_ptr<Block> block, parts.block(layer));
      network->uses_row_index_ |= block->uses_row_index();
      network->blocks_.push_back(std::move(block));
    }
    MNEME_ASSIGN_OR_RETURN(network->norm_,
                           TakeNorm(weights, "", parts.norm, model_dim, parts.norm_eps));
    const bool tied = !weights.Has(parts.head) || (parts.obeys_tied && parts.says_tied);
    if (tied) weights.Ignore(parts.head);
    MNEME_ASSIGN_OR_RETURN(network->head_,
                           weights.Matrix(tied ? parts.embeddings : parts.head, vocab, model_dim));
    if (tied && !parts.says_tied) {
      builder.warnings.push_back(absl::StrCat(
          "there is no tensor \"", parts.head,
          "\", and config.json does not say \"tie_word_embeddings\": true. \"", parts.embeddings,
          "\" is used as the head; if the model was trained with a head of its own, that is "
          "missing, and what the model says means nothing"));
    }
    return network;
  }

  const NetworkInfo& info() const override { return info_; }

  absl::Status InitState(Backend& backend, std::byte* slab) const override {
    for (const auto& block : blocks_) MNEME_RETURN_IF_ERROR(block->InitState(backend, slab));
    return absl::OkStatus();
  }

  void Settle(ForwardContext& ctx, const TensorView& slots) const override {
    for (const auto& block : blocks_) block->Settle(ctx, slots);
  }

  void Forward(ForwardContext& step, const TensorView& logit_tokens,
               const TensorView& logits) const override {
    const Workspace::Scope scope(step.workspace);
    ForwardContext ctx = step;
    if (uses_row_index_) ctx.row_index = IndexRows(ctx);
    if (first_values_ > 0) ctx.first_values = ctx.Temp({ctx.batch.tokens, first_values_});
    BlockStream stream{.hidden = ctx.Temp({ctx.batch.tokens, info_.model_dim})};
    ctx.kernels().Embedding({.ids = ctx.batch.token_ids, .table = embeddings_, .y = stream.hidden});
    if (info_.positions > 0) {
      ctx.kernels().AddPositions(
          {.positions = ctx.row_index.token_positions, .table = positions_, .y = stream.hidden});
    }
    DecodeDone done = DecodeDone::kNothing;
    for (size_t first = 0; first < blocks_.size();) {
      const Run run = DecodeRun(ctx, stream, first, logit_tokens, logits);
      done = run.done;
      if (done == DecodeDone::kNothing) {
        for (size_t i = first; i < run.end; ++i) blocks_[i]->Forward(ctx, stream);
      }
      first = run.end;
    }

    const int64_t rows = logit_tokens.shape[0];
    if (rows == 0 || done == DecodeDone::kLogits) return;
    const TensorView last = ctx.Temp({rows, info_.model_dim});
    ctx.kernels().GatherRows({.x = stream.hidden, .indices = logit_tokens, .y = last});
    ApplyNorm(ctx.kernels(), norm_, last, last);
    const LinearArgs products[] = {{.x = last, .weights = {&head_, 1}, .y = logits}};
    ctx.kernels().Linear(products);
  }

 private:
  static RowIndex IndexRows(ForwardContext& ctx) {
    const StepBatch& batch = ctx.batch;
    const RowIndex index = {.token_positions = ctx.workspace.Temp(DType::kI64, {batch.tokens}),
                            .segments = {.count = batch.rows,
                                         .offsets = batch.row_offsets,
                                         .slots = batch.slots,
                                         .memories = ctx.TempIndices({batch.rows}),
                                         .fresh = ctx.TempIndices({batch.rows}),
                                         .longest = batch.longest_row,
                                         .longer = batch.longer_rows}};
    ctx.kernels().IndexRows({.row_offsets = batch.row_offsets,
                             .slots = batch.slots,
                             .positions = batch.positions,
                             .token_positions = index.token_positions,
                             .segments = index.segments});
    return index;
  }

  // Blocks from one on, up to `end`.
  struct Run {
    size_t end = 0;
    DecodeDone done = DecodeDone::kNothing;  // by a fused operation
  };
  // The blocks from `first` on that can be one operation, done as such where the device has it, in
  // a step of decode rows; and the logits with the last of all. At least one block, fused or not;
  // all of them in other steps.
  Run DecodeRun(ForwardContext& ctx, BlockStream& stream, size_t first,
                const TensorView& logit_tokens, const TensorView& logits) const {
    if (ctx.batch.longest_row != 1 || ctx.routing != nullptr) return {.end = blocks_.size()};
    const Workspace::Scope scope(ctx.workspace);
    std::vector<DecodeLayerArgs> steps;
    for (size_t i = first; i < blocks_.size(); ++i) {
      const std::optional<DecodeLayerArgs> step = blocks_[i]->StepArgs(ctx, stream);
      if (!step.has_value()) break;
      steps.push_back(*step);
    }
    if (steps.empty()) return {.end = first + 1};
    const size_t end = first + steps.size();
    const DecodeHeadArgs head = {.tokens = logit_tokens,
                                 .norm = norm_.weight,
                                 .norm_eps = norm_.eps,
                                 .head = head_,
                                 .logits = logits};
    const bool to_logits =
        end == blocks_.size() && logit_tokens.shape[0] > 0 && norm_.kind == NormKind::kRms;
    return {.end = end, .done = ctx.kernels().DecodeLayers(steps, to_logits ? &head : nullptr)};
  }

  NetworkInfo info_;
  TensorView embeddings_;  // [vocab, model_dim] as stored
  TensorView positions_;   // [info.positions, model_dim] as stored, or empty
  std::vector<std::unique_ptr<Block>> blocks_;
  bool uses_row_index_ = false;  // of any block, or for the positions
  int first_values_ = 0;
  Norm norm_;
  PackedMatrix head_;  // [vocab, model_dim]
};

}  // namespace

absl::StatusOr<std::unique_ptr<Network>> MakeLanguageModel(const NetworkBuilder& builder,
                                                           const LanguageModelParts& parts) {
  return LanguageModel::Make(builder, parts);
}

}  // namespace mneme
