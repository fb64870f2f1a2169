#include "tests/models/plain_attention.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"

namespace mneme {
namespace {

using nlohmann::json;

// Each head turned by its position, in halves.
Vec Turned(Vec all, int64_t dim, int64_t position, double theta) {
  for (size_t head = 0; head < all.size(); head += static_cast<size_t>(dim)) {
    for (int64_t j = 0; j < dim / 2; ++j) {
      const double angle =
          static_cast<double>(position) *
          std::pow(theta, -2.0 * static_cast<double>(j) / static_cast<double>(dim));
      double& first = all[head + static_cast<size_t>(j)];
      double& second = all[head + static_cast<size_t>(dim / 2 + j)];
      const double turned = first * std::cos(angle) - second * std::sin(angle);
      second = second * std::cos(angle) + first * std::sin(angle);
      first = turned;
    }
  }
  return all;
}

bool Names(const json& attention, int layer) {
  const json& layers = attention["layers"];
  return std::find(layers.begin(), layers.end(), json(layer)) != layers.end();
}

}  // namespace

Vec PlainAttend(PlainLayer& layer, const PlainHeads& heads, const Vec& q, const Vec& k,
                const Vec& v, int64_t position) {
  const auto name = [](const char* what, int64_t p) { return absl::StrCat(what, p); };
  layer.state[name("k", position)] = k;
  layer.state[name("v", position)] = v;
  const int64_t dim = static_cast<int64_t>(q.size()) / heads.heads;
  const int64_t first = heads.window == 0 ? 0 : std::max<int64_t>(0, position + 1 - heads.window);
  Vec read;
  for (int64_t h = 0; h < heads.heads; ++h) {
    const int64_t kv = h / (heads.heads / heads.kv_heads);
    Vec scores;
    for (int64_t p = first; p <= position; ++p) {
      const Vec key = Slice(layer.state[name("k", p)], kv * dim, dim);
      scores.push_back(ScoreScale(dim) * Dot(Slice(q, h * dim, dim), key));
    }
    scores = Softmax(scores);
    Vec o(static_cast<size_t>(dim));
    for (int64_t p = first; p <= position; ++p) {
      const Vec value = Slice(layer.state[name("v", p)], kv * dim, dim);
      for (size_t i = 0; i < o.size(); ++i) o[i] += scores[p - first] * value[i];
    }
    read.insert(read.end(), o.begin(), o.end());
  }
  return read;
}

json AttentionOf(const PlainLayer& layer) {
  const json attn = layer.model.config().value("attn", json());
  for (const json& attention : attn.is_array() ? attn : json::array({attn})) {
    if (attention.is_object() && Names(attention, layer.index)) return attention;
  }
  return nullptr;
}

Vec PlainAttention(PlainLayer& layer, const Vec& x, int64_t position, const json& attention) {
  const std::string prefix = layer.Has("mixer.q_proj.weight") ? "mixer." : "attn.";
  const auto number = [&](const char* key, double otherwise) {
    const json value = attention.value(key, json());
    return value.is_null() ? otherwise : double{value};
  };
  const int64_t heads = attention["num_heads"];
  const int64_t dim = static_cast<int64_t>(x.size()) / heads;
  // A mixture of memories always has the same one.
  const bool mom = layer.model.config()["model_type"].get<std::string>().starts_with("mom");
  const double theta = mom ? 10000 : number("rope_theta", 10000);
  const PlainHeads shape = {
      .heads = heads,
      .kv_heads = static_cast<int64_t>(number("num_kv_heads", static_cast<double>(heads))),
      .window = static_cast<int64_t>(number("window_size", 0))};
  const Vec q = Turned(layer.Linear(prefix + "q_proj", x), dim, position, theta);
  const Vec k = Turned(layer.Linear(prefix + "k_proj", x), dim, position, theta);
  const Vec v = layer.Linear(prefix + "v_proj", x);
  return layer.Linear(prefix + "o_proj", PlainAttend(layer, shape, q, k, v, position));
}

}  // namespace mneme
