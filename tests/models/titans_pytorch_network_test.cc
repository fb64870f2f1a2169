// titans-pytorch's network against plain equations (docs/memory_models.md): in double, a position
// at a time, from weights alone.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/models/plain_memory.h"
#include "tests/models/plain_network.h"
#include "tests/models/plain_titans_memory.h"

namespace mneme {
namespace {

using nlohmann::json;
using plain::Add;
using plain::Net;
using plain::Part;
using plain::PlainTitansMemory;
using plain::Size;
using plain::Times;

using Streams = std::vector<Vec>;

// What a branch reads, what the streams are mixed to, and how much of its output each gets.
struct Branch {
  Vec input, post;
  Streams mixed;
};

Branch Read(const Part& part, const Streams& x, const std::string& kind) {
  const size_t n = x.size(), dim = x[0].size();
  if (n == 1) return {x[0], {1}, x};
  const Vec &gamma = part["norm.gamma"], &fn = part["dynamic_alpha_fn"];
  const bool dynamic = kind == "hc", writes = part.Has("static_beta");
  Branch branch{.input = Vec(dim), .post = Vec(n), .mixed = Streams(n, Vec(dim))};
  std::vector<Vec> mix(n, Vec(n));
  for (size_t s = 0; s < n; ++s) {
    Vec z = x[s];
    const double length = std::sqrt(Dot(z, z));
    for (size_t i = 0; i < dim; ++i) z[i] *= std::sqrt(dim) / length * (1 + gamma[i]);
    Vec a(1 + n);
    for (size_t j = 0; j <= n; ++j) {
      for (size_t i = 0; i < dim; ++i) a[j] += z[i] * fn[i * (1 + n) + j];
      const char* scale = dynamic  ? "dynamic_alpha_scale"
                          : j == 0 ? "pre_branch_scale"
                                   : "residual_scale";
      a[j] = part[scale][0] * (dynamic ? std::tanh(a[j]) : a[j]) +
             part["static_alpha"][s * (1 + n) + j];
    }
    const double pre = dynamic ? a[0] : Sigmoid(a[0]);
    Add(branch.input, x[s], pre);
    for (size_t t = 0; t < n; ++t) mix[s][t] = kind == "mhc_0_3_11" ? 1 : a[1 + t];
    if (!writes) continue;
    const double u = Dot(z, part["dynamic_beta_fn"]), beta = part["static_beta"][s];
    branch.post[s] = dynamic ? part["dynamic_beta_scale"][0] * std::tanh(u) + beta
                             : 2 * Sigmoid(part["h_post_scale"][0] * u + beta);
  }
  if (kind == "mhc") {
    for (Vec& row : mix) row = Map(row, [](double value) { return std::exp(value); });
    for (int round = 0; round < 20; ++round) {
      for (size_t t = 0; t < n; ++t) {
        double sum = 0;
        for (size_t s = 0; s < n; ++s) sum += mix[s][t];
        for (size_t s = 0; s < n; ++s) mix[s][t] /= sum;
      }
      for (Vec& row : mix) {
        double sum = 0;
        for (const double value : row) sum += value;
        for (double& value : row) value /= sum;
      }
    }
  }
  for (size_t t = 0; t < n; ++t) {
    for (size_t s = 0; s < n; ++s) Add(branch.mixed[t], x[s], mix[s][t]);
  }
  return branch;
}

Streams Written(const Branch& branch, const Vec& output) {
  Streams x = branch.mixed;
  for (size_t s = 0; s < x.size(); ++s) Add(x[s], output, branch.post[s]);
  return x;
}

// PlainTitansAttention of one layer, which keeps all keys and values.
class PlainTitansAttention {
 public:
  PlainTitansAttention(Part part, const json& config) : part_(std::move(part)), config_(config) {}

  // `first`: the first layer's values, which that one sets.
  Vec Attend(const Vec& x, int64_t n, Vec& first) {
    const int heads = config_["heads"], dim = config_["dim_head"];
    const int persistent = config_["num_persist_mem_tokens"];
    const int64_t window =
        int64_t{config_["segment_len"]} + int64_t{config_["num_longterm_mem_tokens"]};
    const Vec z =
        RmsNorm(x, part_["norm.weight"], config_.value("rms_norm_eps", 1.1920928955078125e-07));
    const Vec qkv = part_.Linear("to_qkv", z);
    const int channels = heads * dim;
    Vec k = Slice(qkv, channels, channels), v = Slice(qkv, 2 * channels, channels);
    if (part_.Has("to_learned_v_mix.0.weight")) {
      const Vec mix = part_.Gates("to_learned_v_mix.0", z);
      for (size_t i = 0; i < v.size(); ++i) v[i] += mix[i / Size(dim)] * (first[i] - v[i]);
    } else {
      first = v;
    }
    Vec read;
    for (int h = 0; h < heads; ++h) {
      const Vec turned = Turned(Slice(k, h * dim, dim), n);
      std::copy(turned.begin(), turned.end(), k.begin() + h * dim);
    }
    keys_.push_back(k);
    values_.push_back(v);
    for (int h = 0; h < heads; ++h) {
      const Vec q = Turned(Slice(qkv, h * dim, dim), n);
      Vec scores;
      std::vector<Vec> seen;
      const auto see = [&](const Vec& key, const Vec& value) {
        scores.push_back(ScoreScale(dim) * Dot(q, key));
        seen.push_back(value);
      };
      for (int p = 0; p < persistent; ++p) {
        const Vec& all = part_["persistent_memory"];
        see(Slice(all, (h * persistent + p) * dim, dim),
            Slice(all, ((heads + h) * persistent + p) * dim, dim));
      }
      for (int64_t m = 0; m <= n; ++m) {
        const bool visible =
            bool{config_["sliding_window_attn"]} ? n - m <= window : m / window == n / window;
        if (visible)
          see(Slice(keys_[Size(m)], h * dim, dim), Slice(values_[Size(m)], h * dim, dim));
      }
      const Vec weights = Softmax(scores);
      Vec sum(Size(dim));
      for (size_t j = 0; j < seen.size(); ++j) Add(sum, seen[j], weights[j]);
      read.insert(read.end(), sum.begin(), sum.end());
    }
    return part_.Linear("to_out", read);
  }

 private:
  // Heads turn by the frequencies that the checkpoint has, which are f32.
  Vec Turned(const Vec& x, int64_t n) const {
    Vec y = x;
    for (size_t j = 0; j + 1 < x.size(); j += 2) {
      const double angle = static_cast<double>(n) * part_["rotary_emb.freqs"][j / 2];
      y[j] = x[j] * std::cos(angle) - x[j + 1] * std::sin(angle);
      y[j + 1] = x[j + 1] * std::cos(angle) + x[j] * std::sin(angle);
    }
    return y;
  }

  Part part_;
  const json& config_;
  std::vector<Vec> keys_, values_;
};

class Transformer {
 public:
  explicit Transformer(const PlainModel& model)
      : all_{model, ""}, config_(model.config()), depth_(config_["depth"]) {
    for (int i = 0; i < depth_; ++i) {
      const Part layer = all_.Of(absl::StrCat("layers.", i, "."));
      attentions_.emplace_back(layer.Of("5."), config_);
      memories_.emplace_back();
      if (layer.Has("4.to_decay_factor.0.weight"))
        memories_.back().emplace_back(layer.Of("4."), config_);
    }
  }

  // Logits of the next position, whose embedding is `x`.
  Vec Step(Vec x) {
    const int64_t n = positions_++, period = config_["neural_memory_segment_len"];
    for (int axis = 0; axis < 2; ++axis) {
      const Part mlp = all_.Of(absl::StrCat("axial_pos_emb.mlps.", axis, "."));
      const Vec input = {static_cast<double>(axis == 0 ? n / period : n % period)};
      Add(x, mlp.Linear("4", Map(mlp.Linear("2", Map(mlp.Linear("0", input), Silu)), Silu)));
    }
    const auto dim = static_cast<int64_t>(x.size());
    const int streams = config_["num_residual_streams"];
    const std::string kind = config_["hyper_connections"];
    Streams streams_of(Size(streams), x);
    for (int s = 0; streams > 1 && s < streams; ++s) {
      Add(streams_of[Size(s)], Slice(all_["expand_streams.stream_embed"], s * dim, dim));
    }
    std::vector<Vec> history;
    Vec first;
    const std::vector<Net>* below = nullptr;
    for (int i = 0; i < depth_; ++i) {
      const Part layer = all_.Of(absl::StrCat("layers.", i, "."));
      Vec gate;
      if (!memories_[Size(i)].empty()) {
        PlainTitansMemory& memory = memories_[Size(i)][0];
        const Branch branch = Read(layer.Of("0."), streams_of, kind);
        std::vector<Vec> views(3, branch.input);
        if (layer.Has("3.1.weight")) views = Views(layer, branch.input, history);
        const bool residual = config_.value("neural_mem_weight_residual", false);
        const Vec read = memory.Feed(views[0], views[1], views[2], n, residual ? below : nullptr);
        below = &memory.before();
        if (config_.value("neural_mem_gate_attn_output", false)) {
          gate = Map(read, Sigmoid);
        } else {
          streams_of = Written(branch, read);
        }
      }
      const Branch attend = Read(layer.Of("1."), streams_of, kind);
      Vec found = attentions_[Size(i)].Attend(attend.input, n, first);
      if (!gate.empty()) found = Times(found, gate);
      streams_of = Written(attend, found);
      const Branch branch = Read(layer.Of("2."), streams_of, kind);
      const Vec inner = layer.Linear("6.1", RmsNorm(branch.input, layer["6.0.weight"], Eps()));
      const auto half = static_cast<int64_t>(inner.size() / 2);
      const Vec out =
          layer.Linear("6.3", Times(Slice(inner, 0, half), Map(Slice(inner, half, half), Silu)));
      streams_of = Written(branch, out);
      history.insert(history.end(), {attend.input, found, branch.input, out});
    }
    Vec sum(x.size());
    for (const Vec& stream : streams_of) Add(sum, stream);
    return all_.Linear("to_logits", RmsNorm(sum, all_["norm.weight"], Eps()));
  }

 private:
  double Eps() const { return config_.value("rms_norm_eps", 1.1920928955078125e-07); }
  std::vector<Vec> Views(const Part& layer, const Vec& input,
                         const std::vector<Vec>& history) const {
    std::vector<Vec> choices = {input};
    choices.insert(choices.end(), history.begin(), history.end());
    const Vec logits = layer.Linear("3.1", RmsNorm(input, layer["3.0.weight"], Eps()));
    const auto count = static_cast<int64_t>(choices.size());
    std::vector<Vec> views;
    for (int view = 0; view < 3; ++view) {
      const Vec weights = Softmax(Slice(logits, view * count, count));
      views.emplace_back(input.size());
      for (size_t j = 0; j < choices.size(); ++j) Add(views.back(), choices[j], weights[j]);
    }
    return views;
  }

  Part all_;
  const json& config_;
  int depth_;
  int64_t positions_ = 0;
  std::vector<PlainTitansAttention> attentions_;
  std::vector<std::vector<PlainTitansMemory>> memories_;  // of each layer: one, or none
};

Vec TitansPytorch(const PlainModel& model, std::span<const int32_t> tokens) {
  const json& config = model.config();
  const int64_t dim = config["dim"], segment = config["segment_len"];
  const int64_t longterm = config["num_longterm_mem_tokens"];
  Transformer transformer(model);
  Vec logits;
  for (size_t t = 0; t < tokens.size(); ++t) {
    if (t > 0 && static_cast<int64_t>(t) % segment == 0) {
      for (int64_t j = 0; j < longterm; ++j) {
        transformer.Step(Slice(model.Tensor("longterm_mems"), j * dim, dim));
      }
    }
    const Vec last =
        transformer.Step(Slice(model.Tensor("token_emb.weight"), tokens[t] * dim, dim));
    logits.insert(logits.end(), last.begin(), last.end());
  }
  return logits;
}

// A change of the memory's arguments, beside those that the shape has.
std::string Memories(const std::string& changes) {
  return absl::StrCat(R"({"neural_memory_layers": [1, 2], "neural_memory_kwargs": {"heads": 2,
                          "dim_head": 16, "default_step_transform_max_lr": 0.03)",
                      changes.empty() ? "" : ", ", changes, "}}");
}

TEST(TitansPytorchNetworkTest, LayersAreWhatTheirEquationsSay) {
  for (const char* changes :
       {"{}", R"({"sliding_window_attn": false})", R"({"num_longterm_mem_tokens": 0})",
        R"({"num_persist_mem_tokens": 0})", R"({"num_residual_streams": 1})",
        R"({"num_residual_streams": 3})", R"({"hyper_connections": "hc"})",
        R"({"hyper_connections": "mhc_0_3_11"})", R"({"neural_memory_layers": []})",
        R"({"neural_memory_layers": [1, 2]})", R"({"neural_mem_gate_attn_output": true})",
        R"({"neural_mem_gate_attn_output": true, "num_residual_streams": 1})",
        R"({"neural_memory_qkv_receives_diff_views": true})",
        R"({"neural_memory_layers": [1, 2], "neural_mem_weight_residual": true})",
        R"({"neural_memory_segment_len": 1, "neural_memory_batch_size": 5})",
        R"({"neural_memory_segment_len": 9, "neural_memory_batch_size": null})",
        R"({"segment_len": 1})", R"({"rms_norm_eps": 0.01})", R"({"ff_mult": 1})"}) {
    ExpectPlain("titans-pytorch", changes, TitansPytorch);
  }
}

TEST(TitansPytorchNetworkTest, MemoriesAreWhatTheirEquationsSay) {
  for (const char* changes :
       {"", R"("qk_rmsnorm": true)", R"("post_rmsnorm": true)", R"("pre_rmsnorm": false)",
        R"("activation": "silu")", R"("num_kv_per_token": 3)", R"("attn_pool_chunks": true)",
        R"("momentum": false)", R"("momentum_order": 2)",
        R"("momentum_order": 2, "learned_momentum_combine": true)",
        R"("momentum_order": 3, "learned_momentum_combine": true,
            "learned_combine_include_zeroth": true)",
        R"("per_parameter_lr_modulation": true, "max_mem_layer_modulation": 1.5)",
        R"("per_head_learned_parameters": false)", R"("max_grad_norm": 0.2)",
        R"("gated_transition": true)", R"("mem_model_norm_add_residual": false)"}) {
    ExpectPlain("titans-pytorch", Memories(changes), TitansPytorch);
  }
}

}  // namespace
}  // namespace mneme
