#include "models/model.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/tensor.h"
#include "models/checkpoint.h"
#include "models/dry_run.h"
#include "models/layer.h"
#include "models/layer_builder.h"
#include "models/model_config.h"
#include "models/weight_scan.h"
#include "models/weight_store.h"

namespace mneme {
namespace {

constexpr char kEmbeddings[] = "model.embeddings.weight";
constexpr char kHead[] = "lm_head.weight";

// Embedding, layers, norm, logits. Holds handles to weights, not the weights.
class Network {
 public:
  // Takes all weights and lays out the state. Without a loading store, just checks and plans.
  static absl::StatusOr<Network> Make(const ModelConfig& config, WeightStore& weights,
                                      const StateFormat& state_format, DType compute_dtype) {
    Network network;
    network.norm_eps_ = config.norm_eps;
    MNEME_ASSIGN_OR_RETURN(network.embeddings_,
                           weights.Table(kEmbeddings, config.vocab, config.model_dim));
    for (int i = 0; i < config.layers; ++i) {
      const LayerBuilder builder{.config = config,
                                 .layer = i,
                                 .weights = weights,
                                 .state = network.state_layout_,
                                 .state_format = state_format,
                                 .compute_dtype = compute_dtype};
      MNEME_ASSIGN_OR_RETURN(Layer layer, Layer::Make(builder));
      network.layers_.push_back(std::move(layer));
    }
    MNEME_ASSIGN_OR_RETURN(network.norm_, weights.Floats("model.norm.weight", {config.model_dim}));
    // Released configurations call untied models tied: what the file holds decides.
    MNEME_ASSIGN_OR_RETURN(network.head_, weights.Matrix(weights.Has(kHead) ? kHead : kEmbeddings,
                                                         config.vocab, config.model_dim));
    return network;
  }

  const StateLayout& state_layout() const { return state_layout_; }

  absl::Status InitState(Backend& backend, std::byte* slab) const {
    for (const Layer& layer : layers_) {
      MNEME_RETURN_IF_ERROR(layer.mixer().InitState(backend, slab));
    }
    return absl::OkStatus();
  }

  void Settle(ForwardContext& ctx, const TensorView& slots) const {
    for (const Layer& layer : layers_) layer.mixer().Settle(ctx, slots);
  }

  void Forward(ForwardContext& ctx, const TensorView& logit_tokens,
               const TensorView& logits) const {
    const Workspace::Scope scope(ctx.workspace);
    const int64_t model_dim = embeddings_.shape[1];
    const TensorView hidden = ctx.Temp({ctx.batch.tokens, model_dim});
    ctx.kernels().Embedding({.ids = ctx.batch.token_ids, .table = embeddings_, .y = hidden});
    const DecodeDone done = DecodeLayers(ctx, hidden, logit_tokens, logits);
    if (done == DecodeDone::kNothing) {
      for (const Layer& layer : layers_) layer.Forward(ctx, hidden);
    }

    const int64_t rows = logit_tokens.shape[0];
    if (rows == 0 || done == DecodeDone::kLogits) return;
    const TensorView last = ctx.Temp({rows, model_dim});
    ctx.kernels().GatherRows({.x = hidden, .indices = logit_tokens, .y = last});
    ctx.kernels().RmsNorm({.x = last, .weight = norm_, .eps = norm_eps_, .y = last});
    const LinearArgs products[] = {{.x = last, .weights = {&head_, 1}, .y = logits}};
    ctx.kernels().Linear(products);
  }

  // Needs no weights.
  int64_t WorkspaceBytes(DType activation_dtype, int tokens, int rows, int logit_rows) const {
    const std::unique_ptr<Backend> backend = MakeDryRunBackend(activation_dtype);
    Workspace workspace = Workspace::ForMeasuring();
    const StepBatch batch{.tokens = tokens, .rows = rows, .longest_row = 1};
    ForwardContext ctx{.backend = *backend, .workspace = workspace, .batch = batch};
    Forward(ctx, {.shape = {logit_rows}}, {.shape = {logit_rows, embeddings_.shape[0]}});
    return workspace.peak_bytes();
  }

 private:
  // All layers as one operation, and the logits with them, in a step of decode rows and where the
  // device has it.
  DecodeDone DecodeLayers(ForwardContext& ctx, const TensorView& hidden,
                          const TensorView& logit_tokens, const TensorView& logits) const {
    if (ctx.batch.longest_row != 1 || ctx.routing != nullptr) return DecodeDone::kNothing;
    const Workspace::Scope scope(ctx.workspace);
    std::vector<DecodeLayerArgs> steps;
    for (const Layer& layer : layers_) {
      const std::optional<DecodeLayerArgs> step = layer.StepArgs(ctx, hidden);
      if (!step.has_value()) return DecodeDone::kNothing;
      steps.push_back(*step);
    }
    const DecodeHeadArgs head = {.tokens = logit_tokens,
                                 .norm = norm_,
                                 .norm_eps = norm_eps_,
                                 .head = head_,
                                 .logits = logits};
    return ctx.kernels().DecodeLayers(steps, logit_tokens.shape[0] > 0 ? &head : nullptr);
  }

  TensorView embeddings_;  // [vocab, model_dim] as stored
  std::vector<Layer> layers_;
  TensorView norm_;  // [model_dim] f32
  float norm_eps_ = 1e-6f;
  PackedMatrix head_;  // [vocab, model_dim]
  StateLayout state_layout_;
};

class LoadedModel final : public Model {
 public:
  LoadedModel(ModelInfo info, Network network, Buffer weights, DType activation_dtype)
      : info_(std::move(info)),
        weights_(std::move(weights)),
        network_(std::move(network)),
        activation_dtype_(activation_dtype) {}

  const ModelInfo& info() const override { return info_; }
  const StateLayout& state_layout() const override { return network_.state_layout(); }

  absl::Status InitState(Backend& backend, std::byte* slab) const override {
    return network_.InitState(backend, slab);
  }

  void Forward(ForwardContext& ctx, const TensorView& logit_tokens,
               const TensorView& logits) const override {
    network_.Forward(ctx, logit_tokens, logits);
  }

  void Settle(ForwardContext& ctx, const TensorView& slots) const override {
    network_.Settle(ctx, slots);
  }

  int64_t WorkspaceBytes(int tokens, int rows, int logit_rows) const override {
    return network_.WorkspaceBytes(activation_dtype_, tokens, rows, logit_rows);
  }

 private:
  ModelInfo info_;
  Buffer weights_;
  Network network_;
  DType activation_dtype_;
};

// A hash of the configuration, on which a state depends besides the weights.
uint64_t HashConfig(const ModelConfig& config) {
  const DeltaMixerConfig& delta = config.delta;
  return HashText(absl::StrJoin(
      {absl::StrCat(config.mixer, " ", config.norm_eps), absl::StrCat(config.vocab),
       absl::StrCat(config.model_dim), absl::StrCat(config.layers), absl::StrCat(config.mlp_dim),
       absl::StrCat(delta.heads), absl::StrCat(delta.value_heads), absl::StrCat(delta.key_dim),
       absl::StrCat(delta.value_dim), absl::StrCat(delta.conv_width),
       absl::StrCat(delta.output_gate), absl::StrCat(delta.allow_negative_eigenvalues),
       absl::StrCat(delta.memories), absl::StrCat(delta.top_k), absl::StrCat(delta.shared_memory),
       absl::StrCat(delta.single_kv_proj)},
      " "));
}

ModelInfo MakeInfo(const std::string& folder, const ModelConfig& config,
                   const WeightStore& weights) {
  const absl::string_view path = absl::StripSuffix(folder, "/");
  const size_t slash = path.rfind('/');
  const absl::string_view name = slash == absl::string_view::npos ? path : path.substr(slash + 1);
  return {.name = std::string(name),
          .architecture = config.model_type,
          .vocab = config.vocab,
          .model_dim = config.model_dim,
          .layers = config.layers,
          .memories = config.delta.memories,
          .parameters = weights.parameters(),
          .weight_bytes = weights.resident_bytes(),
          .weight_dtype = weights.dtypes(),
          .fingerprint = CombineHashes(HashConfig(config), weights.fingerprint())};
}

void AddTensors(const Checkpoint& checkpoint, absl::string_view what,
                std::vector<std::string> names, std::vector<std::string>& warnings) {
  constexpr size_t kShown = 20;
  if (names.empty()) return;
  const size_t count = names.size();
  if (count > kShown) names.resize(kShown);
  warnings.push_back(absl::StrCat(checkpoint.path(), ": ", count, " tensors ", what, ": ",
                                  absl::StrJoin(names, ", "), count > kShown ? ", ..." : ""));
}

// Warnings of facts that are accepted and may yet be mistakes. `weights` have been taken.
std::vector<std::string> WarningsOf(const ModelConfig& config, const Checkpoint& checkpoint,
                                    const WeightStore& weights) {
  std::vector<std::string> warnings = config.warnings;
  if (!config.tie_word_embeddings && !weights.Has(kHead)) {
    warnings.push_back(absl::StrCat(
        checkpoint.path(), ": there is no tensor \"", kHead,
        "\", and config.json does not say \"tie_word_embeddings\": true. \"", kEmbeddings,
        "\" is used as the head; if the model was trained with a head of its own, that is missing, "
        "and what the model says means nothing"));
  }
  AddTensors(checkpoint, "of the shards are not in \"weight_map\", and read all the same",
             checkpoint.unlisted(), warnings);
  AddTensors(checkpoint, "are not used", weights.Unused(), warnings);
  return warnings;
}

// The pass that takes the weights without reading them. Only after it is it known whether bytes
// that belong to no tensor are those of one that is missing.
absl::StatusOr<Network> PlanNetwork(const ModelConfig& config, const Checkpoint& checkpoint,
                                    WeightStore& weights, const StateFormat& state_format,
                                    DType compute_dtype) {
  MNEME_ASSIGN_OR_RETURN(Network network,
                         Network::Make(config, weights, state_format, compute_dtype));
  MNEME_RETURN_IF_ERROR(checkpoint.CheckHoles());
  return network;
}

// All that a plan depends on in a backend.
struct Formats {
  StateFormat state;
  DType compute = DType::kF32;
  DType activation = DType::kF32;
};

// `backend` may be null.
absl::StatusOr<ModelPlan> Plan(const std::string& folder, const Backend* backend,
                               const Formats& formats) {
  MNEME_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(folder));
  MNEME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(folder));
  WeightStore weights(checkpoint, backend);
  MNEME_ASSIGN_OR_RETURN(Network planned,
                         PlanNetwork(config, checkpoint, weights, formats.state, formats.compute));
  const auto network = std::make_shared<const Network>(std::move(planned));
  ModelPlan plan{.info = MakeInfo(folder, config, weights),
                 .state_layout = network->state_layout(),
                 .workspace_bytes =
                     [network, formats](int tokens, int rows, int logit_rows) {
                       return network->WorkspaceBytes(formats.activation, tokens, rows, logit_rows);
                     },
                 .warnings = WarningsOf(config, checkpoint, weights)};
  if (backend != nullptr) MNEME_RETURN_IF_ERROR(weights.CheckValues());
  plan.info.fingerprint = 0;
  return plan;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadModel(
    const std::string& folder, Backend& backend,
    const std::function<void(int64_t done_bytes, int64_t total_bytes)>& progress) {
  MNEME_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(folder));
  MNEME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(folder));
  WeightStore weights(checkpoint, &backend);
  MNEME_RETURN_IF_ERROR(
      PlanNetwork(config, checkpoint, weights, backend.state_format(), backend.compute_dtype())
          .status());
  for (const std::string& warning : WarningsOf(config, checkpoint, weights)) {
    LOG(WARNING) << warning;
  }
  MNEME_RETURN_IF_ERROR(weights.StartLoading(backend, progress));
  MNEME_ASSIGN_OR_RETURN(Network network, Network::Make(config, weights, backend.state_format(),
                                                        backend.compute_dtype()));
  MNEME_RETURN_IF_ERROR(backend.Synchronize());
  return std::make_unique<LoadedModel>(MakeInfo(folder, config, weights), std::move(network),
                                       weights.TakeMemory(), backend.activation_dtype());
}

absl::StatusOr<ModelPlan> PlanModel(const std::string& folder, const Backend& backend) {
  return Plan(folder, &backend,
              {.state = backend.state_format(),
               .compute = backend.compute_dtype(),
               .activation = backend.activation_dtype()});
}

absl::StatusOr<ModelPlan> PlanModel(const std::string& folder, const StateFormat& state_format) {
  return Plan(folder, /*backend=*/nullptr, {.state = state_format});
}

}  // namespace mneme
