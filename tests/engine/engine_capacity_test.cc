// Stored sessions of a model that makes engrams, and a server that is started again with room for
// another number of them.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/status_payload.h"
#include "gtest/gtest.h"
#include "tests/engine/outcome.h"
#include "tests/engine/session_storage.h"
#include "tests/models/matrix_spec.h"
#include "tests/models/memoria_state.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"

namespace mneme {
namespace {

constexpr int kCapacityVocab = 259;
constexpr int kUsual = 64, kMore = 128, kWithHistory = 2112, kFew = 13;
const SessionKey kOfCapacity = {"owner", "s"};

class EngineCapacityTest : public testing::Test {
 protected:
  EngineCapacityTest() {
    SetMinLogSeverity(LogSeverity::kFatal);
    MakeFolder(MatrixSpec("gpt2_with_memoria"), model_);
    segment_ = ReadMemoriaConfig(model_.path()).segment;
  }

  std::unique_ptr<Engine> Start(int capacity, int64_t snapshot_tokens = 0) {
    std::unique_ptr<Backend> backend = MakeBackend("cpu", {.threads = 1}).value();
    auto loaded = LoadModel(model_.path(), *backend, nullptr, {.engram_capacity = capacity});
    CHECK_OK(loaded.status());
    StoreReport report;
    auto engine = Engine::Create(std::move(backend), *std::move(loaded), /*tokenizer=*/nullptr, {},
                                 {.max_sessions = 4,
                                  .durability = Durability::kTurn,
                                  .snapshot_tokens = snapshot_tokens,
                                  .max_rows = 2,
                                  .max_tokens_per_step = 64,
                                  .history_tokens = 64},
                                 clock_, StorageIn(folder_.path() + "/sessions", report));
    CHECK_OK(engine.status());
    return *std::move(engine);
  }
  Outcome Feed(Engine& engine, int segments, uint64_t seed, const std::string& session = "s") {
    Request request;
    request.session = {kOfCapacity.owner, session};
    request.prompt.at_start = RandomTokens(segments * segment_, kCapacityVocab, seed);
    request.prompt.same_everywhere = true;
    request.sampling.temperature = 0;
    request.stop.max_tokens = 9;
    request.stop.ignore_eos = true;
    return Collect(*engine.Submit(std::move(request)).value());
  }
  // That the session is refused in whatever way it is asked for, by both numbers, and is still
  // stored.
  void ExpectRefused(Engine& engine, int had, int has) {
    const Outcome outcome = Feed(engine, 1, 3);
    for (const absl::Status& status :
         {outcome.status(), engine.InspectMemory(kOfCapacity, {}).status()}) {
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_EQ(ReasonOf(status), kReasonEngramCapacity);
      const auto says = [&](absl::string_view what) {
        EXPECT_TRUE(absl::StrContains(status.message(), what)) << status;
      };
      says(absl::StrCat("room for ", had, " engrams"));
      says(absl::StrCat("room for ", has, " (--engram-capacity)"));
      EXPECT_FALSE(absl::StrContains(status.message(), folder_.path())) << status;
    }
    const auto page = engine.ListSessions({.owner = kOfCapacity.owner});
    ASSERT_EQ(page->sessions.size(), 1u);
    EXPECT_EQ(page->sessions[0].residence, Residence::kStored);
  }

  TestFolder model_, folder_;
  int64_t segment_ = 0;
  RealClock clock_;
};

TEST_F(EngineCapacityTest, MoreRoomReplaysTheLogToTheSameState) {
  std::vector<int32_t> want;
  {
    const auto engine = Start(kUsual);
    Feed(*engine, 9, 1);
    Feed(*engine, 2, 2, "other");
    want = Feed(*engine, 1, 3).tokens;
    EXPECT_EQ(Feed(*engine, 9, 1, "twin").status(), absl::OkStatus());
    engine->Drain(absl::Seconds(5));
  }
  for (const int capacity : {kMore, kWithHistory, kUsual}) {
    const auto engine = Start(capacity, 8);
    const auto shown = engine->InspectMemory({kOfCapacity.owner, "twin"}, {});
    ASSERT_EQ(shown.status(), absl::OkStatus());
    EXPECT_EQ(shown->summary.capacity, capacity);
    EXPECT_EQ(shown->summary.evictions, 0);
    const SessionKey fork = {kOfCapacity.owner, absl::StrCat("fork", capacity)};
    ASSERT_EQ(engine->ForkSession({kOfCapacity.owner, "twin"}, fork, absl::ZeroDuration()).status(),
              absl::OkStatus());
    const Outcome outcome = Feed(*engine, 1, 3, fork.name);
    EXPECT_EQ(outcome.status(), absl::OkStatus());
    EXPECT_EQ(outcome.tokens, want);
    engine->Drain(absl::Seconds(5));
  }
}

TEST_F(EngineCapacityTest, WhatWasEvictedThereIsNotForgottenHere) {
  std::vector<int32_t> want;
  {
    const auto engine = Start(kFew);
    const Outcome outcome = Feed(*engine, 20, 1);
    EXPECT_TRUE(outcome.usage().memory_evicted);
    const auto forked = engine->ForkSession(kOfCapacity, {"other", "s"}, absl::ZeroDuration());
    EXPECT_EQ(forked.status(), absl::OkStatus());
    want = Feed(*engine, 1, 3).tokens;
    engine->Drain(absl::Seconds(5));
  }
  ExpectRefused(*Start(kMore), kFew, kMore);
  const auto engine = Start(kFew);
  Request request;
  request.session = {"other", "s"};
  request.prompt.at_start = RandomTokens(segment_, kCapacityVocab, 3);
  request.prompt.same_everywhere = true;
  request.sampling.temperature = 0;
  request.stop.max_tokens = 9;
  request.stop.ignore_eos = true;
  EXPECT_EQ(Collect(*engine->Submit(std::move(request)).value()).tokens, want);
}

TEST_F(EngineCapacityTest, WhatHasNoPlaceHereStaysWhereItIs) {
  {
    const auto engine = Start(kMore);
    EXPECT_FALSE(Feed(*engine, 20, 1).usage().memory_evicted);
    engine->Drain(absl::Seconds(5));
  }
  ExpectRefused(*Start(kFew), kMore, kFew);
  ExpectRefused(*Start(kFew), kMore, kFew);
  const auto engine = Start(kMore);
  const Outcome outcome = Feed(*engine, 1, 3);
  EXPECT_EQ(outcome.status(), absl::OkStatus());
  EXPECT_FALSE(outcome.usage().memory_evicted);
}

TEST_F(EngineCapacityTest, AFileGoesOnWithOtherRoomThatItsEngramsFitIn) {
  const auto exports = [&](int capacity, int segments, std::vector<int32_t>& want) {
    const auto engine = Start(capacity);
    Feed(*engine, segments, 1, absl::StrCat("of", capacity));
    const SessionKey key = {kOfCapacity.owner, absl::StrCat("of", capacity)};
    auto source = engine->ExportSession(key);
    CHECK_OK(source.status());
    std::string file;
    for (std::string piece = (*source)->Next(); !piece.empty(); piece = (*source)->Next()) {
      file += piece;
    }
    want = Feed(*engine, 9, 3, key.name).tokens;
    engine->Drain(absl::Seconds(5));
    return file;
  };
  const SessionKey to = {kOfCapacity.owner, "copy"};
  for (const auto& [had, has] : {std::pair(kUsual, kMore), std::pair(kMore, kUsual),
                                 std::pair(kWithHistory, kMore), std::pair(kUsual, kUsual)}) {
    SCOPED_TRACE(absl::StrCat(had, " to ", has));
    std::vector<int32_t> want;
    const std::string file = exports(had, 12, want);
    {
      const auto engine = Start(has);
      EXPECT_LE(static_cast<int64_t>(file.size()), engine->max_session_file_bytes());
      const auto imported = engine->ImportSession(to, absl::ZeroDuration(), file);
      ASSERT_EQ(imported.status(), absl::OkStatus());
      EXPECT_EQ(imported->file_engram_capacity, had);
      EXPECT_EQ(imported->engram_capacity, has);
      EXPECT_EQ(imported->rounded_tensors, 0);
      EXPECT_EQ(engine->InspectMemory(to, {})->summary.capacity, has);
      const SessionKey fork = {to.owner, absl::StrCat("fork", had, has)};
      EXPECT_EQ(engine->ForkSession(to, fork, absl::ZeroDuration()).status(), absl::OkStatus());
      EXPECT_EQ(Feed(*engine, 9, 3, fork.name).tokens, want);
      engine->Drain(absl::Seconds(5));
    }
    const auto engine = Start(has);  // and from the store
    EXPECT_EQ(Feed(*engine, 9, 3, to.name).tokens, want);
    EXPECT_EQ(engine->DeleteSession(to), absl::OkStatus());
  }
}

TEST_F(EngineCapacityTest, AFileWhoseEngramsDoNotFitIsRefusedByBothNumbers) {
  std::string file;
  {
    const auto engine = Start(kUsual);
    Feed(*engine, 20, 1);
    auto source = engine->ExportSession(kOfCapacity);
    ASSERT_EQ(source.status(), absl::OkStatus());
    for (std::string piece = (*source)->Next(); !piece.empty(); piece = (*source)->Next()) {
      file += piece;
    }
    engine->Drain(absl::Seconds(5));
  }
  const SessionKey to = {kOfCapacity.owner, "copy"};
  for (const int has : {kFew, kWithHistory}) {
    const auto engine = Start(has);
    const absl::Status refused = engine->ImportSession(to, absl::ZeroDuration(), file).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_EQ(ReasonOf(refused), kReasonEngramCapacity);
    EXPECT_TRUE(absl::StrContains(
        refused.message(),
        absl::StrCat("room for ", kUsual, " engrams, and a session here has room for ", has,
                     " (--engram-capacity)")))
        << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(),
                                  absl::StrCat("--engram-capacity ", kUsual, " takes it in")))
        << refused;
    EXPECT_TRUE(absl::IsNotFound(engine->GetSession(to).status()));
  }
  EXPECT_EQ(Start(kUsual)->ImportSession(to, absl::ZeroDuration(), file).status(),
            absl::OkStatus());
}

TEST_F(EngineCapacityTest, ALogThatWasCutIsNotFedAgain) {
  {
    const auto engine = Start(kUsual);
    Feed(*engine, 6, 1);
    EXPECT_EQ(engine->ForgetSegments(kOfCapacity, 0, 1).status(), absl::OkStatus());
    engine->Drain(absl::Seconds(5));
  }
  ExpectRefused(*Start(kMore), kUsual, kMore);
  EXPECT_EQ(Feed(*Start(kUsual), 1, 3).status(), absl::OkStatus());
}

}  // namespace
}  // namespace mneme
