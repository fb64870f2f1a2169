// Segments that a stored session forgets: no byte of their tokens is left on the disk, and the
// session goes on from there, also after a kill.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
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
#include "store/record.h"
#include "store/slab_file.h"
#include "tests/engine/outcome.h"
#include "tests/engine/session_storage.h"
#include "tests/models/matrix_spec.h"
#include "tests/models/memoria_state.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"

namespace mneme {
namespace {

constexpr int kVocab = 259;
const SessionKey kKey = {"owner", "s"};

class EngineForgetTest : public testing::Test {
 protected:
  EngineForgetTest() {
    SetMinLogSeverity(LogSeverity::kFatal);
    MakeFolder(MatrixSpec("gpt2_with_memoria"), model_);
    segment_ = ReadMemoriaConfig(model_.path()).segment;
  }

  std::unique_ptr<Engine> Start(const std::string& sessions, Durability durability) {
    std::unique_ptr<Backend> backend = MakeBackend("cpu", {.threads = 1}).value();
    auto loaded = LoadModel(model_.path(), *backend, nullptr, {});
    CHECK_OK(loaded.status());
    SessionStorage storage;
    if (!sessions.empty()) {
      StoreReport report;
      storage = StorageIn(sessions, report);
    }
    auto engine = Engine::Create(std::move(backend), *std::move(loaded), /*tokenizer=*/nullptr, {},
                                 {.max_sessions = 4,
                                  .prefix_cache_memory_bytes = int64_t{64} << 20,
                                  .prefix_cache_least_tokens = 2,
                                  .durability = durability,
                                  .snapshot_tokens = 8,
                                  .max_rows = 2,
                                  .max_tokens_per_step = 64,
                                  .history_tokens = 64},
                                 clock_, std::move(storage));
    CHECK_OK(engine.status());
    return *std::move(engine);
  }
  static Outcome Ask(Engine& engine, std::vector<int32_t> prompt, const std::string& key = "",
                     const std::string& session = "s") {
    Request request;
    request.session = {kKey.owner, session};
    request.prompt.at_start = std::move(prompt);
    request.prompt.same_everywhere = true;
    request.idempotency_key = key;
    request.sampling.temperature = 0;
    request.sampling.frequency_penalty = 0.3f;
    request.stop.max_tokens = 3;
    request.stop.ignore_eos = true;
    return Collect(*engine.Submit(std::move(request)).value());
  }
  std::vector<int32_t> Text(int segments, uint64_t seed) const {
    return RandomTokens(segments * segment_, kVocab, seed);
  }
  // What is on the disk at this moment, as after a kill.
  static std::string Copy(const std::string& sessions, const std::string& to) {
    std::filesystem::copy(sessions, to, std::filesystem::copy_options::recursive);
    std::filesystem::remove(to + "/lock");
    return to;
  }
  // Whether these tokens lie in a row in a file: in the log, or in the history of a snapshot.
  static bool IsStored(const std::string& sessions, std::span<const int32_t> tokens) {
    RecordWriter logged, marked;
    for (const int32_t token : tokens) {
      logged.Varint(static_cast<uint32_t>(token));
      marked.Signed(token);
    }
    const std::string in_log = std::move(logged).Values(), in_history = std::move(marked).Values();
    PosixFileSystem files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(sessions)) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      if (absl::StrContains(bytes, in_log)) return true;
      if (entry.path().extension() != ".slab") continue;
      const auto slab = SlabReader::Open(files, entry.path().string());
      if (!slab.ok()) continue;  // just removed
      std::string history((*slab)->sections().at(1).raw_bytes, '\0');
      CHECK_OK((*slab)->ReadSection("history", std::as_writable_bytes(std::span(history))));
      if (absl::StrContains(history, in_history)) return true;
    }
    return false;
  }

  TestFolder model_, folder_;
  int64_t segment_ = 0;
  RealClock clock_;
};

TEST_F(EngineForgetTest, NothingOfItIsOnTheDiskWhenItIsAnswered) {
  const std::string sessions = folder_.path() + "/sessions";
  const std::vector<int32_t> secret = Text(2, 1), later = Text(2, 2), next = Text(1, 3);
  const auto forgets = [&](Engine& engine) {
    EXPECT_EQ(Ask(engine, secret, "told").status(), absl::OkStatus());
    EXPECT_EQ(Ask(engine, later).status(), absl::OkStatus());
    const auto forgotten = engine.ForgetSegments(kKey, 0, 2);
    EXPECT_EQ(forgotten.status(), absl::OkStatus());
    EXPECT_GT(forgotten->short_term + forgotten->working + forgotten->long_term, 0);
  };
  std::vector<int32_t> want;
  {
    const auto engine = Start("", Durability::kNone);
    forgets(*engine);
    want = Ask(*engine, next).tokens;
  }
  const auto engine = Start(sessions, Durability::kTurn);
  EXPECT_EQ(Ask(*engine, secret, "told").status(), absl::OkStatus());
  EXPECT_EQ(Ask(*engine, later).status(), absl::OkStatus());
  const std::span<const int32_t> some = std::span(secret).subspan(1, 8);
  EXPECT_TRUE(IsStored(sessions, some));
  EXPECT_TRUE(IsStored(sessions, std::span(later).first(8)));
  const int64_t position = engine->GetSession(kKey)->position;
  EXPECT_EQ(engine->ForgetSegments(kKey, 0, 2).status(), absl::OkStatus());
  EXPECT_FALSE(IsStored(sessions, some));

  // Killed at that moment, it goes on as it does without a store.
  const std::string killed = Copy(sessions, folder_.path() + "/killed");
  EXPECT_EQ(Ask(*engine, next).tokens, want);
  const auto after = Start(killed, Durability::kTurn);
  EXPECT_EQ(after->GetSession(kKey)->position, position);
  const Outcome outcome = Ask(*after, next);
  EXPECT_EQ(outcome.tokens, want);
  EXPECT_EQ(outcome.usage().replayed_tokens, 0);
  EXPECT_FALSE(IsStored(killed, some));
  // A request whose answer is gone is neither answered nor fed again, and told why.
  for (Engine* const server : {engine.get(), after.get()}) {
    const int64_t stands = server->GetSession(kKey)->position;
    const Outcome again = Ask(*server, secret, "told");
    EXPECT_TRUE(absl::IsAborted(again.status())) << again.status();
    EXPECT_EQ(ReasonOf(again.status()), "IDEMPOTENCY_REPLY_FORGOTTEN");
    EXPECT_TRUE(absl::StrContains(again.status().message(), "nothing was fed again"))
        << again.status();
    EXPECT_EQ(again.tokens.size(), 0u);
    EXPECT_EQ(server->GetSession(kKey)->position, stands);
  }
}

// Going back to before it would bring its engrams to life again.
TEST_F(EngineForgetTest, ARangeWhoseEngramsHaveDiedIsForgottenToo) {
  const std::string sessions = folder_.path() + "/sessions";
  const auto engine = Start(sessions, Durability::kTurn);
  const std::vector<int32_t> secret = Text(2, 1);
  EXPECT_EQ(Ask(*engine, secret, "told").status(), absl::OkStatus());
  EXPECT_EQ(engine->CreateCheckpoint(kKey, "early").status(), absl::OkStatus());
  const int64_t early = engine->GetSession(kKey)->position;
  const auto left = [&] {
    const auto view = engine->InspectMemory(kKey, {.engrams = EngramsQuery()});
    return std::ranges::count_if(view->engrams,
                                 [](const EngramRow& row) { return row.source.segment < 2; });
  };
  for (int i = 0; left() > 0; ++i) {
    ASSERT_LT(i, 60) << "its engrams do not die";
    EXPECT_EQ(Ask(*engine, Text(2, 10 + static_cast<uint64_t>(i))).status(), absl::OkStatus());
  }
  const std::span<const int32_t> some = std::span(secret).subspan(1, 8);
  EXPECT_TRUE(IsStored(sessions, some));
  EXPECT_EQ(engine->CreateCheckpoint(kKey, "late").status(), absl::OkStatus());
  const int64_t position = engine->GetSession(kKey)->position;

  const auto forgotten = engine->ForgetSegments(kKey, 0, 2);
  ASSERT_EQ(forgotten.status(), absl::OkStatus());
  EXPECT_EQ(forgotten->total(), 0);
  EXPECT_EQ(forgotten->checkpoints, (std::vector<std::string>{"early", "late"}));
  EXPECT_FALSE(IsStored(sessions, some));
  EXPECT_EQ(engine->ListCheckpoints(kKey)->size(), 0u);

  // It says why it cannot go back, also once it has gone on and come back from the store.
  EXPECT_EQ(Ask(*engine, Text(1, 3)).status(), absl::OkStatus());
  const auto after = Start(Copy(sessions, folder_.path() + "/killed"), Durability::kTurn);
  const std::string reason = absl::StrCat("it stood at position ", position,
                                          " when it forgot positions 0 to ", 2 * segment_ - 1);
  for (const absl::Status& status :
       {after->RewindSession(kKey, {.position = early}).status(),
        after->ForkSessionAt(kKey, {kKey.owner, "f"}, absl::ZeroDuration(), {.position = early})
            .status(),
        after->RewindSession(kKey, {.checkpoint = "early"}).status()}) {
    EXPECT_TRUE(absl::StrContains(status.message(), reason)) << status;
  }
  EXPECT_EQ(ReasonOf(after->RewindSession(kKey, {.position = early}).status()),
            kReasonPositionGone);
  EXPECT_EQ(after->RewindSession(kKey, {.position = position}).status(), absl::OkStatus());
}

TEST_F(EngineForgetTest, StatesBehindItsPromptAreForgottenToo) {
  const auto engine = Start(folder_.path() + "/sessions", Durability::kTurn);
  const std::vector<int32_t> prompt = Text(4, 1);
  Ask(*engine, prompt);
  Ask(*engine, prompt, "", "other");
  const int64_t before = Ask(*engine, prompt, "", "third").usage().cached_tokens;
  EXPECT_GT(before, segment_);
  EXPECT_EQ(engine->ForgetSegments(kKey, 1, 2).status(), absl::OkStatus());
  EXPECT_LE(Ask(*engine, prompt, "", "fourth").usage().cached_tokens, segment_);
}

// A client whose answer was lost asks again.
TEST_F(EngineForgetTest, ARangeThatWasForgottenIsForgottenAgainAtNoCost) {
  const std::string sessions = folder_.path() + "/sessions";
  const auto engine = Start(sessions, Durability::kTurn);
  EXPECT_EQ(Ask(*engine, Text(5, 1)).status(), absl::OkStatus());
  EXPECT_EQ(engine->ForgetSegments(kKey, 0, 1).status(), absl::OkStatus());
  EXPECT_EQ(engine->ForgetSegments(kKey, 3, 4).status(), absl::OkStatus());
  EXPECT_EQ(engine->ForgetSegments(kKey, 1, 2).status(), absl::OkStatus());
  const int64_t position = engine->GetSession(kKey)->position;
  EXPECT_EQ(Ask(*engine, Text(1, 2)).status(), absl::OkStatus());
  EXPECT_EQ(engine->CreateCheckpoint(kKey, "since").status(), absl::OkStatus());
  const auto after = Start(Copy(sessions, folder_.path() + "/killed"), Durability::kTurn);
  for (Engine* const server : {engine.get(), after.get()}) {
    for (const auto& [first, end] : {std::pair(0, 1), std::pair(3, 4), std::pair(0, 2)}) {
      const auto again = server->ForgetSegments(kKey, first, end);
      ASSERT_EQ(again.status(), absl::OkStatus());
      EXPECT_EQ(again->total(), 0);
      EXPECT_TRUE(again->checkpoints.empty());
    }
    EXPECT_EQ(server->ListCheckpoints(kKey)->size(), 1u);
    EXPECT_EQ(server->RewindSession(kKey, {.position = position}).status(), absl::OkStatus());
  }
  // More than that was not forgotten yet.
  EXPECT_GT(engine->ForgetSegments(kKey, 0, 3)->total(), 0);
}

TEST_F(EngineForgetTest, WhatIsNotDurableLeavesASnapshotOfWhatItIsThen) {
  const std::string sessions = folder_.path() + "/sessions";
  const std::vector<int32_t> secret = Text(2, 1), next = Text(1, 3);
  const auto forgets = [&](Engine& engine) {
    EXPECT_EQ(Ask(engine, secret).status(), absl::OkStatus());
    for (int i = 0; i < 6; ++i) Ask(engine, Text(1, 10 + i), "", absl::StrCat("other", i));
    // Where there is a store, it was parked there meanwhile, and comes back to forget.
    EXPECT_EQ(engine.ForgetSegments(kKey, 0, 1).status(), absl::OkStatus());
  };
  std::vector<int32_t> want;
  {
    const auto engine = Start(folder_.path() + "/elsewhere", Durability::kTurn);
    forgets(*engine);
    want = Ask(*engine, next).tokens;
  }
  const auto engine = Start(sessions, Durability::kNone);
  forgets(*engine);
  EXPECT_FALSE(IsStored(sessions, std::span(secret).subspan(1, 8)));
  const std::string killed = Copy(sessions, folder_.path() + "/killed");
  EXPECT_EQ(Ask(*engine, next).tokens, want);
  EXPECT_EQ(Ask(*Start(killed, Durability::kNone), next).tokens, want);
  // Its next turn is behind that.
  const auto after = Start(Copy(sessions, folder_.path() + "/later"), Durability::kNone);
  EXPECT_EQ(ReasonOf(Ask(*after, next).status()), kReasonSessionLost);
}

TEST_F(EngineForgetTest, LookingAtWhatIsParkedChangesNothing) {
  const std::string sessions = folder_.path() + "/sessions";
  const std::vector<int32_t> first = Text(2, 1), next = Text(1, 3);
  std::vector<int32_t> want;
  {
    const auto engine = Start("", Durability::kNone);
    Ask(*engine, first);
    want = Ask(*engine, next).tokens;
  }
  const auto engine = Start(sessions, Durability::kNone);
  Ask(*engine, first);
  for (int i = 0; i < 6; ++i) Ask(*engine, Text(1, 10 + i), "", absl::StrCat("other", i));
  EXPECT_EQ(engine->InspectMemory(kKey, {.engrams = EngramsQuery()}).status(), absl::OkStatus());
  EXPECT_EQ(ReasonOf(engine->ForgetSegments(kKey, 0, 99).status()), kReasonSegmentOpen);
  const auto after = Start(Copy(sessions, folder_.path() + "/looked"), Durability::kNone);
  EXPECT_EQ(Ask(*after, next).tokens, want);
  // It stays so when its slab is wanted again, and until it is fed.
  for (int i = 0; i < 6; ++i) Ask(*engine, Text(1, 20 + i), "", absl::StrCat("other", i));
  EXPECT_EQ(Ask(*engine, next).tokens, want);
  const auto later = Start(Copy(sessions, folder_.path() + "/fed"), Durability::kNone);
  EXPECT_EQ(ReasonOf(Ask(*later, next).status()), kReasonSessionLost);
}

}  // namespace
}  // namespace mneme
