// One token of one memory, per head of F features:
//   q, k, v = map(Wq x), map(Wk x), Wv x
//   norm_queries: q <- q / (sum q + 1e-4);  norm_keys likewise;   q <- q / sqrt(F)
//   S <- S + v k^T;   o = S q
//   norm_read:  z <- z + k;   o <- o / (z . q + 1e-10)
//   out = Wo concat( RmsNorm_head(o) )

#include "models/mixers/linear_attention.h"

#include <cmath>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "models/mixers/entry_streams.h"
#include "models/mixers/memory_fields.h"
#include "models/mixers/memory_output.h"
#include "models/mixers/pending_fields.h"

namespace mneme {
namespace {

constexpr float kSumEps = 1e-4f, kReadEps = 1e-10f;  // upstream's

class LinearAttention final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const LayerBuilder& builder,
                                                             const LinearAttentionConfig& config) {
    const RoutingConfig& routing = config.routing;
    const int model_dim = builder.model_dim;
    const int features = FeaturesOf(config.key_map, config.key_dim);
    auto mixer = std::make_unique<LinearAttention>();
    mixer->config_ = config;
    mixer->scale_ = 1.0f / std::sqrt(static_cast<float>(features));
    MNEME_ASSIGN_OR_RETURN(mixer->router_, MemoryRouter::Make(builder, routing));
    if (!routing.routed() && config.heads == config.kv_heads) {
      mixer->pending_ = PendingFields::Of(builder, kRule, features, config.value_dim);
    }
    const MemoryFields fields(builder, routing);
    mixer->written_ = fields.written();

    MNEME_RETURN_IF_ERROR(mixer->TakeMaps(builder));
    const StreamOptions mapped = {.activation = ActivationOf(config.key_map),
                                  .factor_of = mixer->query_map_.weights()};
    EntryStreams& streams = mixer->streams_;
    MNEME_RETURN_IF_ERROR(streams.Add(
        fields, TakeProjection(builder, "attn.q_proj", config.heads * config.key_dim, model_dim),
        mapped));
    MNEME_RETURN_IF_ERROR(streams.Add(fields,
                                      TakeForMemories(builder, routing, {"attn.k_proj"},
                                                      config.kv_heads * config.key_dim, model_dim),
                                      mapped));
    MNEME_RETURN_IF_ERROR(
        streams.Add(fields, TakeForMemories(builder, routing, {"attn.v_proj"},
                                            config.kv_heads * config.value_dim, model_dim)));
    mixer->memory_ = fields.AddMatrices("memory", config.heads, config.value_dim, features);
    mixer->pending_.Add(builder, mixer->memory_,
                        {.heads = config.heads,
                         .key_dim = features,
                         .value_heads = config.heads,
                         .value_dim = config.value_dim});
    if (config.norm_read) {
      MNEME_ASSIGN_OR_RETURN(mixer->one_, TokenConstant::Make(builder, 1));
      mixer->key_sum_ = fields.AddExactMatrices("key_sum", config.heads, 1, features);
    }
    MNEME_ASSIGN_OR_RETURN(mixer->output_,
                           MemoryOutput::Make(builder, {.norm = "attn.norm",
                                                        .affine = config.norm_affine,
                                                        .eps = builder.norm_eps,
                                                        .heads = config.heads,
                                                        .dim = config.value_dim}));
    return mixer;
  }

  bool uses_row_index() const override { return !config_.routing.routed(); }

  void Settle(ForwardContext& ctx, const TensorView& slots) const override {
    pending_.Settle(ctx, slots, memory_, /*written=*/{});
  }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    const StepEntries entries =
        router_.Enter(ctx, norm, hidden, streams_.products(), ctx.State(written_));
    MemoryStreams streams = streams_.Project(ctx, entries);
    if (query_map_.transforms()) streams.Finish(ctx);
    const auto [q, k] = KeyFeatures::Map(ctx, {query_map_, ByHead(streams[kQ], config_.heads)},
                                         {key_map_, ByHead(streams[kK], config_.kv_heads)});
    streams.Replace(kQ, Flat(q));
    streams.Replace(kK, Flat(k));
    if (config_.norm_queries) streams.SumNorm(kQ, config_.heads, kSumEps);
    if (config_.norm_keys) streams.SumNorm(kK, config_.kv_heads, kSumEps);

    const TensorView read = ctx.Temp({entries.count, config_.heads, config_.value_dim});
    MatrixMemoryArgs memory = {.rule = kRule,
                               .q = q,
                               .k = k,
                               .v = ByHead(streams[kV], config_.kv_heads),
                               .scale = scale_,
                               .segments = entries.segments,
                               .state = ctx.State(memory_),
                               .pending = pending_.View(ctx.slabs),
                               .out = read};
    streams.Run(ctx, memory);
    if (config_.norm_read) {
      // The sum of all keys is a memory in which each key has the value one.
      memory.v = ByHead(one_.Read(ctx), 1);
      memory.state = ctx.State(key_sum_);
      memory.pending = {};
      memory.out = ctx.Temp({entries.count, config_.heads, 1});
      ctx.kernels().MatrixMemory(memory);
      ctx.kernels().Divide({.x = read, .z = Flat(memory.out), .eps = kReadEps, .y = read});
    }
    output_.Emit(ctx, entries, Flat(read), /*gate=*/{}, hidden);
  }

 private:
  static constexpr MatrixRule kRule = {.decay = MatrixRule::Decay::kNone,
                                       .correction = MatrixRule::Correction::kNone};
  enum { kQ, kK, kV };

  // A tied map is in the file under one name or both.
  absl::Status TakeMaps(const LayerBuilder& builder) {
    const KeyMap map = config_.key_map;
    const char* query_name = "attn.feature_map_q";
    const char* key_name = "attn.feature_map_k";
    if (config_.tied_maps) {
      const bool by_query = KeyFeatures::Exists(builder, map, query_name);
      KeyFeatures::Ignore(builder, map, by_query ? key_name : query_name);
      (by_query ? key_name : query_name) = by_query ? query_name : key_name;
    }
    MNEME_ASSIGN_OR_RETURN(query_map_,
                           KeyFeatures::Make(builder, map, query_name, config_.key_dim));
    if (config_.tied_maps) {
      key_map_ = query_map_;
      return absl::OkStatus();
    }
    MNEME_ASSIGN_OR_RETURN(key_map_, KeyFeatures::Make(builder, map, key_name, config_.key_dim));
    return absl::OkStatus();
  }

  LinearAttentionConfig config_;
  float scale_ = 1;
  MemoryRouter router_;
  EntryStreams streams_;
  KeyFeatures query_map_, key_map_;
  TokenConstant one_;
  StateField written_, memory_, key_sum_;
  PendingFields pending_;
  MemoryOutput output_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeLinearAttention(
    const LayerBuilder& builder, const LinearAttentionConfig& config) {
  return LinearAttention::Make(builder, config);
}

}  // namespace mneme
