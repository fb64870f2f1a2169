// BERT and RoBERTa: what transformers computes of them (tests/golden), their keys, and what is
// refused.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/classes.h"
#include "models/model.h"
#include "models/safetensors.h"
#include "tests/models/config_keys.h"
#include "tests/models/golden.h"
#include "tests/models/matrix_spec.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// --- Results of transformers ---------------------------------------------------------------------

class BertGoldenTest : public testing::TestWithParam<std::tuple<std::string, BackendUnderTest>> {
 protected:
  template <typename T>
  static std::vector<T> Values(const SafetensorsFile& file, const char* name) {
    const SafetensorsTensor* tensor = file.header().Find(name);
    CHECK(tensor != nullptr) << file.path() << " lacks " << name;
    std::vector<T> values(static_cast<size_t>(tensor->elements()));
    std::memcpy(values.data(), file.Bytes(*tensor).data(), values.size() * sizeof(T));
    return values;
  }
};

TEST_P(BertGoldenTest, LogitsOfTextsAndPairs) {
  const auto& [name, under_test] = GetParam();
  const std::string folder = GoldenFolder(name);
  const auto file = SafetensorsFile::Open(folder + "/golden.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto ids = Values<int32_t>(*file, "input_ids"),
             mask = Values<int32_t>(*file, "attention_mask");
  const auto types = Values<int32_t>(*file, "token_type_ids");
  const auto logits = Values<float>(*file, "logits");
  const auto driver =
      Drive(folder, under_test.Make(), {.slots = 3, .max_rows = 3, .max_tokens = 60});
  const size_t labels = driver->model().info().classes.labels.size();
  const size_t texts = logits.size() / labels, length = ids.size() / texts;
  std::vector<ModelDriver::Row> rows;
  std::vector<int32_t> last;
  int32_t tokens = 0;
  for (size_t t = 0; t < texts; ++t) {
    const auto count =
        static_cast<size_t>(std::count(mask.begin() + static_cast<int64_t>(t * length),
                                       mask.begin() + static_cast<int64_t>((t + 1) * length), 1));
    rows.push_back({static_cast<int>(t), std::span(ids).subspan(t * length, count),
                    std::span(types).subspan(t * length, count)});
    last.push_back((tokens += static_cast<int32_t>(count)) - 1);
  }
  const auto got = driver->Step(rows, last);
  ASSERT_TRUE(got.ok()) << got.status();
  const std::vector<double> want(logits.begin(), logits.end());
  EXPECT_LE(WorstRowError({got->begin(), got->end()}, want, static_cast<int>(labels)),
            under_test.device == "cuda" ? 1e-4 : 2e-5);
}

INSTANTIATE_TEST_SUITE_P(Folders, BertGoldenTest,
                         testing::Combine(testing::Values("bert", "roberta"),
                                          testing::ValuesIn(AllBackends())),
                         [](const auto& info) {
                           const BackendUnderTest& backend = std::get<1>(info.param);
                           return absl::StrCat(std::get<0>(info.param), "_", backend.device,
                                               backend.isa.empty() ? "" : "_", backend.isa);
                         });

// --- Classes -------------------------------------------------------------------------------------

TEST(ClassesTest, ScoresFollowFromLogits) {
  const std::vector<float> logits = {0, std::log(3.0f)};
  EXPECT_THAT(ClassScores(Classes::Scores::kSoftmax, logits),
              ElementsAre(DoubleNear(0.25, 1e-7), DoubleNear(0.75, 1e-7)));
  EXPECT_THAT(ClassScores(Classes::Scores::kSigmoid, logits),
              ElementsAre(0.5, DoubleNear(0.75, 1e-7)));
  EXPECT_THAT(ClassScores(Classes::Scores::kIdentity, logits), ElementsAre(0, logits[1]));
  // Beyond what exp() takes.
  EXPECT_THAT(ClassScores(Classes::Scores::kSoftmax, std::vector<float>{2000, 1000}),
              ElementsAre(1, 0));
}

TEST(ClassesTest, ALastSegmentIsFilledUpWhereTheModelWantsIt) {
  Classes classes = {.labels = {"a"}, .segment = 4, .fills_up = true, .padding = 9};
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5}, types = {0, 0, 0, 1, 1};
  const SegmentedText text = FillUp(classes, tokens, types);
  EXPECT_THAT(text.tokens, ElementsAre(1, 2, 3, 4, 5, 9, 9, 9));
  EXPECT_THAT(text.types, ElementsAre(0, 0, 0, 1, 1, -1, -1, -1));
  EXPECT_THAT(FillUp(classes, std::span(tokens).first(4), {}).types, ElementsAre(0, 0, 0, 0));
  classes.fills_up = false;
  EXPECT_EQ(FillUp(classes, tokens, types).tokens, tokens);
}

TEST(BertConfigTest, ClassesAndTheirScoresAreTheConfigurations) {
  const auto classes_of = [](const char* keys) {
    const TestFolder folder;
    MakeFolder(MatrixSpec("bert", nlohmann::ordered_json::parse(absl::StrCat("{", keys, "}"))),
               folder);
    const auto plan = PlanModel(folder.path(), StateFormat());
    CHECK_OK(plan.status());
    return plan->info.classes;
  };
  const Classes named = classes_of(R"("id2label": {"1": "good", "0": "bad", "2": "so so"},
                                      "label2id": {"bad": 0, "good": 1, "so so": 2})");
  EXPECT_THAT(named.labels, ElementsAre("bad", "good", "so so"));
  EXPECT_EQ(named.scores, Classes::Scores::kSoftmax);
  EXPECT_EQ(named.segment, 130);
  EXPECT_TRUE(named.one_segment);
  const char* none = R"("id2label": null, "label2id": null)";
  EXPECT_THAT(classes_of(none).labels, ElementsAre("LABEL_0", "LABEL_1"));
  const Classes one = classes_of(R"("id2label": null, "label2id": null, "num_labels": 1)");
  EXPECT_THAT(one.labels, ElementsAre("LABEL_0"));
  EXPECT_EQ(one.scores, Classes::Scores::kSigmoid);
  EXPECT_EQ(classes_of(R"("problem_type": "multi_label_classification")").scores,
            Classes::Scores::kSigmoid);
  EXPECT_EQ(classes_of(R"("problem_type": "regression")").scores, Classes::Scores::kIdentity);
  EXPECT_EQ(classes_of(R"("problem_type": "single_label_classification")").scores,
            Classes::Scores::kSoftmax);
}

// Upstream's Memoria gives every token the first type, those of a pair's second text, too.
TEST(BertConfigTest, OfMemoriaAllTokensAreOfOneType) {
  for (const auto& [type, types] : {std::pair("bert", 2), std::pair("memoria_bert", 1)}) {
    const TestFolder folder;
    MakeFolder(MatrixSpec(type), folder);
    const auto plan = PlanModel(folder.path(), StateFormat());
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->info.classes.types, types) << type;
  }
}

// --- Keys ----------------------------------------------------------------------------------------

constexpr char kMemoria[] =
    R"("segment_tokens": 512, "memoria_num_memories": 64, "memoria_num_reminded_stm": 64,
       "memoria_num_reminded_ltm": 64, "memoria_stm_capacity": 128,
       "memoria_ltm_search_depth": 10, "memoria_initial_lifespan": 12,
       "memoria_lifespan_extend_scale": 8)";

// All of Memoria's keys with other values for some.
std::string MemoriaKeys(const char* changes) {
  nlohmann::json keys = nlohmann::json::parse(absl::StrCat("{", kMemoria, "}"));
  keys.update(nlohmann::json::parse(absl::StrCat("{", changes, "}")));
  const std::string text = keys.dump();
  return text.substr(1, text.size() - 2);
}

TEST(BertConfigTest, EveryKeyThatMovesLogitsOrStateCounts) {
  std::map<uint64_t, std::string> seen;
  const auto expect_new = [&](const char* type, const std::string& keys) {
    const auto [other, is_new] =
        seen.emplace(FingerprintOf(type, keys), absl::StrCat(type, " ", keys));
    EXPECT_TRUE(is_new) << type << " " << keys << " counts as " << other->second;
  };
  for (const char* type : {"bert", "roberta"}) {
    for (const char* keys :
         {"", R"("vocab_size": 99)", R"("hidden_size": 96)", R"("num_hidden_layers": 3)",
          R"("num_attention_heads": 6)", R"("intermediate_size": 99)", R"("hidden_act": "relu")",
          R"("hidden_act": "gelu_new")", R"("hidden_act": "silu")", R"("layer_norm_eps": 1e-6)",
          R"("max_position_embeddings": 99)", R"("type_vocab_size": 3)", R"("pad_token_id": 5)",
          R"("id2label": {"0": "a"})"}) {
      expect_new(type, keys);
    }
  }
  for (const char* type : {"memoria_bert", "memoria_roberta"}) {
    for (const char* keys : {"", R"("segment_tokens": 99)", R"("memory_layer_index": 8)",
                             R"("memoria_num_memories": 16)", R"("memoria_num_reminded_stm": 3)",
                             R"("memoria_profile": "paper")", R"("memoria_seed": 7)",
                             R"("pad_token_id": 0)", R"("pad_token_id": 1)"}) {
      if (type == std::string("memoria_bert") && keys == std::string(R"("pad_token_id": 0)")) {
        continue;  // its default
      }
      if (type == std::string("memoria_roberta") && keys == std::string(R"("pad_token_id": 1)")) {
        continue;
      }
      // RoBERTa's segments have fewer positions than there are.
      expect_new(type, MemoriaKeys(absl::StrCat(R"("max_position_embeddings": 514)",
                                                *keys == 0 ? "" : ", ", keys)
                                       .c_str()));
    }
  }
}

TEST(BertConfigTest, TheSegmentIsTheFlagsWhereTheFileLacksIt) {
  nlohmann::json keys = nlohmann::json::parse(absl::StrCat("{", kMemoria, "}"));
  keys["model_type"] = "memoria_bert";
  const auto whole = ParseModelConfig(keys.dump(), "config.json");
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto same = ParseModelConfig(keys.dump(), "config.json", 512);
  EXPECT_EQ(same->fingerprint, whole->fingerprint);
  const absl::Status other = ParseModelConfig(keys.dump(), "config.json", 150).status();
  EXPECT_THAT(std::string(other.message()),
              HasSubstr("\"segment_tokens\" is 512, and --segment-tokens says 150"));
  keys.erase("segment_tokens");
  EXPECT_EQ(ParseModelConfig(keys.dump(), "config.json", 512)->fingerprint, whole->fingerprint);
  EXPECT_THAT(std::string(ParseModelConfig(keys.dump(), "config.json", 513).status().message()),
              HasSubstr("\"segment_tokens\" is 513, expected an integer from 1 to"));
  const absl::Status none =
      ParseModelConfig(R"({"model_type": "bert"})", "config.json", 512).status();
  EXPECT_THAT(std::string(none.message()),
              HasSubstr("--segment-tokens is given, and a model of type bert is not cut"));
}

TEST(BertConfigTest, WhatMovesNeitherDoesNotCount) {
  for (const char* keys :
       {R"("id2label": {"0": "no", "1": "yes"})", R"("problem_type": "regression")",
        R"("num_labels": 2)", R"("classifier_dropout": 0.1)", R"("use_cache": false)",
        R"("position_embedding_type": "absolute")", R"("hidden_act": "gelu")"}) {
    EXPECT_EQ(FingerprintOf("bert", keys), FingerprintOf("bert", "")) << keys;
    EXPECT_THAT(ConfigOf("bert", keys)->warnings, IsEmpty()) << keys;
  }
}

TEST(BertConfigTest, ContradictionsAreRefusedByName) {
  const BadKeys kBad[] = {
      {"", "bert", R"("num_attention_heads": 7)", kInvalid, "\"num_attention_heads\" is 7"},
      {"", "bert", R"("position_embedding_type": "relative_key")", kUnimplemented,
       "\"position_embedding_type\" is \"relative_key\""},
      {"", "bert", R"("is_decoder": true)", kUnimplemented, "\"is_decoder\" is true"},
      {"", "bert", R"("hidden_act": "elu")", kUnimplemented, "\"hidden_act\" is \"elu\""},
      {"", "bert", R"("problem_type": "ranking")", kUnimplemented,
       "\"problem_type\" is \"ranking\", which is not supported; expected one of "
       "\"single_label_classification\", \"multi_label_classification\", \"regression\""},
      {"", "bert", R"("id2label": {"0": "a", "2": "b"})", kInvalid,
       "names of classes, strings, by their ids from 0 to 1, not \"2\": \"b\""},
      {"", "bert", R"("id2label": {"0": "a", "00": "b"})", kInvalid, "\"id2label\" is"},
      {"", "bert", R"("id2label": {"0": 7})", kInvalid, "not \"0\": 7"},
      {"", "bert", R"("id2label": {})", kInvalid, "the name of each class by its id"},
      {"", "bert", R"("id2label": {"0": "a", "1": "b", "2": "a"})", kInvalid,
       "expected a name of its own for each class, not \"a\" for two"},
      {"", "bert", R"("id2label": {"0": "a", "1": ""})", kInvalid,
       "expected a name of its own for each class, not \"\""},
      {"", "bert", R"("id2label": {"0": "a", "1": "b"}, "label2id": {"a": 1, "b": 0})", kInvalid,
       "\"label2id\" is {\"a\":1,\"b\":0}, expected the ids of the 2 classes of id2label"},
      {"", "bert", R"("id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0})", kInvalid,
       "\"label2id\""},
      {"", "bert", R"("id2label": {"0": "a", "1": "b"}, "num_labels": 3)", kInvalid,
       "\"num_labels\" is 3, expected as many as there are in id2label: 2"},
      {"", "roberta", R"("max_position_embeddings": 2)", kInvalid,
       "\"max_position_embeddings\" is 2, expected more than pad_token_id + 1 (2)"},
      {"", "memoria_bert", R"("segment_tokens": 7)", kInvalid,
       "key \"memoria_num_memories\" is missing, and has no default"},
  };
  for (const BadKeys& bad : kBad) ExpectRefused(bad);
  const auto refused = [](const char* type, const char* changes) {
    const auto config = ConfigOf(type, MemoriaKeys(changes));
    EXPECT_EQ(config.status().code(), kInvalid) << changes;
    return std::string(config.status().message());
  };
  EXPECT_THAT(
      refused("memoria_bert", R"("segment_tokens": null)"),
      HasSubstr("\"segment_tokens\" is missing: the tokens of a segment, which the "
                "authors' training programs are told as --segment-size and do not save. "
                "Add it to the file, or give it with --segment-tokens: an integer from 1 to "
                "max_position_embeddings (512), the one of the training"));
  EXPECT_THAT(refused("memoria_bert", R"("segment_tokens": 513)"),
              HasSubstr("\"segment_tokens\" is 513, expected an integer from 1 to "
                        "max_position_embeddings (512)"));
  EXPECT_THAT(refused("memoria_roberta", R"("segment_tokens": 512)"),
              HasSubstr("\"segment_tokens\" is 512, expected an integer from 1 to "
                        "max_position_embeddings less pad_token_id + 1 (510)"));
  EXPECT_THAT(refused("memoria_bert", R"("memory_layer_index": 11)"),
              HasSubstr("\"memory_layer_index\" is 11, expected a layer below the last one, from 0 "
                        "to 10 (num_hidden_layers is 12)"));
  EXPECT_THAT(refused("memoria_bert", R"("memoria_num_memories": 0)"),
              HasSubstr("\"memoria_num_memories\" is 0"));
  const auto profile = ConfigOf("memoria_bert", MemoriaKeys(R"("memoria_profile": "upstream_2")"));
  EXPECT_EQ(profile.status().code(), kUnimplemented);
  EXPECT_THAT(std::string(profile.status().message()),
              HasSubstr("\"memoria_profile\" is \"upstream_2\", which is not supported; expected "
                        "one of \"upstream_1_0\", \"upstream_1_1\", \"paper\""));
}

TEST(BertTest, AHeadOfOtherClassesIsRefusedByBothNumbers) {
  for (const char* type : {"bert", "memoria_roberta"}) {
    const TestFolder folder;
    MakeFolder(MatrixSpec(type), folder);
    nlohmann::json config = nlohmann::json::parse(folder.Read("config.json"));
    config["id2label"] = {{"0", "a"}, {"1", "b"}, {"2", "c"}};
    config["label2id"] = nullptr;
    folder.Write("config.json", config.dump());
    const auto plan = PlanModel(folder.path(), StateFormat());
    EXPECT_EQ(plan.status().code(), kInvalid);
    EXPECT_THAT(std::string(plan.status().message()),
                HasSubstr(absl::StrCat("the configuration names 3 classes (id2label), and ",
                                       type == std::string("bert") ? "classifier.weight"
                                                                   : "classifier.out_proj.weight",
                                       " has 2 rows")));
  }
}

// Documents and the tool's help state these numbers for the shapes.
TEST(BertConfigTest, ShapesHaveTheParametersAndTheStateThatDocumentsTell) {
  struct {
    const char* shape;
    double millions, slab_mib;
  } constexpr kShapes[] = {{"bert-110m", 109.48, 0},
                           {"roberta-125m", 124.65, 0},
                           {"memoria-bert-120m", 120.16, 9.91},
                           {"memoria-roberta-135m", 135.33, 9.91}};
  for (const auto& want : kShapes) {
    const auto spec = SpecOfShape(want.shape);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto config = ParseModelConfig(ConfigJson(*spec), "config.json");
    ASSERT_TRUE(config.ok()) << config.status();
    const MadeNetwork made = MakeNetwork(*config);
    EXPECT_NEAR(made.millions(), want.millions, 0.01) << want.shape;
    EXPECT_NEAR(static_cast<double>(made.state.slab_bytes()) / (1 << 20), want.slab_mib, 0.01)
        << want.shape;
  }
}

}  // namespace
}  // namespace mneme
