#include "models/networks/language_model.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/tensor.h"
#include "models/context_tables.h"

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
    if (parts.prefix > 0) {
      MNEME_ASSIGN_OR_RETURN(network->prefix_rows_,
                             weights.Table(parts.prefix_rows, parts.prefix, model_dim));
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
    if (parts.prefix > 0) {
      MNEME_ASSIGN_OR_RETURN(network->initial_,
                             weights.Reserve(DType::kU8, {builder.state.fixed_bytes()}));
    }
    return network;
  }

  const NetworkInfo& info() const override { return info_; }

  absl::Status Prepare(Backend& backend, const StateLayout& layout,
                       Workspace& workspace) const override {
    const int rows = prefix();
    if (rows == 0) return absl::OkStatus();
    MNEME_ASSIGN_OR_RETURN(const Buffer slab, Buffer::Allocate(backend, layout.slab_bytes()));
    backend.Zero(slab.data(), layout.fixed_bytes());
    MNEME_ASSIGN_OR_RETURN(const ContextTables tables,
                           ContextTables::Create(backend, layout, slab.data(), /*slots=*/1));
    // One row of one token of slot 0, at position 0: behind as much of the prefix as is there.
    MNEME_ASSIGN_OR_RETURN(const Tensor numbers, Tensor::Allocate(backend, DType::kI32, {4}));
    MNEME_ASSIGN_OR_RETURN(const Tensor position, Tensor::Allocate(backend, DType::kI64, {1}));
    backend.Zero(position.view().data, position.view().bytes());
    const auto part = [&](int64_t first, int64_t count) {
      return TensorView{numbers.view().as<int32_t>() + first, DType::kI32, {count}};
    };
    const StepBatch batch{.tokens = 1,
                          .rows = 1,
                          .longest_row = 1,
                          .token_ids = part(0, 1),
                          .row_offsets = part(1, 2),
                          .slots = part(3, 1),
                          .positions = position.view()};
    for (int32_t row = 0; row < rows; ++row) {
      const int32_t values[] = {row, 0, 1, 0};
      backend.CopyFromHost(numbers.view().data, values, sizeof(values));
      const Workspace::Scope scope(workspace);
      ForwardContext ctx{.backend = backend,
                         .workspace = workspace,
                         .batch = batch,
                         .slabs = slab.data(),
                         .slab_bytes = layout.slab_bytes(),
                         .contexts = tables.tables(),
                         .prefix = row,
                         .prepares = true};
      BlockStream stream = Enter(ctx, prefix_rows_);
      for (const auto& block : blocks_) block->Forward(ctx, stream);
    }
    backend.Copy(initial_.data, slab.data(), layout.fixed_bytes());
    return backend.Synchronize();
  }

  absl::Status InitState(Backend& backend, std::byte* slab) const override {
    if (prefix() > 0) backend.Copy(slab, initial_.data, initial_.bytes());
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
    if (prefix() > 0) {
      ctx.prefix = prefix();
      ctx.initial = initial_.as<std::byte>();
    }
    BlockStream stream = Enter(ctx, embeddings_);
    const DecodeDone done = DecodeLayers(ctx, stream, logit_tokens, logits);
    if (done == DecodeDone::kNothing) {
      for (const auto& block : blocks_) block->Forward(ctx, stream);
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
  int prefix() const { return static_cast<int>(prefix_rows_.shape[0]); }

  // What all blocks use of a step, and its tokens' rows of `table`. In the caller's workspace
  // scope.
  BlockStream Enter(ForwardContext& ctx, const TensorView& table) const {
    if (uses_row_index_) ctx.row_index = IndexRows(ctx);
    if (first_values_ > 0) ctx.first_values = ctx.Temp({ctx.batch.tokens, first_values_});
    const BlockStream stream{.hidden = ctx.Temp({ctx.batch.tokens, info_.model_dim})};
    ctx.kernels().Embedding({.ids = ctx.batch.token_ids, .table = table, .y = stream.hidden});
    return stream;
  }

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
                             .prefix = ctx.prefix,
                             .token_positions = index.token_positions,
                             .segments = index.segments});
    return index;
  }

  // All layers as one operation, and the logits with them, in a step of decode rows and where the
  // device has it.
  DecodeDone DecodeLayers(ForwardContext& ctx, BlockStream& stream, const TensorView& logit_tokens,
                          const TensorView& logits) const {
    if (ctx.batch.longest_row != 1 || ctx.routing != nullptr || norm_.kind != NormKind::kRms) {
      return DecodeDone::kNothing;
    }
    const Workspace::Scope scope(ctx.workspace);
    std::vector<DecodeLayerArgs> steps;
    for (const auto& block : blocks_) {
      const std::optional<DecodeLayerArgs> step = block->StepArgs(ctx, stream);
      if (!step.has_value()) return DecodeDone::kNothing;
      steps.push_back(*step);
    }
    const DecodeHeadArgs head = {.tokens = logit_tokens,
                                 .norm = norm_.weight,
                                 .norm_eps = norm_.eps,
                                 .head = head_,
                                 .logits = logits};
    return ctx.kernels().DecodeLayers(steps, logit_tokens.shape[0] > 0 ? &head : nullptr);
  }

  NetworkInfo info_;
  TensorView embeddings_;   // [vocab, model_dim] as stored
  TensorView prefix_rows_;  // [prefix, model_dim] as stored; or no rows
  TensorView initial_;      // the slab behind the prefix, but for its growing part
  std::vector<std::unique_ptr<Block>> blocks_;
  bool uses_row_index_ = false;  // of any block
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
