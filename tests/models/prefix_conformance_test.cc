// What every architecture owes to prompts that begin alike: a session that begins behind what
// others were fed says what it would have said, had it been fed all of it.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "gtest/gtest.h"
#include "models/architecture.h"
#include "tests/models/conformance_specs.h"
#include "tests/models/said.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

constexpr int kPrompts = 5;
constexpr int kCommon = 70;  // more than a block of a context has room for
constexpr int kOwn = 12;

class PrefixConformanceTest
    : public testing::TestWithParam<std::tuple<const Architecture*, BackendUnderTest>> {
 protected:
  PrefixConformanceTest() { SetMinLogSeverity(LogSeverity::kError); }

  std::unique_ptr<Backend> MakeBackend() const {
    const BackendUnderTest& under_test = std::get<1>(GetParam());
    return under_test.Make();
  }
  bool bit_exact() const { return std::get<1>(GetParam()).bit_exact(); }

  std::unique_ptr<Engine> Make(const std::string& folder, bool caches) {
    std::unique_ptr<Backend> backend = MakeBackend();
    auto model = LoadModel(folder, *backend, nullptr);
    CHECK_OK(model.status());
    const int64_t state = (*model)->state_layout().slab_bytes();
    EngineOptions options = {.max_sessions = 2 * kPrompts,
                             .prefix_cache_least_tokens = 4,
                             .graphs = false,
                             .max_rows = kPrompts,
                             .max_tokens_per_step = 64};
    if (caches) options.prefix_cache_memory_bytes = 40 * state + (40 << 12);
    auto engine =
        Engine::Create(std::move(backend), *std::move(model), nullptr, {}, options, clock_);
    CHECK_OK(engine.status());
    return *std::move(engine);
  }

  std::shared_ptr<TokenStream> Submit(Engine& engine, int which) const {
    const int vocab = engine.model_info().vocab;
    Request request;
    request.prompt.at_start = RandomTokens(kCommon, vocab, /*seed=*/77);
    const std::vector<int32_t> own = RandomTokens(kOwn, vocab, /*seed=*/100 + which);
    request.prompt.at_start.insert(request.prompt.at_start.end(), own.begin(), own.end());
    request.prompt.at_start[kCommon] = which;  // where they part at the latest
    request.prompt.same_everywhere = true;
    request.sampling.temperature = 0;
    request.stop = {.max_tokens = bit_exact() ? 6 : 1, .ignore_eos = true};
    request.logprobs = 10;
    auto stream = engine.Submit(std::move(request));
    CHECK_OK(stream.status());
    return *std::move(stream);
  }

  // A conversation in a session, whose second question is asked again after others.
  std::vector<Said> Talk(Engine& engine) const {
    const int vocab = engine.model_info().vocab;
    std::vector<int32_t> told;
    std::vector<int64_t> ends;
    std::vector<Said> all;
    const auto ask = [&](int which) {
      const std::vector<int32_t> own = RandomTokens(kOwn, vocab, /*seed=*/200 + which);
      told.insert(told.end(), own.begin(), own.end());
      ends.push_back(static_cast<int64_t>(told.size()) - 1);
      Request request;
      request.session.name = "s";
      request.prompt.at_start = told;
      request.prompt.same_everywhere = true;
      request.prompt.message_ends = ends;
      request.whole_history = true;
      request.on_mismatch = OnMismatch::kRewind;
      request.sampling.temperature = 0;
      request.stop = {.max_tokens = 6, .ignore_eos = true};
      request.logprobs = 10;
      auto stream = engine.Submit(std::move(request));
      CHECK_OK(stream.status());
      all.push_back(Collect(**stream));
      told.insert(told.end(), all.back().tokens.begin(), all.back().tokens.end());
    };
    for (int turn = 0; turn < 2; ++turn) ask(turn);
    const size_t kept = told.size();
    for (int turn = 2; turn < 4; ++turn) ask(turn);
    told.resize(kept);
    ends.resize(2);
    ask(9);
    return all;
  }

  RealClock clock_;
};

TEST_P(PrefixConformanceTest, ASessionThatGoesBackSaysWhatANewOneWould) {
  for (const ModelSpec& spec : ConformanceSpecs(std::get<0>(GetParam())->model_type)) {
    SCOPED_TRACE(spec.config.dump());
    if (!bit_exact()) continue;  // what was said before would be another history
    const TestFolder folder;
    MakeFolder(spec, folder);
    const std::vector<Said> want = Talk(*Make(folder.path(), /*caches=*/false));
    const std::vector<Said> got = Talk(*Make(folder.path(), /*caches=*/true));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].tokens, want[i].tokens) << "turn " << i;
      EXPECT_THAT(got[i].logprobs, IsSame(/*bit_exact=*/true, want[i].logprobs, kSameBound))
          << "turn " << i;
    }
    EXPECT_EQ(want.back().cached, 0);
    EXPECT_EQ(got.back().cached, 2 * (kOwn + 6) - 1) << "all but the last token of the answer";
  }
}

TEST_P(PrefixConformanceTest, PromptsThatBeginAlikeAreAnsweredAsEver) {
  for (const ModelSpec& spec : ConformanceSpecs(std::get<0>(GetParam())->model_type)) {
    SCOPED_TRACE(spec.config.dump());
    const TestFolder folder;
    MakeFolder(spec, folder);
    double bound = kSameBound;
    if (!bit_exact()) {
      const auto driver =
          Drive(folder.path(), MakeBackend(), {.slots = 2, .max_rows = 2, .max_tokens = 128});
      // An error of logits is twice in what they are normalised to, at most; and their logarithms
      // of probabilities may be smaller than they are.
      bound = 10 * SameBoundOf(*driver, folder.path());
    }
    std::vector<Said> want;
    {
      const std::unique_ptr<Engine> plain = Make(folder.path(), /*caches=*/false);
      for (int i = 0; i < kPrompts; ++i) want.push_back(Collect(*Submit(*plain, i)));
    }
    const auto expect_same = [&](const Said& got, int i) {
      EXPECT_EQ(want[i].cached, 0);
      EXPECT_THAT(got.logprobs, IsSame(bit_exact(), want[i].logprobs, bound)) << "prompt " << i;
      if (bit_exact()) {
        EXPECT_EQ(got.tokens, want[i].tokens) << "prompt " << i;
      }
    };
    const std::unique_ptr<Engine> one_by_one = Make(folder.path(), /*caches=*/true);
    for (int i = 0; i < kPrompts; ++i) {
      const Said got = Collect(*Submit(*one_by_one, i));
      expect_same(got, i);
      EXPECT_EQ(got.cached, i == 0 ? 0 : i == 1 ? 64 : kCommon);
    }
    const std::unique_ptr<Engine> at_once = Make(folder.path(), /*caches=*/true);
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (int i = 0; i < kPrompts; ++i) streams.push_back(Submit(*at_once, i));
    for (int i = 0; i < kPrompts; ++i) expect_same(Collect(*streams[i]), i);
  }
}

// The engine is the same on every backend.
INSTANTIATE_TEST_SUITE_P(All, PrefixConformanceTest,
                         testing::Combine(testing::ValuesIn(ArchitecturesThat(/*classify=*/false)),
                                          testing::Values(AvailableBackends().back())),
                         ConformanceName);

}  // namespace
}  // namespace mneme
