// The families of Mamba read config.json: which format it is in, keys that are refused, keys that
// count in the fingerprint.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model_config.h"
#include "tests/models/config_keys.h"

namespace mneme {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// A family in one format, the keys that say which, and values that differ from the defaults.
struct Family {
  const char* model_type;
  const char* format;
  std::vector<std::string> changes;
};
const std::vector<Family>& Families() {
  static const auto* const families = new std::vector<Family>{
      {"mamba",
       R"("layer_norm_epsilon": 1e-5)",
       {R"("layer_norm_epsilon": 1e-6)", R"("state_size": 8)", R"("expand": 3)",
        R"("intermediate_size": 1000)", R"("conv_kernel": 3)", R"("time_step_rank": 7)",
        R"("use_bias": true)", R"("use_conv_bias": false)", R"("vocab_size": 259)",
        R"("hidden_size": 64)", R"("num_hidden_layers": 3)"}},
      {"mamba",
       R"("norm_eps": 1e-5)",
       {R"("norm_eps": 1e-6)", R"("state_size": 8)", R"("expand": 3)", R"("conv_kernel": 3)",
        R"("dt_rank": 7)", R"("use_bias": true)", R"("use_conv_bias": false)"}},
      {"falcon_mamba",
       R"("layer_norm_epsilon": 1e-5)",
       {R"("layer_norm_epsilon": 1e-6)", R"("mixer_rms_eps": 1e-3)", R"("state_size": 8)",
        R"("expand": 3)", R"("time_step_rank": 7)", R"("use_conv_bias": false)"}},
      {"mamba2",
       R"("layer_norm_epsilon": 1e-5)",
       {R"("layer_norm_epsilon": 1e-6)", R"("state_size": 64)", R"("expand": 1, "num_heads": 64)",
        R"("num_heads": 64, "head_dim": 128)", R"("n_groups": 1)", R"("conv_kernel": 3)",
        R"("use_bias": true)", R"("use_conv_bias": false)", R"("time_step_limit": [0.1, 0.5])",
        R"("time_step_limit": [0, 0.5])", R"("norm_groups": 8)"}},
      {"mamba2",
       R"("norm_eps": 1e-5)",
       {R"("norm_eps": 1e-6)", R"("state_size": 64)", R"("head_dim": 128)", R"("n_groups": 2)",
        R"("norm_before_gate": true)", R"("rmsnorm": false)", R"("D_has_hdim": true)",
        R"("dt_limit": [0.1, Infinity])", R"("n_groups": 2, "norm_groups": 1)"}},
      {"samba",
       R"("norm_eps": 1e-5)",
       {R"("norm_eps": 1e-6)", R"("hidden_ratio": 2)", R"("state_size": 8)",
        R"("time_step_rank": 7)", R"("intermediate_size": 1000)", R"("attn": null)",
        R"("attn": {"layers": [1], "num_heads": 18, "window_size": 2048})",
        R"("attn": {"layers": [1, 3, 5, 7, 9, 11, 13, 15, 17], "num_heads": 18})",
        R"("attn": {"layers": [1], "num_heads": 18, "num_kv_heads": 9, "window_size": 2048})",
        R"("attn": {"layers": [1], "num_heads": 18, "qkv_bias": true, "window_size": 2048})",
        R"("attn": {"layers": [1], "num_heads": 18, "rope_theta": 5, "window_size": 2048})"}},
  };
  return *families;
}

TEST(MambaFingerprintTest, EveryKeyThatMovesLogitsOrStateCounts) {
  DistinctFingerprints seen;
  for (const Family& family : Families()) {
    std::vector<std::string> all = family.changes;
    all.push_back("");
    for (const std::string& change : all) {
      std::string keys = family.format;
      const bool replaces = change.substr(0, 10) == keys.substr(0, 10);
      if (!change.empty()) keys = replaces ? change : absl::StrCat(keys, ", ", change);
      seen.Add(FingerprintOf(family.model_type, keys), family.model_type + keys);
    }
  }
}

TEST(MambaFingerprintTest, WhatMovesNeitherDoesNotCount) {
  for (const Family& family : Families()) {
    const uint64_t defaults = FingerprintOf(family.model_type, family.format);
    for (const char* keys :
         {R"("residual_in_fp32": false)", R"("chunk_size": 16)", R"("time_step_floor": 0.5)",
          R"("rescale_prenorm_residual": true)", R"("use_cache": false)", R"("expand": 2)",
          R"("hidden_act": "swish")", R"("tie_word_embeddings": true)", R"("bos_token_id": 7)",
          R"("eos_token_id": [3])", R"("initializer_range": 0.5)", R"("use_mambapy": true)"}) {
      EXPECT_EQ(FingerprintOf(family.model_type, absl::StrCat(family.format, ", ", keys)), defaults)
          << family.model_type << " " << keys;
    }
  }
  const auto same = [](const char* type, const std::string& a, const std::string& b) {
    EXPECT_EQ(FingerprintOf(type, a), FingerprintOf(type, b)) << type << " " << a << " " << b;
  };
  same("mamba", "", R"("layer_norm_epsilon": 1e-5)");
  same("mamba", "", R"("time_step_rank": "auto")");
  same("mamba", R"("time_step_rank": 48)", R"("time_step_rank": "auto")");
  same("mamba2", R"("rms_norm": false)", R"("rms_norm": true, "time_step_rank": 12)");
  same("mamba2", "", R"("time_step_limit": [0, Infinity])");
  same("mamba2", "", R"("time_step_limit": [0.0, {"__float__": "Infinity"}])");
  same("mamba2", R"("rmsnorm": false)", R"("rmsnorm": false, "norm_before_gate": true)");
  same("mamba2", R"("norm_eps": 1e-5)", R"("norm_eps": 1e-5, "num_heads": 64)");
  same("mamba2", "", R"("layer_norm_epsilon": 1e-5, "norm_before_gate": true, "rmsnorm": false)");
  same("mamba2", "", R"("norm_groups": 1)");
  same("mamba2", R"("norm_eps": 1e-5, "n_groups": 2)",
       R"("norm_eps": 1e-5, "n_groups": 2, "norm_groups": 2)");
  // The norm that transformers had when it wrote the file.
  for (const char* version : {"5.23.0", "5.24.0.dev0", "5.100.1", "6.0"}) {
    same("mamba2", R"("n_groups": 2, "norm_groups": 2)",
         absl::StrCat(R"("n_groups": 2, "transformers_version": ")", version, "\""));
    same("mamba2", R"("n_groups": 2, "norm_groups": 1)",
         absl::StrCat(R"("n_groups": 2, "norm_groups": 1, "transformers_version": ")", version,
                      "\""));
  }
  for (const char* version : {R"("4.57.1")", R"("5.22.2")", R"("5")", R"("")", "null", "5.23"}) {
    same("mamba2", R"("n_groups": 2)",
         absl::StrCat(R"("n_groups": 2, "transformers_version": )", version));
  }
  // Names of keys before flash-linear-attention changed them.
  same("mamba", R"("norm_eps": 1e-5, "dt_rank": 7)", R"("norm_eps": 1e-5, "time_step_rank": 7)");
  same("mamba", R"("norm_eps": 1e-5)", R"("norm_eps": 1e-5, "time_step_rank": "auto")");
  same("mamba2", R"("norm_eps": 1e-5, "dt_limit": [0, 0.5])",
       R"("norm_eps": 1e-5, "time_step_limit": [0, 0.5], "time_step_rank": 128, "rms_norm": true)");
  same("mamba2", R"("norm_eps": 1e-5, "n_groups": 2, "norm_groups": 1)",
       R"("norm_eps": 1e-5, "n_groups": 2, "rms_norm": false)");
  same("samba", "", R"("hidden_ratio": 4)");
  same("samba", "", R"("hidden_ratio": null)");
  same("samba", R"("hidden_ratio": 4)", R"("hidden_ratio": 3.9999)");
  same("samba", "", R"("use_conv_bias": false)");
  same("samba", "", R"("attn": {"layers": [17, 1, 3, 5, 7, 9, 11, 13, 15, 400],
                                "num_heads": 18, "num_kv_heads": 18, "window_size": 2048})");
}

// The slab of a network of one layer.
int64_t SlabOf(const std::string& type, const std::string& keys) {
  const auto config = ConfigOf(type, absl::StrCat(R"("num_hidden_layers": 1)", keys));
  EXPECT_TRUE(config.ok()) << config.status();
  return MakeNetwork(*config).state.slab_bytes();
}

TEST(MambaConfigTest, MissingKeysAreTheFormatsDefaults) {
  EXPECT_EQ(SlabOf("mamba", ""), (16 + 3) * 1536 * 4);
  EXPECT_EQ(SlabOf("falcon_mamba", ""), (16 + 3) * 1536 * 4);
  EXPECT_EQ(SlabOf("mamba", R"(, "norm_eps": 1e-5)"), (16 + 3) * 4096 * 4);
  EXPECT_EQ(SlabOf("mamba2", ""), (128 * 64 * 128 + 3 * (8192 + 2 * 8 * 128)) * 4);
  EXPECT_EQ(SlabOf("mamba2", R"(, "norm_eps": 1e-5)"), (64 * 64 * 128 + 3 * (4096 + 256)) * 4);
  EXPECT_EQ(SlabOf("mamba2", R"(, "norm_eps": 1e-5, "time_step_limit": [0, Infinity])"),
            (64 * 64 * 128 + 3 * (4096 + 256)) * 4);
  EXPECT_EQ(SlabOf("mamba", R"(, "dt_rank": 128)"), (16 + 3) * 4096 * 4);
  EXPECT_EQ(SlabOf("mamba", R"(, "norm_before_gate": true)"), (16 + 3) * 1536 * 4);
  EXPECT_EQ(SlabOf("samba", ""), (16 + 3) * 4608 * 4) << "the first layer has no attention";

  for (const auto& [type, keys, tokens] : {std::tuple("mamba", "", std::pair(0, 0)),
                                           {"falcon_mamba", "", {0, 0}},
                                           {"mamba2", "", {0, 2}},
                                           {"mamba", R"("norm_eps": 1e-5)", {1, 2}},
                                           {"mamba2", R"("norm_eps": 1e-5)", {1, 2}},
                                           {"samba", "", {1, 2}}}) {
    const auto config = ConfigOf(type, keys);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->bos_token, tokens.first) << type << " " << keys;
    EXPECT_EQ(config->eos_tokens, std::vector<int32_t>{tokens.second}) << type << " " << keys;
  }
}

// Without the key two of transformers' models have a tied head, and warn of nothing.
TEST(MambaConfigTest, WhichModelsAreTiedByDefault) {
  for (const auto& [type, keys, tied] : {std::tuple("mamba", "", true),
                                         {"falcon_mamba", "", true},
                                         {"mamba2", "", false},
                                         {"mamba", R"("norm_eps": 1e-5)", false},
                                         {"mamba", R"("tie_word_embeddings": null)", false},
                                         {"mamba", R"("tie_word_embeddings": false)", false}}) {
    const auto config = ConfigOf(type, keys);
    ASSERT_TRUE(config.ok()) << config.status();
    const MadeNetwork made = MakeNetwork(*config);
    bool head = false;
    for (const TensorSpec& tensor : made.tensors) head |= tensor.name == "lm_head.weight";
    EXPECT_EQ(head, !tied) << type << " " << keys;
    EXPECT_THAT(made.warnings, IsEmpty());
  }
}

constexpr BadKeys kBadMambaKeys[] = {
    {"both_formats", "mamba", R"("norm_eps": 1e-5, "layer_norm_epsilon": 1e-5)", kInvalid,
     "\"norm_eps\" is 1e-05, expected no key of flash-linear-attention beside "
     "\"layer_norm_epsilon\", one of transformers"},
    {"both_formats_by_steps", "mamba2", R"("dt_limit": [0, 1], "time_step_limit": [0, 1])",
     kInvalid,
     "\"dt_limit\" is [0,1], expected no key of flash-linear-attention beside "
     "\"time_step_limit\""},
    {"both_names_of_limits", "mamba2",
     R"("norm_eps": 1e-5, "dt_limit": [0, 1], "time_step_limit": [0, 1])", kInvalid,
     "\"time_step_limit\" is [0,1], expected no such key beside \"dt_limit\", its newer name"},
    {"both_names_of_ranks", "mamba", R"("norm_eps": 1e-5, "dt_rank": 4, "time_step_rank": 4)",
     kInvalid, "\"time_step_rank\" is 4, expected no such key beside \"dt_rank\""},
    {"norm_groups", "mamba2", R"("norm_groups": 3)", kInvalid,
     "\"norm_groups\" is 3, expected a divisor of expand times hidden_size (8192)"},
    {"attention", "mamba", R"("norm_eps": 1e-5, "attn": {"layers": [1], "num_heads": 2})",
     kUnimplemented, "\"attn\" is {"},
    {"attention2", "mamba2", R"("norm_eps": 1e-5, "attn": {"layers": [1], "num_heads": 2})",
     kUnimplemented, "expected null: this model_type has no layers of attention"},
    {"activation", "mamba", R"("hidden_act": "gelu")", kUnimplemented,
     "\"hidden_act\" is \"gelu\""},
    {"quantised", "mamba2", R"("quantization_config": {})", kUnimplemented,
     "\"quantization_config\""},
    {"states", "mamba", R"("state_size": 257)", kInvalid,
     "\"state_size\" is 257, expected an integer from 1 to 256"},
    {"rank", "mamba", R"("time_step_rank": "some")", kInvalid, "\"time_step_rank\" is \"some\""},
    {"null_rank", "mamba", R"("time_step_rank": null)", kInvalid, "\"time_step_rank\" is null"},
    {"width", "mamba", R"("conv_kernel": 17)", kInvalid, "\"conv_kernel\" is 17"},
    {"expand", "mamba", R"("expand": 0.0001)", kInvalid,
     "\"expand\" is 0.0001, expected a factor that makes hidden_size (768) times it, 0, at least"},
    {"falcon_eps", "falcon_mamba", R"("mixer_rms_eps": 0)", kInvalid, "\"mixer_rms_eps\" is 0"},
    {"heads", "mamba2", R"("num_heads": 100)", kInvalid,
     "\"num_heads\" is 100, expected a number that times head_dim (64) is expand times hidden_size "
     "(8192)"},
    {"fla_heads", "mamba2", R"("norm_eps": 1e-5, "num_heads": 128)", kInvalid,
     "\"num_heads\" is 128"},
    {"groups", "mamba2", R"("n_groups": 3)", kInvalid,
     "\"n_groups\" is 3, expected a divisor of num_heads (128)"},
    {"limit_order", "mamba2", R"("time_step_limit": [0.5, 0.1])", kInvalid,
     "\"time_step_limit\" is [0.5,0.1], expected two numbers from 0 on"},
    {"limit_kind", "mamba2", R"("time_step_limit": 3)", kInvalid, "\"time_step_limit\" is 3"},
    {"limit_below_zero", "mamba2", R"("dt_limit": [-1, 1])", kInvalid, "\"dt_limit\" is [-1,1]"},
    {"limit_without_end", "mamba2", R"("time_step_limit": [Infinity, Infinity])", kInvalid,
     "\"time_step_limit\""},
    {"limit_nan", "mamba2", R"("time_step_limit": [0, NaN])", kInvalid, "\"time_step_limit\""},
    {"samba_layer", "samba", R"("attn": {"layers": [4096], "num_heads": 18})", kInvalid,
     "config.json: \"attn\": key \"layers\" is [4096], expected a list of layers"},
    {"samba_residuals", "samba", R"("attnres_block_size": 2)", kUnimplemented,
     "\"attnres_block_size\" is 2"},
};

class MambaBadKeysTest : public testing::TestWithParam<BadKeys> {};

TEST_P(MambaBadKeysTest, IsRefusedByName) { ExpectRefused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, MambaBadKeysTest, testing::ValuesIn(kBadMambaKeys),
                         [](const auto& info) { return info.param.name; });

TEST(MambaConfigTest, MisspelledKeysAreToldOf) {
  EXPECT_THAT(ConfigOf("mamba2", R"("n_group": 2)")->warnings,
              testing::ElementsAre(HasSubstr("did you mean \"n_groups\"?")));
  EXPECT_THAT(ConfigOf("mamba", R"("time_step_rank": 48, "time_step_min": 0.5, "use_cache": true)")
                  ->warnings,
              IsEmpty());
}

TEST(MambaConfigTest, KeysThatSayOtherwiseThanTheFormatAreNamed) {
  for (const auto& [keys, warning] :
       {std::pair(R"("dt_limit": [0, 0.5])", "\"dt_limit\" is [0,0.5] and ignored: it is flash-"),
        {R"("D_has_hdim": true)", "\"D_has_hdim\" is true and ignored: it is flash-linear-"},
        {R"("rmsnorm": false)",
         "\"rmsnorm\" is false and ignored: it is flash-linear-attention's"}}) {
    const std::string all = absl::StrCat(R"("layer_norm_epsilon": 1e-5, )", keys);
    EXPECT_THAT(ConfigOf("mamba2", all)->warnings, testing::ElementsAre(HasSubstr(warning)));
  }
  EXPECT_THAT(ConfigOf("mamba2", R"("layer_norm_epsilon": 1e-5, "time_step_limit": [0.0, 0.5],
                                    "dt_limit": [0.0, 0.5], "rmsnorm": true,
                                    "norm_before_gate": true)")
                  ->warnings,
              IsEmpty());
  EXPECT_THAT(
      ConfigOf("samba", R"("num_hidden_layers": 2, "attn": {"layers": [1, 5], "num_heads": 18})")
          ->warnings,
      testing::ElementsAre(HasSubstr("\"layers\" of \"attn\" has 5, ignored: layers are 0 to")));
  EXPECT_THAT(ConfigOf("samba", R"("num_hidden_layers": 2)")->warnings, IsEmpty());
}

// Files of either library name these, whether it reads them or not.
TEST(MambaConfigTest, KeysOfTheLibrariesAreKnown) {
  for (const auto& [type, keys] :
       {std::pair("mamba", R"("layer_norm_epsilon": 1e-5, "rms_norm": true)"),
        {"mamba", R"("rms_norm": true, "time_step_rank": 48)"},
        {"falcon_mamba", R"("rms_norm": true)"},
        {"mamba2", R"("layer_norm_epsilon": 1e-5, "norm_before_gate": false, "rms_norm": true)"},
        {"mamba2", R"("norm_eps": 1e-5, "rms_norm": true, "time_step_rank": 128)"},
        {"mamba", R"("norm_eps": 1e-5, "time_step_rank": 128, "rms_norm": true)"}}) {
    const auto config = ConfigOf(type, keys);
    ASSERT_TRUE(config.ok()) << type << " " << keys << ": " << config.status();
    EXPECT_THAT(config->warnings, IsEmpty()) << type << " " << keys;
  }
}

// Documents and the tool's help state these numbers for the shapes that are named after 370M.
TEST(MambaShapesTest, HaveTheParametersAndTheStateThatDocumentsTell) {
  for (const auto& [shape, millions, slab] :
       {std::tuple("mamba-370m", 371.5, int64_t{48} * (16 + 3) * 2048 * 4),
        {"mamba2-370m", 368.3, int64_t{48} * (32 * 64 * 128 + 3 * (2048 + 256)) * 4}}) {
    const MadeNetwork made = MakeShape(shape);
    EXPECT_NEAR(made.millions(), millions, 0.5) << shape;
    EXPECT_EQ(made.state.slab_bytes(), slab) << shape;
  }
}

}  // namespace
}  // namespace mneme
