// RWKV-6 and RWKV-7 against plain equations.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/models/plain_attention.h"
#include "tests/models/plain_network.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

Vec Sum(Vec a, const Vec& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

Vec Normed(const PlainModel& model, const std::string& name, const Vec& x) {
  const std::string bias = name + ".bias";
  return LayerNorm(x, model.Tensor(name + ".weight"), model.Has(bias) ? model.Tensor(bias) : Vec{},
                   model.config()["norm_eps"]);
}

// x_before - x, and x is what comes before the next token.
Vec Step(PlainLayer& layer, const std::string& name, const Vec& x) {
  Vec& last = layer.State(name, x.size());
  Vec step(x.size());
  for (size_t i = 0; i < x.size(); ++i) step[i] = last[i] - x[i];
  last = x;
  return step;
}

Vec Mixed(const Vec& x, const Vec& step, const Vec& mix) {
  Vec y = x;
  for (size_t i = 0; i < x.size(); ++i) y[i] += mix[i] * step[i];
  return y;
}

double SquaredRelu(double z) { return z > 0 ? z * z : 0; }
double Identity(double z) { return z; }

// A low-rank map, with its bias if there is one.
Vec LowRank(const PlainLayer& layer, const std::string& name, const Vec& x,
            double (*inside)(double)) {
  return layer.Linear(name + ".lora.2", Map(layer.Linear(name + ".lora.0", x), inside));
}

// The memory of one head, [values, keys], before a token.
Vec& Memory(PlainLayer& layer, int head, size_t size) {
  return layer.State(absl::StrCat("S", head), size);
}

// Everything but the layers' two parts: `mixer` and `feed_forward` get the normed stream.
template <typename Mixer, typename FeedForward>
Vec Logits(const PlainModel& model, std::span<const int32_t> tokens, Mixer mixer,
           FeedForward feed_forward) {
  const int layers = model.config()["num_hidden_layers"], dim = model.config()["hidden_size"];
  std::vector<PlainLayer> stack;
  for (int i = 0; i < layers; ++i) stack.push_back({.model = model, .index = i, .state = {}});
  Vec logits;
  for (int64_t position = 0; position < static_cast<int64_t>(tokens.size()); ++position) {
    Vec h = Slice(model.Tensor("model.embeddings.weight"), int64_t{tokens[position]} * dim, dim);
    if (model.config()["norm_first"]) h = Normed(model, "model.layers.0.pre_norm", h);
    Vec first_values;
    for (PlainLayer& layer : stack) {
      const Vec x = Normed(model, layer.Name("attn_norm"), h);
      const nlohmann::json attention = AttentionOf(layer);
      h = Sum(h, attention.is_null() ? mixer(layer, x, first_values)
                                     : PlainAttention(layer, x, position, attention));
      h = Sum(h, feed_forward(layer, Normed(model, layer.Name("ffn_norm"), h)));
    }
    const Vec& head = model.Tensor("lm_head.weight");
    const Vec last = Normed(model, "model.norm", h);
    for (size_t row = 0; row < head.size() / last.size(); ++row) {
      logits.push_back(Dot(Slice(head, static_cast<int64_t>(row) * dim, dim), last));
    }
  }
  return logits;
}

// --- RWKV-6 --------------------------------------------------------------------------------------

Vec TimeMix6(PlainLayer& layer, const Vec& x, Vec&) {
  const auto& config = layer.model.config();
  const int dim = config["hidden_size"], heads = config["num_heads"];
  const int key_dim = static_cast<int>(dim * double{config["expand_k"]}) / heads;
  const int value_dim = static_cast<int>(dim * double{config["expand_v"]}) / heads;
  const Vec step = Step(layer, "shift", x);
  const Vec t =
      Map(layer.Linear("attn.x_proj.0.linear", Mixed(x, step, layer.Weight("attn.x_proj.0.mu"))),
          std::tanh);
  const Vec& up = layer.Weight("attn.x_proj.2.weight");  // [dim, 5 * rank]
  const size_t rank = t.size() / 5;
  std::vector<Vec> mixed;  // r, w, k, v, g
  for (int n = 0; n < 5; ++n) {
    Vec mix = Slice(layer.Weight("attn.x_bias"), int64_t{n} * dim, dim);
    for (int i = 0; i < dim; ++i) {
      for (size_t j = 0; j < rank; ++j) {
        mix[i] += up[(static_cast<size_t>(i) * 5 + n) * rank + j] * t[n * rank + j];
      }
    }
    mixed.push_back(Mixed(x, step, mix));
  }
  const Vec r = layer.Linear("attn.r_proj.linear", mixed[0]);
  const Vec w = LowRank(layer, "attn.w_proj.linear", mixed[1], std::tanh);
  const Vec k = layer.Linear("attn.k_proj.linear", mixed[2]);
  const Vec v = layer.Linear("attn.v_proj.linear", mixed[3]);
  const Vec g = layer.Linear("attn.g_proj.linear", mixed[4]);
  const Vec& bonus = layer.Weight("attn.bonus");
  Vec y;
  for (int h = 0; h < heads; ++h) {
    Vec& memory = Memory(layer, h, static_cast<size_t>(key_dim) * value_dim);
    Vec o(value_dim);
    for (int i = 0; i < value_dim; ++i) {
      for (int j = 0; j < key_dim; ++j) {
        double& s = memory[static_cast<size_t>(i) * key_dim + j];
        const int key = h * key_dim + j;
        const double written = k[key] * v[h * value_dim + i];
        o[i] += r[key] * (s + bonus[key] * written);
        s = std::exp(-std::exp(w[key])) * s + written;
      }
    }
    const Vec normed =
        LayerNorm(o, Slice(layer.Weight("attn.g_norm.weight"), int64_t{h} * value_dim, value_dim),
                  Slice(layer.Weight("attn.g_norm.bias"), int64_t{h} * value_dim, value_dim),
                  config["norm_eps"]);
    for (int i = 0; i < value_dim; ++i) y.push_back(normed[i] * Silu(g[h * value_dim + i]));
  }
  return layer.Linear("attn.o_proj", y);
}

Vec ChannelMix6(PlainLayer& layer, const Vec& x) {
  const Vec step = Step(layer, "channel_shift", x);
  const Vec key = layer.Linear("ffn.key.linear", Mixed(x, step, layer.Weight("ffn.key.mu")));
  const Vec receptance =
      layer.Linear("ffn.receptance.linear", Mixed(x, step, layer.Weight("ffn.receptance.mu")));
  Vec y = layer.Linear("ffn.value", Map(key, SquaredRelu));
  for (size_t i = 0; i < y.size(); ++i) y[i] *= Sigmoid(receptance[i]);
  return y;
}

Vec Rwkv6Logits(const PlainModel& model, std::span<const int32_t> tokens) {
  return Logits(model, tokens, TimeMix6, ChannelMix6);
}

TEST(Rwkv6Test, EveryOptionIsWhatItsEquationSays) {
  for (const char* changes :
       {"{}", R"({"num_heads": 4})", R"({"expand_k": 1.0, "expand_v": 2.0})",
        R"({"proj_low_rank_dim": 7})", R"({"gate_low_rank_dim": 5})", R"({"norm_first": false})",
        R"({"norm_bias": false})", R"({"norm_eps": 0.01})",
        R"({"intermediate_size": null, "hidden_ratio": 3.1})", R"({"num_hidden_layers": 1})",
        R"({"attn": {"layers": [0], "num_heads": 4, "num_kv_heads": 2, "window_size": 9}})"}) {
    ExpectPlain("rwkv6", changes, PlainNetwork(Rwkv6Logits));
  }
}

// --- RWKV-7 --------------------------------------------------------------------------------------

Vec TimeMix7(PlainLayer& layer, const Vec& x, Vec& first_values) {
  const auto& config = layer.model.config();
  const int dim = config["hidden_size"];
  const int key_dim =
      config["head_dim"].is_null() ? dim / int{config["num_heads"]} : int{config["head_dim"]};
  const int heads = dim / key_dim;
  const Vec step = Step(layer, "shift", x);
  const auto mixed = [&](const char* name) {
    const std::string own = absl::StrCat("attn.x_", name);
    if (layer.Has(own)) return Mixed(x, step, layer.Weight(own));
    const std::string order = "rwkvag";  // of the rows of one tensor
    const auto row = static_cast<int64_t>(order.find(name));
    return Mixed(x, step, Slice(layer.Weight("attn.x_x"), row * dim, dim));
  };
  const Vec r = layer.Linear("attn.r_proj", mixed("r"));
  const Vec w = LowRank(layer, "attn.w_lora", mixed("w"), std::tanh);
  const Vec k = layer.Linear("attn.k_proj", mixed("k"));
  Vec v = layer.Linear("attn.v_proj", mixed("v"));
  const Vec a = Map(LowRank(layer, "attn.a_lora", mixed("a"), Identity), Sigmoid);
  const Vec g = LowRank(layer, "attn.g_lora", mixed("g"), Sigmoid);
  if (layer.index == 0) {
    first_values = v;
  } else {
    const Vec share = Map(LowRank(layer, "attn.v_lora", mixed("v"), Identity), Sigmoid);
    for (size_t i = 0; i < v.size(); ++i) v[i] += (first_values[i] - v[i]) * share[i];
  }
  const int value_dim = static_cast<int>(v.size()) / heads;
  const Vec &k_k = layer.Weight("attn.k_k"), &k_a = layer.Weight("attn.k_a");
  const Vec& r_k = layer.Weight("attn.r_k");
  Vec y;
  for (int h = 0; h < heads; ++h) {
    Vec erased(key_dim), written(key_dim);
    double squares = 0, bonus = 0;
    for (int j = 0; j < key_dim; ++j) {
      const int key = h * key_dim + j;
      erased[j] = k[key] * k_k[key];
      squares += erased[j] * erased[j];
      written[j] = k[key] * (1 + (a[key] - 1) * k_a[key]);
      bonus += r[key] * written[j] * r_k[key];
    }
    const bool fused = !config.contains("fuse_norm") || bool{config["fuse_norm"]};
    const double norm = fused ? std::sqrt(squares + 1e-6) : std::max(std::sqrt(squares), 1e-12);
    for (double& c : erased) c /= norm;
    Vec& memory = Memory(layer, h, static_cast<size_t>(key_dim) * value_dim);
    Vec o(value_dim);
    for (int i = 0; i < value_dim; ++i) {
      double* row = memory.data() + static_cast<size_t>(i) * key_dim;
      double recalled = 0;
      for (int j = 0; j < key_dim; ++j) recalled += row[j] * erased[j];
      for (int j = 0; j < key_dim; ++j) {
        const int key = h * key_dim + j;
        row[j] = std::exp(-std::exp(-0.5) * Sigmoid(w[key])) * row[j] -
                 a[key] * erased[j] * recalled + written[j] * v[h * value_dim + i];
        o[i] += row[j] * r[key];
      }
    }
    const Vec normed =
        LayerNorm(o, Slice(layer.Weight("attn.g_norm.weight"), int64_t{h} * value_dim, value_dim),
                  Slice(layer.Weight("attn.g_norm.bias"), int64_t{h} * value_dim, value_dim),
                  key_dim * double{config["norm_eps"]});
    for (int i = 0; i < value_dim; ++i) {
      const int value = h * value_dim + i;
      y.push_back((normed[i] + bonus * v[value]) * g[value]);
    }
  }
  return layer.Linear("attn.o_proj", y);
}

Vec ChannelMix7(PlainLayer& layer, const Vec& x) {
  const Vec step = Step(layer, "channel_shift", x);
  const Vec key = layer.Linear("ffn.key", Mixed(x, step, layer.Weight("ffn.x_k")));
  return layer.Linear("ffn.value", Map(key, SquaredRelu));
}

Vec Rwkv7Logits(const PlainModel& model, std::span<const int32_t> tokens) {
  return Logits(model, tokens, TimeMix7, ChannelMix7);
}

TEST(Rwkv7Test, EveryOptionIsWhatItsEquationSays) {
  for (const char* changes :
       {"{}", R"({"head_dim": 16})", R"({"head_dim": null, "num_heads": 4})",
        R"({"value_dim": 128})", R"({"value_dim": [96, 96]})", R"({"decay_low_rank_dim": 7})",
        R"({"a_low_rank_dim": null})", R"({"v_low_rank_dim": 3})", R"({"gate_low_rank_dim": 40})",
        R"({"norm_first": false})", R"({"norm_bias": false})", R"({"norm_eps": 0.01})",
        R"({"intermediate_size": null, "hidden_ratio": 3.1})", R"({"num_hidden_layers": 3})",
        R"({"num_hidden_layers": 3, "attn": {"layers": [1], "num_heads": 2, "qkv_bias": true}})"}) {
    ExpectPlain("rwkv7", changes, PlainNetwork(Rwkv7Logits));
  }
}

// Logits of the tiny RWKV-7 after `change` has had its tensors and its configuration.
template <typename Change>
std::vector<double> ChangedLogits(Change change) {
  const TestFolder folder;
  MakePlainFolder("rwkv7", "{}", folder);
  StoredTensors tensors = ReadTensors(folder.File("model.safetensors"));
  auto config = nlohmann::json::parse(folder.Read("config.json"));
  change(tensors, config);
  WriteTensors(tensors, folder.File("model.safetensors"));
  folder.Write("config.json", config.dump());
  const auto driver = Drive(folder.path(), MakeReference(), {.slots = 1, .max_tokens = 16});
  return FeedSlot(*driver, 0, RandomTokens(20, 61, /*seed=*/5));
}

TEST(Rwkv7Test, OldFilesHaveAllMixesInOneTensor) {
  const std::vector<double> want = ChangedLogits([](StoredTensors&, nlohmann::json&) {});
  const std::vector<double> got = ChangedLogits([](StoredTensors& tensors, nlohmann::json&) {
    for (const char* layer : {"model.layers.0.attn.", "model.layers.1.attn."}) {
      StoredTensor all = {.dtype = DType::kF32, .shape = {6, 64}, .bytes = {}};
      for (const char* name : {"x_r", "x_w", "x_k", "x_v", "x_a", "x_g"}) {
        const auto mix = tensors.extract(absl::StrCat(layer, name));
        const std::vector<std::byte>& bytes = mix.mapped().bytes;
        all.bytes.insert(all.bytes.end(), bytes.begin(), bytes.end());
      }
      tensors[absl::StrCat(layer, "x_x")] = all;
    }
  });
  EXPECT_THAT(got, HasSameBits(want));
}

TEST(Rwkv7Test, RanksAreThoseOfTheTensors) {
  const std::vector<double> want = ChangedLogits([](StoredTensors&, nlohmann::json&) {});
  const std::vector<double> got = ChangedLogits([](StoredTensors&, nlohmann::json& config) {
    config["decay_low_rank_dim"] = 64;
    config["gate_low_rank_dim"] = nullptr;
    config.erase("v_low_rank_dim");
  });
  EXPECT_THAT(got, HasSameBits(want));
}

}  // namespace
}  // namespace mneme
