#include "models/model.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/tensor.h"
#include "models/checkpoint.h"
#include "models/dry_run.h"
#include "models/model_config.h"
#include "models/network.h"
#include "models/weight_scan.h"
#include "models/weight_store.h"

namespace mneme {
namespace {

// A network and all that is known of it, apart from what it computes.
struct BuiltNetwork {
  std::unique_ptr<const Network> network;
  StateLayout state_layout;
  std::vector<std::string> warnings;
  std::vector<TrainedLayer> trained;
};

// All that a network depends on beside its configuration and weights.
struct Formats {
  StateFormat state;
  DType compute = DType::kF32;
  DType activation = DType::kF32;
  int max_context = kDefaultMaxContext;
  int engram_capacity = 0;
  int segment_tokens = 0;
  bool asynchronous = false;
};

Formats FormatsOf(const Backend& backend, const ModelOptions& options) {
  return {.state = backend.state_format(),
          .compute = backend.compute_dtype(),
          .activation = backend.activation_dtype(),
          .max_context = options.max_context,
          .engram_capacity = options.engram_capacity,
          .segment_tokens = options.segment_tokens,
          .asynchronous = backend.asynchronous()};
}

// Whether a state dtype of fewer than 32 bits means something to a layout, and is accurate enough:
// int8 is not where a matrix is rounded at every token (docs/numerics.md).
absl::Status CheckStateDtype(const ModelConfig& config, const StateLayout& layout, DType dtype) {
  if (dtype != DType::kF16 && dtype != DType::kI8) return absl::OkStatus();
  bool found = false;
  for (const StateField& field : layout.fields()) {
    if (field.dtype != dtype || field.row_values == 0) continue;
    found = true;
    const bool held_back = absl::c_any_of(layout.fields(), [&](const StateField& other) {
      return other.role == StateRole::kHeldBack && other.layer == field.layer;
    });
    if (dtype == DType::kI8 && !held_back) {
      return absl::InvalidArgumentError(absl::StrCat(
          "state dtype int8 (--state-dtype): the matrices \"", field.name, "\" of a ",
          config.model_type, " model would be rounded at every token; expected f32 or f16"));
    }
  }
  if (found) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "state dtype ", dtype == DType::kI8 ? "int8" : "f16", " (--state-dtype): a ",
      config.model_type, " model like this keeps no matrices of that dtype; expected f32"));
}

// Takes all weights and lays out the state. Without a loading store, just checks and plans.
absl::StatusOr<BuiltNetwork> Build(const ModelConfig& config, Weights& weights,
                                   const Formats& formats) {
  BuiltNetwork built;
  MNEME_ASSIGN_OR_RETURN(built.network,
                         config.make_network({.weights = weights,
                                              .state = built.state_layout,
                                              .state_format = formats.state,
                                              .compute_dtype = formats.compute,
                                              .max_context = formats.max_context,
                                              .engram_capacity = formats.engram_capacity,
                                              .asynchronous = formats.asynchronous,
                                              .warnings = built.warnings,
                                              .trained = &built.trained}));
  MNEME_RETURN_IF_ERROR(CheckStateDtype(config, built.state_layout, formats.state.memory_dtype));
  return built;
}

// Needs no weights.
int64_t WorkspaceBytesOf(const Network& network, DType activation_dtype, int tokens, int rows,
                         int logit_rows) {
  const std::unique_ptr<Backend> backend = MakeDryRunBackend(activation_dtype);
  Workspace workspace = Workspace::ForMeasuring();
  for (const int longest : {1, tokens}) {
    const StepBatch batch{.tokens = tokens, .rows = rows, .longest_row = longest};
    ForwardContext ctx{.backend = *backend, .workspace = workspace, .batch = batch};
    // What watching memories takes counts whether or not anybody does. Only its address is taken.
    ctx.surprise.values = {&workspace, DType::kF32, {1, tokens}};
    network.Forward(ctx, {.shape = {logit_rows}},
                    {.shape = {logit_rows, network.info().outputs()}});
  }
  return workspace.peak_bytes();
}

class LoadedModel final : public Model {
 public:
  LoadedModel(ModelInfo info, BuiltNetwork built, Buffer weights, DType activation_dtype)
      : info_(std::move(info)),
        weights_(std::move(weights)),
        network_(std::move(built.network)),
        state_layout_(std::move(built.state_layout)),
        activation_dtype_(activation_dtype) {}

  const ModelInfo& info() const override { return info_; }
  const StateLayout& state_layout() const override { return state_layout_; }

  absl::Status InitState(Backend& backend, std::byte* slab) const override {
    return network_->InitState(backend, slab);
  }

  absl::Status CheckState(const CanonicalState& state) const override {
    return network_->CheckState(state);
  }

  absl::Status FitEngrams(CanonicalState& state) const override {
    return network_->FitEngrams(state);
  }
  absl::StatusOr<ForgottenEngrams> ForgetSegments(CanonicalState& state, int64_t first,
                                                  int64_t end) const override {
    return network_->ForgetSegments(state, first, end);
  }
  absl::StatusOr<std::vector<RecalledEngram>> ReadRecalled(Backend& backend,
                                                           const std::byte* slab) const override {
    return network_->ReadRecalled(backend, slab);
  }
  void SeedMemory(Backend& backend, std::byte* slab, uint64_t seed) const override {
    network_->SeedMemory(backend, slab, seed);
  }

  DecodePlan CompileDecode(Backend& backend, const Slabs& slabs) const override {
    return network_->CompileDecode(backend, slabs);
  }

  void Forward(ForwardContext& ctx, const TensorView& logit_tokens,
               const TensorView& logits) const override {
    network_->Forward(ctx, logit_tokens, logits);
  }

  void Settle(ForwardContext& ctx, const TensorView& slots) const override {
    network_->Settle(ctx, slots);
  }

  int64_t WorkspaceBytes(int tokens, int rows, int logit_rows) const override {
    return WorkspaceBytesOf(*network_, activation_dtype_, tokens, rows, logit_rows);
  }

 private:
  ModelInfo info_;
  Buffer weights_;
  std::unique_ptr<const Network> network_;
  StateLayout state_layout_;
  DType activation_dtype_;
};

ModelInfo MakeInfo(const std::string& folder, const ModelConfig& config, const BuiltNetwork& built,
                   const WeightStore& weights) {
  const NetworkInfo& network = built.network->info();
  const absl::string_view path = absl::StripSuffix(folder, "/");
  const size_t slash = path.rfind('/');
  const absl::string_view name = slash == absl::string_view::npos ? path : path.substr(slash + 1);
  return {.name = std::string(name),
          .architecture = config.model_type,
          .vocab = network.vocab,
          .model_dim = network.model_dim,
          .layers = network.layers,
          .memories = network.memories,
          .top_k = network.top_k,
          .positions = network.positions,
          .max_context = built.state_layout.max_tokens().value_or(0),
          .engrams = network.engrams,
          .segment = network.segment,
          .working_engrams = network.working_engrams,
          .recalled_engrams = network.recalled_engrams,
          .counted_segments = network.counted_segments,
          .memory_seed = network.memory_seed,
          .trained = built.trained,
          .inserted = network.inserted,
          .classes = network.classes,
          .parameters = weights.parameters(),
          .weight_bytes = weights.resident_bytes(),
          .weight_dtype = weights.dtypes(),
          .fingerprint = CombineHashes(config.fingerprint, weights.fingerprint())};
}

// `what` is said of several, `what_of_one` of one.
void AddTensors(const Checkpoint& checkpoint, absl::string_view what_of_one, absl::string_view what,
                std::vector<std::string> names, std::vector<std::string>& warnings) {
  constexpr size_t kShown = 20;
  if (names.empty()) return;
  const size_t count = names.size();
  if (count > kShown) names.resize(kShown);
  warnings.push_back(absl::StrCat(
      checkpoint.path(), ": ",
      count == 1 ? absl::StrCat("1 tensor ", what_of_one) : absl::StrCat(count, " tensors ", what),
      ": ", absl::StrJoin(names, ", "), count > kShown ? ", ..." : ""));
}

// The number of the layer that a tensor of this name is in; -1: there is none in it.
int LayerOf(absl::string_view name) {
  constexpr absl::string_view kLayers = "layers.";
  const size_t at = name.find(kLayers);
  int layer = -1;
  if (at == name.npos) return layer;
  name.remove_prefix(at + kLayers.size());
  return absl::SimpleAtoi(name.substr(0, name.find('.')), &layer) ? layer : -1;
}

// Names the keys whose values leave out some of these tensors, so that people know which to look
// at.
std::vector<std::string> ReasonsOf(const std::vector<std::string>& unused,
                                   const ModelConfig& config, int layers) {
  std::vector<std::string> reasons;
  for (const LeavesOut& one : config.leaves_out) {
    if (absl::c_any_of(unused, [&](const std::string& name) {
          return absl::StrContains(name, one.tensors);
        })) {
      reasons.push_back(absl::StrCat("\"", one.key, "\" is ", one.value));
    }
  }
  if (absl::c_any_of(unused, [&](const std::string& name) { return LayerOf(name) >= layers; })) {
    reasons.push_back(absl::StrCat("the number of layers is ", layers));
  }
  return reasons;
}

// Tensors that nobody took. A state of training is harmless; but a key with another value than the
// network was trained with leaves tensors unused, too, and then another function is computed.
void AddUnused(const Checkpoint& checkpoint, const ModelConfig& config, int layers,
               const std::vector<std::string>& unused, std::vector<std::string>& warnings) {
  constexpr size_t kShown = 6;
  if (unused.empty()) return;
  const std::vector<std::string> shown(unused.begin(),
                                       unused.begin() + std::min(unused.size(), kShown));
  const std::vector<std::string> reasons = ReasonsOf(unused, config, layers);
  warnings.push_back(absl::StrCat(
      checkpoint.path(), ": ", unused.size(), " of ", checkpoint.entries().size(),
      unused.size() == 1 ? " tensors is not used: " : " tensors are not used: ",
      absl::StrJoin(shown, ", "), unused.size() > kShown ? ", ..." : "",
      ". Unless training left them behind, config.json is not this file's, and what the model says "
      "means nothing",
      reasons.empty() ? "" : absl::StrCat(": in config.json ", absl::StrJoin(reasons, ", "))));
}

// Warnings of facts that are accepted and may yet be mistakes. `weights` have been taken.
std::vector<std::string> WarningsOf(const ModelConfig& config, const BuiltNetwork& built,
                                    const Checkpoint& checkpoint, const WeightStore& weights) {
  std::vector<std::string> warnings = config.warnings;
  for (const std::string& warning : built.warnings) {
    warnings.push_back(absl::StrCat(checkpoint.path(), ": ", warning));
  }
  AddTensors(checkpoint, "of the shards is not in \"weight_map\", and read all the same",
             "of the shards are not in \"weight_map\", and read all the same",
             checkpoint.unlisted(), warnings);
  AddUnused(checkpoint, config, built.network->info().layers, weights.Unused(), warnings);
  return warnings;
}

// The pass that takes the weights without reading them. Only after it is it known whether bytes
// that belong to no tensor are those of one that is missing.
absl::StatusOr<BuiltNetwork> PlanNetwork(const ModelConfig& config, const Checkpoint& checkpoint,
                                         WeightStore& weights, const Formats& formats) {
  absl::StatusOr<BuiltNetwork> built = Build(config, weights, formats);
  if (!built.ok()) {
    // A key that was misspelled may well be why a tensor is not as expected.
    if (config.warnings.empty()) return built;
    return absl::Status(built.status().code(), absl::StrCat(built.status().message(), "; besides, ",
                                                            absl::StrJoin(config.warnings, "; ")));
  }
  MNEME_RETURN_IF_ERROR(checkpoint.CheckHoles());
  return built;
}

// `backend` may be null.
absl::StatusOr<ModelPlan> Plan(const std::string& folder, const Backend* backend,
                               const Formats& formats) {
  MNEME_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(folder, formats.segment_tokens));
  MNEME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(folder));
  WeightStore weights(checkpoint, backend);
  MNEME_ASSIGN_OR_RETURN(BuiltNetwork planned, PlanNetwork(config, checkpoint, weights, formats));
  ModelPlan plan{.info = MakeInfo(folder, config, planned, weights),
                 .state_layout = planned.state_layout,
                 .warnings = WarningsOf(config, planned, checkpoint, weights)};
  plan.workspace_bytes = [network = std::shared_ptr<const Network>(std::move(planned.network)),
                          formats](int tokens, int rows, int logit_rows) {
    return WorkspaceBytesOf(*network, formats.activation, tokens, rows, logit_rows);
  };
  if (backend != nullptr) MNEME_RETURN_IF_ERROR(weights.CheckValues());
  plan.info.fingerprint = 0;
  return plan;
}

}  // namespace

absl::string_view ContextBound(const ModelInfo& info, int64_t most) {
  return info.positions > 0 && most == info.positions ? "the positions that the model has"
                                                      : "--max-context";
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(
    const std::string& folder, Backend& backend,
    const std::function<void(int64_t done_bytes, int64_t total_bytes)>& progress,
    const ModelOptions& options) {
  const Formats formats = FormatsOf(backend, options);
  MNEME_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(folder, formats.segment_tokens));
  MNEME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(folder));
  WeightStore weights(checkpoint, &backend);
  MNEME_ASSIGN_OR_RETURN(const BuiltNetwork planned,
                         PlanNetwork(config, checkpoint, weights, formats));
  for (const std::string& warning : WarningsOf(config, planned, checkpoint, weights)) {
    LOG(WARNING) << warning;
  }
  MNEME_RETURN_IF_ERROR(weights.StartLoading(backend, progress));
  MNEME_ASSIGN_OR_RETURN(BuiltNetwork built, Build(config, weights, formats));
  MNEME_RETURN_IF_ERROR(backend.Synchronize());
  {
    MNEME_ASSIGN_OR_RETURN(
        Workspace workspace,
        Workspace::Create(backend, WorkspaceBytesOf(*built.network, backend.activation_dtype(),
                                                    /*tokens=*/1, /*rows=*/1, /*logit_rows=*/1)));
    MNEME_RETURN_IF_ERROR(
        built.network->Prepare(backend, built.state_layout, workspace, options.observer));
  }
  ModelInfo info = MakeInfo(folder, config, built, weights);
  return std::make_unique<LoadedModel>(std::move(info), std::move(built), weights.TakeMemory(),
                                       backend.activation_dtype());
}

absl::StatusOr<ModelPlan> PlanModel(const std::string& folder, const Backend& backend,
                                    const ModelOptions& options) {
  return Plan(folder, &backend, FormatsOf(backend, options));
}

absl::StatusOr<ModelPlan> PlanModel(const std::string& folder, const StateFormat& state_format,
                                    const ModelOptions& options) {
  return Plan(folder, /*backend=*/nullptr,
              {.state = state_format,
               .max_context = options.max_context,
               .engram_capacity = options.engram_capacity,
               .segment_tokens = options.segment_tokens});
}

}  // namespace mneme
