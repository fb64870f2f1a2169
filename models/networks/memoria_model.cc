// A segment's engrams follow from the segment before it. So steps that feed more than a token a row
// are cut: each round takes the tokens of every row's next segment through the whole network.
#include "models/networks/memoria_model.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/engrams/firing_counts.h"
#include "models/feed_forward.h"
#include "models/gpt2_tensors.h"
#include "models/mixers/engram_capacity.h"
#include "models/mixers/engram_forget.h"
#include "models/mixers/engram_room.h"
#include "models/mixers/engram_state.h"
#include "models/mixers/memory_attention.h"
#include "models/sequence_mixer.h"
#include "models/step_rounds.h"

namespace mneme {
namespace {

struct MemoriaLayer {
  Norm attention_norm, working_norm, recalled_norm, mlp_norm;
  std::unique_ptr<SequenceMixer> attention;
  MemoryAttention memory_attention;
  std::unique_ptr<FeedForward> mlp;
};

class MemoriaModel final : public Network {
 public:
  static absl::StatusOr<std::unique_ptr<Network>> Make(const NetworkBuilder& builder,
                                                       const MemoriaModelParts& parts) {
    auto network = std::make_unique<MemoriaModel>();
    MNEME_RETURN_IF_ERROR(network->Take(builder, parts));
    return network;
  }

  const NetworkInfo& info() const override { return info_; }
  absl::Status InitState(Backend&, std::byte*) const override { return absl::OkStatus(); }
  void Settle(ForwardContext&, const TensorView&) const override {}

  absl::Status CheckState(const CanonicalState& state) const override {
    return CheckEngramState(state, memory_.config());
  }
  absl::Status FitEngrams(CanonicalState& state) const override {
    return mneme::FitEngrams(memory_.config(), state);
  }
  absl::StatusOr<ForgottenEngrams> ForgetSegments(CanonicalState& state, int64_t first,
                                                  int64_t end) const override {
    return ForgetEngrams(memory_.config(), first, end, state);
  }
  absl::StatusOr<std::vector<RecalledEngram>> ReadRecalled(Backend& backend,
                                                           const std::byte* slab) const override {
    return memory_.ReadRecalled(backend, slab);
  }
  void SeedMemory(Backend& backend, std::byte* slab, uint64_t seed) const override {
    memory_.Seed(backend, slab, seed);
  }

  absl::Status Prepare(Backend& backend, const StateLayout&, Workspace&,
                       LayerObserver*) const override {
    for (const MemoriaLayer& layer : layers_) {
      MNEME_RETURN_IF_ERROR(layer.attention->Prepare(backend));
    }
    return absl::OkStatus();
  }

  void Forward(ForwardContext& ctx, const TensorView& logit_tokens,
               const TensorView& logits) const override {
    const Workspace::Scope scope(ctx.workspace);
    Kernels& kernels = ctx.kernels();
    const Shape shape{ctx.batch.tokens, info_.model_dim};
    const TensorView hidden = ctx.Temp(shape), last = ctx.Temp(shape);
    kernels.Embedding({.ids = ctx.batch.token_ids, .table = embeddings_, .y = hidden});
    const int longest = ctx.batch.longest_row > 0 ? ctx.batch.longest_row : ctx.batch.tokens;
    if (!ctx.reports.words.empty() && (longest > 1 || ctx.batch.crossings != 0)) {
      ctx.backend.Zero(ctx.reports.range.data, ctx.reports.range.bytes());
    }
    if (longest <= 1) {
      Round(ctx, hidden, last);
    } else {
      ForwardInRounds(ctx, longest, hidden, last);
    }
    const int64_t rows = logit_tokens.shape[0];
    if (rows == 0) return;
    const TensorView wanted = ctx.Temp({rows, info_.model_dim});
    kernels.GatherRows({.x = last, .indices = logit_tokens, .y = wanted});
    const LinearArgs products[] = {{.x = wanted, .weights = {&head_, 1}, .y = logits}};
    kernels.Linear(products);
  }

 private:
  absl::Status Take(const NetworkBuilder& builder, const MemoriaModelParts& parts) {
    const LanguageModelParts& model = parts.model;
    Weights& weights = builder.weights;
    const int model_dim = model.info.model_dim;
    info_ = model.info;
    EngramConfig engrams = parts.engrams;
    MNEME_ASSIGN_OR_RETURN(engrams.capacity, EngramCapacity(builder, engrams.rules));
    info_.engrams = engrams.capacity;
    info_.segment = segment_ = engrams.segment;
    info_.working_engrams = engrams.rules.working;
    info_.recalled_engrams = engrams.rules.recalled();
    if (engrams.rules.random_ties) info_.memory_seed = engrams.rules.seed;
    const int steps = EngramHistorySteps(engrams.capacity);
    info_.counted_segments = steps > 0 ? steps : FiringCounts::kMostSegments;
    MNEME_ASSIGN_OR_RETURN(embeddings_, weights.Table(model.embeddings, info_.vocab, model_dim));
    MNEME_ASSIGN_OR_RETURN(positions_, weights.Table(model.positions, parts.positions, model_dim));
    LayerBuilder layer{.network = builder,
                       .model_dim = model_dim,
                       .norm_eps = model.norm_eps,
                       .prefix = "transformer."};
    MNEME_ASSIGN_OR_RETURN(memory_, EngramMemory::Make(layer, engrams));
    for (int i = 0; i < info_.layers; ++i) {
      layer.layer = i;
      layer.prefix = absl::StrCat(model.layer_prefix, i, ".");
      MNEME_RETURN_IF_ERROR(TakeLayer(layer, parts, engrams));
    }
    MNEME_ASSIGN_OR_RETURN(norm_, TakeNorm(weights, "", model.norm, model_dim, model.norm_eps));
    MNEME_ASSIGN_OR_RETURN(head_, TakeHead(builder, model));
    MNEME_ASSIGN_OR_RETURN(
        ones_, weights.Constant(std::vector<float>(static_cast<size_t>(model_dim), 1.0f)));
    return absl::OkStatus();
  }

  absl::Status TakeLayer(const LayerBuilder& builder, const MemoriaModelParts& parts,
                         const EngramConfig& engrams) {
    MemoriaLayer layer;
    for (const auto& [norm, name] :
         {std::pair(&layer.attention_norm, "ln_1"),
          std::pair(&layer.working_norm, "ln_working_memory_attn"),
          std::pair(&layer.recalled_norm, "ln_memory_attn"), std::pair(&layer.mlp_norm, "ln_2")}) {
      MNEME_ASSIGN_OR_RETURN(*norm, TakeNorm(builder.weights(), builder.prefix, LayerNormOf(name),
                                             builder.model_dim, builder.norm_eps));
    }
    IgnoreMasks(builder, {"attn", "memory_attention"});
    MNEME_ASSIGN_OR_RETURN(layer.attention, MakeAttention(builder, parts.attention));
    MNEME_ASSIGN_OR_RETURN(
        layer.memory_attention,
        MemoryAttention::Make(builder, engrams, MemoryAttention::Tensors::kConv1d));
    MNEME_ASSIGN_OR_RETURN(layer.mlp, MakeMlp(builder, parts.mlp));
    layers_.push_back(std::move(layer));
    return absl::OkStatus();
  }

  // The step of `ctx`, of whose rows none has tokens of two segments. hidden: embeddings of its
  // tokens, which are used up; last: LayerNorm(h; ln_f).
  void Round(ForwardContext& step, const TensorView& hidden, const TensorView& last) const {
    const Workspace::Scope scope(step.workspace);
    ForwardContext ctx = step;
    ctx.row_index = IndexRows(ctx);
    std::vector<std::span<const PackedMatrix>> readers;
    for (const MemoriaLayer& layer : layers_) {
      readers.push_back(layer.memory_attention.keys());
      readers.push_back(layer.memory_attention.values());
    }
    memory_.Cross(ctx, readers, [&](const AttendedEngrams& engrams) {
      for (const MemoriaLayer& layer : layers_) layer.memory_attention.Begin(ctx, engrams);
    });
    ctx.kernels().AddPositions({.positions = ctx.row_index.token_positions,
                                .period = segment_,
                                .table = positions_,
                                .y = hidden});
    for (const MemoriaLayer& layer : layers_) {
      layer.attention->Forward(ctx, layer.attention_norm, hidden);
      layer.memory_attention.Forward(ctx, memory_, MemoryAttention::Engrams::kWorking,
                                     layer.working_norm, hidden);
      layer.memory_attention.Forward(ctx, memory_, MemoryAttention::Engrams::kRecalled,
                                     layer.recalled_norm, hidden);
      layer.mlp->Forward(ctx, layer.mlp_norm, hidden);
    }
    ApplyNorm(ctx.kernels(), norm_, hidden, last);
    memory_.Encode(ctx, last);
  }

  void ForwardInRounds(ForwardContext& ctx, int longest, const TensorView& embedded,
                       const TensorView& last) const {
    Kernels& kernels = ctx.kernels();
    const int64_t dim = info_.model_dim;
    const StepRounds rounds(ctx, longest, segment_);
    const int room = rounds.room();
    // Tokens of other rounds find the row behind the round's own: zeros.
    const TensorView found = ctx.Temp({room + 1, dim});
    TensorView answer = found;
    answer.shape.dims[0] = room;
    const int64_t bytes = found.bytes() / (room + 1);
    ctx.backend.Zero(found.as<std::byte>() + room * bytes, bytes);
    ctx.backend.Zero(last.data, last.bytes());
    const TensorView& places = rounds.places();
    const TensorView gathered = ctx.Temp(last.shape);
    for (int round = 0; round < rounds.count(); ++round) {
      const Workspace::Scope of_round(ctx.workspace);
      const auto [part, part_tokens] = rounds.Cut(round);
      ForwardContext inner{.backend = ctx.backend,
                           .workspace = ctx.workspace,
                           .batch = part,
                           .slabs = ctx.slabs,
                           .contexts = ctx.contexts,
                           .reports = ctx.reports};
      const TensorView hidden = ctx.Temp({room, dim});
      kernels.GatherRows({.x = embedded, .indices = part_tokens, .y = hidden});
      Round(inner, hidden, answer);
      kernels.GatherRows({.x = found, .indices = places, .y = gathered});
      kernels.AddScaled({.x = gathered, .scale = ones_, .y = last});
    }
  }

  NetworkInfo info_;
  int segment_ = 1;
  TensorView embeddings_;  // [vocab, model_dim] as stored
  TensorView positions_;   // [positions, model_dim] as stored
  EngramMemory memory_;
  std::vector<MemoriaLayer> layers_;
  Norm norm_;
  PackedMatrix head_;  // [vocab, model_dim]
  TensorView ones_;    // [model_dim] f32
};

}  // namespace

absl::StatusOr<std::unique_ptr<Network>> MakeMemoriaModel(const NetworkBuilder& builder,
                                                          const MemoriaModelParts& parts) {
  return MemoriaModel::Make(builder, parts);
}

}  // namespace mneme
