// What upstream's code computes of Memoria's GPT-2, segment by segment, against ours: folders
// memoria_gpt2* of tests/golden and of $MNEME_GOLDEN.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/safetensors.h"
#include "tests/models/golden.h"
#include "tests/models/memoria_state.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

constexpr int kMaxTokens = 256;

class Results {
 public:
  explicit Results(const std::string& folder) : file_(Open(folder)) {}

  bool Has(const std::string& name) const { return file_.header().Find(name) != nullptr; }
  template <typename T>
  std::vector<T> Values(const std::string& name) const {
    const SafetensorsTensor* tensor = file_.header().Find(name);
    CHECK(tensor != nullptr) << file_.path() << " lacks " << name;
    const auto bytes = file_.Bytes(*tensor);
    CHECK_EQ(bytes.size(), static_cast<size_t>(tensor->elements()) * sizeof(T)) << name;
    std::vector<T> values(static_cast<size_t>(tensor->elements()));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<int32_t> Ints(const std::string& name) const { return Values<int32_t>(name); }
  std::vector<double> Floats(const std::string& name) const {
    const std::vector<float> values = Values<float>(name);
    return {values.begin(), values.end()};
  }

 private:
  static SafetensorsFile Open(const std::string& folder) {
    auto file = SafetensorsFile::Open(folder + "/golden.safetensors");
    CHECK_OK(file.status());
    return *std::move(file);
  }
  SafetensorsFile file_;
};

std::vector<std::string> Folders() {
  std::vector<std::string> names;
  const char* more = std::getenv("MNEME_GOLDEN");
  for (const std::filesystem::path folder : {"tests/golden", more == nullptr ? "" : more}) {
    if (!std::filesystem::exists(folder)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("memoria_gpt2")) names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

// Results are float32 in another order of sums; scores are sums over squares of those.
constexpr double kBound = 1e-4;

class MemoriaGoldenTest : public testing::TestWithParam<std::tuple<std::string, BackendUnderTest>> {
 protected:
  MemoriaGoldenTest() : results_(GoldenFolder(std::get<0>(GetParam()))) {
    const BackendUnderTest& under_test = std::get<1>(GetParam());
    const std::string folder = GoldenFolder(std::get<0>(GetParam()));
    driver_ = Drive(folder, under_test.device == "reference" ? MakeReference() : under_test.Make(),
                    {.slots = 2, .max_rows = 2, .max_tokens = kMaxTokens});
    config_ = ReadMemoriaConfig(folder);
  }

  std::vector<double> Feed(std::span<const int32_t> tokens, std::vector<int> chunks = {}) {
    return FeedSlot(*driver_, 0, tokens, std::move(chunks));
  }
  std::string Of(int segment, const char* name) const {
    return absl::StrFormat("s%03d.%s", segment, name);
  }
  void ExpectClose(const std::vector<double>& got, const std::vector<double>& want,
                   const std::string& what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    if (want.empty()) return;
    const double error = RelativeError(got, want);
    EXPECT_LE(error, kBound) << what;
    worst_ = std::max(worst_, error);
  }

  // After the first token of `segment`.
  void ExpectRetrieved(int segment) {
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
    EXPECT_EQ(recalled, results_.Ints(Of(segment, "rem")));
    EXPECT_EQ(types, results_.Values<uint8_t>(Of(segment, "rem_type")));
    // The folder in the repository has no vectors of recalled engrams, which are those of "wm".
    if (results_.Has(Of(segment, "rem_x"))) {
      ExpectClose(vectors, results_.Floats(Of(segment, "rem_x")), Of(segment, "rem_x"));
    }
    std::vector<double> working;
    for (const MemoriaState::Engram& engram : state.engrams) {
      if (engram.type != EngramType::kWorking) continue;
      working.insert(working.end(), engram.x.begin(), engram.x.end());
    }
    ExpectClose(working, results_.Floats(Of(segment, "wm")), Of(segment, "wm"));
    const std::vector<int32_t> flags = results_.Ints(Of(segment, "flags"));
    EXPECT_EQ(state.facts[kEngramNullCandidate], flags[0]);
    EXPECT_EQ(state.facts[kEngramNullRecalled], flags[1]);
    EXPECT_EQ(state.facts[kEngramColumns], flags[3]);
    EXPECT_EQ(state.facts[kEngramsFound],
              static_cast<int32_t>(results_.Ints(Of(segment, "found")).size()));
    EXPECT_EQ(state.facts[kEngramsEvicted], 0);
    ExpectScores(segment, state);
  }

  void ExpectScores(int segment, const MemoriaState& state) {
    const std::map<uint32_t, double> scores =
        ScoresByBirth(*driver_, 0, config_.rules, state, segment);
    for (const auto& [births, values] :
         {std::pair("stm", "stm_score"), std::pair("found", "ltm_score")}) {
      std::vector<double> got;
      for (const int32_t birth : results_.Ints(Of(segment, births))) {
        const double score = scores.at(static_cast<uint32_t>(birth));
        got.push_back(config_.rules.score == EngramRules::Score::kExpMean ? std::exp(score)
                                                                          : score);
      }
      ExpectClose(got, results_.Floats(Of(segment, values)), Of(segment, values));
    }
  }

  // After the last token of `segment`.
  void ExpectWeights(int segment) {
    const MemoriaState state = ReadMemoriaState(*driver_, 0);
    ExpectClose(state.weights, results_.Floats(Of(segment, "w")), Of(segment, "w"));
  }

  // After the first token of the segment behind it, in which recalled and working engrams fired.
  void ExpectCommitted(int segment) {
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
    EXPECT_EQ(births, results_.Ints(Of(segment, "birth"))) << segment;
    EXPECT_EQ(types, results_.Values<uint8_t>(Of(segment, "type"))) << segment;
    EXPECT_EQ(counts, results_.Ints(Of(segment, "counts"))) << segment;
    ExpectClose(lifespans, results_.Floats(Of(segment, "lifespan")), Of(segment, "lifespan"));
  }

  Results results_;
  std::unique_ptr<ModelDriver> driver_;
  MemoriaConfig config_;
  double worst_ = 0;
};

TEST_P(MemoriaGoldenTest, EverySegmentIsWhatUpstreamMakesOfIt) {
  const std::vector<int32_t> ids = results_.Ints("input_ids");
  const std::span<const int32_t> text = ids;
  std::vector<double> logits;
  const auto feed = [&](size_t begin, size_t count) {
    const std::vector<double> more = Feed(text.subspan(begin, count));
    logits.insert(logits.end(), more.begin(), more.end());
  };
  const auto length = static_cast<size_t>(config_.segment);
  int checked = 0;
  for (size_t begin = 0; begin < ids.size(); begin += length) {
    const int segment = static_cast<int>(begin / length);
    feed(begin, 1);
    if (segment >= 1) ExpectRetrieved(segment);
    if (segment >= 2) ExpectCommitted(segment - 1);
    const size_t rest = std::min(length, ids.size() - begin) - 1;
    if (rest > 0) feed(begin + 1, rest);
    if (rest + 1 < length) break;
    if (segment >= 1) ExpectWeights(segment);
    ++checked;
  }
  EXPECT_GE(checked, 5);
  ExpectClose(logits, results_.Floats("logits"), "logits");
  std::printf("  %d segments, worst relative error %.2e\n", checked, worst_);
}

TEST_P(MemoriaGoldenTest, LogitsOfTheTextInAnyChunks) {
  const std::vector<int32_t> ids = results_.Ints("input_ids");
  const std::vector<double> want = results_.Floats("logits");
  for (const std::vector<int>& chunks : {std::vector<int>{}, {1}, {5, 1, 29}}) {
    driver_->Reset(0);
    ExpectClose(Feed(ids, chunks), want, "logits");
  }
  std::printf("  worst relative error %.2e\n", worst_);
}

TEST_P(MemoriaGoldenTest, GreedyContinuation) {
  const std::vector<int32_t> ids = results_.Ints("input_ids");
  const std::vector<int32_t> want = results_.Ints("greedy_ids");
  const auto prefix = static_cast<size_t>(results_.Ints("greedy_prefix").front());
  std::vector<double> logits = Feed(std::span(ids).first(prefix)), all;
  const auto vocab = static_cast<int64_t>(driver_->model().info().vocab);
  std::vector<int32_t> tokens;
  while (tokens.size() < want.size()) {
    const auto last = logits.end() - vocab;
    all.insert(all.end(), last, logits.end());
    tokens.push_back(static_cast<int32_t>(std::max_element(last, logits.end()) - last));
    logits = Feed({&tokens.back(), 1});
  }
  EXPECT_EQ(tokens, want);
  ExpectClose(all, results_.Floats("greedy_logits"), "greedy_logits");
}

// What a text makes does not depend on who is beside it: no choice of these texts is close.
TEST_P(MemoriaGoldenTest, ASessionAmongOthersMakesTheSameEngrams) {
  constexpr int kRows = 32, kAlone = kRows;
  const BackendUnderTest& under_test = std::get<1>(GetParam());
  driver_ = Drive(GoldenFolder(std::get<0>(GetParam())),
                  under_test.device == "reference" ? MakeReference() : under_test.Make(),
                  {.slots = kRows + 1, .max_rows = kRows, .max_tokens = kMaxTokens});
  const std::vector<int32_t> ids = results_.Ints("input_ids");
  const std::span<const int32_t> text = ids;
  const int vocab = driver_->model().info().vocab;
  std::vector<std::vector<int32_t>> others;
  for (int row = 1; row < kRows; ++row) {
    others.push_back(RandomTokens(static_cast<int>(text.size()) * 2, vocab, row));
  }
  std::vector<double> alone, among;
  const auto add = [&](std::vector<double>& logits, const std::vector<ModelDriver::Row>& rows,
                       size_t count) {
    const auto step = driver_->Step(rows);
    CHECK_OK(step.status());
    const auto own = step->begin() + static_cast<int64_t>(count) * vocab;
    logits.insert(logits.end(), step->begin(), own);
  };
  const size_t sizes[] = {5, 1, 1, 3};
  size_t piece = 0, at_other = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t count = std::min(sizes[piece++ % std::size(sizes)], text.size() - at);
    std::vector<ModelDriver::Row> rows = {{kAlone, text.subspan(at, count)}};
    add(alone, rows, count);
    rows[0].slot = 0;
    for (int row = 1; row < kRows; ++row) {
      const size_t more = 1 + (piece + static_cast<size_t>(row)) % 3;
      const std::vector<int32_t>& other = others[static_cast<size_t>(row - 1)];
      rows.push_back({row, std::span(other).subspan(at_other % (other.size() - 3), more)});
    }
    ++at_other;
    add(among, rows, count);
    at += count;
  }
  EXPECT_THAT(among, IsSame(under_test.bit_exact(), alone));
  ExpectClose(among, results_.Floats("logits"), "logits");
  const MemoriaState want = ReadMemoriaState(*driver_, kAlone), got = ReadMemoriaState(*driver_, 0);
  ASSERT_EQ(got.engrams.size(), want.engrams.size());
  EXPECT_EQ(got.recalled, want.recalled);
  EXPECT_EQ(got.facts, want.facts);
  std::vector<double> lifespans, wanted_lifespans;
  for (size_t i = 0; i < want.engrams.size(); ++i) {
    EXPECT_EQ(got.engrams[i].birth, want.engrams[i].birth);
    EXPECT_EQ(got.engrams[i].type, want.engrams[i].type);
    EXPECT_EQ(got.engrams[i].counts, want.engrams[i].counts);
    lifespans.push_back(got.engrams[i].lifespan);
    wanted_lifespans.push_back(want.engrams[i].lifespan);
  }
  EXPECT_THAT(lifespans, IsSame(under_test.bit_exact(), wanted_lifespans));
}

// In the middle of a segment, at its last token, and at the first one of the next.
TEST_P(MemoriaGoldenTest, ForksOfEveryPhaseGoOnAsTheirParents) {
  const std::vector<int32_t> ids = results_.Ints("input_ids");
  const std::span<const int32_t> text = ids;
  const auto length = static_cast<size_t>(config_.segment);
  const std::vector<double> want = results_.Floats("logits");
  const auto vocab = static_cast<int64_t>(driver_->model().info().vocab);
  for (const size_t at : {3 * length - 2, 4 * length, 5 * length + 1}) {
    driver_->Reset(0);
    Feed(text.first(at));
    driver_->Fork(0, 1);
    const std::vector<double> parent = Feed(text.subspan(at), {3});
    EXPECT_THAT(FeedSlot(*driver_, 1, text.subspan(at), {3}), HasSameBits(parent)) << at;
    ExpectClose(parent, {want.begin() + static_cast<int64_t>(at) * vocab, want.end()}, "logits");
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MemoriaGoldenTest);
INSTANTIATE_TEST_SUITE_P(Folders, MemoriaGoldenTest,
                         testing::Combine(testing::ValuesIn(Folders()),
                                          testing::ValuesIn(AllBackends())),
                         [](const auto& info) {
                           const BackendUnderTest& backend = std::get<1>(info.param);
                           return absl::StrCat(std::get<0>(info.param), "_", backend.device,
                                               backend.isa.empty() ? "" : "_", backend.isa);
                         });

}  // namespace
}  // namespace mneme
