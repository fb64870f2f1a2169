// A step of a residual stream.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/decode_step.h"
#include "kernels/tensor_view.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"

namespace mneme {

// This travels from block to block within one step.
struct BlockStream {
  TensorView hidden;  // [tokens, model_dim] act, updated in place
};

class Block {
 public:
  virtual ~Block() = default;

  // As of SequenceMixer.
  virtual absl::Status Prepare(Backend& backend) const = 0;
  virtual absl::Status InitState(Backend& backend, std::byte* slab) const = 0;
  virtual void Settle(ForwardContext& ctx, const TensorView& slots) const = 0;
  virtual bool uses_row_index() const = 0;

  virtual void Forward(ForwardContext& ctx, BlockStream& stream) const = 0;

  // As of SequenceMixer.
  virtual std::optional<DecodeLayer> Fused(const Slabs&) const { return std::nullopt; }
};

using BlockMaker =
    std::function<absl::StatusOr<std::unique_ptr<Block>>(const LayerBuilder& builder)>;

}  // namespace mneme
