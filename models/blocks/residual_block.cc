#include "models/blocks/residual_block.h"

#include <optional>
#include <utility>

#include "base/status_macros.h"

namespace mneme {
namespace {

class ResidualBlock final : public Block {
 public:
  static absl::StatusOr<std::unique_ptr<Block>> Make(const LayerBuilder& builder,
                                                     const ResidualBlockParts& parts) {
    auto block = std::make_unique<ResidualBlock>();
    const auto take = [&](const NormTensor& tensor) {
      return TakeNorm(builder.weights(), builder.prefix, tensor, builder.model_dim,
                      builder.norm_eps);
    };
    if (builder.layer == 0 && parts.first_norm.has_value()) {
      MNEME_ASSIGN_OR_RETURN(block->first_norm_, take(*parts.first_norm));
    }
    MNEME_ASSIGN_OR_RETURN(block->mixer_norm_, take(parts.mixer_norm));
    MNEME_ASSIGN_OR_RETURN(block->mixer_, parts.mixer(builder));
    if (!parts.feed_forward) return block;
    MNEME_ASSIGN_OR_RETURN(block->feed_forward_norm_, take(parts.feed_forward_norm));
    MNEME_ASSIGN_OR_RETURN(block->feed_forward_, parts.feed_forward(builder));
    return block;
  }

  absl::Status Prepare(Backend& backend) const override { return mixer_->Prepare(backend); }
  absl::Status InitState(Backend& backend, std::byte* slab) const override {
    return mixer_->InitState(backend, slab);
  }
  void Settle(ForwardContext& ctx, const TensorView& slots) const override {
    mixer_->Settle(ctx, slots);
  }
  bool uses_row_index() const override {
    return mixer_->uses_row_index() ||
           (feed_forward_ != nullptr && feed_forward_->uses_row_index());
  }

  void Forward(ForwardContext& ctx, BlockStream& stream) const override {
    if (first_norm_.has_value()) {
      ApplyNorm(ctx.kernels(), *first_norm_, stream.hidden, stream.hidden);
    }
    mixer_->Forward(ctx, mixer_norm_, stream.hidden);
    if (feed_forward_ != nullptr) feed_forward_->Forward(ctx, feed_forward_norm_, stream.hidden);
  }

  std::optional<DecodeLayer> Fused(const Slabs& slabs) const override {
    // The fused operations know RmsNorm.
    if (feed_forward_ == nullptr || first_norm_.has_value() || mixer_norm_.kind != NormKind::kRms) {
      return std::nullopt;
    }
    const auto feed_forward = feed_forward_->Fused(feed_forward_norm_);
    const auto mixer = mixer_->Fused(slabs, mixer_norm_);
    if (!feed_forward.has_value() || !mixer.has_value()) return std::nullopt;
    return DecodeLayer{*mixer, *feed_forward};
  }

 private:
  std::optional<Norm> first_norm_;
  Norm mixer_norm_, feed_forward_norm_;
  std::unique_ptr<SequenceMixer> mixer_;
  std::unique_ptr<FeedForward> feed_forward_;  // or none
};

}  // namespace

absl::StatusOr<std::unique_ptr<Block>> MakeResidualBlock(const LayerBuilder& builder,
                                                         const ResidualBlockParts& parts) {
  return ResidualBlock::Make(builder, parts);
}

}  // namespace mneme
