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

std::pair<TensorView, TensorView> KeyFeatures::Map(ForwardContext& ctx, const Keys& queries,
                                                   const Keys& keys) {
  const KeyMap map = queries.map.map_;
  if (!queries.map.transforms()) return {queries.u, keys.u};
  Kernels& kernels = ctx.kernels();
  // The learned layers see each head as a row. Rows of keys lie behind those of queries, so that
  // what is done to every number is done to all at once.
  const auto rows_of = [](const TensorView& u) { return u.shape[0] * u.shape[1]; };
  const int64_t dim = queries.u.shape[2], rows = rows_of(queries.u) + rows_of(keys.u);
  const auto part = [&](TensorView all, bool second) {
    const int64_t skipped = second ? rows_of(queries.u) : 0;
    all.data = all.as<std::byte>() + skipped * dim * SizeOf(all.dtype);
    all.shape = {rows_of(second ? keys.u : queries.u), dim};
    return all;
  };
  TensorView y, other;
  std::vector<ProjectionArgs> layers;
  const auto add = [&](const Projection& projection, const TensorView& u, const TensorView& to) {
    TensorView x = u;
    x.shape = {rows_of(u), dim};
    layers.push_back({.projection = projection, .x = x, .y = to});
  };
  if (queries.map.first_.exists()) {
    y = ctx.Temp({rows, dim});
    add(queries.map.first_, queries.u, part(y, false));
    add(keys.map.first_, keys.u, part(y, true));
  }
  if (queries.map.second_.exists()) {
    other = ctx.Temp({rows, dim});
    add(queries.map.second_, queries.u, part(other, false));
    add(keys.map.second_, keys.u, part(other, true));
  }
  if (!layers.empty()) Project(kernels, layers);
  const auto mapped = [&](const Keys& of, bool second) {
    if (y.empty()) return of.u;
    TensorView view = part(y, second);
    view.shape = of.u.shape;
    return view;
  };
  const TensorView q = mapped(queries, false), k = mapped(keys, true);
  switch (map) {
    case KeyMap::kTransformerToRnn: {
      const ActivateArgs relu[] = {{.x = y, .activation = Activation::kRelu, .y = y}};
      kernels.Activate(relu);
      return {q, k};
    }
    case KeyMap::kElementwiseProduct:
      kernels.Multiply({.a = y, .b = other, .y = y});
      return {q, k};
    default: {
      const FeatureMap kind = map == KeyMap::kHedgehog ? FeatureMap::kHedgehog : FeatureMap::kDpfp;
      const auto features_of = [&](const TensorView& x) {
        const TensorView features =
            ctx.Temp({x.shape[0], x.shape[1], x.shape[2] * FeaturesOf(kind)});
        kernels.MapFeatures({.map = kind, .x = x, .y = features});
        return features;
      };
      const TensorView query_features = features_of(q);
      return {query_features, features_of(k)};
    }
  }
}

}  // namespace mneme
