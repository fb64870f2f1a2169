#include "models/networks/bert_classifier.h"

#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/engrams/firing_counts.h"
#include "models/gpt2_tensors.h"
#include "models/mixers/engram_capacity.h"
#include "models/mixers/entry_streams.h"
#include "models/mixers/memory_attention.h"
#include "models/norm.h"
#include "models/projection.h"

namespace mneme {
namespace {

struct BertLayer {
  Projection query, key, value, output;
  Norm attention_norm;
  std::optional<MemoryAttention> memory_attention;
  Norm memory_norm;
  Projection up, down;
  Norm mlp_norm;
};

class BertClassifier final : public Network {
 public:
  static absl::StatusOr<std::unique_ptr<Network>> Make(const NetworkBuilder& builder,
                                                       const BertClassifierParts& parts) {
    auto network = std::make_unique<BertClassifier>();
    MNEME_RETURN_IF_ERROR(network->Take(builder, parts));
    return network;
  }

  const NetworkInfo& info() const override { return info_; }
  absl::Status InitState(Backend&, std::byte*) const override { return absl::OkStatus(); }
  void Settle(ForwardContext&, const TensorView&) const override {}

  void Forward(ForwardContext& ctx, const TensorView& logit_tokens,
               const TensorView& logits) const override {
    const Workspace::Scope scope(ctx.workspace);
    const int64_t tokens = ctx.batch.tokens, rows = ctx.batch.rows;
    const IndexWholeSegmentsArgs index = {.token_ids = ctx.batch.token_ids,
                                          .token_types = ctx.batch.token_types,
                                          .row_offsets = ctx.batch.row_offsets,
                                          .row_positions = ctx.batch.positions,
                                          .segment = info_.classes.segment,
                                          .first_position = first_position_,
                                          .skipped = skipped_,
                                          .picks = logit_tokens,
                                          .positions = ctx.workspace.Temp(DType::kI64, {tokens}),
                                          .types = ctx.workspace.Temp(DType::kI64, {tokens}),
                                          .seen = ctx.TempIndices({rows}),
                                          .next_positions = ctx.workspace.Temp(DType::kI64, {rows}),
                                          .firsts = ctx.TempIndices({logit_tokens.shape[0]})};
    ctx.kernels().IndexWholeSegments(index);
    const TensorView hidden = ctx.Temp({tokens, info_.model_dim});
    Embed(ctx, index, hidden);
    // To engrams it is as if a segment before all others had made none: the first one crosses, too.
    StepBatch crossing = ctx.batch;
    crossing.positions = index.next_positions;
    ForwardContext inner{.backend = ctx.backend,
                         .workspace = ctx.workspace,
                         .batch = crossing,
                         .slabs = ctx.slabs,
                         .contexts = ctx.contexts,
                         .reports = ctx.reports};
    if (!ctx.reports.words.empty()) {
      ctx.backend.Zero(ctx.reports.range.data, ctx.reports.range.bytes());
    }
    for (int i = 0; i < info_.layers; ++i) {
      Layer(inner, layers_[static_cast<size_t>(i)], index.seen, hidden);
      if (memory_.has_value() && i == memory_layer_) Cross(inner, hidden);
    }
    Classify(ctx, hidden, index.firsts, logits);
  }

 private:
  absl::Status Take(const NetworkBuilder& builder, const BertClassifierParts& parts) {
    info_ = parts.info;
    heads_ = parts.heads;
    first_position_ = parts.first_position;
    skipped_ = parts.skipped;
    activation_ = parts.activation;
    memory_layer_ = parts.memory_layer;
    LayerBuilder layer{.network = builder,
                       .model_dim = info_.model_dim,
                       .norm_eps = parts.norm_eps,
                       .prefix = absl::StrCat(parts.prefix, "embeddings.")};
    MNEME_RETURN_IF_ERROR(TakeEmbeddings(layer, parts));
    EngramConfig engrams;
    layer.prefix = absl::StrCat(parts.prefix, "encoder.");
    if (parts.engrams.has_value()) {
      engrams = *parts.engrams;
      MNEME_ASSIGN_OR_RETURN(engrams.capacity, EngramCapacity(builder, engrams.rules));
      info_.engrams = engrams.capacity;
      info_.working_engrams = engrams.rules.working;
      info_.recalled_engrams = engrams.rules.recalled();
      const int steps = EngramHistorySteps(engrams.capacity);
      info_.counted_segments = steps > 0 ? steps : FiringCounts::kMostSegments;
      MNEME_ASSIGN_OR_RETURN(memory_, EngramMemory::Make(layer, engrams));
    }
    for (int i = 0; i < info_.layers; ++i) {
      layer.layer = i;
      layer.prefix = absl::StrCat(parts.prefix, "encoder.layer.", i, ".");
      MNEME_RETURN_IF_ERROR(TakeLayer(
          layer, parts.mlp_dim, memory_.has_value() && i > memory_layer_ ? &engrams : nullptr));
    }
    layer.prefix = "";
    return TakeHead(layer, parts);
  }

  absl::Status TakeEmbeddings(const LayerBuilder& builder, const BertClassifierParts& parts) {
    Weights& weights = builder.weights();
    const int dim = info_.model_dim;
    MNEME_ASSIGN_OR_RETURN(
        words_, weights.Table(builder.Weight("word_embeddings.weight"), info_.vocab, dim));
    MNEME_ASSIGN_OR_RETURN(positions_, weights.Table(builder.Weight("position_embeddings.weight"),
                                                     parts.positions, dim));
    MNEME_ASSIGN_OR_RETURN(
        types_, weights.Table(builder.Weight("token_type_embeddings.weight"), parts.types, dim));
    // Buffers of old files.
    weights.Ignore(builder.Weight("position_ids"));
    weights.Ignore(builder.Weight("token_type_ids"));
    return TakeLayerNorm(builder, "LayerNorm", embedding_norm_);
  }

  static absl::Status TakeLayerNorm(const LayerBuilder& builder, const char* name, Norm& norm) {
    MNEME_ASSIGN_OR_RETURN(norm, TakeNorm(builder.weights(), builder.prefix, LayerNormOf(name),
                                          builder.model_dim, builder.norm_eps));
    return absl::OkStatus();
  }

  static absl::Status TakeLinear(const LayerBuilder& builder, const char* name, int out, int in,
                                 Projection& projection) {
    MNEME_ASSIGN_OR_RETURN(projection, TakeProjection(builder, name, out, in, Bias::kAdded));
    return absl::OkStatus();
  }

  // `engrams`: null for a layer that attends to none.
  absl::Status TakeLayer(const LayerBuilder& builder, int mlp_dim, const EngramConfig* engrams) {
    const int dim = info_.model_dim;
    BertLayer layer;
    for (const auto& [projection, name] : {std::pair(&layer.query, "attention.self.query"),
                                           std::pair(&layer.key, "attention.self.key"),
                                           std::pair(&layer.value, "attention.self.value"),
                                           std::pair(&layer.output, "attention.output.dense")}) {
      MNEME_RETURN_IF_ERROR(TakeLinear(builder, name, dim, dim, *projection));
    }
    MNEME_RETURN_IF_ERROR(
        TakeLayerNorm(builder, "attention.output.LayerNorm", layer.attention_norm));
    if (engrams != nullptr) {
      MNEME_ASSIGN_OR_RETURN(
          layer.memory_attention,
          MemoryAttention::Make(builder, *engrams, MemoryAttention::Tensors::kBert));
      MNEME_RETURN_IF_ERROR(
          TakeLayerNorm(builder, "memory_attention.output.LayerNorm", layer.memory_norm));
    }
    MNEME_RETURN_IF_ERROR(TakeLinear(builder, "intermediate.dense", mlp_dim, dim, layer.up));
    MNEME_RETURN_IF_ERROR(TakeLinear(builder, "output.dense", dim, mlp_dim, layer.down));
    MNEME_RETURN_IF_ERROR(TakeLayerNorm(builder, "output.LayerNorm", layer.mlp_norm));
    layers_.push_back(std::move(layer));
    return absl::OkStatus();
  }

  absl::Status TakeHead(const LayerBuilder& builder, const BertClassifierParts& parts) {
    const bool pooler = parts.head == BertClassifierParts::Head::kPooler;
    const std::string dense =
        pooler ? absl::StrCat(parts.prefix, "pooler.dense") : "classifier.dense";
    const std::string last = pooler ? "classifier" : "classifier.out_proj";
    const int dim = info_.model_dim, labels = info_.outputs();
    MNEME_RETURN_IF_ERROR(TakeLinear(builder, dense.c_str(), dim, dim, dense_));
    const std::string weight = last + ".weight";
    if (const int rows = builder.weights().Rows(weight, labels); rows != labels) {
      return absl::InvalidArgumentError(absl::StrCat("the configuration names ", labels,
                                                     " classes (id2label), and ", weight, " has ",
                                                     rows, " rows: expected one for each"));
    }
    return TakeLinear(builder, last.c_str(), labels, dim, head_);
  }

  void Embed(ForwardContext& ctx, const IndexWholeSegmentsArgs& index,
             const TensorView& hidden) const {
    Kernels& kernels = ctx.kernels();
    kernels.Embedding({.ids = ctx.batch.token_ids, .table = words_, .y = hidden});
    kernels.AddPositions({.positions = index.types, .table = types_, .y = hidden});
    kernels.AddPositions({.positions = index.positions, .table = positions_, .y = hidden});
    ApplyNorm(kernels, embedding_norm_, hidden, hidden);
  }

  void Layer(ForwardContext& ctx, const BertLayer& layer, const TensorView& seen,
             const TensorView& hidden) const {
    Attend(ctx, layer, seen, hidden);
    if (layer.memory_attention.has_value()) {
      for (const auto which :
           {MemoryAttention::Engrams::kWorking, MemoryAttention::Engrams::kRecalled}) {
        const Workspace::Scope scope(ctx.workspace);
        const TensorView read = ctx.Temp(hidden.shape);
        layer.memory_attention->Read(ctx, *memory_, which, hidden, read);
        AddAndNorm(ctx, layer.memory_attention->output(), read, layer.memory_norm, hidden);
      }
    }
    const Workspace::Scope scope(ctx.workspace);
    const TensorView raw = ctx.Temp({hidden.shape[0], layer.up.out()});
    const TensorView inner = ctx.TempForProducts(raw.shape, {layer.down.weights});
    Project(ctx.kernels(), {{.projection = layer.up, .x = hidden, .y = raw}});
    const ActivateArgs activation = {.x = raw, .activation = activation_, .y = inner};
    ctx.kernels().Activate({&activation, 1});
    AddAndNorm(ctx, layer.down, inner, layer.mlp_norm, hidden);
  }

  void Attend(ForwardContext& ctx, const BertLayer& layer, const TensorView& seen,
              const TensorView& hidden) const {
    const Workspace::Scope scope(ctx.workspace);
    const TensorView q = ctx.Temp(hidden.shape), k = ctx.Temp(hidden.shape);
    const TensorView v = ctx.Temp(hidden.shape), read = ctx.Temp(hidden.shape);
    Project(ctx.kernels(), {{.projection = layer.query, .x = hidden, .y = q},
                            {.projection = layer.key, .x = hidden, .y = k},
                            {.projection = layer.value, .x = hidden, .y = v}});
    const int head_dim = info_.model_dim / heads_;
    ctx.kernels().SegmentAttention({.q = ByHead(q, heads_),
                                    .k = ByHead(k, heads_),
                                    .v = ByHead(v, heads_),
                                    .row_offsets = ctx.batch.row_offsets,
                                    .slots = ctx.batch.slots,
                                    .seen = seen,
                                    .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
                                    .out = ByHead(read, heads_)});
    AddAndNorm(ctx, layer.output, read, layer.attention_norm, hidden);
  }

  static void AddAndNorm(ForwardContext& ctx, const Projection& projection, const TensorView& x,
                         const Norm& norm, const TensorView& hidden) {
    AddProjection(ctx.kernels(), projection, x, hidden);
    ApplyNorm(ctx.kernels(), norm, hidden, hidden);
  }

  void Cross(ForwardContext& ctx, const TensorView& hidden) const {
    memory_->Encode(ctx, hidden);
    std::vector<std::span<const PackedMatrix>> readers;
    for (const BertLayer& layer : layers_) {
      if (!layer.memory_attention.has_value()) continue;
      readers.push_back(layer.memory_attention->keys());
      readers.push_back(layer.memory_attention->values());
    }
    memory_->Cross(ctx, readers, [&](const AttendedEngrams& engrams) {
      for (const BertLayer& layer : layers_) {
        if (layer.memory_attention.has_value()) layer.memory_attention->Begin(ctx, engrams);
      }
    });
  }

  void Classify(ForwardContext& ctx, const TensorView& hidden, const TensorView& firsts,
                const TensorView& logits) const {
    if (firsts.shape[0] == 0) return;
    const Shape shape{firsts.shape[0], info_.model_dim};
    const TensorView x = ctx.Temp(shape), inner = ctx.Temp(shape);
    ctx.kernels().GatherRows({.x = hidden, .indices = firsts, .y = x});
    Project(ctx.kernels(), {{.projection = dense_, .x = x, .y = inner}});
    const ActivateArgs tanh = {.x = inner, .activation = Activation::kTanh, .y = inner};
    ctx.kernels().Activate({&tanh, 1});
    Project(ctx.kernels(), {{.projection = head_, .x = inner, .y = logits}});
  }

  NetworkInfo info_;
  int heads_ = 1, memory_layer_ = 0;
  int first_position_ = 0;
  int32_t skipped_ = -1;
  Activation activation_ = Activation::kGelu;
  TensorView words_, positions_, types_;  // [.., model_dim] as stored
  Norm embedding_norm_;
  std::optional<EngramMemory> memory_;
  std::vector<BertLayer> layers_;
  Projection dense_, head_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Network>> MakeBertClassifier(const NetworkBuilder& builder,
                                                            const BertClassifierParts& parts) {
  return BertClassifier::Make(builder, parts);
}

}  // namespace mneme
