// What every architecture owes to sessions that go back: wherever in its log one goes back to, it
// says what one would say that was fed no more.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "gtest/gtest.h"
#include "models/architecture.h"
#include "tests/engine/session_storage.h"
#include "tests/models/conformance_specs.h"
#include "tests/models/said.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

constexpr int kPrompt = 70;  // more than a block of a context has room for

class RewindConformanceTest
    : public testing::TestWithParam<std::tuple<const Architecture*, BackendUnderTest>> {
 protected:
  RewindConformanceTest() { SetMinLogSeverity(LogSeverity::kError); }

  std::unique_ptr<Backend> MakeBackend() const {
    const BackendUnderTest& under_test = std::get<1>(GetParam());
    return under_test.Make();
  }
  bool bit_exact() const { return std::get<1>(GetParam()).bit_exact(); }

  std::unique_ptr<Engine> Start(const std::string& folder, const std::string& sessions) {
    std::unique_ptr<Backend> backend = MakeBackend();
    auto model = LoadModel(folder, *backend, nullptr);
    CHECK_OK(model.status());
    StoreReport report;
    SessionStorage storage = StorageIn(sessions, report);
    auto engine = Engine::Create(std::move(backend), *std::move(model), /*tokenizer=*/nullptr, {},
                                 {.max_sessions = 4,
                                  .snapshot_tokens = 0,
                                  .graphs = false,
                                  .max_rows = 2,
                                  .max_tokens_per_step = 64},
                                 clock_, std::move(storage));
    CHECK_OK(engine.status());
    return *std::move(engine);
  }

  static Said Ask(Engine& engine, const std::string& session, std::vector<int32_t> prompt,
                  int max_tokens) {
    Request request;
    request.session.name = session;
    request.prompt.at_start = std::move(prompt);
    request.prompt.same_everywhere = true;
    request.sampling.temperature = 0;
    request.stop = {.max_tokens = max_tokens, .ignore_eos = true};
    request.logprobs = 10;
    auto stream = engine.Submit(std::move(request));
    CHECK_OK(stream.status());
    return Collect(**stream);
  }

  RealClock clock_;
};

TEST_P(RewindConformanceTest, ASessionThatWentBackSaysWhatOneThatWasFedNoMoreSays) {
  for (const ModelSpec& spec : ConformanceSpecs(std::get<0>(GetParam())->model_type)) {
    SCOPED_TRACE(spec.config.dump());
    const TestFolder folder, sessions;
    MakeFolder(spec, folder);
    double bound = kSameBound;
    if (!bit_exact()) {
      const auto driver =
          Drive(folder.path(), MakeBackend(), {.slots = 2, .max_rows = 2, .max_tokens = 128});
      bound = 10 * SameBoundOf(*driver, folder.path());
    }
    const std::unique_ptr<Engine> engine = Start(folder.path(), sessions.path() + "/store");
    const int vocab = engine->model_info().vocab;
    std::vector<int32_t> conversation = RandomTokens(kPrompt, vocab, /*seed=*/5);
    for (int turn = 0; turn < 2; ++turn) {
      const std::vector<int32_t> prompt =
          turn == 0 ? conversation : RandomTokens(kPrompt, vocab, /*seed=*/6);
      if (turn > 0) conversation.insert(conversation.end(), prompt.begin(), prompt.end());
      const std::vector<int32_t> said = Ask(*engine, "s", prompt, 6).tokens;
      ASSERT_EQ(said.size(), 6u);
      conversation.insert(conversation.end(), said.begin(), said.end());
      if (turn == 0) {
        ASSERT_TRUE(engine->CreateCheckpoint({"", "s"}, "first").ok());
      }
    }
    const std::vector<int32_t> next = RandomTokens(9, vocab, /*seed=*/7);
    const auto expect_same = [&](const std::string& name, int position) {
      Ask(*engine, "fed", {conversation.begin(), conversation.begin() + position}, 0);
      const Said want = Ask(*engine, "fed", next, bit_exact() ? 6 : 1);
      const Said got = Ask(*engine, name, next, bit_exact() ? 6 : 1);
      EXPECT_THAT(got.logprobs, IsSame(bit_exact(), want.logprobs, bound));
      if (bit_exact()) {
        EXPECT_EQ(got.tokens, want.tokens);
      }
      for (const std::string& done : {std::string("fed"), name}) {
        ASSERT_TRUE(engine->DeleteSession({"", done}).ok());
      }
    };
    // Within the answer and the prompt of the second turn, and of the first one.
    for (const int position : {149, 97, 75, 33}) {
      SCOPED_TRACE(absl::StrCat("position ", position));
      const auto fork = engine->ForkSessionAt({"", "s"}, {"", "fork"}, absl::ZeroDuration(),
                                              {.position = position});
      ASSERT_TRUE(fork.ok()) << fork.status();
      EXPECT_FALSE(fork->has_pending_token);
      expect_same("fork", position);
    }
    const auto back = engine->RewindSession({"", "s"}, {.checkpoint = "first"});
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->position, 76);
    EXPECT_TRUE(back->has_pending_token);
    expect_same("s", 76);
  }
}

// The engine is the same on every backend.
INSTANTIATE_TEST_SUITE_P(All, RewindConformanceTest,
                         testing::Combine(testing::ValuesIn(ArchitecturesThat(/*classify=*/false)),
                                          testing::Values(AvailableBackends().back())),
                         ConformanceName);

}  // namespace
}  // namespace mneme
