// Mamba, Falcon-Mamba, Mamba-2 in both formats, and Samba, against plain equations.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/float16.h"
#include "models/model.h"
#include "tests/models/matrix_spec.h"
#include "tests/models/model_driver.h"
#include "tests/models/plain_network.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// silu(conv(x) + bias) of mixer.conv1d.
Vec Convolve(PlainLayer& layer, const Vec& x) {
  const Vec& weight = layer.Weight("mixer.conv1d.weight");
  const size_t channels = x.size(), width = weight.size() / channels;
  Vec& window = layer.State("window", width * channels);  // by channel, newest last
  Vec y(channels);
  for (size_t c = 0; c < channels; ++c) {
    double* own = window.data() + c * width;
    std::copy(own + 1, own + width, own);
    own[width - 1] = x[c];
    for (size_t j = 0; j < width; ++j) y[c] += own[j] * weight[c * width + j];
    if (layer.Has("mixer.conv1d.bias")) y[c] += layer.Weight("mixer.conv1d.bias")[c];
  }
  return Map(y, Silu);
}

int64_t Size(const Vec& x) { return static_cast<int64_t>(x.size()); }

Vec Mamba(PlainLayer& layer, const Vec& x, int64_t) {
  const auto& config = layer.model.config();
  const Vec& skip = layer.Weight("mixer.D");
  const Vec& a_log = layer.Weight("mixer.A_log");
  const int64_t channels = Size(skip), states = Size(a_log) / channels;
  const Vec both = layer.Linear("mixer.in_proj", x);
  const Vec u = Convolve(layer, Slice(both, 0, channels)), z = Slice(both, channels, channels);
  const Vec selected = layer.Linear("mixer.x_proj", u);
  const int64_t rank = Size(selected) - 2 * states;
  Vec t = Slice(selected, 0, rank), b = Slice(selected, rank, states);
  Vec c = Slice(selected, rank + states, states);
  if (config["model_type"] == "falcon_mamba") {
    const double eps = config.value("mixer_rms_eps", 1e-6);
    for (Vec* part : {&t, &b, &c}) *part = RmsNorm(*part, {}, eps);
  }
  const Vec dt = Map(layer.Linear("mixer.dt_proj", t), Softplus);
  Vec& h = layer.State("h", static_cast<size_t>(channels * states));
  Vec y(static_cast<size_t>(channels));
  for (int64_t i = 0; i < channels; ++i) {
    for (int64_t n = 0; n < states; ++n) {
      double& own = h[i * states + n];
      own = std::exp(AsF32(-std::exp(a_log[i * states + n])) * dt[i]) * own + dt[i] * u[i] * b[n];
      y[i] += own * c[n];
    }
    y[i] = (y[i] + skip[i] * u[i]) * Silu(z[i]);
  }
  return layer.Linear("mixer.out_proj", y);
}

Vec NormByGroup(const Vec& x, const Vec& weight, int64_t groups, double eps) {
  Vec y;
  const int64_t dim = Size(x) / groups;
  for (int64_t g = 0; g < groups; ++g) {
    const Vec part = RmsNorm(Slice(x, g * dim, dim), Slice(weight, g * dim, dim), eps);
    y.insert(y.end(), part.begin(), part.end());
  }
  return y;
}

Vec Mamba2(PlainLayer& layer, const Vec& x, int64_t) {
  const auto& config = layer.model.config();
  const bool fla = config.contains("norm_eps");
  const int64_t heads = config["num_heads"], head_dim = config["head_dim"];
  const int64_t groups = config["n_groups"], states = config["state_size"];
  const int64_t channels = heads * head_dim, shared = groups * states;
  const Vec all = layer.Linear("mixer.in_proj", x);
  const Vec z = Slice(all, 0, channels);
  const Vec convolved = Convolve(layer, Slice(all, channels, channels + 2 * shared));
  const Vec t = Slice(all, 2 * channels + 2 * shared, heads);
  double least = 0, most = std::numeric_limits<double>::infinity();
  const char* limit = config.contains("dt_limit") ? "dt_limit" : "time_step_limit";
  if (config.contains(limit)) least = config[limit][0], most = config[limit][1];
  const Vec& skip = layer.Weight("mixer.D");
  Vec y;
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t group = h / (heads / groups);
    const double step = std::clamp(Softplus(t[h] + layer.Weight("mixer.dt_bias")[h]), least, most);
    const double decay = std::exp(AsF32(-std::exp(layer.Weight("mixer.A_log")[h])) * step);
    const Vec u = Slice(convolved, h * head_dim, head_dim);
    Vec v = u;
    for (double& value : v) value *= step;
    Vec o = WriteAndRead(layer.state[absl::StrCat("S", h)],
                         {.q = Slice(convolved, channels + shared + group * states, states),
                          .k = Slice(convolved, channels + group * states, states),
                          .v = v,
                          .decay = [decay](int64_t, int64_t) { return decay; }});
    for (int64_t i = 0; i < head_dim; ++i) {
      o[i] += skip[Size(skip) == channels ? h * head_dim + i : h] * u[i];
    }
    y.insert(y.end(), o.begin(), o.end());
  }
  const auto gate = [&] {
    for (int64_t i = 0; i < channels; ++i) y[i] *= Silu(z[i]);
  };
  const bool norm_first = fla && config.value("norm_before_gate", false);
  if (!norm_first) gate();
  if (!fla || config.value("rmsnorm", true)) {
    const double eps = fla ? config["norm_eps"] : config["layer_norm_epsilon"];
    const bool former = config.contains("rms_norm") || config.contains("time_step_limit");
    const bool by_group = fla ? !former : config.value("transformers_version", "") == "5.23.0";
    const int64_t parts = config.value("norm_groups", by_group ? groups : int64_t{1});
    y = NormByGroup(y, layer.Weight("mixer.norm.weight"), parts, eps);
  }
  if (norm_first) gate();
  return layer.Linear("mixer.out_proj", y);
}

TEST(MambaTest, EveryOptionIsWhatItsEquationSays) {
  for (const char* changes :
       {"{}", R"({"state_size": 20})", R"({"expand": 3})", R"({"expand": 1.5})",
        R"({"intermediate_size": 96})", R"({"conv_kernel": 2})", R"({"conv_kernel": 1})",
        R"({"time_step_rank": 7})", R"({"time_step_rank": "auto", "hidden_size": 96})",
        R"({"use_bias": true})", R"({"use_conv_bias": false})",
        R"({"layer_norm_epsilon": 0.01})"}) {
    ExpectPlain("mamba", changes, Mamba);
  }
}

TEST(FalconMambaTest, EveryOptionIsWhatItsEquationSays) {
  for (const char* changes : {"{}", R"({"mixer_rms_eps": 0.1})", R"({"use_bias": true})",
                              R"({"use_conv_bias": false, "state_size": 5})"}) {
    ExpectPlain("falcon_mamba", changes, Mamba);
  }
}

TEST(Mamba2Test, EveryOptionIsWhatItsEquationSays) {
  for (const char* changes :
       {"{}", R"({"n_groups": 1})", R"({"n_groups": 4})", R"({"num_heads": 8, "head_dim": 16})",
        R"({"state_size": 20})", R"({"expand": 3, "num_heads": 6})", R"({"conv_kernel": 3})",
        R"({"use_bias": true})", R"({"use_conv_bias": false})",
        R"({"time_step_limit": [0.02, 0.05]})", R"({"n_groups": 2, "norm_groups": 2})",
        R"({"n_groups": 2, "transformers_version": "5.23.0"})",
        R"({"n_groups": 4, "transformers_version": "5.22.2"})",
        R"({"n_groups": 4, "norm_before_gate": true})", R"({"layer_norm_epsilon": 0.01})"}) {
    ExpectPlain("mamba2", changes, Mamba2);
  }
}

// flash-linear-attention's format has keys of its own, and a norm that goes by group.
TEST(Mamba2Test, EveryOptionOfTheOtherFormatIsWhatItsEquationSays) {
  for (const char* changes :
       {R"("n_groups": 2)", R"("norm_before_gate": true)", R"("rmsnorm": false)",
        R"("D_has_hdim": true)", R"("dt_limit": [0.02, 0.05])",
        R"("n_groups": 4, "norm_before_gate": true, "use_bias": true)",
        R"("n_groups": 4, "norm_groups": 1)", R"("n_groups": 4, "rms_norm": false)",
        R"("n_groups": 2, "time_step_limit": [0.02, 0.05], "time_step_rank": 4)"}) {
    const std::string keys =
        absl::StrCat(R"({"layer_norm_epsilon": null, "norm_eps": 0.01, )", changes, "}");
    SCOPED_TRACE(keys);
    ModelSpec spec = MatrixSpec("mamba2", nlohmann::ordered_json::parse(keys));
    spec.config.erase("layer_norm_epsilon");
    spec.config["vocab_size"] = 61;
    ExpectPlain(spec, Mamba2);
  }
}

TEST(MambaTest, TheOtherFormatHasTheSameEquation) {
  for (const char* rank : {"dt_rank", "time_step_rank"}) {  // today's name, and the one before
    ModelSpec spec = MatrixSpec("mamba", {{"norm_eps", 0.01}, {"vocab_size", 61}});
    spec.config.erase("layer_norm_epsilon");
    spec.config.erase("time_step_rank");
    spec.config[rank] = 5;
    ExpectPlain(spec, Mamba);
  }
}

TEST(SambaTest, EveryOptionIsWhatItsEquationSays) {
  for (const char* changes :
       {"{}", R"({"attn": null})", R"({"attn": {"layers": [0], "num_heads": 4, "window_size": 9}})",
        R"({"attn": {"layers": [0, 1, 5], "num_heads": 4, "num_kv_heads": 2, "qkv_bias": true,
                     "rope_theta": 500, "window_size": 64}})",
        R"({"attn": [{"layers": [1], "num_heads": 4}, {"layers": [0], "num_heads": 2}]})",
        R"({"hidden_ratio": 7})", R"({"state_size": 20})", R"({"intermediate_size": 96})",
        R"({"use_bias": true})", R"({"norm_eps": 0.01})"}) {
    ExpectPlain("samba", changes, Mamba);
  }
}

// Logits of a folder for some tokens.
std::vector<double> Logits(const TestFolder& folder) {
  const auto driver = Drive(folder.path(), MakeReference(), {.slots = 1, .max_tokens = 16});
  return FeedSlot(*driver, 0, RandomTokens(20, 61, /*seed=*/3), {8});
}

// Transformers does as the configuration says, whatever the file holds; flash-linear-attention
// takes the head that is there.
TEST(MambaTest, ATiedNetworkHasNoUseForAHead) {
  for (const bool fla : {false, true}) {
    ModelSpec spec = MatrixSpec("mamba", {{"vocab_size", 61}});
    if (fla) {
      for (const char* key : {"layer_norm_epsilon", "time_step_rank"}) spec.config.erase(key);
      spec.config["norm_eps"] = 1e-5;
      spec.config["dt_rank"] = 4;
    }
    const TestFolder untied, tied;
    MakeFolder(spec, untied);
    StoredTensors tensors = ReadTensors(untied.File("model.safetensors"));
    ASSERT_TRUE(tensors.contains("lm_head.weight"));
    spec.tied = true;
    MakeFolder(spec, tied);
    WriteTensors(tensors, tied.File("model.safetensors"));
    testing::internal::CaptureStderr();
    const std::vector<double> with_both = Logits(tied);
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                AllOf(HasSubstr("\"lm_head.weight\" is not \"backbone.embeddings.weight\""),
                      HasSubstr(fla ? "The head is used" : "The head is not used")));
    if (fla) {
      EXPECT_THAT(with_both, HasSameBits(Logits(untied)));
      continue;
    }
    tensors.erase("lm_head.weight");
    WriteTensors(tensors, tied.File("model.safetensors"));
    EXPECT_THAT(with_both, HasSameBits(Logits(tied)));
    EXPECT_GT(RelativeError(with_both, Logits(untied)), 1e-3);
  }
}

absl::Status LoadingOf(const StoredTensors& tensors, const TestFolder& folder) {
  WriteTensors(tensors, folder.File("model.safetensors"));
  const auto backend = MakeReference();
  return LoadModel(folder.path(), *backend, nullptr).status();
}

// use_conv_bias is true unless a file says otherwise.
TEST(MambaTest, AConvolutionWithoutItsBiasIsRefusedByName) {
  for (const char* type : {"mamba", "falcon_mamba", "mamba2"}) {
    ModelSpec spec = MatrixSpec(type, {{"vocab_size", 61}});
    spec.config["use_conv_bias"] = true;
    const TestFolder folder;
    MakeFolder(spec, folder);
    StoredTensors tensors = ReadTensors(folder.File("model.safetensors"));
    const std::string name = "backbone.layers.1.mixer.conv1d.bias";
    ASSERT_TRUE(tensors.contains(name)) << type;
    const std::string channels = absl::StrCat("[", tensors.at(name).shape[0], "]");
    tensors.erase(name);
    const absl::Status status = LoadingOf(tensors, folder);
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << type << " " << status;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr(absl::StrCat("\"", name, "\" is not in")), HasSubstr(channels)));
  }
}

// Whatever the other weights are in, rates are read in the type that the file has them in.
TEST(MambaTest, RatesOfAnotherFloatTypeAreReadAndOthersAreRefusedByName) {
  for (const char* type : {"mamba", "falcon_mamba", "mamba2"}) {
    const TestFolder folder;
    MakeFolder(MatrixSpec(type, {{"vocab_size", 61}}), folder);
    const StoredTensors stored = ReadTensors(folder.File("model.safetensors"));
    const std::string name = "backbone.layers.1.mixer.A_log";
    const StoredTensor& rates = stored.at(name);
    ASSERT_EQ(rates.dtype, DType::kF32) << type;
    for (const bool bf16 : {true, false}) {
      StoredTensors rounded = stored, narrow = stored;
      narrow.at(name).dtype = bf16 ? DType::kBF16 : DType::kF16;
      narrow.at(name).bytes.resize(rates.bytes.size() / 2);
      for (size_t i = 0; i < rates.bytes.size() / 4; ++i) {
        float value = 0;
        std::memcpy(&value, rates.bytes.data() + 4 * i, 4);
        const uint16_t bits = bf16 ? BF16FromF32(value) : F16FromF32(value);
        value = bf16 ? F32FromBF16(bits) : F32FromF16(bits);
        std::memcpy(narrow.at(name).bytes.data() + 2 * i, &bits, 2);
        std::memcpy(rounded.at(name).bytes.data() + 4 * i, &value, 4);
      }
      ASSERT_NE(rounded.at(name).bytes, rates.bytes) << type;
      WriteTensors(rounded, folder.File("model.safetensors"));
      const std::vector<double> want = Logits(folder);
      WriteTensors(narrow, folder.File("model.safetensors"));
      EXPECT_THAT(Logits(folder), HasSameBits(want)) << type << (bf16 ? " BF16" : " F16");
    }
    StoredTensors others = stored;
    others.at(name).dtype = DType::kI32;
    const absl::Status status = LoadingOf(others, folder);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << type << " " << status;
    EXPECT_THAT(status.message(),
                HasSubstr(absl::StrCat("\"", name, "\": dtype I32, expected F32, BF16 or F16")));
  }
}

TEST(MambaTest, OldFilesNameTheEmbeddingOtherwise) {
  ModelSpec spec = MatrixSpec("mamba", {{"vocab_size", 61}});
  const TestFolder folder;
  MakeFolder(spec, folder);
  const std::vector<double> want = Logits(folder);
  StoredTensors tensors = ReadTensors(folder.File("model.safetensors"));
  tensors["backbone.embedding.weight"] = tensors.at("backbone.embeddings.weight");
  tensors.erase("backbone.embeddings.weight");
  WriteTensors(tensors, folder.File("model.safetensors"));
  EXPECT_THAT(Logits(folder), HasSameBits(want));
}

}  // namespace
}  // namespace mneme
