// Memoria's GPT-2: its keys, what it refuses, and the room that it makes for engrams.

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "tests/models/config_keys.h"
#include "tests/models/matrix_spec.h"
#include "tests/models/memoria_state.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/fake_model.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kType[] = "gpt2_with_memoria";

// A complete configuration with other values for some keys: members of a JSON object.
std::string Keys(const std::string& changes = "") {
  nlohmann::json keys = {{"segment_tokens", 150},          {"memoria_num_memories", 50},
                         {"memoria_num_reminded_stm", 50}, {"memoria_num_reminded_ltm", 50},
                         {"memoria_stm_capacity", 400},    {"memoria_ltm_search_depth", 10},
                         {"memoria_initial_lifespan", 9},  {"memoria_lifespan_extend_scale", 8}};
  keys.update(nlohmann::json::parse(absl::StrCat("{", changes, "}")));
  const std::string text = keys.dump();
  return text.substr(1, text.size() - 2);
}

TEST(MemoriaConfigTest, EveryKeyThatMovesLogitsOrStateCounts) {
  std::map<uint64_t, std::string> seen;
  for (const char* keys :
       {"", R"("segment_tokens": 50)", R"("memoria_num_memories": 16)",
        R"("memoria_num_memories": null)", R"("memoria_num_reminded_stm": 3)",
        R"("memoria_num_reminded_ltm": 0)", R"("memoria_stm_capacity": 60)",
        R"("memoria_ltm_search_depth": 0)", R"("memoria_initial_lifespan": 5)",
        R"("memoria_lifespan_extend_scale": 2)", R"("memoria_profile": "paper")",
        R"("memoria_profile": "upstream_1_1")", R"("memoria_ltm_ties": "oldest")",
        R"("memoria_seed": 18446744073709551615)", R"("n_positions": 512)", R"("n_embd": 384)"}) {
    const auto [other, is_new] = seen.emplace(FingerprintOf(kType, Keys(keys)), keys);
    EXPECT_TRUE(is_new) << keys << " counts as " << other->second;
  }
}

TEST(MemoriaConfigTest, WhatMovesNeitherDoesNotCount) {
  for (const char* keys :
       {R"("memoria_device": "cpu")", R"("memoria_reset_period": 7)",
        R"("scale_attn_weights": false)", R"("scale_attn_by_inverse_layer_idx": true)",
        R"("memoria_profile": "upstream_1_0")", R"("memoria_ltm_ties": "random")",
        R"("memoria_seed": 0)", R"("n_ctx": 10000)"}) {
    EXPECT_EQ(FingerprintOf(kType, Keys(keys)), FingerprintOf(kType, Keys())) << keys;
    EXPECT_THAT(ConfigOf(kType, Keys(keys))->warnings, IsEmpty()) << keys;
  }
}

TEST(MemoriaConfigTest, ContradictionsAreRefusedByName) {
  struct {
    const char* keys;
    absl::StatusCode code;
    const char* message;
  } constexpr kBad[] = {
      {R"("segment_tokens": null)", kInvalid,
       "\"segment_tokens\" is null, expected an integer from 1 to n_positions (1024): the tokens"},
      {R"("segment_tokens": 1025)", kInvalid,
       "\"segment_tokens\" is 1025, expected an integer from 1 to n_positions (1024)"},
      {R"("segment_tokens": 0)", kInvalid, "\"segment_tokens\" is 0"},
      {R"("memoria_stm_capacity": 49)", kInvalid,
       "\"memoria_stm_capacity\" is 49, expected at least as many as the engrams of a segment "
       "(memoria_num_memories, 50)"},
      {R"("memoria_num_memories": null, "memoria_stm_capacity": 149)", kInvalid,
       "\"memoria_stm_capacity\" is 149"},
      {R"("memoria_num_reminded_stm": 0)", kInvalid, "\"memoria_num_reminded_stm\" is 0"},
      {R"("memoria_num_reminded_ltm": -1)", kInvalid, "\"memoria_num_reminded_ltm\" is -1"},
      {R"("memoria_initial_lifespan": 0)", kInvalid, "\"memoria_initial_lifespan\" is 0"},
      {R"("memoria_profile": "paper_2")", kUnimplemented,
       "\"memoria_profile\" is \"paper_2\", which is not supported; expected one of "
       "\"upstream_1_0\", \"upstream_1_1\", \"paper\""},
      {R"("memoria_ltm_ties": "newest")", kUnimplemented, "\"memoria_ltm_ties\" is \"newest\""},
      {R"("memoria_seed": -1)", kInvalid,
       "\"memoria_seed\" is -1, expected an integer from 0 to 2^64 - 1"},
      {R"("n_head": 7)", kInvalid, "\"n_head\" is 7"},
  };
  for (const auto& bad : kBad) {
    const auto config = ConfigOf(kType, Keys(bad.keys));
    EXPECT_EQ(config.status().code(), bad.code) << bad.keys;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(bad.message));
  }
  const auto none = ConfigOf(kType, R"("segment_tokens": 150)");
  EXPECT_THAT(std::string(none.status().message()),
              HasSubstr("key \"memoria_num_memories\" is missing, and has no default"));
}

// A model of the tiny shape with changes, as a plan or a reason why there is none.
absl::StatusOr<ModelPlan> Plan(const nlohmann::ordered_json& changes, int capacity) {
  const TestFolder folder;
  MakeFolder(MatrixSpec(kType, changes), folder);
  return PlanModel(folder.path(), StateFormat(), {.engram_capacity = capacity});
}

TEST(MemoriaConfigTest, RoomForEngramsFollowsFromTheModelOrIsGiven) {
  // W 3, Rs and Rl 4, S 6, L0 4, alpha 3: 12 + 34 + 3, and at least 12.
  EXPECT_EQ(Plan({}, 0)->info.engrams, 64);
  EXPECT_EQ(Plan({{"memoria_lifespan_extend_scale", 9}}, 0)->info.engrams, 128);
  EXPECT_EQ(Plan({{"memoria_stm_capacity", 300}}, 0)->info.engrams, 320);
  EXPECT_EQ(Plan({}, 12)->info.engrams, 12);
  const auto small = Plan({}, 11);
  EXPECT_EQ(small.status().code(), kInvalid);
  EXPECT_THAT(std::string(small.status().message()),
              HasSubstr("room for 11 engrams in a session (--engram-capacity): expected at least "
                        "12"));
  const TestFolder folder;
  MakeFolder(MatrixSpec(kType), folder);
  nlohmann::json config = nlohmann::json::parse(folder.Read("config.json"));
  config["memoria_lifespan_extend_scale"] = 300;
  folder.Write("config.json", config.dump());
  for (const int capacity : {2049, 0}) {
    const auto large = PlanModel(folder.path(), StateFormat(), {.engram_capacity = capacity});
    EXPECT_EQ(large.status().code(), kUnimplemented);
    EXPECT_THAT(
        std::string(large.status().message()),
        AllOf(HasSubstr("--engram-capacity"), HasSubstr("counts are kept of at most 2048")));
  }
  EXPECT_EQ(PlanModel(folder.path(), StateFormat(), {.engram_capacity = 2048})->info.engrams, 2048);
}

// Documents and the tool's help state these numbers for the shape.
TEST(MemoriaConfigTest, TheShapeHasTheParametersAndTheStateThatDocumentsTell) {
  const auto spec = SpecOfShape("gpt2-with-memoria-159m");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto config = ParseModelConfig(ConfigJson(*spec), "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  const MadeNetwork made = MakeNetwork(*config);
  EXPECT_NEAR(made.millions(), 158.77, 0.01);
  EXPECT_NEAR(static_cast<double>(made.state.slab_bytes()) / (1 << 20), 33.26, 0.01);
  EXPECT_EQ(made.state.max_tokens(), std::nullopt);
}

TEST(MemoriaTest, DevicesWithoutTheOperationsRefuseItByName) {
  const TestFolder folder;
  MakeFolder(MatrixSpec(kType), folder);
  FaultyBackend backend;  // has none
  const auto model = LoadModel(folder.path(), backend, nullptr);
  EXPECT_EQ(model.status().code(), kUnimplemented);
  EXPECT_THAT(std::string(model.status().message()),
              HasSubstr("model_type \"gpt2_with_memoria\" on the device faulty, which has no "
                        "operations on engrams; expected cpu"));
}

class MemoriaCapacityTest : public testing::TestWithParam<BackendUnderTest> {};

// A full store is the session's own matter, and says so.
TEST_P(MemoriaCapacityTest, AFullStoreGoesOn) {
  const TestFolder folder;
  MakeFolder(MatrixSpec(kType), folder);
  const std::vector<int32_t> text = RandomTokens(200, 259, /*seed=*/1);
  const auto run = [&](int capacity, const std::vector<int>& chunks) {
    auto backend = GetParam().device == "reference" ? MakeReference() : GetParam().Make();
    auto model = LoadModel(folder.path(), *backend, nullptr, {.engram_capacity = capacity});
    CHECK_OK(model.status());
    auto driver = ModelDriver::Create(std::move(backend), *std::move(model),
                                      {.slots = 1, .max_rows = 1, .max_tokens = 200});
    CHECK_OK(driver.status());
    std::vector<double> logits = FeedSlot(**driver, 0, text, chunks);
    return std::pair(std::move(logits), ReadMemoriaState(**driver, 0));
  };
  const auto [free_logits, free_state] = run(0, {});
  EXPECT_EQ(free_state.facts[kEngramsEvicted], 0);
  const auto [logits, state] = run(13, {});
  EXPECT_GT(state.facts[kEngramsEvicted], 0);
  EXPECT_LE(state.engrams.size(), 13u);
  EXPECT_NE(logits, free_logits);
  const auto [in_chunks, chunked_state] = run(13, {5, 1, 29});
  EXPECT_THAT(in_chunks, IsSame(GetParam().bit_exact(), logits));
  EXPECT_EQ(chunked_state.facts, state.facts);
}

std::vector<BackendUnderTest> Backends() {
  std::vector<BackendUnderTest> backends = AllBackends();
  std::erase_if(backends, [](const BackendUnderTest& b) { return b.device == "cuda"; });
  return backends;
}

INSTANTIATE_TEST_SUITE_P(Backends, MemoriaCapacityTest, testing::ValuesIn(Backends()), BackendName);

}  // namespace
}  // namespace mneme
