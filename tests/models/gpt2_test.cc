// GPT-2 against plain equations, its keys, and its files.

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "tests/models/config_keys.h"
#include "tests/models/matrix_spec.h"
#include "tests/models/plain_attention.h"
#include "tests/models/plain_network.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// W^T x + b: matrices are stored [in, out].
Vec Conv1d(const PlainModel& model, const std::string& name, const Vec& x) {
  const Vec& weight = model.Tensor(name + ".weight");
  Vec y = model.Tensor(name + ".bias");
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t o = 0; o < y.size(); ++o) y[o] += weight[i * y.size() + o] * x[i];
  }
  return y;
}

Vec LayerNormed(const PlainModel& model, const std::string& name, const Vec& x) {
  return LayerNorm(x, model.Tensor(name + ".weight"), model.Tensor(name + ".bias"),
                   model.config()["layer_norm_epsilon"]);
}

double Gelu(double z) {
  return z / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
}

double Activated(const std::string& name, double z) {
  if (name == "gelu" || name == "gelu_python") return z / 2 * (1 + std::erf(z / std::sqrt(2)));
  if (name == "relu") return std::max(z, 0.0);
  if (name == "tanh") return std::tanh(z);
  return name == "silu" || name == "swish" ? Silu(z) : Gelu(z);
}

void AddTo(Vec& sum, const Vec& x) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += x[i];
}

Vec Gpt2(const PlainModel& model, std::span<const int32_t> tokens) {
  const auto& config = model.config();
  const int64_t dim = config["n_embd"], heads = config["n_head"];
  std::vector<PlainLayer> stack;
  for (int i = 0; i < int{config["n_layer"]}; ++i) {
    stack.push_back({.model = model, .index = i, .state = {}});
  }
  Vec logits;
  for (int64_t t = 0; t < static_cast<int64_t>(tokens.size()); ++t) {
    Vec h = Slice(model.Tensor("transformer.wte.weight"), tokens[t] * dim, dim);
    AddTo(h, Slice(model.Tensor("transformer.wpe.weight"), t * dim, dim));
    for (PlainLayer& layer : stack) {
      const std::string name = absl::StrCat("transformer.h.", layer.index, ".");
      const Vec qkv = Conv1d(model, name + "attn.c_attn", LayerNormed(model, name + "ln_1", h));
      // Scores are scaled by 1 / sqrt(dim of a head): what else there is goes into the queries.
      Vec q = Slice(qkv, 0, dim);
      double scale = 1;
      if (!config.value("scale_attn_weights", true)) {
        scale = std::sqrt(static_cast<double>(dim) / static_cast<double>(heads));
      }
      if (config.value("scale_attn_by_inverse_layer_idx", false)) scale /= layer.index + 1;
      for (double& value : q) value *= scale;
      const Vec read = PlainAttend(layer, {.heads = heads, .kv_heads = heads}, q,
                                   Slice(qkv, dim, dim), Slice(qkv, 2 * dim, dim), t);
      AddTo(h, Conv1d(model, name + "attn.c_proj", read));
      Vec inner = Conv1d(model, name + "mlp.c_fc", LayerNormed(model, name + "ln_2", h));
      for (double& value : inner) value = Activated(config["activation_function"], value);
      AddTo(h, Conv1d(model, name + "mlp.c_proj", inner));
    }
    const Vec last = LayerNormed(model, "transformer.ln_f", h);
    const Vec& head =
        model.Tensor(model.Has("lm_head.weight") ? "lm_head.weight" : "transformer.wte.weight");
    for (size_t row = 0; row < head.size() / last.size(); ++row) {
      logits.push_back(Dot(Slice(head, static_cast<int64_t>(row) * dim, dim), last));
    }
  }
  return logits;
}

TEST(Gpt2Test, EveryOptionIsWhatItsEquationSays) {
  for (const char* changes :
       {"{}", R"({"n_head": 2})", R"({"n_head": 1})", R"({"n_inner": 96})", R"({"n_layer": 3})",
        R"({"activation_function": "relu"})", R"({"activation_function": "silu"})",
        R"({"activation_function": "tanh"})", R"({"activation_function": "gelu", "n_inner": 96})",
        R"({"activation_function": "gelu_fast", "n_inner": 96})",
        R"({"scale_attn_weights": false})", R"({"scale_attn_by_inverse_layer_idx": true})",
        R"({"scale_attn_weights": false, "scale_attn_by_inverse_layer_idx": true})",
        R"({"layer_norm_epsilon": 0.01})", R"({"n_embd": 36, "n_head": 4})"}) {
    ExpectPlain("gpt2", changes, PlainNetwork(Gpt2));
  }
}

// A folder of the tiny shape after `change` has had its tensors; and its logits.
template <typename Change>
std::vector<double> Logits(const TestFolder& folder, bool tied, Change change) {
  ModelSpec spec = MatrixSpec("gpt2", {{"vocab_size", 61}});
  spec.tied = tied;
  MakeFolder(spec, folder);
  StoredTensors tensors = ReadTensors(folder.File("model.safetensors"));
  change(tensors);
  WriteTensors(tensors, folder.File("model.safetensors"));
  const auto driver = Drive(folder.path(), MakeReference(), {.slots = 1, .max_tokens = 16});
  return FeedSlot(*driver, 0, RandomTokens(20, 61, /*seed=*/3), {8});
}

TEST(Gpt2Test, TheFirstFilesHaveNoPrefixAndMasks) {
  const TestFolder folder, first;
  const std::vector<double> want = Logits(folder, /*tied=*/true, [](StoredTensors&) {});
  const std::vector<double> got = Logits(first, /*tied=*/true, [](StoredTensors& tensors) {
    StoredTensors renamed;
    for (auto& [name, tensor] : tensors) renamed[name.substr(name.find('.') + 1)] = tensor;
    for (const char* layer : {"h.0.", "h.1."}) {
      renamed[absl::StrCat(layer, "attn.bias")] = {
          .dtype = DType::kF32, .shape = {1, 1, 1, 1}, .bytes = std::vector<std::byte>(4)};
    }
    tensors = renamed;
  });
  EXPECT_THAT(got, HasSameBits(want));
  const auto plan = PlanModel(first.path(), StateFormat());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->warnings, IsEmpty());
}

TEST(Gpt2Test, AHeadOfItsOwnIsUsedWhereTheConfigurationSaysSo) {
  const TestFolder tied, untied, both;
  const std::vector<double> with_embedding = Logits(tied, /*tied=*/true, [](StoredTensors&) {});
  StoredTensor head;
  const std::vector<double> with_head = Logits(
      untied, /*tied=*/false, [&](StoredTensors& tensors) { head = tensors["lm_head.weight"]; });
  EXPECT_GT(RelativeError(with_head, with_embedding), 0.1);
  EXPECT_THAT(Logits(both, /*tied=*/true,
                     [&](StoredTensors& tensors) { tensors["lm_head.weight"] = head; }),
              HasSameBits(with_embedding));
}

TEST(Gpt2Test, PositionsBoundTheContextWhateverIsAskedFor) {
  const TestFolder folder;
  MakeFolder(MatrixSpec("gpt2", {{"n_positions", 100}}), folder);
  for (const auto& [asked, most] : {std::pair(8192, 100), {100, 100}, {64, 64}}) {
    const auto plan = PlanModel(folder.path(), StateFormat(), {.max_context = asked});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->state_layout.max_tokens(), most) << asked;
    EXPECT_EQ(plan->info.positions, 100);
  }
}

TEST(Gpt2FingerprintTest, EveryKeyThatMovesLogitsOrStateCounts) {
  DistinctFingerprints seen;
  for (const char* keys :
       {"", R"("vocab_size": 50256)", R"("n_embd": 384)", R"("n_layer": 11)", R"("n_head": 6)",
        R"("n_inner": 1024)", R"("n_positions": 512)", R"("activation_function": "relu")",
        R"("activation_function": "silu")", R"("activation_function": "tanh")",
        R"("activation_function": "gelu")", R"("layer_norm_epsilon": 1e-6)",
        R"("scale_attn_weights": false)", R"("scale_attn_by_inverse_layer_idx": true)"}) {
    seen.Add(FingerprintOf("gpt2", keys), keys);
  }
}

TEST(Gpt2FingerprintTest, WhatMovesNeitherDoesNotCount) {
  const uint64_t defaults = FingerprintOf("gpt2", "");
  for (const char* keys :
       {R"("n_ctx": 1024)", R"("reorder_and_upcast_attn": true)", R"("attn_pdrop": 0.5)",
        R"("bos_token_id": 7)", R"("eos_token_id": [3])", R"("n_inner": 3072)",
        R"("summary_type": "cls_index")", R"("activation_function": "gelu_pytorch_tanh")",
        R"("use_cache": false)", R"("add_cross_attention": false)"}) {
    EXPECT_EQ(FingerprintOf("gpt2", keys), defaults) << keys;
  }
  EXPECT_EQ(FingerprintOf("gpt2", R"("activation_function": "swish")"),
            FingerprintOf("gpt2", R"("activation_function": "silu")"));
  EXPECT_EQ(FingerprintOf("gpt2", R"("activation_function": "gelu_python")"),
            FingerprintOf("gpt2", R"("activation_function": "gelu")"));
}

constexpr BadKeys kBadGpt2Keys[] = {
    {"heads", "gpt2", R"("n_head": 7)", kInvalid,
     "\"n_head\" is 7, expected a number that divides n_embd (768)"},
    {"positions", "gpt2", R"("n_positions": 0)", kInvalid, "\"n_positions\" is 0"},
    {"inner", "gpt2", R"("n_inner": 0)", kInvalid, "\"n_inner\" is 0"},
    {"activation", "gpt2", R"("activation_function": "quick_gelu")", kUnimplemented,
     "\"activation_function\" is \"quick_gelu\", which is not supported; expected one of \"gelu\""},
    {"cross", "gpt2", R"("add_cross_attention": true)", kUnimplemented, "\"add_cross_attention\""},
    {"quantised", "gpt2", R"("quantization_config": {})", kUnimplemented,
     "\"quantization_config\""},
    {"epsilon", "gpt2", R"("layer_norm_epsilon": 0)", kInvalid, "\"layer_norm_epsilon\" is 0"},
};

class Gpt2BadKeysTest : public testing::TestWithParam<BadKeys> {};

TEST_P(Gpt2BadKeysTest, IsRefusedByName) { ExpectRefused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, Gpt2BadKeysTest, testing::ValuesIn(kBadGpt2Keys),
                         [](const auto& info) { return info.param.name; });

TEST(Gpt2ConfigTest, WarningsAreOfMistakesOnly) {
  EXPECT_THAT(
      ConfigOf("gpt2", R"("n_ctx": 1024, "attn_pdrop": 0.1, "summary_use_proj": true)")->warnings,
      IsEmpty());
  EXPECT_THAT(ConfigOf("gpt2", R"("n_layers": 3)")->warnings,
              ElementsAre(HasSubstr("did you mean \"n_layer\"?")));
}

// Documents and the tool's help state these numbers for the shape.
TEST(Gpt2ConfigTest, TheShapeHasTheParametersAndTheStateThatDocumentsTell) {
  const MadeNetwork made = MakeShape("gpt2-124m");
  EXPECT_NEAR(made.millions(), 124.44, 0.01);
  EXPECT_EQ(made.state.slab_bytes(), int64_t{12} * 2 * 1024 * 768 * 4);
}

}  // namespace
}  // namespace mneme
