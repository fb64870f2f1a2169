// Maps that turn keys and queries into the features that a memory is addressed by.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/kernels.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/projection.h"

namespace mneme {

// Maps of u, a head's key or query of dim numbers; A and c are learned, and the same for all heads.
enum class KeyMap : uint8_t {
  kIdentity,            // u
  kRelu,                // relu(u)
  kSilu,                // silu(u)
  kSigmoid,             // sigmoid(u)
  kEluPlusOne,          // elu(u) + 1
  kTransformerToRnn,    // relu(A u)                                (arXiv:2103.13076)
  kElementwiseProduct,  // (A1 u + c1) * (A2 u + c2)
  kHedgehog,            // FeatureMap::kHedgehog of A u + c         (arXiv:2402.04347)
  kDpfp,                // FeatureMap::kDpfp                        (arXiv:2102.11174)
};

// The features of a head of `dim` numbers.
constexpr int FeaturesOf(KeyMap map, int dim) {
  return dim * (map == KeyMap::kHedgehog ? FeaturesOf(FeatureMap::kHedgehog)
                : map == KeyMap::kDpfp   ? FeaturesOf(FeatureMap::kDpfp)
                                         : 1);
}
// The maps that are applied to each number by itself, and need no KeyFeatures.
constexpr Activation ActivationOf(KeyMap map) {
  switch (map) {
    case KeyMap::kRelu:
      return Activation::kRelu;
    case KeyMap::kSilu:
      return Activation::kSilu;
    case KeyMap::kSigmoid:
      return Activation::kSigmoid;
    case KeyMap::kEluPlusOne:
      return Activation::kEluPlusOne;
    default:
      return Activation::kIdentity;
  }
}
constexpr bool IsLearned(KeyMap map) {
  return map == KeyMap::kTransformerToRnn || map == KeyMap::kElementwiseProduct ||
         map == KeyMap::kHedgehog;
}

// The other maps, with their weights.
class KeyFeatures {
 public:
  // Takes "<name>.layer" or "<name>.layer1" and "<name>.layer2", where the map is learned.
  static absl::StatusOr<KeyFeatures> Make(const LayerBuilder& builder, KeyMap map,
                                          absl::string_view name, int dim);
  // Whether the layer has the tensors of that name.
  static bool Exists(const LayerBuilder& builder, KeyMap map, absl::string_view name);
  // Declares them as unused.
  static void Ignore(const LayerBuilder& builder, KeyMap map, absl::string_view name);

  // Whether there is something to do: the map is none of an activation's.
  bool transforms() const {
    return map_ != KeyMap::kIdentity && ActivationOf(map_) == Activation::kIdentity;
  }
  // The matrices that multiply u, which then is read by nothing else; or none.
  std::span<const PackedMatrix> weights() const { return first_.weights; }

  struct Keys {
    const KeyFeatures& map;
    TensorView u;  // [entries, heads, dim] act, or as LinearArgs::x where there are weights()
  };
  // Queries and keys, each [entries, heads, FeaturesOf(map, dim)] act, u itself where nothing
  // transforms it; both maps are of one kind. In the caller's workspace scope.
  static std::pair<TensorView, TensorView> Map(ForwardContext& ctx, const Keys& queries,
                                               const Keys& keys);

 private:
  KeyMap map_ = KeyMap::kIdentity;
  Projection first_, second_;  // A and c
};

}  // namespace mneme
