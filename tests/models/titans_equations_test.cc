// Titans against plain equations: networks in double, whole sequences, one token at a time.
#include <cmath>
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
using plain::L2;
using plain::Logits;
using plain::Net;
using plain::Times;
using plain::Turned;

// One layer of Titans, and what it keeps of a sequence.
class TitansLayer {
 public:
  TitansLayer(const PlainModel& model, int index)
      : layer_{.model = model, .index = index}, config_(model.config()) {
    const int heads = config_["memory_num_heads"], depth = config_["memory_depth"];
    const std::string norm = config_["memory_norm"];
    for (int h = 0; h < heads; ++h) {
      Net net;
      net.activation = Text("memory_activation", "gelu_erf") == "silu" ? Net::kSilu : Net::kGelu;
      net.norm = norm == "layer" ? Net::kLayer : norm == "rms" ? Net::kRms : Net::kNone;
      net.trains_gain = norm != "none";
      net.eps = config_.value("memory_norm_eps", norm == "layer" ? 1e-5 : 1e-6);
      net.offset = config_.value("memory_norm_offset", norm == "layer" ? 1 : 0);
      for (int l = 0; l < depth; ++l) {
        const Vec& all = layer_.Weight(absl::StrCat("memory.mem_weights.", l));
        const auto size = static_cast<int64_t>(all.size()) / heads;
        net.w.push_back(Slice(all, h * size, size));
      }
      if (net.trains_gain) {
        const Vec& all = layer_.Weight("memory.mem_norm_weight");
        const auto size = static_cast<int64_t>(all.size()) / heads;
        net.g = Slice(all, h * size, size);
      }
      Net zero = net;
      zero.Blend(0, 0, net);
      heads_.push_back(
          {.weights = net, .momenta = zero, .anchor = net, .sums = zero, .frozen = net});
    }
  }

  // The residual stream after the part along time; `n` counts from the first row of the prefix.
  Vec Along(const Vec& h, int64_t n, int prefix) {
    const std::string variant = config_["variant"];
    const auto norm = [&](const char* name, const Vec& x) {
      return RmsNorm(x, layer_.Weight(name), config_["rms_norm_eps"]);
    };
    const auto fuse = [&](const Vec& memory, const Vec& seen) {
      const std::string kind = config_["mag_activation"];
      const auto phi = [&](Vec x, bool activated) {
        if (!activated || kind == "identity") return x;
        return Map(x, kind == "silu" ? Silu : Sigmoid);
      };
      return Times(phi(norm("memory_output_norm.weight", memory), true),
                   phi(norm("attention_output_norm.weight", seen), config_["mag_gate_both"]));
    };
    const Vec normed = norm("input_layernorm.weight", h);
    Vec y = h;
    if (variant == "mac") {
      const Vec seen = AttendSegment(normed, n);
      Add(y, fuse(Memory(norm("memory_layernorm.weight", seen), n), seen));
      return FeedForward(y);
    }
    const Vec memory = Memory(normed, n);
    if (variant == "lmm") {
      Add(y, memory);
    } else if (variant == "mag") {
      Add(y, fuse(memory, Attend(norm("attention_layernorm.weight", h), n, prefix)));
    } else {
      Vec inner = memory;
      if (config_["mal_inner_residual"]) {
        Add(y, memory);
        inner = y;
      }
      Add(y, Attend(norm("attention_layernorm.weight", inner), n, prefix));
    }
    return FeedForward(y);
  }

 private:
  Vec FeedForward(Vec y) const {
    const Vec x =
        RmsNorm(y, layer_.Weight("post_attention_layernorm.weight"), config_["rms_norm_eps"]);
    Add(y, layer_.Linear("mlp.down_proj", Times(Map(layer_.Linear("mlp.gate_proj", x), Silu),
                                                layer_.Linear("mlp.up_proj", x))));
    return y;
  }

  std::string Text(const char* key, const char* otherwise) const {
    return config_.value(key, std::string(otherwise));
  }

  // With a history of its own where `history` says so.
  Vec Stream(const char* name, const Vec& x, const std::string& history = "") {
    Vec u = layer_.Linear(absl::StrCat("memory.", name, "_proj"), x);
    if (config_.value("memory_conv_kernel", 4) > 0) {
      const std::string conv = absl::StrCat("memory.", name, "_conv");
      u = Convolved(history_[name + history], u, layer_.Weight(conv + ".weight"),
                    layer_.Has(conv + ".bias") ? layer_.Weight(conv + ".bias") : Vec{});
    }
    return Text("memory_qkv_activation", "silu") == "silu" ? Map(u, Silu) : u;
  }

  // The gates of one head, from their logits.
  double Forget(int h, double logit) const {
    if (!config_.value("memory_forget", true)) return 0;
    if (Text("memory_decay", "sigmoid") == "sigmoid") return Sigmoid(logit);
    const double z = logit + layer_.Weight("memory.dt_bias")[h];
    return 1 - std::exp(-std::exp(layer_.Weight("memory.A_log")[h]) * std::log1p(std::exp(z)));
  }

  Vec Memory(const Vec& x, int64_t n) {
    const int heads = config_["memory_num_heads"], dim = config_["memory_head_dim"];
    const int step = config_["memory_step_size"];
    const json& period = config_["memory_anchor_period"];
    const bool has_momentum = config_.value("memory_momentum_order", 1) == 1;
    const bool has_norm = Text("memory_qk_norm", "l2") == "l2";
    const Vec q = Stream("q", x), k = Stream("k", x), v = Stream("v", x);
    const Vec rate = layer_.Linear("memory.b_proj", x);
    const Vec none(static_cast<size_t>(heads));
    const Vec eta = has_momentum ? layer_.Linear("memory.m_proj", x) : none;
    const Vec alpha =
        config_.value("memory_forget", true) ? layer_.Linear("memory.a_proj", x) : none;
    etas_.push_back(eta);
    alphas_.push_back(alpha);
    Vec core;
    for (int h = 0; h < heads; ++h) {
      const auto of = [&](const Vec& all, bool normed) {
        const Vec one = Slice(all, h * dim, dim);
        return normed && has_norm ? L2(one) : one;
      };
      Head& head = heads_[static_cast<size_t>(h)];
      const Net before = head.anchor;
      const double theta = double{config_["memory_theta_max"]} * Sigmoid(rate[h]);
      const Vec target = of(v, false);
      head.anchor.Run(of(k, true), &target,
                      2 * theta / (config_["memory_loss"] == "mean" ? dim : 1), &head.sums);
      if ((n + 1) % step == 0) {
        // One momentum and one forgetting for all tokens of the step.
        double momentum = 0, forget = 0, eta_logit = 0, alpha_logit = 0;
        for (int i = 0; i < step; ++i) {
          const size_t at = etas_.size() - 1 - static_cast<size_t>(i);
          momentum += Sigmoid(etas_[at][h]) / step;
          forget += Forget(h, alphas_[at][h]) / step;
          eta_logit += etas_[at][h] / step;
          alpha_logit += alphas_[at][h] / step;
        }
        if (Text("memory_gate_pooling", "token") == "input_mean") {
          momentum = Sigmoid(eta_logit);
          forget = Forget(h, alpha_logit);
        }
        head.momenta.Blend(has_momentum ? momentum : 0, -1, head.sums);
        head.weights.Blend(1 - forget, 1, head.momenta);
        head.sums.Blend(0, 0, head.sums);
        if (!period.is_null() && (n + 1) % int64_t{period} == 0) head.anchor = head.weights;
      }
      const bool at_start = Text("mac_output_memory", "running") == "segment_start";
      const Net& net = at_start                             ? head.frozen
                       : config_["memory_read"] == "anchor" ? before
                                                            : head.weights;
      const Vec read = net.Run(of(q, true));
      core.insert(core.end(), read.begin(), read.end());
    }
    return Emit(x, core);
  }

  Vec Emit(const Vec& x, Vec core) const {
    const int heads = config_["memory_num_heads"], dim = config_["memory_head_dim"];
    if (Text("memory_output", "gated_rms") == "gated_rms") {
      const Vec gated = Times(core, Map(layer_.Linear("memory.g_proj", x), Silu));
      core.clear();
      for (int h = 0; h < heads; ++h) {
        const Vec one = RmsNorm(Slice(gated, h * dim, dim), layer_.Weight("memory.norm.weight"),
                                config_["rms_norm_eps"]);
        core.insert(core.end(), one.begin(), one.end());
      }
    }
    return layer_.Linear("memory.o_proj", core);
  }

  // Attention of a segment to persistent rows, to what the memory said when the segment began, and
  // to the segment itself.
  Vec AttendSegment(const Vec& x, int64_t n) {
    const int heads = config_["num_attention_heads"], dim = config_["head_dim"];
    const int64_t i = n % int64_t{config_["segment_length"]};
    const double theta = config_.value("rope_theta", 10000.0);
    if (i == 0) {
      for (Head& head : heads_) head.frozen = head.weights;
      keys_.clear();
      values_.clear();
      recalled_keys_.clear();
      recalled_values_.clear();
    }
    const int memory_heads = config_["memory_num_heads"], memory_dim = config_["memory_head_dim"];
    const Vec asked = Stream("q", x, "recall");
    Vec recalled;
    for (int h = 0; h < memory_heads; ++h) {
      const Vec q = Slice(asked, h * memory_dim, memory_dim);
      const Vec read = heads_[static_cast<size_t>(h)].frozen.Run(
          Text("memory_qk_norm", "l2") == "l2" ? L2(q) : q);
      recalled.insert(recalled.end(), read.begin(), read.end());
    }
    recalled = Emit(x, recalled);
    keys_.push_back(layer_.Linear("attention.k_proj", x));
    values_.push_back(layer_.Linear("attention.v_proj", x));
    recalled_keys_.push_back(layer_.Linear("attention.k_proj", recalled));
    recalled_values_.push_back(layer_.Linear("attention.v_proj", recalled));
    const Vec query = layer_.Linear("attention.q_proj", x);
    const int rows = config_.value("num_persistent_tokens", 0);
    Vec y;
    for (int h = 0; h < heads; ++h) {
      const auto of = [&](const Vec& all) { return Slice(all, h * dim, dim); };
      const Vec q = Turned(of(query), i, theta);
      Vec scores;
      std::vector<Vec> values;
      const auto see = [&](const Vec& key, const Vec& value) {
        scores.push_back(ScoreScale(dim) * Dot(q, key));
        values.push_back(value);
      };
      for (int p = 0; p < rows; ++p) {
        const Vec row = Slice(layer_.Weight("attention.persistent_memory"), p * int64_t(x.size()),
                              static_cast<int64_t>(x.size()));
        see(of(layer_.Linear("attention.k_proj", row)), of(layer_.Linear("attention.v_proj", row)));
      }
      for (int64_t m = 0; m <= i; ++m) {
        see(Turned(of(recalled_keys_[m]), m, theta), of(recalled_values_[m]));
        see(Turned(of(keys_[m]), m, theta), of(values_[m]));
      }
      const Vec weights = Softmax(scores);
      Vec o(static_cast<size_t>(dim));
      for (size_t j = 0; j < values.size(); ++j) Add(o, values[j], weights[j]);
      y.insert(y.end(), o.begin(), o.end());
    }
    return layer_.Linear("attention.o_proj", y);
  }

  Vec Attend(const Vec& x, int64_t n, int prefix) {
    const int heads = config_["num_attention_heads"], dim = config_["head_dim"];
    keys_.push_back(layer_.Linear("attention.k_proj", x));
    values_.push_back(layer_.Linear("attention.v_proj", x));
    const Vec q = layer_.Linear("attention.q_proj", x);
    const bool sliding = config_["attention_kind"] == "sliding";
    Vec y;
    for (int h = 0; h < heads; ++h) {
      Vec scores;
      std::vector<int64_t> seen;
      const double theta = config_.value("rope_theta", 10000.0);
      for (int64_t m = 0; m <= n; ++m) {
        if (sliding && m >= prefix && n - m > int64_t{config_["sliding_window"]}) continue;
        seen.push_back(m);
        scores.push_back(ScoreScale(dim) * Dot(Turned(Slice(q, h * dim, dim), n, theta),
                                               Turned(Slice(keys_[m], h * dim, dim), m, theta)));
      }
      const Vec weights = Softmax(scores);
      Vec o(static_cast<size_t>(dim));
      for (size_t i = 0; i < seen.size(); ++i) {
        Add(o, Slice(values_[seen[i]], h * dim, dim), weights[i]);
      }
      y.insert(y.end(), o.begin(), o.end());
    }
    return layer_.Linear("attention.o_proj", y);
  }

  PlainLayer layer_;
  const json config_;
  std::vector<Head> heads_;
  std::vector<Vec> etas_, alphas_, keys_, values_;  // of all tokens, or of a segment
  std::vector<Vec> recalled_keys_, recalled_values_;
  std::map<std::string, std::vector<Vec>> history_;
};

Vec Titans(const PlainModel& model, std::span<const int32_t> tokens) {
  std::vector<TitansLayer> layers;
  for (int i = 0; i < int{model.config()["num_hidden_layers"]}; ++i) layers.emplace_back(model, i);
  const bool prefix = model.config().value("persistent_kind", std::string()) == "prefix";
  return Logits(model, tokens, prefix ? int{model.config()["num_persistent_tokens"]} : 0, layers);
}

// Small outputs that are normed have large gradients: at higher rates of learning the map is
// chaotic.
TEST(TitansTest, EveryOptionOfTheMemoryIsWhatItsEquationSays) {
  for (const char* changes :
       {"{}",
        R"({"memory_depth": 1})",
        R"({"memory_depth": 3, "memory_activation": "silu"})",
        R"({"memory_norm": "layer", "memory_theta_max": 0.001})",
        R"({"memory_norm": "rms", "memory_theta_max": 0.005})",
        R"({"memory_norm": "layer", "memory_norm_offset": 0, "memory_norm_eps": 0.01})",
        R"({"memory_loss": "mean", "memory_theta_max": 0.7})",
        R"({"memory_anchor_period": 5})",
        R"({"memory_anchor_period": 5, "memory_read": "anchor"})",
        R"({"memory_anchor_period": null})",
        R"({"memory_step_size": 4, "memory_anchor_period": 8, "memory_gate_pooling": "gate_mean"})",
        R"({"memory_step_size": 4, "memory_anchor_period": 4, "memory_gate_pooling": "input_mean",
            "memory_norm": "rms"})",
        R"({"memory_step_size": 3, "memory_anchor_period": null, "memory_decay": "gdn",
            "memory_gate_pooling": "gate_mean"})",
        R"({"memory_momentum_order": 0})",
        R"({"memory_forget": false})",
        R"({"memory_decay": "gdn"})",
        R"({"memory_conv_kernel": 0})",
        R"({"memory_conv_kernel": 3, "memory_conv_bias": true})",
        R"({"memory_qkv_activation": "none"})",
        R"({"memory_output": "none"})",
        R"({"num_persistent_tokens": 3, "persistent_kind": "prefix"})",
        R"({"num_persistent_tokens": 6, "persistent_kind": "prefix", "memory_step_size": 4,
            "memory_anchor_period": 8, "memory_gate_pooling": "input_mean"})"}) {
    ExpectPlain("titans-lmm", changes, Titans);
  }
}

TEST(TitansTest, AttentionStandsBesideTheMemoryOrBehindIt) {
  for (const char* changes :
       {"{}", R"({"mag_activation": "sigmoid"})", R"({"mag_activation": "identity"})",
        R"({"mag_gate_both": false})", R"({"sliding_window": 0})", R"({"attention_kind": "full"})",
        R"({"rope_theta": 100})", R"({"memory_anchor_period": 4})"}) {
    ExpectPlain("titans-mag", changes, Titans);
  }
  for (const char* changes : {"{}", R"({"mal_inner_residual": false})",
                              R"({"sliding_window": 3, "num_persistent_tokens": 2})"}) {
    ExpectPlain("titans-mal", changes, Titans);
  }
}

TEST(TitansTest, MemoryIsContextOfItsSegment) {
  for (const char* changes :
       {"{}", R"({"mac_output_memory": "segment_start"})", R"({"segment_length": 7})",
        R"({"segment_length": 1})", R"({"memory_anchor_period": 8})",
        R"({"memory_anchor_period": 8, "mac_output_memory": "segment_start"})",
        R"({"memory_step_size": 4, "memory_anchor_period": 12,
            "memory_gate_pooling": "gate_mean"})",
        R"({"memory_anchor_period": null})", R"({"num_persistent_tokens": 0})",
        R"({"memory_conv_kernel": 0})", R"({"mag_gate_both": false})"}) {
    ExpectPlain("titans-mac", changes, Titans);
  }
}

}  // namespace
}  // namespace mneme
