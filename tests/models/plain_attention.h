// Attention in plain double, for the tests of networks that have it in some or all layers.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "tests/models/plain_network.h"

namespace mneme {

struct PlainHeads {
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t window = 0;  // positions that a token sees; 0: all
};
// What the token at `position` reads, [heads * dim]; its keys and values join those of the tokens
// before in the layer's state.
Vec PlainAttend(PlainLayer& layer, const PlainHeads& heads, const Vec& q, const Vec& k,
                const Vec& v, int64_t position);

// The object of the configuration's `attn` that names the layer, or null.
nlohmann::json AttentionOf(const PlainLayer& layer);
// The mixer that it describes.
Vec PlainAttention(PlainLayer& layer, const Vec& x, int64_t position,
                   const nlohmann::json& attention);

}  // namespace mneme
