// Layers whose memories are trained, in plain double: what those of Titans and TTT share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "tests/models/plain_memory.h"
#include "tests/models/plain_network.h"

namespace mneme::plain {

inline Vec L2(const Vec& x) {
  const double norm = std::max(std::sqrt(Dot(x, x)), 1e-12);
  Vec y = x;
  for (double& value : y) value /= norm;
  return y;
}

// x turned by its position: pairs of neighbours.
inline Vec Turned(const Vec& x, int64_t position, double theta) {
  Vec y = x;
  for (size_t j = 0; j + 1 < x.size(); j += 2) {
    const double angle =
        static_cast<double>(position) * std::pow(theta, -static_cast<double>(j) / x.size());
    y[j] = x[j] * std::cos(angle) - x[j + 1] * std::sin(angle);
    y[j + 1] = x[j + 1] * std::cos(angle) + x[j] * std::sin(angle);
  }
  return y;
}

// A convolution along the history of its inputs.
inline Vec Convolved(std::vector<Vec>& history, const Vec& x, const Vec& weight, const Vec& bias) {
  history.push_back(x);
  Vec y = bias.empty() ? Vec(x.size()) : bias;
  const size_t width = weight.size() / x.size();
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < width && j < history.size(); ++j) {
      y[i] += weight[i * width + width - 1 - j] * history[history.size() - 1 - j][i];
    }
  }
  return y;
}

struct Head {
  Net weights, momenta, anchor, sums;
  Net frozen;  // the weights as they were when the segment began
};

// Logits of tokens that go through `layers` behind the rows of a prefix.
template <typename Layer>
Vec Logits(const PlainModel& model, std::span<const int32_t> tokens, int prefix,
           std::vector<Layer>& layers) {
  const nlohmann::json& config = model.config();
  const int dim = config["hidden_size"];
  const Vec& embeddings = model.Tensor("model.embed_tokens.weight");
  const Vec& head = model.Has("lm_head.weight") ? model.Tensor("lm_head.weight") : embeddings;
  Vec logits;
  const auto rows = static_cast<int64_t>(tokens.size()) + prefix;
  for (int64_t n = 0; n < rows; ++n) {
    Vec h = n < prefix ? Slice(model.Tensor("model.persistent_memory"), n * dim, dim)
                       : Slice(embeddings, int64_t{tokens[n - prefix]} * dim, dim);
    for (Layer& layer : layers) h = layer.Along(h, n, prefix);
    if (n < prefix) continue;
    const Vec last = RmsNorm(h, model.Tensor("model.norm.weight"), config["rms_norm_eps"]);
    for (int64_t token = 0; token < int64_t{config["vocab_size"]}; ++token) {
      logits.push_back(Dot(Slice(head, token * dim, dim), last));
    }
  }
  return logits;
}

}  // namespace mneme::plain
