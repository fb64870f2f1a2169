#include "tests/models/memoria_golden.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <utility>

#include "gtest/gtest.h"
#include "tests/models/golden.h"
#include "tests/models/test_folder.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

constexpr int kMaxTokens = 256;

// Results are float32 in another order of sums; scores are sums over squares of those.
constexpr double kBound = 1e-4;

}  // namespace

std::vector<std::string> MemoriaFolders(const std::string& prefix) {
  std::vector<std::string> names;
  const char* more = std::getenv("MNEME_GOLDEN");
  for (const std::filesystem::path folder : {"tests/golden", more == nullptr ? "" : more}) {
    if (!std::filesystem::exists(folder)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(prefix)) names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

MemoriaGolden::MemoriaGolden(const std::string& name, std::unique_ptr<Backend> backend)
    : results_(GoldenFolder(name)),
      driver_(Drive(GoldenFolder(name), std::move(backend),
                    {.slots = 2, .max_rows = 2, .max_tokens = kMaxTokens})),
      config_(ReadMemoriaConfig(GoldenFolder(name))) {}

void MemoriaGolden::ExpectClose(const std::vector<double>& got, const std::vector<double>& want,
                                const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  if (want.empty()) return;
  const double error = RelativeError(got, want);
  EXPECT_LE(error, kBound) << what;
  worst_ = std::max(worst_, error);
}

void MemoriaGolden::ExpectRetrieved(const std::string& prefix, int segment) {
  const MemoriaState state = ReadMemoriaState(*driver_, 0);
  std::vector<int32_t> recalled;
  std::vector<uint8_t> types;
  std::vector<double> vectors;
  for (const size_t i : state.recalled) {
    const MemoriaState::Engram& engram = state.engrams[i];
    recalled.push_back(static_cast<int32_t>(engram.birth));
    types.push_back(static_cast<uint8_t>(engram.type));
    vectors.insert(vectors.end(), engram.x.begin(), engram.x.end());
  }
  EXPECT_EQ(recalled, results_.Ints(prefix + "rem"));
  EXPECT_EQ(types, results_.Values<uint8_t>(prefix + "rem_type"));
  // The folder in the repository has no vectors of recalled engrams, which are those of "wm".
  if (results_.Has(prefix + "rem_x")) {
    ExpectClose(vectors, results_.Floats(prefix + "rem_x"), prefix + "rem_x");
  }
  std::vector<double> working;
  for (const MemoriaState::Engram& engram : state.engrams) {
    if (engram.type != EngramType::kWorking) continue;
    working.insert(working.end(), engram.x.begin(), engram.x.end());
  }
  ExpectClose(working, results_.Floats(prefix + "wm"), prefix + "wm");
  const std::vector<int32_t> flags = results_.Ints(prefix + "flags");
  EXPECT_EQ(state.facts[kEngramNullCandidate], flags[0]);
  EXPECT_EQ(state.facts[kEngramNullRecalled], flags[1]);
  EXPECT_EQ(state.facts[kEngramColumns], flags[3]);
  EXPECT_EQ(state.facts[kEngramsFound],
            static_cast<int32_t>(results_.Ints(prefix + "found").size()));
  EXPECT_EQ(state.facts[kEngramsEvicted], 0);
  ExpectScores(prefix, segment, state);
}

void MemoriaGolden::ExpectScores(const std::string& prefix, int segment,
                                 const MemoriaState& state) {
  const std::map<uint32_t, double> scores =
      ScoresByBirth(*driver_, 0, config_.rules, state, segment);
  for (const auto& [births, values] :
       {std::pair("stm", "stm_score"), std::pair("found", "ltm_score")}) {
    std::vector<double> got;
    for (const int32_t birth : results_.Ints(prefix + births)) {
      const double score = scores.at(static_cast<uint32_t>(birth));
      got.push_back(config_.rules.score == EngramRules::Score::kExpMean ? std::exp(score) : score);
    }
    ExpectClose(got, results_.Floats(prefix + values), prefix + values);
  }
}

void MemoriaGolden::ExpectWeights(const std::string& prefix) {
  const MemoriaState state = ReadMemoriaState(*driver_, 0);
  ExpectClose(state.weights, results_.Floats(prefix + "w"), prefix + "w");
}

void MemoriaGolden::ExpectCommitted(const std::string& prefix) {
  const MemoriaState state = ReadMemoriaState(*driver_, 0);
  std::vector<size_t> old;
  for (size_t i = 0; i < state.engrams.size(); ++i) {
    if (state.engrams[i].type != EngramType::kWorking) old.push_back(i);
  }
  const auto fired = [&](size_t i) {
    return std::find(state.recalled.begin(), state.recalled.end(), i) != state.recalled.end();
  };
  std::vector<int32_t> births, counts;
  std::vector<uint8_t> types;
  std::vector<double> lifespans, edges;
  for (const size_t i : old) {
    births.push_back(static_cast<int32_t>(state.engrams[i].birth));
    types.push_back(static_cast<uint8_t>(state.engrams[i].type));
    lifespans.push_back(state.engrams[i].lifespan);
    for (const size_t j : old) {
      counts.push_back(state.count(i, j) - (fired(i) && fired(j) ? 1 : 0));
    }
  }
  EXPECT_EQ(births, results_.Ints(prefix + "birth")) << prefix;
  EXPECT_EQ(types, results_.Values<uint8_t>(prefix + "type")) << prefix;
  EXPECT_EQ(counts, results_.Ints(prefix + "counts")) << prefix;
  ExpectClose(lifespans, results_.Floats(prefix + "lifespan"), prefix + "lifespan");
  if (!results_.Has(prefix + "gain")) return;  // the folder in the repository
  const std::vector<int32_t> recalled = results_.Ints(prefix + "rem");
  const std::vector<double> gains = results_.Floats(prefix + "gain");
  std::vector<double> got, wanted;  // of those that live on
  for (size_t i = 0; i < recalled.size(); ++i) {
    const auto it = std::find(births.begin(), births.end(), recalled[i]);
    if (it == births.end()) continue;
    got.push_back(state.engrams[old[static_cast<size_t>(it - births.begin())]].gain);
    wanted.push_back(gains[i]);
  }
  ExpectClose(got, wanted, prefix + "gain");
}

void MemoriaGolden::ExpectNothingIsClose(const std::string& prefix) const {
  const bool exp_mean = config_.rules.score == EngramRules::Score::kExpMean;
  const std::vector<int32_t> recalled = results_.Ints(prefix + "rem");
  const auto far = [&](const char* births, const char* scores) {
    const std::vector<int32_t> candidates = results_.Ints(prefix + births);
    const std::vector<double> values = results_.Floats(prefix + scores);
    double least = HUGE_VAL, best = -HUGE_VAL;  // of those that were chosen, and were not
    for (size_t i = 0; i < candidates.size(); ++i) {
      const bool chosen =
          std::find(recalled.begin(), recalled.end(), candidates[i]) != recalled.end();
      double& bound = chosen ? least : best;
      bound = chosen ? std::min(bound, values[i]) : std::max(bound, values[i]);
    }
    if (!std::isfinite(least) || !std::isfinite(best)) return;
    if (exp_mean) {
      EXPECT_GE(std::abs(std::log(least / best)), 2e-3) << prefix << births;
    } else {
      EXPECT_GE(std::abs(least - best), 4e-4 * std::abs(best)) << prefix << births;
    }
  };
  far("stm", "stm_score");
  far("found", "ltm_score");
  if (!results_.Has(prefix + "lifespan")) return;  // the text ends within the segment
  for (const double lifespan : results_.Floats(prefix + "lifespan")) {
    EXPECT_GE(lifespan, 4e-4) << prefix;
  }
}

}  // namespace mneme
