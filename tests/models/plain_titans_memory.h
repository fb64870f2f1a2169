// A memory of titans-pytorch in plain double, a position at a time, from weights alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/models/plain_memory.h"
#include "tests/models/plain_network.h"

namespace mneme::plain {

inline size_t Size(int64_t n) { return static_cast<size_t>(n); }

// Weights behind a prefix, and the arguments of the constructor.
struct Part {
  const PlainModel& model;
  std::string prefix;

  bool Has(const std::string& name) const { return model.Has(prefix + name); }
  const Vec& operator[](const std::string& name) const { return model.Tensor(prefix + name); }
  Part Of(const std::string& name) const { return {model, prefix + name}; }
  // W x (+ bias)
  Vec Linear(const std::string& name, const Vec& x) const {
    const Vec& w = (*this)[name + ".weight"];
    Vec y = Has(name + ".bias") ? (*this)[name + ".bias"] : Vec(w.size() / x.size());
    for (size_t o = 0; o < y.size(); ++o) {
      for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
    }
    return y;
  }
  Vec Gates(const std::string& name, const Vec& x) const { return Map(Linear(name, x), Sigmoid); }
};

// A token of a memory's open step.
struct Fed {
  Vec x, pool_logits;  // of the pool
  Vec k, v, theta;     // [heads, keys, ..]
};

class PlainTitansMemory {
 public:
  PlainTitansMemory(Part part, const nlohmann::json& config)
      : part_(std::move(part)), kwargs_(config["neural_memory_kwargs"]) {
    heads_ = kwargs_["heads"];
    dim_ = kwargs_["dim_head"];
    keys_ = kwargs_.value("num_kv_per_token", 1);
    orders_ = kwargs_.value("momentum", true) ? kwargs_.value("momentum_order", 1) : 0;
    step_ = config["neural_memory_segment_len"];
    period_ =
        config["neural_memory_batch_size"].is_null() ? 0 : int{config["neural_memory_batch_size"]};
    eps_ = config.value("rms_norm_eps", 1.1920928955078125e-07);
    const bool norm = kwargs_.value("mem_model_norm_add_residual", true);
    const int depth = config["neural_memory_model"]["depth"];
    for (int head = 0; head < heads_; ++head) {
      const auto parameter = [&](int index) {
        const Vec& all = part_[absl::StrCat("memory_model_parameters.", index)];
        if (!kwargs_.value("per_head_learned_parameters", true)) return all;
        const auto size = static_cast<int64_t>(all.size()) / heads_;
        return Slice(all, head * size, size);
      };
      Net net;
      net.eps = 1e-5;
      net.offset = 1;
      net.norm = norm ? Net::kLayer : Net::kNone;
      net.trains_gain = norm;
      if (norm) net.g = parameter(0);
      for (int l = 0; l < depth; ++l) net.w.push_back(parameter(l + (norm ? 1 : 0)));
      weights_.push_back(net);
      Net zero = net;
      zero.Blend(0, 0, net);
      momenta_.emplace_back(Size(orders_), zero);
      zeros_.push_back(zero);
    }
    anchors_ = before_ = weights_;
  }

  const std::vector<Net>& before() const { return before_; }

  // `below`: of the memory that this one's residual is of, or null.
  Vec Feed(const Vec& q_view, const Vec& k_view, const Vec& v_view, int64_t n,
           const std::vector<Net>* below) {
    const auto normed = [&](const char* name, const Vec& x) {
      return kwargs_.value("pre_rmsnorm", true) ? RmsNorm(x, part_[name], eps_) : x;
    };
    const Vec asked = normed("retrieve_norm.weight", q_view);
    Fed fed{
        .x = normed("store_norm.weight", k_view), .pool_logits = {}, .k = {}, .v = {}, .theta = {}};
    fed.k = HeadNorm("k_norm.gamma", Project("to_keys", fed.x), keys_);
    fed.v = Project("to_values", normed("store_norm.weight", v_view));
    fed.theta = part_.Gates("to_adaptive_step.0", fed.x);
    if (kwargs_.value("attn_pool_chunks", false)) {
      fed.pool_logits = part_.Linear("reduce_to_chunk_rep.to_attn_logits", fed.x);
    }
    open_.push_back(fed);
    if ((n + 1) % step_ == 0) Step(below);
    if (period_ > 0 && (n + 1) % period_ == 0) {
      for (int h = 0; h < heads_; ++h) {
        if (kwargs_.value("gated_transition", false)) {
          const double gate = Sigmoid(part_["transition_gate"][0]);
          weights_[h].Blend(gate, 1 - gate, anchors_[h]);
        }
        anchors_[h] = weights_[h];
      }
    }
    const Vec q = HeadNorm("q_norm.gamma", Project("to_queries", asked), 1);
    Vec read;
    for (int h = 0; h < heads_; ++h) {
      const Vec answer = weights_[h].Run(Slice(q, h * dim_, dim_));
      read.insert(read.end(), answer.begin(), answer.end());
    }
    if (kwargs_.value("post_rmsnorm", false)) read = Normed("multihead_rmsnorm.gamma", read, 1);
    if (heads_ == 1) return read;
    const Vec gate = part_.Gates("retrieve_gate.0", asked);
    for (size_t i = 0; i < read.size(); ++i) read[i] *= gate[i / Size(dim_)];
    return part_.Linear("combine_heads", read);
  }

 private:
  Vec Project(const std::string& name, const Vec& x) const {
    if (!kwargs_.contains("activation")) return part_.Linear(name, x);
    return Map(part_.Linear(name + ".0", x), Silu);
  }
  Vec HeadNorm(const char* name, const Vec& x, int keys) const {
    return kwargs_.value("qk_rmsnorm", false) ? Normed(name, x, keys) : x;
  }
  Vec Normed(const char* name, const Vec& x, int keys) const {
    Vec y;
    for (int row = 0; row < heads_ * keys; ++row) {
      Vec weight = Slice(part_[name], row / keys * dim_, dim_);
      for (double& w : weight) w += 1;
      const Vec one = RmsNorm(Slice(x, row * dim_, dim_), weight, eps_);
      y.insert(y.end(), one.begin(), one.end());
    }
    return y;
  }
  Vec Pool() const {
    Vec pooled(open_[0].x.size());
    for (size_t i = 0; i < pooled.size(); ++i) {
      double sum = 0;
      for (const Fed& fed : open_) {
        const double weight = fed.pool_logits.empty() ? 1 : std::exp(fed.pool_logits[i]);
        pooled[i] += weight * fed.x[i];
        sum += weight;
      }
      pooled[i] /= sum;
    }
    return pooled;
  }

  void Step(const std::vector<Net>* below) {
    const Vec pooled = Pool();
    const Vec forget = part_.Gates("to_decay_factor.0", pooled);
    const Vec eta = orders_ > 0 ? part_.Gates("to_momentum.0", pooled) : Vec();
    before_ = weights_;
    for (int h = 0; h < heads_; ++h) {
      Net anchor = anchors_[h], gradient = zeros_[h];
      if (below != nullptr) {
        const Vec mix = part_.Gates("to_learned_weight_residual_mix.0", pooled);
        anchor.Blend(1, mix[h], (*below)[h]);
      }
      const double most = kwargs_["default_step_transform_max_lr"];
      for (const Fed& fed : open_) {
        for (int u = h * keys_; u < (h + 1) * keys_; ++u) {
          const Vec target = Slice(fed.v, u * dim_, dim_);
          anchor.Run(Slice(fed.k, u * dim_, dim_), &target, 2.0 / dim_ * most * fed.theta[u],
                     &gradient);
        }
      }
      ScaleTensors(gradient, h, pooled);
      std::vector<Net> chain = {zeros_[h]};
      chain[0].Blend(0, -1, gradient);
      for (int i = 0; i < orders_; ++i) {
        momenta_[h][i].Blend(eta[h * orders_ + i], 1, chain.back());
        chain.push_back(momenta_[h][i]);
      }
      Net update = chain.back();
      if (kwargs_.value("learned_momentum_combine", false)) {
        if (!kwargs_.value("learned_combine_include_zeroth", false)) chain.erase(chain.begin());
        const auto mixed = static_cast<int64_t>(chain.size());
        const Vec share =
            Softmax(Slice(part_.Linear("to_learned_momentum_combine.0", pooled), h * mixed, mixed));
        update = zeros_[h];
        for (size_t i = 0; i < chain.size(); ++i) update.Blend(1, share[i], chain[i]);
      }
      weights_[h].Blend(1 - forget[h], 1, update);
    }
    open_.clear();
  }
  // Scales by the norm that a gradient may have, and by rates of tensors.
  void ScaleTensors(Net& gradient, int head, const Vec& pooled) const {
    std::vector<Vec*> tensors;  // as the checkpoint has them
    if (gradient.trains_gain) tensors.push_back(&gradient.g);
    for (Vec& w : gradient.w) tensors.push_back(&w);
    for (size_t t = 0; t < tensors.size(); ++t) {
      double factor = 1;
      if (kwargs_.contains("max_grad_norm")) {
        const double half = double{kwargs_["max_grad_norm"]} / 2;
        const double norm = std::sqrt(Dot(*tensors[t], *tensors[t]));
        factor *= half * (std::tanh(norm / half) + 1) / norm;
      }
      if (kwargs_.value("per_parameter_lr_modulation", false)) {
        factor *= kwargs_.value("max_mem_layer_modulation", 1.0) *
                  part_.Gates("to_layer_modulation.0", pooled)[Size(head) * tensors.size() + t];
      }
      for (double& value : *tensors[t]) value *= factor;
    }
  }

  Part part_;
  nlohmann::json kwargs_;
  int heads_ = 1, dim_ = 1, keys_ = 1, orders_ = 1, step_ = 1, period_ = 0;
  double eps_ = 0;
  std::vector<Net> weights_, anchors_, before_, zeros_;  // by head
  std::vector<std::vector<Net>> momenta_;                // by head, then order
  std::vector<Fed> open_;
};

}  // namespace mneme::plain
