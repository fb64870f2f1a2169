// The long-term memory of Titans (arXiv:2501.00663) as titans-pytorch has it: fed in steps of
// several tokens, with gates of the step, from views of its own for queries, keys and values.
#pragma once

#include "absl/status/statusor.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/mixers/trained_memory.h"
#include "models/norm.h"
#include "models/projection.h"
#include "models/residual_streams.h"
#include "models/state_layout.h"

namespace mneme {

struct TitansPytorchMemoryConfig {
  enum class Pooling : uint8_t { kMean, kAttention };

  TrainedMemoryConfig memory;  // its transition is taken from the checkpoint
  bool gated_transition = false;
  bool same_start = false;  // one initial network for all heads
  bool input_norms = true;
  bool silu = false;         // on q, k and v
  bool qk_norm = false;      // of each head
  bool output_norm = false;  // of each head
  Pooling pooling = Pooling::kMean;
  double tensor_rate_max = 0;  // 0: no rates of tensors
  bool mixes_momenta = false, mixes_surprise = false;
  bool has_residual = false;  // of another memory
};

// What the parts of a memory are made of, [tokens, model_dim] act each; they may be the same.
struct MemoryViews {
  TensorView q, k, v;
};

// A token, per head; s the norm of its key view, p the pool of s over the tokens of a step:
//   q = act(Wq norm(view of q));   k, v = act(Wk s), act(Wv norm(view of v))     several of a token
//   rate = sigmoid(Wt s + b_t);    of the step: momentum = sigmoid(Wm p + b_m), keep =
//   sigmoid(-(Wd p + b_d)), tensor_rates = tensor_rate_max sigmoid(Wl p + b_l), residual_mix =
//   sigmoid(Wr p + b_r), momentum_mix = Wc p + b_c
//   r    = NeuralMemory(q, k, v, gates)
//   y    = Wo concat(sigmoid(Wg norm(view of q)) r)       of one head: r
// p is the mean of s, or a mean by a softmax of Wp s + b_p in each channel.
class TitansPytorchMemory {
 public:
  // Tensors behind "4.".
  static absl::StatusOr<TitansPytorchMemory> Make(const LayerBuilder& builder,
                                                  const TitansPytorchMemoryConfig& config);

  // Whether the views are normed. Then, if they are all the same, Want() asks for its norms and
  // their mean, and what it then is can be fed.
  bool norms_input() const { return config_.input_norms; }
  void Want(ForwardContext& ctx, BranchWants& wants) const;
  void Feed(ForwardContext& ctx, const BranchInput& input, const MemoryCopy& residual,
            const TensorView& y) const;
  // Feeds the step's tokens. With a residual, which is then the Before() of another memory that was
  // fed them already, the part of a row ends with a step of the memory.
  //   y  [tokens, model_dim] act
  void Feed(ForwardContext& ctx, const MemoryViews& views, const MemoryCopy& residual,
            const TensorView& y) const;

  MemoryCopy Before(const ForwardContext& ctx) const { return memory_.Before(ctx); }

 private:
  // Norms of the views, and p, which may be without data: it is not known yet.
  struct Inputs {
    TensorView q, k, v, pooled;
  };
  void FeedNormed(ForwardContext& ctx, const Inputs& inputs, const MemoryCopy& residual,
                  const TensorView& y) const;
  // The mean of the tokens of a step, but for what it is of.
  ChunkMeanArgs Mean(const ForwardContext& ctx) const;
  TensorView Pool(ForwardContext& ctx, const TensorView& x) const;
  // Gates of logits, in place.
  void FinishGates(ForwardContext& ctx, const NeuralMemoryArgs& args) const;
  // Norms the heads of x, [tokens, heads, dim].
  void NormHeads(ForwardContext& ctx, const TensorView& x, const TensorView& weight) const;

  TitansPytorchMemoryConfig config_;
  float norm_eps_ = 1e-6f;
  Norm retrieve_norm_, store_norm_;
  Projection q_, k_, v_;
  TensorView q_norm_, k_norm_, output_norm_;  // [heads, dim] act, k's [heads * keys, dim]; or empty
  Projection pool_logits_;
  StateField pool_sums_;
  Projection rate_, momentum_, keep_, tensor_rates_, momentum_mix_, residual_mix_;
  Projection head_gate_, out_;
  TrainedMemory memory_;
};

}  // namespace mneme
