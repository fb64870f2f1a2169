// TTT against plain equations: networks in double, whole sequences, one token at a time.
#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/models/plain_memory.h"
#include "tests/models/plain_network.h"
#include "tests/models/plain_trained.h"

namespace mneme {
namespace {

using nlohmann::json;
using plain::Add;
using plain::Convolved;
using plain::Head;
using plain::Logits;
using plain::Net;
using plain::Times;
using plain::Turned;

// One layer of TTT, a whole sequence.
class TttLayer {
 public:
  TttLayer(const PlainModel& model, int index)
      : layer_{.model = model, .index = index}, config_(model.config()) {
    const int heads = config_["num_attention_heads"];
    const bool mlp = config_["ttt_layer_type"] == "mlp";
    for (int h = 0; h < heads; ++h) {
      const auto of = [&](const char* name) {
        const Vec& all = layer_.Weight(absl::StrCat("seq_modeling_block.", name));
        const auto size = static_cast<int64_t>(all.size()) / heads;
        return Slice(all, h * size, size);
      };
      Net net;
      net.activation = Net::kGeluTanh;
      net.norm = Net::kLayer;
      net.eps = 1e-6;
      net.gain = of("ttt_norm_weight");
      net.shift = of("ttt_norm_bias");
      net.w = {of("W1")};
      net.b = {of("b1")};
      if (mlp) {
        net.w.push_back(of("W2"));
        net.b.push_back(of("b2"));
      }
      Net zero = net;
      zero.Blend(0, 0, net);
      heads_.push_back({.weights = net, .sums = zero});
    }
  }

  Vec Along(const Vec& h, int64_t n, int) {
    const double eps = config_["rms_norm_eps"];
    Vec y = h;
    if (config_["pre_conv"]) {
      Add(y, Convolved(history_["pre"], RmsNorm(h, layer_.Weight("conv.norm.weight"), eps),
                       layer_.Weight("conv.conv.weight"), layer_.Weight("conv.conv.bias")));
    }
    Add(y, Train(RmsNorm(y, layer_.Weight("seq_norm.weight"), eps), n));
    const Vec x = RmsNorm(y, layer_.Weight("ffn_norm.weight"), eps);
    Add(y, layer_.Linear("mlp.down_proj", Times(Map(layer_.Linear("mlp.gate_proj", x), Silu),
                                                layer_.Linear("mlp.up_proj", x))));
    return y;
  }

 private:
  const Vec& Weight(const char* name) const {
    return layer_.Weight(absl::StrCat("seq_modeling_block.", name));
  }
  Vec Linear(const char* name, const Vec& x) const {
    return layer_.Linear(absl::StrCat("seq_modeling_block.", name), x);
  }

  Vec Train(const Vec& x, int64_t n) {
    const int heads = config_["num_attention_heads"], batch = config_["mini_batch_size"];
    const auto dim = static_cast<int64_t>(x.size()) / heads;
    const int64_t j = n % batch;
    const double theta = config_.value("rope_theta", 10000.0);
    Vec q = Linear("q_proj", x), k;
    const Vec v = Linear("v_proj", x);
    if (config_["share_qk"]) {
      const Vec shared = q;
      q = Convolved(history_["q"], shared, Weight("conv_q.weight"), Weight("conv_q.bias"));
      k = Convolved(history_["k"], shared, Weight("conv_k.weight"), Weight("conv_k.bias"));
    } else {
      k = Linear("k_proj", x);
    }
    const double scale = std::max(
        0.0, AsF32(AsF32(1.0 / static_cast<double>(j + 1)) + Weight("learnable_token_idx")[j]));
    Vec o;
    for (int h = 0; h < heads; ++h) {
      const double logit =
          Dot(Slice(Weight("learnable_ttt_lr_weight"), h * int64_t(x.size()), int64_t(x.size())),
              x) +
          Weight("learnable_ttt_lr_bias")[h];
      const double rate =
          double{config_["ttt_base_lr"]} * Sigmoid(logit) / static_cast<double>(dim);
      Head& head = heads_[static_cast<size_t>(h)];
      const Vec target = Slice(v, h * dim, dim);
      head.weights.Run(Turned(Slice(k, h * dim, dim), j, theta), &target, rate, &head.sums);
      Net ahead = head.weights;
      ahead.Blend(1, -scale, head.sums);
      const Vec read = ahead.Run(Turned(Slice(q, h * dim, dim), j, theta));
      o.insert(o.end(), read.begin(), read.end());
      if (j + 1 < batch) continue;
      head.weights = ahead;
      head.sums.Blend(0, 0, ahead);
    }
    o = LayerNorm(o, Weight("post_norm.weight"), Weight("post_norm.bias"), 1e-6);
    if (config_["use_gate"]) {
      Net gelu;
      gelu.activation = Net::kGeluTanh;
      Vec gate = Linear("g_proj", x);
      for (double& value : gate) value = gelu.Activated(value);
      o = Times(o, gate);
    }
    return Linear("o_proj", o);
  }

  PlainLayer layer_;
  const json config_;
  std::vector<Head> heads_;
  std::map<std::string, std::vector<Vec>> history_;
};

Vec Ttt(const PlainModel& model, std::span<const int32_t> tokens) {
  std::vector<TttLayer> layers;
  for (int i = 0; i < int{model.config()["num_hidden_layers"]}; ++i) layers.emplace_back(model, i);
  return Logits(model, tokens, /*prefix=*/0, layers);
}

TEST(TttTest, EveryOptionIsWhatItsEquationSays) {
  for (const char* shape : {"ttt-linear", "ttt-mlp"}) {
    for (const char* changes :
         {"{}", R"({"use_gate": false})", R"({"share_qk": false})", R"({"pre_conv": false})",
          R"({"mini_batch_size": 5})", R"({"mini_batch_size": 1})", R"({"ttt_base_lr": 0.4})",
          R"({"conv_kernel": 2})", R"({"rope_theta": 50})", R"({"num_attention_heads": 4})"}) {
      ExpectPlain(shape, changes, Ttt);
    }
  }
}

}  // namespace
}  // namespace mneme
