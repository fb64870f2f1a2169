// Residual connections of several streams (kernels/ops/residual_streams.h), as layers hold them.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/kernels.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/norm.h"

namespace mneme {

struct ResidualStreamsConfig {
  int streams = 1;  // 1: a residual stream as elsewhere, without tensors
  StreamMixing::Kind mixing = StreamMixing::Kind::kConstrained;
};

// A branch gave this to the streams, which they do not have yet.
struct StreamWrite {
  TensorView output;  // [tokens, model_dim] act, or empty: nothing
  TensorView post;    // [tokens, streams] act: how much of it each stream gets; of one stream empty
};

// The forms in which a branch wants its input x, and for which products.
struct BranchWants {
  using Products = std::vector<std::span<const PackedMatrix>>;
  struct Normed {
    const Norm* norm = nullptr;
    Products products;  // none: act is wanted
  };

  TensorView input;  // where x goes, [tokens, model_dim] act; without data it may go nowhere
  Normed normed[2];  // norms of x, or null
  ChunkMeanArgs mean = {.chunk = 0};  // of normed[1], but for its x and y; chunk 0: none
  Products of_mean;
};
struct BranchInput {
  TensorView normed[2], mean;  // as LinearArgs::x, or act
};

// The connection of one branch, such as attention, to the streams of a layer.
class StreamBranch {
 public:
  // Tensors behind "<prefix>": static_alpha, dynamic_alpha_fn, norm.gamma and the scales, with
  // `writes` static_beta and dynamic_beta_fn, too.
  static absl::StatusOr<StreamBranch> Take(const LayerBuilder& builder, absl::string_view prefix,
                                           const ResidualStreamsConfig& config, bool writes);

  // Gives the streams what the branch before left, and takes this one's input from them. Where it
  // writes, the streams become what its output is added to, and `post`, [tokens, streams] act, what
  // a StreamWrite wants, which may be where that of the branch before is. The result is in the
  // caller's workspace scope.
  //   streams  [tokens, streams, model_dim] act
  BranchInput Enter(ForwardContext& ctx, const StreamWrite& before, const TensorView& streams,
                    const TensorView& post, const BranchWants& wants) const;

 private:
  bool single_ = false, writes_ = true;
  StreamMixing mixing_;  // without tensors of one stream
  TensorView ones_;      // [model_dim] f32, of one stream
};

// Gives the streams what the last branch left.
//   ones  [model_dim] f32
void FinishStreams(ForwardContext& ctx, const StreamWrite& last, const TensorView& streams,
                   const TensorView& ones);

}  // namespace mneme
