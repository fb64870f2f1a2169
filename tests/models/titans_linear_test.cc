// NeMo Automodel's memories of one matrix (mem_depth 1), the gated delta rule with momentum,
// against plain double.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/models/config_keys.h"
#include "tests/models/plain_network.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"
#include "tools/layer_tape.h"

namespace mneme {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kLinearVocab = 61;

ModelSpec LinearSpec(const char* changes) {
  ModelSpec spec;
  spec.config = ordered_json::parse(R"({"model_type": "titans", "architecture_variant": "lmm",
    "vocab_size": 61, "hidden_size": 40, "num_hidden_layers": 2, "intermediate_size": 72,
    "num_attention_heads": 3, "head_dim": 10, "tie_word_embeddings": false, "bos_token_id": 1,
    "eos_token_id": 2})");
  spec.config.update(ordered_json::parse(changes));
  spec.dtype = DType::kF32;
  spec.initializer_range = 0.15;
  spec.convolution_range = 0.5;
  return spec;
}

// One layer's memory: a matrix S and its momentum for each head, as Automodel writes the rule.
class LinearMemory {
 public:
  LinearMemory(const PlainLayer& layer, const json& config)
      : layer_(layer),
        heads_(config["num_attention_heads"]),
        dim_(config["head_dim"]),
        momentum_(config.value("momentum", true)),
        forgets_(config.value("forget", true)),
        width_(config.value("qkv_conv_kernel_size", 4)) {
    const auto zeros = Vec(static_cast<size_t>(dim_ * dim_));
    s_.assign(static_cast<size_t>(heads_), zeros);
    m_ = s_;
  }

  Vec Feed(const Vec& x) {
    const Vec q = Stream("q", x, 0), k = Stream("k", x, 1), v = Stream("v", x, 2);
    const Vec beta = Map(layer_.Linear("memory.b_proj", x), Sigmoid);
    const Vec gate = Map(layer_.Linear("memory.g_proj", x), Silu);
    Vec all;
    for (int64_t h = 0; h < heads_; ++h) {
      const auto at = static_cast<size_t>(h);
      double alpha = 1, eta = 0;
      if (forgets_) {
        const double a = layer_.Linear("memory.a_proj", x)[at];
        alpha = std::exp(-std::exp(layer_.Weight("memory.A_log")[at]) *
                         Softplus(a + layer_.Weight("memory.dt_bias")[at]));
      }
      if (momentum_) eta = Sigmoid(layer_.Linear("memory.m_proj", x)[at]);
      const Vec query = Unit(Slice(q, h * dim_, dim_)), key = Unit(Slice(k, h * dim_, dim_));
      Vec core(static_cast<size_t>(dim_));
      double loss = 0;
      for (int64_t o = 0; o < dim_; ++o) {
        double predicted = 0;
        for (int64_t i = 0; i < dim_; ++i) {
          double& s = s_[at][static_cast<size_t>(i * dim_ + o)];
          s *= alpha;
          predicted += s * key[static_cast<size_t>(i)];
        }
        const double off = v[static_cast<size_t>(h * dim_ + o)] - predicted;
        loss += off * off / 2;
        const double error = beta[at] * off;
        for (int64_t i = 0; i < dim_; ++i) {
          const auto cell = static_cast<size_t>(i * dim_ + o);
          m_[at][cell] = eta * m_[at][cell] + key[static_cast<size_t>(i)] * error;
          s_[at][cell] += m_[at][cell];
          core[static_cast<size_t>(o)] +=
              s_[at][cell] * query[static_cast<size_t>(i)] * ScoreScale(dim_);
        }
        core[static_cast<size_t>(o)] *= gate[static_cast<size_t>(h * dim_ + o)];
      }
      losses.push_back(loss);
      rates.push_back(beta[at]);
      core = RmsNorm(core, layer_.Weight("memory.norm.weight"), 1e-6);
      all.insert(all.end(), core.begin(), core.end());
    }
    return layer_.Linear("memory.o_proj", all);
  }

  Vec losses, rates;  // [tokens, heads]

 private:
  static Vec Unit(Vec u) {
    const double length = std::max(std::sqrt(Dot(u, u)), 1e-12);
    for (double& value : u) value /= length;
    return u;
  }
  // The projection and its convolution, over the last `width_` inputs of it.
  Vec Stream(const char* name, const Vec& x, size_t which) {
    Vec y = layer_.Linear(absl::StrCat("memory.", name, "_proj"), x);
    if (width_ == 0) return y;
    std::vector<Vec>& past = past_[which];
    past.push_back(y);
    const Vec& weight = layer_.Weight(absl::StrCat("memory.", name, "_conv.weight"));
    for (size_t c = 0; c < y.size(); ++c) {
      y[c] = 0;
      for (size_t j = 0; j < static_cast<size_t>(width_) && j < past.size(); ++j) {
        y[c] +=
            weight[(c + 1) * static_cast<size_t>(width_) - 1 - j] * past[past.size() - 1 - j][c];
      }
    }
    return y;
  }

  const PlainLayer layer_;
  const int64_t heads_, dim_;
  const bool momentum_, forgets_;
  const int64_t width_;
  std::vector<Vec> s_, m_;         // by head, [in, out]
  std::vector<Vec> past_[3] = {};  // of q, k and v
};

// `watch` sees the memories afterwards.
Vec LinearTitans(const PlainModel& model, std::span<const int32_t> tokens,
                 const std::function<void(const std::vector<LinearMemory>&)>& watch = {}) {
  const json& config = model.config();
  const int64_t width = config["hidden_size"];
  std::vector<PlainLayer> layers;
  std::vector<LinearMemory> memories;
  for (int i = 0; i < config["num_hidden_layers"].get<int>(); ++i) {
    layers.push_back({.model = model, .index = i, .state = {}});
    memories.emplace_back(layers.back(), config);
  }
  const auto step = [&](Vec h) {
    const auto add = [&](const Vec& x) {
      for (size_t i = 0; i < h.size(); ++i) h[i] += x[i];
    };
    for (size_t l = 0; l < layers.size(); ++l) {
      add(memories[l].Feed(RmsNorm(h, layers[l].Weight("input_layernorm.weight"), 1e-6)));
      const Vec z = RmsNorm(h, layers[l].Weight("post_attention_layernorm.weight"), 1e-6);
      Vec inner = Map(layers[l].Linear("mlp.gate_proj", z), Silu);
      const Vec up = layers[l].Linear("mlp.up_proj", z);
      for (size_t i = 0; i < inner.size(); ++i) inner[i] *= up[i];
      add(layers[l].Linear("mlp.down_proj", inner));
    }
    return RmsNorm(h, model.Tensor("model.norm.weight"), 1e-6);
  };
  for (int64_t p = 0; p < config.value("num_persistent_memory_tokens", 0); ++p) {
    step(Slice(model.Tensor("model.persistent_memory"), p * width, width));
  }
  Vec logits;
  const Vec& head = model.Tensor("lm_head.weight");
  for (const int32_t token : tokens) {
    const Vec last = step(Slice(model.Tensor("model.embed_tokens.weight"), token * width, width));
    for (size_t row = 0; row < head.size(); row += last.size()) {
      logits.push_back(Dot(last, Slice(head, static_cast<int64_t>(row), width)));
    }
  }
  if (watch) watch(memories);
  return logits;
}

std::vector<double> LinearLogits(const std::string& folder, std::unique_ptr<Backend> backend,
                                 std::vector<int> chunks = {7, 1, 13}) {
  const auto driver = Drive(folder, std::move(backend), {.slots = 1, .max_tokens = 64});
  return FeedSlot(*driver, 0, RandomTokens(40, kLinearVocab, /*seed=*/8), std::move(chunks));
}

constexpr const char* kLinearOptions[] = {
    "{}",
    R"({"momentum": false})",
    R"({"forget": false})",
    R"({"momentum": false, "forget": false, "qkv_conv_kernel_size": 0})",
    R"({"num_persistent_memory_tokens": 3})",
};

TEST(TitansLinearTest, IsTheGatedDeltaRuleWithMomentum) {
  for (const char* changes : kLinearOptions) {
    SCOPED_TRACE(changes);
    const TestFolder folder;
    MakeFolder(LinearSpec(changes), folder);
    const Vec want =
        LinearTitans(PlainModel(folder.path()), RandomTokens(40, kLinearVocab, /*seed=*/8));
    const double error = RelativeError(LinearLogits(folder.path(), MakeReference()), want);
    EXPECT_LE(error, 1e-9);  // what is divided by is 1e-12 too much
    std::printf("  relative error %.2e\n", error);
    EXPECT_EQ(LinearLogits(folder.path(), MakeReference()),
              LinearLogits(folder.path(), MakeReference(), {}));
  }
}

// Reports of loss and rate are of the rule, not of the operation that it is computed as.
TEST(TitansLinearTest, LossesAndRatesThatAreToldAreTheRules) {
  const TestFolder folder;
  MakeFolder(LinearSpec("{}"), folder);
  const std::vector<int32_t> tokens = RandomTokens(40, kLinearVocab, /*seed=*/8);
  const auto driver = Drive(folder.path(), MakeReference(), {.slots = 1, .max_tokens = 64});
  LayerTape tape({"loss", "theta"});  // whose memory is the driver's backend's
  driver->set_observer(&tape);
  FeedSlot(*driver, 0, tokens);
  LinearTitans(PlainModel(folder.path()), tokens, [&](const std::vector<LinearMemory>& memories) {
    for (size_t layer = 0; layer < memories.size(); ++layer) {
      const auto* const loss = tape.Find(static_cast<int>(layer), "loss");
      const auto* const theta = tape.Find(static_cast<int>(layer), "theta");
      ASSERT_TRUE(loss != nullptr && theta != nullptr);
      EXPECT_LE(RelativeError(loss->values, memories[layer].losses), 1e-7);
      EXPECT_LE(RelativeError(theta->values, memories[layer].rates), 1e-7);
    }
  });
}

class TitansLinearBackendsTest : public testing::TestWithParam<BackendUnderTest> {};

TEST_P(TitansLinearBackendsTest, IsThatOfTheReference) {
  for (const char* changes : kLinearOptions) {
    SCOPED_TRACE(changes);
    const TestFolder folder;
    MakeFolder(LinearSpec(changes), folder);
    const std::vector<double> got = LinearLogits(folder.path(), GetParam().Make());
    const double error = RelativeError(got, LinearLogits(folder.path(), MakeReference()));
    EXPECT_LE(error, GetParam().device == "cuda" ? 1e-4 : 2e-5);
    std::printf("  relative error %.2e\n", error);
  }
}

// A head whose gate is shut forgets all and learns the token: nothing is divided by zero.
TEST_P(TitansLinearBackendsTest, ForgettingAllIsNoDivergence) {
  const TestFolder folder;
  MakeFolder(LinearSpec("{}"), folder);
  StoredTensors tensors = ReadTensors(folder.File("model.safetensors"));
  for (auto& [name, tensor] : tensors) {
    if (name.find("dt_bias") == std::string::npos) continue;
    const float shut = 200;
    std::memcpy(tensor.bytes.data(), &shut, sizeof(shut));  // the first head's
  }
  WriteTensors(tensors, folder.File("model.safetensors"));
  const Vec want =
      LinearTitans(PlainModel(folder.path()), RandomTokens(40, kLinearVocab, /*seed=*/8));
  const std::vector<double> got = LinearLogits(folder.path(), GetParam().Make());
  EXPECT_LE(RelativeError(got, want), GetParam().device == "cuda" ? 1e-4 : 2e-5);
}

INSTANTIATE_TEST_SUITE_P(Backends, TitansLinearBackendsTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

TEST(TitansLinearConfigTest, KeysOfDeeperMemoriesHaveNoPart) {
  const std::string base = R"("architecture_variant": "lmm", "mem_depth": 1)";
  const auto with = [&](const char* keys) {
    return FingerprintOf("titans", absl::StrCat(base, ", ", keys));
  };
  for (const char* keys : {R"("chunk_size": 4)", R"("deep_memory_backend": "titans_pytorch")",
                           R"("memory_batch_size": 32)", R"("memory_expansion_factor": 2)",
                           R"("memory_residual_norm": false)"}) {
    EXPECT_EQ(FingerprintOf("titans", base), with(keys)) << keys;
  }
  for (const char* keys : {R"("momentum": false)", R"("forget": false)", R"("head_dim": 32)",
                           R"("qkv_conv_kernel_size": 3)"}) {
    EXPECT_NE(FingerprintOf("titans", base), with(keys)) << keys;
  }
  EXPECT_EQ(FingerprintOf("titans", base),
            FingerprintOf("titans", R"("architecture_variant": "lmm")"));
  EXPECT_NE(FingerprintOf("titans", base),
            FingerprintOf("titans", R"("architecture_variant": "lmm", "mem_depth": 2)"));
}

}  // namespace
}  // namespace mneme
