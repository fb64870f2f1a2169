#include "models/families/memoria_keys.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "models/families/stack_keys.h"

namespace mneme {
namespace {

constexpr int kMaxEngrams = 1 << 20;
constexpr int kMaxSegment = 1 << 30;
constexpr int kMaxDepth = 1 << 20;
constexpr double kMaxLifespan = 1 << 20;

// Upstream's versions differ in the score, the paper from both in much else.
void ReadProfile(ConfigReader& reader, EngramRules& rules) {
  enum Profile { kUpstream10, kUpstream11, kPaper };
  const int profile =
      ReadChoice(reader, "memoria_profile", {"upstream_1_0", "upstream_1_1", "paper"});
  rules.score =
      profile == kUpstream11 ? EngramRules::Score::kNegSquare : EngramRules::Score::kExpMean;
  rules.extra_seeds = rules.recalls_oldest = rules.null_candidate = rules.null_column =
      rules.deaths_last = profile != kPaper;
}

uint64_t ReadSeed(ConfigReader& reader) {
  uint64_t seed = 0;
  if (!reader.IsNull("memoria_seed")) {
    const nlohmann::json& value = *reader.Find("memoria_seed");
    if (value.is_number_unsigned()) {
      seed = value.get<uint64_t>();
    } else {
      reader.Invalid("memoria_seed", value, "an integer from 0 to 2^64 - 1");
    }
  }
  return reader.Keep("memoria_seed", seed);
}

int ReadSegment(ConfigReader& reader, const MemoriaLayers& layers) {
  const std::string expected =
      absl::StrCat("an integer from 1 to ", layers.positions_key, " (", layers.positions, ")");
  const nlohmann::json* value = reader.Find("segment_tokens");
  if (value == nullptr || value->is_null()) {
    reader.Missing(
        "segment_tokens",
        absl::StrCat("the tokens of a segment, which the authors' training programs are told as ",
                     layers.flag,
                     " and do not save. Add it to the file, or give it with "
                     "--segment-tokens: ",
                     expected, ", the one of the training"));
    return 1;
  }
  const int segment = reader.Int("segment_tokens", 1, 1, kMaxSegment);
  if (segment > layers.positions) reader.Invalid("segment_tokens", segment, expected);
  return std::min(segment, layers.positions);
}

}  // namespace

EngramConfig ReadEngrams(ConfigReader& reader, const MemoriaLayers& layers) {
  reader.Require({"memoria_num_memories", "memoria_num_reminded_stm", "memoria_num_reminded_ltm",
                  "memoria_stm_capacity", "memoria_ltm_search_depth", "memoria_initial_lifespan",
                  "memoria_lifespan_extend_scale"});
  EngramConfig engrams = {.layers = layers.layers, .heads = layers.heads};
  EngramRules& rules = engrams.rules;
  engrams.segment = ReadSegment(reader, layers);
  const int working = layers.may_encode_nothing
                          ? reader.NullableInt("memoria_num_memories", 0, kMaxEngrams).value_or(0)
                          : reader.Int("memoria_num_memories", 1, 1, kMaxEngrams);
  engrams.encodes = working > 0;
  reader.Keep("memoria_num_memories", working);
  rules.working = engrams.encodes ? working : engrams.segment;
  rules.recalled_short = reader.Int("memoria_num_reminded_stm", 1, 1, kMaxEngrams);
  rules.recalled_long = reader.Int("memoria_num_reminded_ltm", 0, 0, kMaxEngrams);
  rules.short_term = reader.Int("memoria_stm_capacity", rules.working, 1, kMaxEngrams);
  if (rules.short_term < rules.working) {
    reader.Invalid("memoria_stm_capacity", rules.short_term,
                   absl::StrCat("at least as many as the engrams of a segment "
                                "(memoria_num_memories, ",
                                rules.working, ")"));
  }
  rules.depth = reader.Int("memoria_ltm_search_depth", 0, 0, kMaxDepth);
  rules.lifespan =
      static_cast<float>(reader.Number("memoria_initial_lifespan", 1, 0, kMaxLifespan));
  rules.lifespan_scale = static_cast<float>(
      reader.Number("memoria_lifespan_extend_scale", 1, 0, kMaxLifespan, /*low_included=*/true));
  ReadProfile(reader, rules);
  rules.random_ties = ReadChoice(reader, "memoria_ltm_ties", {"random", "oldest"}) == 0;
  rules.seed = ReadSeed(reader);
  // Where upstream keeps engrams, and training.
  reader.Disregard({"memoria_device", "memoria_reset_period"});
  return engrams;
}

}  // namespace mneme
