// Sessions that bring the seed that their memory draws from.
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/outcome.h"
#include "tests/engine/session_storage.h"
#include "tests/models/matrix_spec.h"
#include "tests/models/memoria_state.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"

namespace mneme {
namespace {

using testing::HasSubstr;

constexpr int kSeededVocab = 259;
constexpr uint64_t kModelsSeed = 0x123456789abcdef0, kSeed = 0xfedcba9876543210;
const SessionKey kSeeded = {"owner", "s"};

// What was answered, how likely that was, and what was kept of it.
struct Told {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<std::tuple<uint32_t, int, double>> engrams;  // births, kinds and lifespans
  int64_t cached = 0;

  // Whatever was computed for it.
  friend bool operator==(const Told& a, const Told& b) {
    return a.tokens == b.tokens && a.logprobs == b.logprobs && a.engrams == b.engrams;
  }
};

class EngineSeedTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  EngineSeedTest() {
    SetMinLogSeverity(LogSeverity::kFatal);
    MakeFolder(MatrixSpec("gpt2_with_memoria", {{"memoria_seed", kModelsSeed}}), model_);
    MakeFolder(MatrixSpec("gpt2_with_memoria", {{"memoria_seed", kSeed}}), of_seed_);
    MakeFolder(MatrixSpec("gpt2_with_memoria", {{"memoria_ltm_ties", "oldest"}}), without_draws_);
    segment_ = ReadMemoriaConfig(model_.path()).segment;
  }

  std::unique_ptr<Engine> Start(const TestFolder& model, const EngineOptions& changes = {},
                                bool stores = false) {
    std::unique_ptr<Backend> backend = GetParam().Make();
    auto loaded = LoadModel(model.path(), *backend, nullptr);
    CHECK_OK(loaded.status());
    EngineOptions options = changes;
    options.max_sessions = 6;
    options.max_rows = 4;
    options.max_tokens_per_step = 64;
    options.history_tokens = 64;
    SessionStorage storage;
    StoreReport report;
    if (stores) {
      options.durability = Durability::kTurn;
      storage = StorageIn(folder_.path() + "/sessions", report);
    }
    auto engine = Engine::Create(std::move(backend), *std::move(loaded), /*tokenizer=*/nullptr, {},
                                 options, clock_, std::move(storage));
    CHECK_OK(engine.status());
    return *std::move(engine);
  }
  std::unique_ptr<Engine> StartStored(int64_t snapshot_tokens = 0) {
    return Start(model_, {.snapshot_tokens = snapshot_tokens}, /*stores=*/true);
  }
  Outcome Ask(Engine& engine, int segments, uint64_t text, const SessionKey& key,
              std::optional<uint64_t> seed) const {
    Request request;
    request.session = key;
    request.memory_seed = seed;
    request.prompt.at_start = RandomTokens(segments * segment_ + 2, kSeededVocab, text);
    request.prompt.same_everywhere = true;
    request.sampling.temperature = 0;
    request.stop.max_tokens = 3 * segment_;
    request.stop.ignore_eos = true;
    request.logprobs = 0;
    return Collect(*engine.Submit(std::move(request)).value());
  }
  Told Feed(Engine& engine, int segments, uint64_t text, std::optional<uint64_t> seed = {},
            const SessionKey& key = kSeeded) const {
    const Outcome outcome = Ask(engine, segments, text, key, seed);
    EXPECT_EQ(outcome.status(), absl::OkStatus());
    Told told = {outcome.tokens, outcome.logprobs, {}, outcome.usage().cached_tokens};
    if (key.name.empty()) return told;
    const auto report = engine.InspectMemory(key, {.engrams = EngramsQuery()});
    EXPECT_EQ(report.status(), absl::OkStatus());
    if (!report.ok()) return told;
    for (const EngramRow& row : report->engrams) {
      told.engrams.emplace_back(row.engram.birth, static_cast<int>(row.engram.type),
                                row.engram.lifespan);
    }
    return told;
  }
  static std::optional<uint64_t> SeedOf(Engine& engine, const SessionKey& key = kSeeded) {
    const auto session = engine.GetSession(key);
    EXPECT_EQ(session.status(), absl::OkStatus());
    return session.ok() ? session->memory_seed : std::nullopt;
  }
  static std::string Export(Engine& engine, const SessionKey& key) {
    auto source = engine.ExportSession(key);
    CHECK_OK(source.status());
    std::string file;
    for (std::string piece = (*source)->Next(); !piece.empty(); piece = (*source)->Next()) {
      file += piece;
    }
    return file;
  }

  TestFolder model_, of_seed_, without_draws_, folder_;
  int segment_ = 0;
  RealClock clock_;
};

TEST_P(EngineSeedTest, ASessionDrawsAsAModelOfItsSeedDoes) {
  const auto engine = Start(model_), other = Start(of_seed_);
  const Told want = Feed(*other, 30, 1), more = Feed(*other, 9, 2);
  EXPECT_EQ(Feed(*engine, 30, 1, kSeed), want);
  EXPECT_EQ(Feed(*engine, 9, 2), more);
  EXPECT_EQ(SeedOf(*engine), kSeed);
  // It may begin in any way.
  const SessionKey created = {"owner", "created"};
  NewSession options;
  options.memory_seed = kSeed;
  EXPECT_EQ(engine->CreateSession(created, options)->memory_seed, kSeed);
  EXPECT_EQ(Feed(*engine, 30, 1, {}, created), want);
  EXPECT_EQ(Feed(*engine, 30, 1, kSeed, {}).logprobs, want.logprobs);

  const SessionKey usual = {"owner", "usual"}, same = {"owner", "same"};
  const Told without = Feed(*engine, 30, 1, {}, usual);
  EXPECT_FALSE(without == want) << "nothing here depends on the seed";
  EXPECT_EQ(SeedOf(*engine, usual), std::nullopt);
  EXPECT_EQ(Feed(*engine, 30, 1, kModelsSeed, same), without);
  EXPECT_EQ(SeedOf(*engine, same), kModelsSeed);
}

TEST_P(EngineSeedTest, ForksAndFilesKeepIt) {
  const auto engine = Start(model_), elsewhere = Start(model_), other = Start(of_seed_);
  const SessionKey fork = {"owner", "fork"}, unfed = {"owner", "unfed"}, file = {"owner", "file"};
  NewSession options;
  options.memory_seed = kSeed;
  EXPECT_EQ(engine->CreateSession(kSeeded, options).status(), absl::OkStatus());
  EXPECT_EQ(engine->ForkSession(kSeeded, unfed, absl::ZeroDuration())->memory_seed, kSeed);
  const std::string empty = Export(*engine, kSeeded);
  const Told first = Feed(*other, 20, 1), second = Feed(*other, 9, 2);
  EXPECT_EQ(Feed(*engine, 20, 1), first);
  EXPECT_EQ(Feed(*engine, 20, 1, {}, unfed), first);
  EXPECT_EQ(engine->ForkSession(kSeeded, fork, absl::ZeroDuration())->memory_seed, kSeed);
  const std::string whole = Export(*engine, kSeeded);
  EXPECT_EQ(Feed(*engine, 9, 2, {}, fork), second);

  const auto imported = elsewhere->ImportSession(kSeeded, absl::ZeroDuration(), whole);
  ASSERT_EQ(imported.status(), absl::OkStatus());
  EXPECT_EQ(imported->session.memory_seed, kSeed);
  EXPECT_EQ(Feed(*elsewhere, 9, 2), second);
  ASSERT_EQ(elsewhere->ImportSession(file, absl::ZeroDuration(), empty).status(), absl::OkStatus());
  EXPECT_EQ(SeedOf(*elsewhere, file), kSeed);
  EXPECT_EQ(Feed(*elsewhere, 20, 1, {}, file), first);

  // Forgetting writes a state anew.
  EXPECT_EQ(engine->ForgetSegments(kSeeded, 3, 5).status(), absl::OkStatus());
  const auto again = Start(of_seed_);
  Feed(*again, 20, 1);
  EXPECT_EQ(again->ForgetSegments(kSeeded, 3, 5).status(), absl::OkStatus());
  EXPECT_EQ(Feed(*engine, 9, 2), Feed(*again, 9, 2));
}

TEST_P(EngineSeedTest, FilesOfSessionsWithoutOneHaveNoTensorOfIt) {
  const auto engine = Start(model_);
  const SessionKey plain = {"owner", "plain"};
  Feed(*engine, 3, 1, kSeed);
  Feed(*engine, 3, 1, {}, plain);
  EXPECT_THAT(Export(*engine, kSeeded), HasSubstr("engrams.seed"));
  EXPECT_THAT(Export(*engine, plain), testing::Not(HasSubstr("engrams.seed")));
}

TEST_P(EngineSeedTest, StoredSessionsKeepItHoweverFarTheyGoBack) {
  const auto other = Start(of_seed_);
  const Told first = Feed(*other, 20, 1), second = Feed(*other, 9, 2);
  for (const int64_t snapshot_tokens : {int64_t{0}, int64_t{40}}) {
    SCOPED_TRACE(snapshot_tokens);
    const SessionKey key = {"owner", absl::StrCat("s", snapshot_tokens)};
    const SessionKey fork = {"owner", absl::StrCat("fork", snapshot_tokens)};
    {
      const auto engine = StartStored(snapshot_tokens);
      EXPECT_EQ(Feed(*engine, 20, 1, kSeed, key), first);
      engine->Drain(snapshot_tokens > 0 ? absl::Seconds(5) : absl::ZeroDuration());
    }
    {
      const auto engine = StartStored(snapshot_tokens);
      EXPECT_EQ(SeedOf(*engine, key), kSeed);
      EXPECT_EQ(engine->ListSessions({.owner = "owner", .name_prefix = key.name})
                    ->sessions.at(0)
                    .memory_seed,
                kSeed);
      EXPECT_EQ(Feed(*engine, 9, 2, {}, key), second);
      EXPECT_EQ(engine->ForkSessionAt(key, fork, absl::ZeroDuration(), {.position = 0}).status(),
                absl::OkStatus());
      EXPECT_EQ(SeedOf(*engine, fork), kSeed);
      // Within a turn.
      EXPECT_EQ(engine->RewindSession(key, {.position = 50}).status(), absl::OkStatus());
      EXPECT_EQ(SeedOf(*engine, key), kSeed);
      EXPECT_EQ(engine->RewindSession(key, {.position = 0}).status(), absl::OkStatus());
    }
    const auto engine = StartStored(snapshot_tokens);
    EXPECT_EQ(SeedOf(*engine, key), kSeed);
    EXPECT_EQ(Feed(*engine, 20, 1, kSeed, key), first);
    EXPECT_EQ(Feed(*engine, 20, 1, {}, fork), first);
  }
}

TEST_P(EngineSeedTest, AWholeConversationThatPartsKeepsIt) {
  for (const bool stores : {false, true}) {
    const auto engine = Start(
        model_, {.prefix_cache_memory_bytes = int64_t{64} << 20, .prefix_cache_least_tokens = 2},
        stores);
    const auto ask = [&](uint64_t text, std::optional<uint64_t> seed, const std::string& name) {
      Request request;
      request.session = {"owner", name};
      request.memory_seed = seed;
      request.whole_history = true;
      request.on_mismatch = OnMismatch::kReplace;
      request.prompt.at_start = RandomTokens(9 * segment_, kSeededVocab, 1);
      const std::vector<int32_t> rest = RandomTokens(20 * segment_, kSeededVocab, text);
      request.prompt.at_start.insert(request.prompt.at_start.end(), rest.begin(), rest.end());
      request.prompt.same_everywhere = true;
      request.sampling.temperature = 0;
      request.stop.max_tokens = 3 * segment_;
      request.stop.ignore_eos = true;
      request.logprobs = 0;
      const Outcome outcome = Collect(*engine->Submit(std::move(request)).value());
      EXPECT_EQ(outcome.status(), absl::OkStatus());
      return outcome.logprobs;
    };
    const std::vector<float> want = ask(5, kSeed, "straight");
    ask(3, kSeed, "edited");
    EXPECT_EQ(ask(5, {}, "edited"), want);
    EXPECT_EQ(SeedOf(*engine, {"owner", "edited"}), kSeed);
    EXPECT_NE(ask(5, {}, "usual"), want);
  }
}

TEST_P(EngineSeedTest, StatesBehindPromptsAreSharedByThoseOfOneSeed) {
  const EngineOptions options = {.prefix_cache_memory_bytes = int64_t{64} << 20,
                                 .prefix_cache_least_tokens = 2};
  const auto engine = Start(model_, options), other = Start(of_seed_);
  const Told want = Feed(*other, 30, 1);
  int sessions = 0;
  const auto feed = [&](std::optional<uint64_t> seed) {
    return Feed(*engine, 30, 1, seed, {"owner", absl::StrCat("s", ++sessions)});
  };
  const Told usual = feed({});
  const Told first = feed(kSeed);
  EXPECT_EQ(first.cached, 0) << "of another seed";
  EXPECT_EQ(first, want);
  const Told second = feed(kSeed);
  EXPECT_GT(second.cached, segment_);
  EXPECT_EQ(second, want);
  const Told same = feed(kModelsSeed);
  EXPECT_GT(same.cached, segment_) << "of the model's seed";
  EXPECT_EQ(same, usual);
  EXPECT_EQ(feed(kSeed + 1).cached, 0);
}

TEST_P(EngineSeedTest, AnotherSeedThanTheSessionsIsRefusedByName) {
  const auto engine = Start(model_);
  Feed(*engine, 2, 1, kSeed);
  const SessionKey usual = {"owner", "usual"};
  Feed(*engine, 2, 1, {}, usual);
  for (const auto& [key, seed] : {std::pair(kSeeded, kModelsSeed), std::pair(usual, kSeed)}) {
    const int64_t position = engine->GetSession(key)->position;
    const absl::Status refused = Ask(*engine, 1, 2, key, seed).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
    EXPECT_EQ(ReasonOf(refused), kReasonMemorySeed);
    EXPECT_THAT(std::string(refused.message()), HasSubstr(absl::StrCat(seed)));
    EXPECT_EQ(engine->GetSession(key)->position, position);
  }
  EXPECT_EQ(Ask(*engine, 1, 2, kSeeded, kSeed).status(), absl::OkStatus());
  EXPECT_EQ(Ask(*engine, 1, 2, usual, kModelsSeed).status(), absl::OkStatus());
}

TEST_P(EngineSeedTest, AModelThatDrawsNothingTakesNone) {
  const auto engine = Start(without_draws_);
  Request request;
  request.session = kSeeded;
  request.memory_seed = 7;
  request.prompt.at_start = {1, 2, 3};
  request.prompt.same_everywhere = true;
  request.stop.max_tokens = 1;
  const absl::Status refused = engine->Submit(request).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldOf(refused), "session.memory_seed");
  NewSession options;
  options.memory_seed = 7;
  EXPECT_EQ(FieldOf(engine->CreateSession(kSeeded, options).status()), "memory_seed");
  EXPECT_EQ(engine->ListSessions({})->sessions.size(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Backends, EngineSeedTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace mneme
