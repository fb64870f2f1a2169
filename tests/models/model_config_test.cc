#include "models/model_config.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/models/config_keys.h"
#include "tests/models/gated_delta_spec.h"
#include "tests/models/golden.h"

namespace mneme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

absl::StatusOr<ModelConfig> Parse(const std::string& json) {
  return ParseModelConfig(json, "config.json");
}

TEST(ModelConfigTest, MissingKeysOfMomAreThoseOfItsOwnFormat) {
  const auto config = ParseSpecConfig(R"({"model_type": "mom"})");
  EXPECT_EQ(config.model_dim, 2048);
  EXPECT_EQ(config.layers, 24);
  EXPECT_EQ(config.vocab, 32000);
  EXPECT_EQ(config.mlp_dim, 5632);
  EXPECT_FLOAT_EQ(config.norm_eps, 1e-6f);
  const GatedDeltaConfig& delta = config.delta;
  EXPECT_EQ(delta.heads, 4);
  EXPECT_EQ(delta.key_dim, 256);
  EXPECT_EQ(delta.value_dim, 256);
  EXPECT_EQ(delta.memories, 4);
  EXPECT_EQ(delta.top_k, 2);
  EXPECT_EQ(delta.conv_width, 4);
  EXPECT_TRUE(delta.shared_memory);
  EXPECT_FALSE(delta.single_kv_proj);
  EXPECT_TRUE(delta.output_gate);
  EXPECT_EQ(config.bos_token, 1);
  EXPECT_THAT(config.eos_tokens, ElementsAre(2));
}

TEST(ModelConfigTest, MissingKeysOfTheOldFormatDiffer) {
  const auto config = ParseSpecConfig(R"({"model_type": "mom_gated_deltanet"})");
  EXPECT_EQ(config.layers, 21);
  EXPECT_EQ(config.delta.heads, 6);
  EXPECT_EQ(config.delta.value_dim, 512);
  EXPECT_EQ(config.delta.memories, 8);
  EXPECT_FALSE(config.delta.shared_memory);
}

TEST(ModelConfigTest, MissingKeysOfGatedDeltaNet) {
  const auto config = ParseSpecConfig(R"({"model_type": "gated_deltanet"})");
  EXPECT_EQ(config.layers, 21);
  EXPECT_EQ(config.delta.heads, 6);
  EXPECT_EQ(config.delta.value_heads, 6);
  EXPECT_EQ(config.delta.value_dim, 512);
  EXPECT_EQ(config.delta.all_memories(), 1);
}

TEST(ModelConfigTest, TheOutputGateHasAnotherNameInEachFormat) {
  EXPECT_FALSE(
      ParseSpecConfig(R"({"model_type": "mom", "use_output_gate": false})").delta.output_gate);
  EXPECT_TRUE(ParseSpecConfig(R"({"model_type": "mom", "use_gate": false})").delta.output_gate);
  EXPECT_FALSE(ParseSpecConfig(R"({"model_type": "mom_gated_deltanet", "use_gate": false})")
                   .delta.output_gate);
  EXPECT_FALSE(
      ParseSpecConfig(R"({"model_type": "gated_deltanet", "use_gate": false})").delta.output_gate);
}

TEST(ModelConfigTest, TheFeedForwardWidthFollowsTheRatioUnlessGiven) {
  EXPECT_EQ(
      ParseSpecConfig(R"({"model_type": "mom", "hidden_size": 1024, "hidden_ratio": 3})").mlp_dim,
      2048);
  EXPECT_EQ(ParseSpecConfig(R"({"model_type": "mom", "hidden_size": 2048, "hidden_ratio": null})")
                .mlp_dim,
            5632);
  EXPECT_EQ(
      ParseSpecConfig(R"({"model_type": "mom", "hidden_ratio": 3.5, "intermediate_size": 77})")
          .mlp_dim,
      77);
  EXPECT_EQ(
      ParseSpecConfig(R"({"model_type": "mom", "hidden_size": 96, "hidden_ratio": 2})").mlp_dim,
      256);
}

TEST(ModelConfigTest, GatedDeltaNetHasItsOwnOptions) {
  const auto config = ParseSpecConfig(
      R"({"model_type": "gated_deltanet", "num_heads": 2, "num_v_heads": 6, "head_dim": 64,
                                "expand_v": 1.5, "allow_neg_eigval": true, "use_short_conv": false})");
  EXPECT_EQ(config.delta.value_heads, 6);
  EXPECT_EQ(config.delta.value_dim, 96);
  EXPECT_EQ(config.delta.value_channels(), 576);
  EXPECT_TRUE(config.delta.allow_negative_eigenvalues);
  EXPECT_EQ(config.delta.conv_width, 0);
}

// A folder that spells out a default means the same as one that does not.
TEST(ModelConfigTest, MissingKeysOfMistralAndLlama) {
  const auto fingerprint = [](const std::string& keys) {
    const auto config = Parse("{" + keys + "}");
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->fingerprint : 0;
  };
  const std::string mistral = R"("model_type": "mistral")", llama = R"("model_type": "llama")";
  EXPECT_EQ(fingerprint(mistral),
            fingerprint(mistral + R"(, "num_key_value_heads": 8, "sliding_window": 4096,
                                      "head_dim": null, "intermediate_size": 14336)"));
  EXPECT_NE(fingerprint(mistral), fingerprint(mistral + R"(, "sliding_window": null)"));
  EXPECT_NE(fingerprint(mistral), fingerprint(mistral + R"(, "num_key_value_heads": null)"));
  EXPECT_EQ(fingerprint(llama), fingerprint(llama + R"(, "num_key_value_heads": 32, "head_dim": 128,
                                    "intermediate_size": 11008, "attention_bias": false)"));
  EXPECT_NE(fingerprint(llama), fingerprint(llama + R"(, "rope_theta": 500000.0)"));
  EXPECT_NE(fingerprint(llama), fingerprint(llama + R"(, "attention_bias": true)"));
  for (const char* keys :
       {R"(, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0})",
        R"(, "rope_parameters": {"rope_theta": 500000.0, "partial_rotary_factor": 1.0})",
        R"(, "rope_scaling": {"type": "default", "rope_theta": 500000.0})",
        R"(, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "default", "factor": 1})",
        R"(, "rope_theta": 500000.0, "rope_parameters": null, "partial_rotary_factor": 1)"}) {
    EXPECT_EQ(fingerprint(llama + R"(, "rope_theta": 500000.0)"), fingerprint(llama + keys))
        << keys;
  }
}

// A tied network uses its embedding, though the folder may hold a head as well.
TEST(ModelConfigTest, TiedMistralAndLlamaHaveNoUseForAHead) {
  for (const char* type : {"llama", "mistral"}) {
    for (const bool tied : {false, true}) {
      const auto config =
          ConfigOf(type, tied ? R"("tie_word_embeddings": true)" : R"("num_hidden_layers": 1)");
      ASSERT_TRUE(config.ok()) << config.status();
      bool head = false;
      for (const TensorSpec& tensor : MakeNetwork(*config).tensors) {
        head |= tensor.name == "lm_head.weight";
      }
      EXPECT_EQ(head, !tied) << type;
    }
  }
}

TEST(ModelConfigTest, PythonsLiteralsAreHarmlessWhereUnused) {
  EXPECT_TRUE(Parse(R"({"model_type": "mom", "dt_limit": [0.0, Infinity], "x": -Infinity, "y": NaN,
                        "z": "a \"NaN\" in a string"})")
                  .ok());
  EXPECT_THAT(Parse(R"({"model_type": "mom", "norm_eps": NaN})").status().message(),
              HasSubstr("\"norm_eps\" is \"NaN\", expected a number above 1e-30"));
}

TEST(ModelConfigTest, KeysWithoutEffectAreIgnored) {
  EXPECT_TRUE(
      Parse(R"({"model_type": "mom", "attn": null, "attnres_block_size": null, "attn_mode": "fused",
                        "max_position_embeddings": 1, "fuse_norm": false, "some": {"thing": [1]}})")
          .ok());
  EXPECT_TRUE(Parse(R"({"model_type": "gated_deltanet", "norm_first": false})").ok());
}

TEST(ModelConfigTest, ACapacityBelowOneIsIgnoredWithAWarning) {
  const auto config = Parse(R"({"model_type": "mom_gated_deltanet", "capacity": 0.5})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->warnings, ElementsAre(HasSubstr("\"capacity\" is 0.5 and ignored")));
  EXPECT_THAT(Parse(R"({"model_type": "mom", "capacity": 1.0})")->warnings, IsEmpty());
}

TEST(ModelConfigTest, ATypeThatTorchDoesNotKnowIsIgnoredWithAWarning) {
  const auto warnings = [](const std::string& more) {
    return Parse(R"({"model_type": "mom", )" + more + "}")->warnings;
  };
  EXPECT_THAT(warnings(R"("torch_dtype": "bfloat61")"),
              ElementsAre(HasSubstr("\"torch_dtype\" is \"bfloat61\"")));
  EXPECT_THAT(warnings(R"("torch_dtype": 16)"), ElementsAre(HasSubstr("\"torch_dtype\" is 16")));
  EXPECT_THAT(warnings(R"("dtype": "int8")"), ElementsAre(HasSubstr("\"dtype\" is \"int8\"")));
  for (const char* known : {"\"float32\"", "\"bfloat16\"", "\"float16\"", "\"auto\"", "null"}) {
    EXPECT_THAT(warnings(absl::StrCat("\"torch_dtype\": ", known)), IsEmpty()) << known;
  }
}

TEST(ModelConfigTest, EndTokensMayBeAList) {
  EXPECT_THAT(Parse(R"({"model_type": "mom", "eos_token_id": [2, 7]})")->eos_tokens,
              ElementsAre(2, 7));
  EXPECT_THAT(Parse(R"({"model_type": "mom", "eos_token_id": null})")->eos_tokens, IsEmpty());
  EXPECT_THAT(Parse(R"({"model_type": "mom", "vocab_size": 2})")->eos_tokens, IsEmpty());
}

struct BadConfig {
  const char* name;
  std::string json;
  absl::StatusCode code;
  std::string message;
};
void PrintTo(const BadConfig& bad, std::ostream* out) { *out << bad.name; }

class BadConfigTest : public testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigTest, IsRefusedWithKeyValueAndExpectation) {
  const auto config = Parse(GetParam().json);
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), GetParam().code) << config.status();
  EXPECT_THAT(config.status().message(), HasSubstr("config.json:"));
  EXPECT_THAT(config.status().message(), HasSubstr(GetParam().message));
}

std::string Mom(const std::string& rest) { return "{\"model_type\": \"mom\", " + rest + "}"; }
std::string Gdn(const std::string& rest) {
  return "{\"model_type\": \"gated_deltanet\", " + rest + "}";
}
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnsupported = absl::StatusCode::kUnimplemented;

INSTANTIATE_TEST_SUITE_P(
    Configs, BadConfigTest,
    testing::Values(
        BadConfig{"not_json", "{", kInvalid, "not valid JSON"},
        BadConfig{"not_an_object", "[1]", kInvalid, "expected an object"},
        BadConfig{"key_twice", R"({"model_type": "mom", "topk": 1, "topk": 2})", kInvalid,
                  "key \"topk\" occurs twice"},
        BadConfig{"nested_too_deep", Mom("\"x\": " + std::string(100, '[') + std::string(100, ']')),
                  kInvalid, "nested deeper"},
        BadConfig{
            "no_model_type", "{}", kInvalid,
            "\"model_type\" is missing, expected one of mom, mom_gated_deltanet, gated_deltanet"},
        BadConfig{"unknown_model_type", R"({"model_type": "electra"})", kUnsupported,
                  "\"model_type\" is \"electra\", which is not supported"},
        BadConfig{"model_type_is_a_number", R"({"model_type": 5})", kUnsupported,
                  "\"model_type\" is 5"},
        BadConfig{"unknown_rule", R"({"model_type": "rwkv5"})", kUnsupported, "rwkv5"},
        BadConfig{"heads_that_do_not_divide",
                  R"({"model_type": "transformer", "hidden_size": 64, "num_heads": 3})", kInvalid,
                  "\"num_heads\" is 3, expected a number that divides hidden_size (64)"},
        BadConfig{"heads_of_an_odd_width",
                  R"({"model_type": "transformer", "hidden_size": 60, "num_heads": 4})", kInvalid,
                  "\"num_heads\" is 4, expected a number that divides hidden_size (60) into heads "
                  "of an even width"},
        BadConfig{"groups_that_do_not_divide",
                  R"({"model_type": "transformer", "hidden_size": 64, "num_heads": 4,
                      "num_kv_heads": 3})",
                  kInvalid, "\"num_kv_heads\" is 3, expected a number that divides num_heads (4)"},
        BadConfig{"window_of_nothing", R"({"model_type": "transformer", "window_size": 0})",
                  kInvalid, "\"window_size\" is 0, expected an integer from 1"},
        BadConfig{"transformer_without_rope", R"({"model_type": "transformer", "use_rope": false})",
                  kUnsupported, "\"use_rope\" is false"},
        BadConfig{"transformer_rope_scaling",
                  R"({"model_type": "transformer", "rope_scaling": {"type": "linear"}})",
                  kUnsupported, "\"rope_scaling\" is "},
        BadConfig{"hybrid_transformer", R"({"model_type": "transformer", "attn": {"layers": [1]}})",
                  kUnsupported, "\"attn\""},
        BadConfig{"sliding_window_of_nothing", R"({"model_type": "mistral", "sliding_window": 0})",
                  kInvalid, "\"sliding_window\" is 0, expected an integer from 1"},
        BadConfig{"llama_groups",
                  R"({"model_type": "llama", "num_attention_heads": 8, "num_key_value_heads": 3})",
                  kInvalid,
                  "\"num_key_value_heads\" is 3, expected a divisor of num_attention_heads (8)"},
        BadConfig{"llama_heads",
                  R"({"model_type": "llama", "hidden_size": 100, "num_attention_heads": 8})",
                  kInvalid,
                  "\"num_attention_heads\" is 8, expected a divisor of hidden_size (100)"},
        BadConfig{"llama_head_dim", R"({"model_type": "llama", "head_dim": 33})", kInvalid,
                  "\"head_dim\" is 33, expected an even width"},
        BadConfig{"scaled_rope",
                  R"({"model_type": "llama", "rope_scaling": {"rope_type": "yarn", "factor": 4}})",
                  kUnsupported,
                  "\"rope_scaling\": key \"rope_type\" is \"yarn\", which is not supported; "
                  "expected one of \"default\", \"linear\", \"llama3\""},
        BadConfig{"scaled_rope_by_its_older_name",
                  R"({"model_type": "mistral", "rope_scaling": {"type": "dynamic", "factor": 2}})",
                  kUnsupported, "\"rope_scaling\": key \"type\" is \"dynamic\""},
        BadConfig{"scaled_rope_without_a_factor",
                  R"({"model_type": "llama", "rope_scaling": {"rope_type": "linear"}})", kInvalid,
                  "\"rope_scaling\": key \"factor\" is missing, and has no default"},
        BadConfig{"scaled_rope_without_a_length",
                  R"({"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 8,
                      "low_freq_factor": 1, "high_freq_factor": 4}})",
                  kInvalid, "key \"original_max_position_embeddings\" is missing"},
        BadConfig{"scaled_rope_that_is_faster",
                  R"({"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 0.5}})",
                  kInvalid, "\"factor\" is 0.5, expected a number from 1"},
        BadConfig{"scaled_rope_the_wrong_way_round",
                  R"({"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 8,
                      "low_freq_factor": 4, "high_freq_factor": 4,
                      "original_max_position_embeddings": 8192}})",
                  kInvalid,
                  "\"high_freq_factor\" is 4.0, expected a number above low_freq_factor (4)"},
        BadConfig{"two_scalings",
                  R"({"model_type": "llama", "rope_parameters": {"rope_type": "default"},
                      "rope_scaling": {"rope_type": "linear", "factor": 2}})",
                  kInvalid,
                  "\"rope_type\" is \"linear\", expected the type and the numbers of "
                  "\"rope_parameters\""},
        BadConfig{"scaled_rope_of_no_type",
                  R"({"model_type": "llama", "rope_parameters": {"factor": 2, "rope_theta": 5}})",
                  kInvalid, "\"rope_parameters\": key \"factor\" is 2, expected no such key"},
        BadConfig{"two_bases",
                  R"({"model_type": "llama", "rope_theta": 5, "rope_parameters":
                      {"rope_type": "default", "rope_theta": 6}})",
                  kInvalid,
                  "\"rope_theta\" is 6.0, expected the one that the file gives elsewhere, 5"},
        BadConfig{"rope_that_is_a_list", R"({"model_type": "llama", "rope_parameters": [1]})",
                  kInvalid, "\"rope_parameters\" is [1], expected null or an object"},
        BadConfig{"part_of_a_head", R"({"model_type": "llama", "partial_rotary_factor": 0.5})",
                  kUnsupported, "\"partial_rotary_factor\" is 0.5"},
        BadConfig{"part_of_a_head_in_an_object",
                  R"({"model_type": "llama", "rope_parameters": {"rope_type": "default",
                      "partial_rotary_factor": 0.5}})",
                  kUnsupported, "\"rope_parameters\": key \"partial_rotary_factor\" is 0.5"},
        BadConfig{"mlp_bias", R"({"model_type": "mistral", "mlp_bias": true})", kUnsupported,
                  "\"mlp_bias\" is true"},
        BadConfig{"attention_residuals", Mom(R"("attnres_block_size": 4)"), kUnsupported,
                  "\"attnres_block_size\" is 4"},
        BadConfig{"activation", Mom(R"("hidden_act": "powlu")"), kUnsupported,
                  "\"hidden_act\" is \"powlu\", which is not supported; expected \"swish\" or "
                  "\"silu\", which are the same"},
        BadConfig{"rule", Mom(R"("mom_backend": "gla")"), kUnsupported,
                  "\"mom_backend\" is \"gla\""},
        BadConfig{"no_convolution", Mom(R"("use_short_conv": false)"), kUnsupported,
                  "\"use_short_conv\" is false"},
        BadConfig{"norm_first", R"({"model_type": "mom_gated_deltanet", "norm_first": true})",
                  kUnsupported, "\"norm_first\" is true"},
        BadConfig{"quantized", Mom(R"("quantization_config": {"bits": 4})"), kUnsupported,
                  "\"quantization_config\""},
        BadConfig{"topk_beyond_memories", Mom(R"("num_memories": 3, "topk": 4)"), kInvalid,
                  "\"topk\" is 4, expected an integer from 1 to 3"},
        BadConfig{"topk_zero", Mom(R"("topk": 0)"), kInvalid, "\"topk\" is 0"},
        BadConfig{"no_memories", Mom(R"("num_memories": 0)"), kInvalid, "\"num_memories\" is 0"},
        BadConfig{"hidden_size_text", Mom(R"("hidden_size": "64")"), kInvalid,
                  "\"hidden_size\" is \"64\", expected an integer"},
        BadConfig{"hidden_size_fraction", Mom(R"("hidden_size": 64.5)"), kInvalid,
                  "\"hidden_size\" is 64.5"},
        BadConfig{"hidden_size_negative", Mom(R"("hidden_size": -1)"), kInvalid,
                  "\"hidden_size\" is -1"},
        BadConfig{"hidden_size_huge", Mom(R"("hidden_size": 18446744073709551615)"), kInvalid,
                  "\"hidden_size\""},
        BadConfig{"hidden_size_null", Mom(R"("hidden_size": null)"), kInvalid,
                  "\"hidden_size\" is null"},
        BadConfig{"layers", Mom(R"("num_hidden_layers": 1000000)"), kInvalid,
                  "\"num_hidden_layers\""},
        BadConfig{"heads", Mom(R"("num_heads": 0)"), kInvalid, "\"num_heads\""},
        BadConfig{"head_dim", Mom(R"("head_dim": 0)"), kInvalid, "\"head_dim\""},
        BadConfig{"too_many_channels", Mom(R"("num_heads": 4096, "head_dim": 4096)"), kInvalid,
                  "channels over all heads"},
        BadConfig{"expand_v_uneven", Mom(R"("head_dim": 33, "expand_v": 0.5)"), kInvalid,
                  "\"expand_v\" is 0.5, expected a factor"},
        BadConfig{"expand_v_zero", Mom(R"("expand_v": 0)"), kInvalid, "\"expand_v\""},
        BadConfig{"value_heads", Gdn(R"("num_heads": 4, "num_v_heads": 6)"), kInvalid,
                  "\"num_v_heads\" is 6, expected a multiple of num_heads (4)"},
        BadConfig{"conv_size", Mom(R"("conv_size": 0)"), kInvalid, "\"conv_size\""},
        BadConfig{"conv_size_beyond_the_kernels", Mom(R"("conv_size": 17)"), kInvalid,
                  "\"conv_size\" is 17, expected an integer from 1 to 16"},
        BadConfig{"norm_eps", Mom(R"("norm_eps": 0)"), kInvalid, "\"norm_eps\""},
        BadConfig{"norm_eps_vanishes_in_f32", Mom(R"("norm_eps": 1e-46)"), kInvalid,
                  "\"norm_eps\""},
        BadConfig{"hidden_ratio", Mom(R"("hidden_ratio": -1)"), kInvalid, "\"hidden_ratio\""},
        BadConfig{"intermediate", Mom(R"("intermediate_size": 0)"), kInvalid,
                  "\"intermediate_size\""},
        BadConfig{"vocab", Mom(R"("vocab_size": 0)"), kInvalid, "\"vocab_size\""},
        BadConfig{"flag_is_a_number", Mom(R"("shared_mem": 1)"), kInvalid,
                  "\"shared_mem\" is 1, expected true or false"},
        BadConfig{"eos_outside", Mom(R"("eos_token_id": 32000)"), kInvalid,
                  "\"eos_token_id\" is 32000, expected token ids from 0 to vocab_size - 1 (31999)"},
        BadConfig{"eos_negative", Mom(R"("eos_token_id": [2, -1])"), kInvalid, "\"eos_token_id\""},
        BadConfig{"bos_text", Mom(R"("bos_token_id": "<s>")"), kInvalid, "\"bos_token_id\""}),
    [](const auto& info) { return info.param.name; });

uint64_t FingerprintOfJson(const std::string& json) {
  const auto config = Parse(json);
  EXPECT_TRUE(config.ok()) << config.status();
  return config->fingerprint;
}

TEST(FingerprintTest, EveryKeyThatMovesLogitsOrStateCounts) {
  const std::map<std::string, std::vector<std::string>> keys = {
      {"mom",
       {R"("vocab_size": 31999)", R"("hidden_size": 1024)", R"("num_hidden_layers": 23)",
        R"("intermediate_size": 256)", R"("hidden_ratio": 3)", R"("norm_eps": 1e-5)",
        R"("num_heads": 2)", R"("head_dim": 128)", R"("expand_v": 2)", R"("conv_size": 3)",
        R"("use_output_gate": false)", R"("num_memories": 5)", R"("topk": 1)",
        R"("shared_mem": false)", R"("single_kv_proj": true)"}},
      {"gated_deltanet",
       {R"("num_v_heads": 12)", R"("allow_neg_eigval": true)", R"("use_short_conv": false)",
        R"("use_gate": false)", R"("conv_size": 2)"}},
  };
  for (const auto& [type, values] : keys) {
    const std::string head = absl::StrCat("{\"model_type\": \"", type, "\"");
    std::map<uint64_t, std::string> seen = {{FingerprintOfJson(head + "}"), "the defaults"}};
    for (const std::string& value : values) {
      const auto [other, is_new] =
          seen.emplace(FingerprintOfJson(head + ", " + value + "}"), value);
      EXPECT_TRUE(is_new) << type << ": " << value << " counts as " << other->second;
    }
  }
  EXPECT_NE(FingerprintOfJson(R"({"model_type": "mom"})"),
            FingerprintOfJson(R"({"model_type": "mom_gated_deltanet"})"));
}

TEST(FingerprintTest, WhatMovesNeitherDoesNotCount) {
  const uint64_t defaults = FingerprintOfJson(R"({"model_type": "mom"})");
  for (const char* value :
       {R"("transformers_version": "5.23.0")", R"("bos_token_id": 7)", R"("eos_token_id": [3])",
        R"("tie_word_embeddings": true)", R"("dtype": "bfloat16")", R"("capacity": 0.5)",
        R"("initializer_range": 0.1)", R"("topk": 2)", R"("norm_eps": 0.000001)",
        R"("hidden_ratio": null)", R"("intermediate_size": 5632)", R"("attn": null)"}) {
    EXPECT_EQ(FingerprintOfJson(absl::StrCat(R"({"model_type": "mom", )", value, "}")), defaults)
        << value;
  }
  const std::string gdn = R"({"model_type": "gated_deltanet", "use_short_conv": false)";
  EXPECT_EQ(FingerprintOfJson(gdn + "}"), FingerprintOfJson(gdn + R"(, "conv_size": 2})"));
  EXPECT_EQ(FingerprintOfJson(gdn + "}"), FingerprintOfJson(gdn + R"(, "num_v_heads": 6})"));
}

TEST(MisspelledKeyTest, HintsComeFromTheFamilysOwnKeys) {
  const auto hints = [](const std::string& json) { return Parse(json)->warnings; };
  EXPECT_THAT(hints(R"({"model_type": "mom", "num_memorys": 4})"),
              ElementsAre(HasSubstr("did you mean \"num_memories\"?")));
  EXPECT_THAT(hints(R"({"model_type": "gated_deltanet", "allow_neg_eigvals": true})"),
              ElementsAre(HasSubstr("did you mean \"allow_neg_eigval\"?")));
  EXPECT_THAT(hints(R"({"model_type": "gated_deltanet", "num_memorys": 4})"), IsEmpty());
}

TEST(GenerationDefaultsTest, AreReadAndChecked) {
  const ModelConfig config = *Parse(R"({"model_type": "mom"})");
  const auto parse = [&](const std::string& json) {
    return ParseGenerationDefaults(json, "generation_config.json", config);
  };
  const auto defaults =
      parse(R"({"eos_token_id": [2, 5], "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.1,
                                  "max_new_tokens": 64, "repetition_penalty": 1.1, "transformers_version": "5"})");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_THAT(defaults->eos_tokens, ElementsAre(2, 5));
  EXPECT_EQ(defaults->bos_token, 1);
  EXPECT_FLOAT_EQ(*defaults->temperature, 0.7f);
  EXPECT_FLOAT_EQ(*defaults->top_p, 0.9f);
  EXPECT_FLOAT_EQ(*defaults->min_p, 0.1f);
  EXPECT_EQ(defaults->top_k, 40);
  EXPECT_EQ(defaults->max_new_tokens, 64);
  EXPECT_FLOAT_EQ(*defaults->repetition_penalty, 1.1f);

  EXPECT_THAT(parse("{}")->eos_tokens, ElementsAre(2));
  EXPECT_FALSE(parse(R"({"top_k": null})")->top_k.has_value());
  EXPECT_THAT(parse(R"({"temperature": -1})").status().message(),
              HasSubstr("\"temperature\" is -1, expected a number from 0 to 100"));
  EXPECT_THAT(parse(R"({"top_p": 0})").status().message(), HasSubstr("\"top_p\""));
  EXPECT_THAT(parse(R"({"eos_token_id": 99999})").status().message(),
              HasSubstr("\"eos_token_id\""));
}

TEST(GenerationDefaultsTest, WithoutAFileThoseOfTheConfigHold) {
  const auto config = ReadModelConfig(GoldenFolder("mom"));
  ASSERT_TRUE(config.ok()) << config.status();
  const auto defaults = ReadGenerationDefaults(GoldenFolder("mom"), *config);
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_THAT(defaults->eos_tokens, ElementsAre(2));
  EXPECT_FALSE(defaults->temperature.has_value());
}

TEST(ModelConfigTest, AMissingFolderIsNamed) {
  EXPECT_THAT(ReadModelConfig("/nowhere").status().message(),
              HasSubstr("model folder \"/nowhere\" does not exist"));
}

}  // namespace
}  // namespace mneme
