// The long-term memory of Titans (Behrouz et al., arXiv:2501.00663): a small network for each head,
// trained on the keys and values of the tokens that it is fed.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/mixers/memory_streams.h"
#include "models/mixers/trained_memory.h"
#include "models/projection.h"
#include "models/sequence_mixer.h"
#include "models/step_products.h"

namespace mneme {

struct NeuralMemoryConfig {
  // The one momentum and forgetting that a step of several tokens takes.
  enum class Pooling : uint8_t {
    kToken,   // steps are of one token
    kGates,   // the mean of their gates
    kInputs,  // the gate of their mean
  };

  TrainedMemoryConfig memory;
  Pooling pooling = Pooling::kToken;
  bool forgets = true;
  bool may_have_forget_gate = false;  // in the file though it does not forget, as Automodel's does
  bool exponential_decay = false;     // KeepGateArgs::a_log
  int conv_width = 0;                 // of q, k and v; 0: no convolution
  bool conv_bias = false;
  bool silu = true;             // on q, k and v
  bool l2_norm = true;          // of the heads of q and k
  float query_scale = 1;        // of q behind its norm
  bool starts_at_zero = false;  // and no tensor of the memory is stored
  bool gated_output = true;
  float output_norm_eps = 1e-6f;  // with it
  // Whether Recall() is wanted: a convolution of q of its own, and, in the memory, F or an anchor
  // of the same period.
  bool recalls = false;
};

// One token of x [model_dim], per head; n(u) = u / |u|:
//   q, k, v = n(silu(conv(Wq x))), n(silu(conv(Wk x))), silu(conv(Wv x))
//   rate = sigmoid(Wb x + b_b);  momentum = sigmoid(Wm x + b_m)
//   keep = sigmoid(-(Wa x + b_a)),   or   exp(-exp(A_log) softplus(Wa x + b_a + dt_bias))
//   r    = NeuralMemory(query_scale q, k, v, rate, momentum, keep)
//   y    = Wo RmsNorm(r * silu(Wg x); norm),   or   Wo r
class NeuralMemory {
 public:
  // Tensors memory.{q,k,v,b,m,a,g,o}_proj, memory.{q,k,v}_conv, memory.{A_log,dt_bias} or
  // memory._fp32_params.{A_log,dt_bias}, memory.mem_weights.<l>, memory.mem_norm_weight,
  // memory.norm. Biases of gates may be missing.
  static absl::StatusOr<NeuralMemory> Make(const LayerBuilder& builder,
                                           const NeuralMemoryConfig& config);

  // The matrices that x is multiplied by.
  std::vector<std::span<const PackedMatrix>> products() const;

  // SequenceMixer::Settle of the memory.
  void Settle(ForwardContext& ctx, const TensorView& slots) const;

  // Feeds x, [tokens, model_dim] as LinearArgs::x, the tokens of `rows`.   y  [tokens, model_dim]
  // act, which is added to with `accumulate`. `normed`: what x is still to become.
  void Feed(ForwardContext& ctx, const RowIndex& rows, const TensorView& x, const TensorView& y,
            bool accumulate, const NormedInput& normed = {}) const;

  // y = what the memory as it was at the last multiple of its frozen period answers to x; it learns
  // nothing. The tokens of a row may lie in one period only.
  void Recall(ForwardContext& ctx, const RowIndex& rows, const TensorView& x,
              const TensorView& y) const;

 private:
  enum { kQ, kK, kV };
  struct Stream {
    Projection projection;
    TensorView conv, conv_bias;  // [channels, width], [channels] f32, or empty
    StateField window;
  };
  struct Gate {
    Projection projection;
    StateField sums;  // of the open step
  };

  // A stream of x by head, [tokens, heads, dim]: its product, which is added to `products`, and
  // what is left to do to that.
  TensorView AddStream(ForwardContext& ctx, const RowIndex& rows, const TensorView& x, int which,
                       const StateField& window, std::vector<ProjectionArgs>& products,
                       MemoryStreams& streams) const;
  // The product of the output gate; without data where there is none.
  TensorView AddOutputGate(ForwardContext& ctx, const TensorView& x,
                           std::vector<ProjectionArgs>& products) const;
  // From the logits of a gate to the gate of each token or, of a step's last token, of the step.
  void PoolAround(ForwardContext& ctx, const RowIndex& rows, const Gate& gate,
                  const TensorView& values, bool are_gates) const;
  // What the last product reads: `read` by token, or what `output`, which is to be done, leaves of
  // it, but for its surprise. `gate`: AddOutputGate()'s.
  TensorView Answer(ForwardContext& ctx, const TensorView& gate, const TensorView& read,
                    NeuralMemoryOutputArgs& output) const;
  void TellSurprise(ForwardContext& ctx, const SurpriseArgs& surprise) const;
  // Does an output.
  void GateAnswer(ForwardContext& ctx, const NeuralMemoryOutputArgs& output) const;
  // The last product. `name`: of the answer, for those who look on.
  void Emit(ForwardContext& ctx, absl::string_view name, const TensorView& answer,
            const TensorView& y, bool accumulate) const;

  NeuralMemoryConfig config_;
  std::array<Stream, 3> streams_;
  StateField recall_window_;  // of q's convolution of what is recalled
  Projection rate_;
  Gate momentum_, forget_;
  TensorView a_log_, dt_bias_;  // [heads] f32, or empty
  TrainedMemory memory_;
  Projection gate_, out_;
  TensorView norm_;  // [dim] f32, or empty
};

// As the mixer of a block: hidden += NeuralMemory(Norm(hidden)).
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeNeuralMemory(const LayerBuilder& builder,
                                                                const NeuralMemoryConfig& config);

}  // namespace mneme
