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
    if (const int count = parts.info.positions; count > 0) {
      MNEME_ASSIGN_OR_RETURN(network->positions_, weights.Table(parts.positions, count, model_dim));
      network->uses_row_index_ = true;
    }
    if (parts.prefix > 0) {
      MNEME_ASSIGN_OR_RETURN(network->prefix_rows_,
                             weights.Table(parts.prefix_rows, parts.prefix, model_dim));
    }
    for (int i = 0; i < parts.info.layers; ++i) {
      const LayerBuilder layer{.network = builder,
                               .layer = i,
                               .model_dim = model_dim,
                               .norm_eps = parts.norm_eps,
                               .prefix = absl::StrCat(parts.layer_prefix, i, ".")};
      MNEME_ASSIGN_OR_RETURN(std::unique_ptr<Block> block, parts.block(layer));
      network->uses_row_index_ |= block->uses_row_index();
      network->blocks_.push_back(std::move(block));
    }
    MNEME_ASSIGN_OR_RETURN(network->norm_,
                           TakeNorm(weights, "", parts.norm, model_dim, parts.norm_eps));
    MNEME_ASSIGN_OR_RETURN(network->head_, TakeHead(builder, parts));
    if (parts.prefix > 0) {
      MNEME_ASSIGN_OR_RETURN(network->initial_,
                             weights.Reserve(DType::kU8, {builder.state.fixed_bytes()}));
    }
    return network;
  }

  const NetworkInfo& info() const override { return info_; }

  absl::Status Prepare(Backend& backend, const StateLayout& layout, Workspace& workspace,
                       LayerObserver* observer) const override {
    for (const auto& block : blocks_) MNEME_RETURN_IF_ERROR(block->Prepare(backend));
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
                         .slabs = {slab.data(), layout.slab_bytes()},
                         .contexts = tables.tables(),
                         .observer = observer,
                         .prefix = row,
                         .prepares = true};
      BlockStream stream = Enter(ctx, prefix_rows_);
      RunBlocks(ctx, stream, /*logit_tokens=*/{}, /*logits=*/{});
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

  DecodePlan CompileDecode(Backend& backend, const Slabs& slabs) const override {
    const DecodeHead head = {.norm = norm_.weight, .norm_eps = norm_.eps, .head = head_};
    DecodePlan plan;
    std::vector<DecodeLayer> run;
    for (size_t i = 0; i <= blocks_.size(); ++i) {
      const bool ends = i == blocks_.size();
      std::optional<DecodeLayer> layer;
      if (!ends) layer = blocks_[i]->Fused(slabs);
      if (!run.empty() && (!layer.has_value() || !HaveSameShape(run.front(), *layer))) {
        auto program = backend.kernels().CompileDecode(
            run, ends && norm_.kind == NormKind::kRms ? &head : nullptr);
        const int count = static_cast<int>(run.size());
        if (program != nullptr) {
          plan.runs.push_back({static_cast<int>(i) - count, count, std::move(program)});
        }
        run.clear();
      }
      if (layer.has_value()) run.push_back(*layer);
    }
    return plan;
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
    const bool has_logits = RunBlocks(ctx, stream, logit_tokens, logits);
    const int64_t rows = logit_tokens.shape[0];
    if (rows == 0 || has_logits) return;
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
    if (ctx.observer != nullptr) ctx.observer->OnStep(ctx.batch.tokens);
    if (uses_row_index_) ctx.row_index = IndexRows(ctx);
    if (first_values_ > 0) ctx.first_values = ctx.Temp({ctx.batch.tokens, first_values_});
    const BlockStream stream{.hidden = ctx.Temp({ctx.batch.tokens, info_.model_dim})};
    ctx.kernels().Embedding({.ids = ctx.batch.token_ids, .table = table, .y = stream.hidden});
    if (info_.positions > 0) {
      ctx.kernels().AddPositions(
          {.positions = ctx.row_index.token_positions, .table = positions_, .y = stream.hidden});
    }
    return stream;
  }

  // Whether the logits are there as well.
  bool RunBlocks(ForwardContext& ctx, BlockStream& stream, const TensorView& logit_tokens,
                 const TensorView& logits) const {
    int next = 0;
    const auto run_until = [&](int end) {
      for (; next < end; ++next) {
        blocks_[next]->Forward(ctx, stream);
        ctx.Observe(next, "hidden", stream.hidden);
      }
    };
    if (ctx.decode != nullptr && ctx.observer == nullptr && ctx.batch.longest_row == 1) {
      for (const DecodePlan::Run& run : ctx.decode->runs) {
        run_until(run.first);
        if (ctx.routing != nullptr) {
          for (; next < run.first + run.count; ++next) RunWatched(ctx, stream, run, next);
          continue;
        }
        const DecodeDone done = run.program->Run({.hidden = stream.hidden,
                                                  .slots = ctx.batch.slots,
                                                  .tokens = logit_tokens,
                                                  .logits = logits},
                                                 0, run.count);
        if (done == DecodeDone::kLogits) return true;
        if (done == DecodeDone::kLayers) next += run.count;
      }
    }
    run_until(static_cast<int>(blocks_.size()));
    return false;
  }

  // A layer of a run by itself, as what its router chooses is to be seen, or was chosen already.
  void RunWatched(ForwardContext& ctx, BlockStream& stream, const DecodePlan::Run& run,
                  int layer) const {
    const Workspace::Scope scope(ctx.workspace);
    const bool routes = info_.memories > 0;
    const DecodeStepArgs step = {
        .hidden = stream.hidden,
        .slots = ctx.batch.slots,
        .choice = routes ? ctx.NewChoice(layer, info_.top_k) : RoutingChoice{}};
    if (run.program->Run(step, layer - run.first, 1) == DecodeDone::kNothing) {
      blocks_[layer]->Forward(ctx, stream);
    } else if (routes) {
      ctx.Tell(layer, step.choice);
    }
  }

  NetworkInfo info_;
  TensorView embeddings_;   // [vocab, model_dim] as stored
  TensorView positions_;    // [info.positions, model_dim] as stored, or empty
  TensorView prefix_rows_;  // [prefix, model_dim] as stored; or no rows
  TensorView initial_;      // the slab behind the prefix, but for its growing part
  std::vector<std::unique_ptr<Block>> blocks_;
  bool uses_row_index_ = false;  // of any block, or for the positions
  int first_values_ = 0;
  Norm norm_;
  PackedMatrix head_;  // [vocab, model_dim]
};

}  // namespace

absl::StatusOr<PackedMatrix> TakeHead(const NetworkBuilder& builder,
                                      const LanguageModelParts& parts) {
  Weights& weights = builder.weights;
  const bool tied = !weights.Has(parts.head) || (parts.obeys_tied && parts.says_tied);
  if (tied) weights.Ignore(parts.head);
  MNEME_ASSIGN_OR_RETURN(
      const PackedMatrix head,
      weights.Matrix(tied ? parts.embeddings : parts.head, parts.info.vocab, parts.info.model_dim));
  if (parts.says_tied && weights.Differ(parts.head, parts.embeddings)) {
    builder.warnings.push_back(absl::StrCat(
        "\"tie_word_embeddings\" is true, by config.json or by default, and \"", parts.head,
        "\" is not \"", parts.embeddings, "\" all the same. ",
        tied ? "The head is not used; if the model was trained with it, say false"
             : "The head is used; if the model was trained without it, delete that tensor"));
  }
  if (tied && !parts.says_tied) {
    builder.warnings.push_back(absl::StrCat(
        "there is no tensor \"", parts.head,
        "\", and config.json does not say \"tie_word_embeddings\": true. \"", parts.embeddings,
        "\" is used as the head; if the model was trained with a head of its own, that is "
        "missing, and what the model says means nothing"));
  }
  return head;
}

absl::StatusOr<std::unique_ptr<Network>> MakeLanguageModel(const NetworkBuilder& builder,
                                                           const LanguageModelParts& parts) {
  return LanguageModel::Make(builder, parts);
}

}  // namespace mneme
