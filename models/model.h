// All that the engine knows of a network: facts, the layout of a session's state, and one step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "kernels/tensor_view.h"
#include "models/classes.h"
#include "models/engrams.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/layer_observer.h"
#include "models/state_layout.h"
#include "models/trained_layer.h"

namespace mneme {

// Facts that the server reports and the engine plans with.
struct ModelInfo {
  std::string name;          // the folder's; a server may give it another
  std::string architecture;  // model_type of config.json
  int vocab = 0;
  int model_dim = 0;
  int layers = 0;
  int memories = 0;   // that a layer's router chooses from; 0: there is no router
  int top_k = 0;      // that it chooses for a token
  int positions = 0;  // that were learned: no session can be fed more tokens; 0: any number
  // Tokens that a session can be fed: of what learned positions and state that grows (max_context)
  // have room for, the fewer; 0: any number.
  int64_t max_context = 0;
  int engrams = 0;  // that a session has room for; 0: the model makes none
  int segment = 0;  // positions after which engrams are made of them; 0: the model makes none
  int working_engrams = 0;   // that are made of a segment
  int recalled_engrams = 0;  // that a segment's tokens attend to beside those, at most
  // Segments whose firings are counted: of a session that has more some may be lost.
  int64_t counted_segments = 0;
  // The seed of sessions that bring none; none: nothing in the model's memory is drawn.
  std::optional<uint64_t> memory_seed = {};
  std::vector<TrainedLayer> trained;  // layers whose memory is trained at test time
  InsertedPositions inserted = {};
  Classes classes = {};
  int64_t parameters = 0;
  int64_t weight_bytes = 0;
  std::string weight_dtype;  // "bf16", or "bf16+f32" where mixed
  // A hash of the configuration and every byte of the weights: a state fits models with the same
  // one. 0 in a plan.
  uint64_t fingerprint = 0;

  // Columns of the logits.
  int outputs() const { return classes.exist() ? static_cast<int>(classes.labels.size()) : vocab; }
};

// The name of what bounds a context to `most` tokens: "--max-context", or the model.
absl::string_view ContextBound(const ModelInfo& info, int64_t most);

struct CanonicalState;  // models/state_codec.h

// A loaded network. Const and without session state; all of that is in the slabs that a step names.
class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelInfo& info() const = 0;
  virtual const StateLayout& state_layout() const = 0;

  // Writes the eagerly initialised fields of the initial slab (zeroed backend memory).
  virtual absl::Status InitState(Backend& backend, std::byte* slab) const = 0;

  // Whether a state whose tensors are of the right dtypes and shapes is one that a session can
  // have. INVALID_ARGUMENT names the tensor that is not.
  virtual absl::Status CheckState(const CanonicalState&) const { return absl::OkStatus(); }

  // Gives a state whose session had room for any number of engrams this model's room: FitEngrams
  // says how, and which errors there are. No change where the model makes none.
  virtual absl::Status FitEngrams(CanonicalState&) const { return absl::OkStatus(); }

  // Takes what was made of segments [first, end) out of a session's state: ForgetEngrams says how,
  // and which errors there are. UNIMPLEMENTED where the model makes no engrams.
  virtual absl::StatusOr<ForgottenEngrams> ForgetSegments(CanonicalState&, int64_t /*first*/,
                                                          int64_t /*end*/) const {
    return absl::UnimplementedError("the model makes no engrams");
  }

  // The engrams that the session in `slab`, backend memory, recalled when its open segment began,
  // oldest first. Waits for the device. UNIMPLEMENTED where the model makes no engrams.
  virtual absl::StatusOr<std::vector<RecalledEngram>> ReadRecalled(
      Backend&, const std::byte* /*slab*/) const {
    return absl::UnimplementedError("the model makes no engrams");
  }

  // Sets what the session in `slab`, backend memory of one that was fed nothing yet, draws from in
  // place of ModelInfo::memory_seed, of a model that has one. In stream order.
  virtual void SeedMemory(Backend&, std::byte* /*slab*/, uint64_t /*seed*/) const {}

  // The parts that the device can do as one operation in steps of decode rows, for
  // ForwardContext::decode. The plan holds for as long as the model and these slabs.
  virtual DecodePlan CompileDecode(Backend&, const Slabs&) const { return {}; }

  // Feeds the batch, updating the slabs its rows name, and computes logits after chosen tokens.
  //   logit_tokens  [n] i32, indices into the batch's tokens
  //   logits        [n, ModelInfo::outputs()] act, out
  virtual void Forward(ForwardContext& ctx, const TensorView& logit_tokens,
                       const TensorView& logits) const = 0;

  // Folds the pending writes of the slabs `slots`, [n] i32 in backend memory, each of which was fed
  // a token, so that their fields hold all that was fed, for those who read them: a device may hold
  // writes back. The slabs stand for the same state before and after, so copying, resuming and
  // feeding need no settling.
  virtual void Settle(ForwardContext& ctx, const TensorView& slots) const = 0;

  // Upper bound of the workspace Forward takes.
  virtual int64_t WorkspaceBytes(int tokens, int rows, int logit_rows) const = 0;
};

// The settings that are not in a model's folder.
struct ModelOptions {
  // Tokens that a session can be fed where the state grows with each of them: as many rows of it
  // are laid out. Without effect on other models.
  int max_context = kDefaultMaxContext;
  // Engrams that a session has room for; 0: as many as follow from the model. Without effect on
  // models that make none.
  int engram_capacity = 0;
  int segment_tokens = 0;  // ReadModelConfig's
  // Told of the rows of a prefix that all sessions begin with, while the model is loaded.
  LayerObserver* observer = nullptr;
};

// Loads a Hugging Face folder (config.json, model.safetensors or model.safetensors.index.json).
// Errors name the file, the tensor or key, what was found and what was expected.
//   progress  called from the loading thread with bytes done and in total; may be empty
absl::StatusOr<std::unique_ptr<Model>> LoadModel(
    const std::string& folder, Backend& backend,
    const std::function<void(int64_t done_bytes, int64_t total_bytes)>& progress,
    const ModelOptions& options = {});

// The same facts from config.json and the safetensors headers alone: what `mneme-server --plan` and
// mneme-inspect print.
struct ModelPlan {
  ModelInfo info;
  StateLayout state_layout;
  std::function<int64_t(int tokens, int rows, int logit_rows)> workspace_bytes;  // as of Model
  std::vector<std::string> warnings;  // what LoadModel would log
};
// As it would be loaded on `backend`, which is needed for the call only. Refuses what LoadModel
// does: weights are read, once, for values that are not finite, and nothing is kept of them.
absl::StatusOr<ModelPlan> PlanModel(const std::string& folder, const Backend& backend,
                                    const ModelOptions& options = {});
// The same for no backend in particular: weights as stored, which are not read, f32 activations.
absl::StatusOr<ModelPlan> PlanModel(const std::string& folder, const StateFormat& state_format,
                                    const ModelOptions& options = {});

}  // namespace mneme
