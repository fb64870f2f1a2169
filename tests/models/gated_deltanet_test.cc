// Gated DeltaNet against plain equations.

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/models/config_keys.h"
#include "tests/models/plain_network.h"

namespace mneme {
namespace {

Vec GatedDeltaNet(PlainLayer& layer, const Vec& x, int64_t) {
  const auto& config = layer.model.config();
  const int heads = config["num_heads"], key_dim = config["head_dim"];
  const int value_heads = config["num_v_heads"];
  const int value_dim = static_cast<int>(std::lround(key_dim * double{config["expand_v"]}));
  const auto stream = [&](const std::string& name) {
    const Vec raw = layer.Linear(absl::StrCat("attn.", name, "_proj"), x);
    return Map(config["use_short_conv"] ? layer.Convolve(name, raw) : raw, Silu);
  };
  const auto normed = [](Vec u) {
    const double length = std::sqrt(Dot(u, u) + 1e-6);
    for (double& value : u) value /= length;
    return u;
  };
  const Vec q = stream("q"), k = stream("k"), v = stream("v");
  const Vec a = layer.Linear("attn.a_proj", x), b = layer.Linear("attn.b_proj", x);
  const bool gated = config["use_gate"];
  const bool sigmoid = config.value("output_gate_activation", "swish") == "sigmoid";
  const Vec gate = gated ? Map(layer.Linear("attn.g_proj", x), sigmoid ? Sigmoid : Silu) : Vec{};
  const double most = config["allow_neg_eigval"] ? 2 : 1;
  Vec y;
  for (int h = 0; h < value_heads; ++h) {
    const int kh = h / (value_heads / heads);
    const double decay = std::exp(-std::exp(layer.Weight("attn.A_log")[h]) *
                                  Softplus(a[h] + layer.Weight("attn.dt_bias")[h]));
    Vec o = WriteAndRead(layer.state[absl::StrCat("S", h)],
                         {.q = normed(Slice(q, kh * key_dim, key_dim)),
                          .k = normed(Slice(k, kh * key_dim, key_dim)),
                          .v = Slice(v, h * value_dim, value_dim),
                          .decay = [decay](int64_t, int64_t) { return decay; },
                          .beta = most * Sigmoid(b[h])});
    for (double& value : o) value /= std::sqrt(key_dim);
    const Vec out = RmsNorm(o, layer.Weight("attn.o_norm.weight"), config["norm_eps"]);
    for (int i = 0; i < value_dim; ++i) {
      y.push_back(out[i] * (gated ? gate[h * value_dim + i] : 1));
    }
  }
  return layer.Linear("attn.o_proj", y);
}

ModelSpec GatedDeltaNetSpec(const char* changes) {
  const auto shape = SpecOfShape("gdn-tiny");
  CHECK_OK(shape.status());
  ModelSpec spec = *shape;
  spec.dtype = DType::kF32;
  spec.initializer_range = 0.15;
  spec.convolution_range = 0.5;
  spec.config["vocab_size"] = 61;
  spec.config.update(nlohmann::ordered_json::parse(changes));
  return spec;
}

TEST(GatedDeltaNetTest, EveryOptionIsWhatItsEquationSays) {
  for (const char* changes :
       {"{}", R"({"num_v_heads": 4})", R"({"head_dim": 16, "num_heads": 3, "num_v_heads": 3})",
        R"({"expand_v": 0.5})", R"({"use_short_conv": false})", R"({"conv_size": 2})",
        R"({"use_gate": false})", R"({"output_gate_activation": "silu"})",
        R"({"output_gate_activation": "sigmoid"})",
        R"({"output_gate_activation": "sigmoid", "num_v_heads": 6, "conv_size": 3})",
        R"({"allow_neg_eigval": true})", R"({"norm_eps": 0.01})",
        R"({"attn": {"layers": [1], "num_heads": 4, "rope_theta": 500, "window_size": 16}})"}) {
    SCOPED_TRACE(changes);
    ExpectPlain(GatedDeltaNetSpec(changes), GatedDeltaNet);
  }
}

TEST(GatedDeltaNetConfigTest, TheGatesActivationCountsAndOneHasTwoNames) {
  ExpectTheSame("gated_deltanet", "", R"("output_gate_activation": "silu")");
  ExpectTheSame("gated_deltanet", "", R"("output_gate_activation": "swish")");
  ExpectEachKeyCounts("gated_deltanet", {R"("output_gate_activation": "sigmoid")"});
  ExpectRefused({"gate", "gated_deltanet", R"("output_gate_activation": "gelu")", kUnimplemented,
                 "\"output_gate_activation\" is \"gelu\""});
}

}  // namespace
}  // namespace mneme
