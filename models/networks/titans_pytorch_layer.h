// A layer of titans-pytorch's network.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/networks/titans_pytorch_network.h"

namespace mneme {

// This travels from layer to layer. What layers give to others is written where `history` has room
// for it: the inputs and outputs of attention and of the feed-forward network, behind the input of
// a memory.
struct TitansPytorchStream {
  TensorView streams;  // [tokens, streams, model_dim] act
  TensorView history;  // [1 + 4 layers, tokens, model_dim] act, or empty
  // The last branch's write, and room for what a branch leaves where the history has none.
  StreamWrite last;
  TensorView output;  // [tokens, model_dim] act
  TensorView post;    // [tokens, streams] act
  MemoryCopy before;  // of the last memory, where another one wants it
};

class TitansPytorchLayer {
 public:
  // Tensors behind "<layer>.": 0 to 2 of the branches, 3 of the views, 4 of the memory, 5 of
  // attention, 6 of the feed-forward network.
  static absl::StatusOr<TitansPytorchLayer> Make(const LayerBuilder& builder,
                                                 const TitansPytorchParts& parts);

  absl::Status Prepare(Backend& backend) const { return attention_.Prepare(backend); }
  void Forward(ForwardContext& ctx, TitansPytorchStream& stream) const;

 private:
  // How many entries of the history the layers below have.
  int64_t Earlier() const { return 1 + 4 * int64_t{layer_}; }
  // A piece of the history; without data where it has no room for it.
  static TensorView Piece(const TitansPytorchStream& stream, int64_t index);
  MemoryViews Views(ForwardContext& ctx, const TitansPytorchStream& stream,
                    const TensorView& input) const;
  // Each enters its branch and leaves what that gave, `output`.
  void RunMemory(ForwardContext& ctx, TitansPytorchStream& stream, const TensorView& output) const;
  void RunAttention(ForwardContext& ctx, TitansPytorchStream& stream, const TensorView& gate) const;
  void RunFeedForward(ForwardContext& ctx, TitansPytorchStream& stream) const;

  int layer_ = 0;
  bool gates_attention_ = false;
  std::optional<TitansPytorchMemory> memory_;
  bool has_residual_ = false;
  StreamBranch memory_branch_, attention_branch_, feed_forward_branch_;
  Norm view_norm_;
  Projection views_;  // or none
  PersistentAttention attention_;
  Norm feed_forward_norm_;
  Projection up_, gate_, down_;
};

}  // namespace mneme
