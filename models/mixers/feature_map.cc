#include "models/mixers/feature_map.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

std::vector<std::string> LayersOf(KeyMap map, absl::string_view name) {
  if (map == KeyMap::kElementwiseProduct) {
    return {absl::StrCat(name, ".layer1"), absl::StrCat(name, ".layer2")};
  }
  return IsLearned(map) ? std::vector{absl::StrCat(name, ".layer")} : std::vector<std::string>{};
}

}  // namespace

absl::StatusOr<KeyFeatures> KeyFeatures::Make(const LayerBuilder& builder, KeyMap map,
                                              absl::string_view name, int dim) {
  KeyFeatures features;
  features.map_ = map;
  const Bias bias = map == KeyMap::kTransformerToRnn ? Bias::kNone : Bias::kAdded;
  std::vector<Projection> layers;
  for (const std::string& layer : LayersOf(map, name)) {
    MNEME_ASSIGN_OR_RETURN(Projection projection, TakeProjection(builder, layer, dim, dim, bias));
    layers.push_back(std::move(projection));
  }
  if (!layers.empty()) features.first_ = layers.front();
  if (layers.size() > 1) features.second_ = layers.back();
  return features;
}

bool KeyFeatures::Exists(const LayerBuilder& builder, KeyMap map, absl::string_view name) {
  for (const std::string& layer : LayersOf(map, name)) {
    if (!builder.weights().Has(builder.Weight(layer + ".weight"))) return false;
  }
  return true;
}

void KeyFeatures::Ignore(const LayerBuilder& builder, KeyMap map, absl::string_view name) {
  for (const std::string& layer : LayersOf(map, name)) {
    builder.weights().Ignore(builder.Weight(layer + ".weight"));
    builder.weights().Ignore(builder.Weight(layer + ".bias"));
  }
}

TensorView KeyFeatures::Map(ForwardContext& ctx, const TensorView& u) const {
  Kernels& kernels = ctx.kernels();
  // The learned layers see each head as a row.
  const Shape rows{u.shape[0] * u.shape[1], u.shape[2]};
  const auto as_rows = [&](TensorView view) {
    view.shape = rows;
    return view;
  };
  const TensorView y = first_.exists() ? ctx.Temp(u.shape) : u;
  const TensorView other = second_.exists() ? ctx.Temp(rows) : TensorView{};
  std::vector<ProjectionArgs> layers;
  if (first_.exists()) layers.push_back({.projection = first_, .x = as_rows(u), .y = as_rows(y)});
  if (second_.exists()) layers.push_back({.projection = second_, .x = as_rows(u), .y = other});
  if (!layers.empty()) Project(kernels, layers);
  switch (map_) {
    case KeyMap::kTransformerToRnn: {
      const ActivateArgs relu[] = {
          {.x = as_rows(y), .activation = Activation::kRelu, .y = as_rows(y)}};
      kernels.Activate(relu);
      return y;
    }
    case KeyMap::kElementwiseProduct:
      kernels.Multiply({.a = as_rows(y), .b = other, .y = as_rows(y)});
      return y;
    case KeyMap::kHedgehog:
    case KeyMap::kDpfp: {
      const FeatureMap map = map_ == KeyMap::kHedgehog ? FeatureMap::kHedgehog : FeatureMap::kDpfp;
      const TensorView features = ctx.Temp({u.shape[0], u.shape[1], u.shape[2] * FeaturesOf(map)});
      kernels.MapFeatures({.map = map, .x = y, .y = features});
      return features;
    }
    default:
      return y;
  }
}

}  // namespace mneme
