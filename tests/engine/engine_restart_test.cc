// Every model_type behind an engine that is ended between turns: from its snapshots, and from its
// log alone, it says what one says that went on, bit for bit on the host.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "gtest/gtest.h"
#include "models/architecture.h"
#include "tests/engine/session_storage.h"
#include "tests/models/conformance_specs.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

class EngineRestartTest : public testing::TestWithParam<const Architecture*> {
 protected:
  EngineRestartTest() { SetMinLogSeverity(LogSeverity::kError); }

  std::unique_ptr<Engine> Start(const TestFolder& model, const std::string& sessions,
                                int64_t snapshot_tokens) {
    std::unique_ptr<Backend> backend = MakeBackend("cpu", {.threads = 1}).value();
    auto loaded = LoadModel(model.path(), *backend, nullptr, {.max_context = 256});
    CHECK_OK(loaded.status());
    SessionStorage storage;
    if (!sessions.empty()) {
      StoreReport report;
      storage = StorageIn(sessions, report);
      EXPECT_TRUE(report.damage.empty() && report.lost.empty());
    }
    auto engine = Engine::Create(std::move(backend), *std::move(loaded), /*tokenizer=*/nullptr, {},
                                 {.max_sessions = 2,
                                  .snapshot_tokens = snapshot_tokens,
                                  .max_rows = 2,
                                  .max_tokens_per_step = 256},
                                 clock_, std::move(storage));
    CHECK_OK(engine.status());
    return *std::move(engine);
  }

  static std::vector<int32_t> Turn(Engine& engine, int number, int64_t* replayed = nullptr) {
    Request request;
    // Enough that snapshots of attention's rows go on from those before.
    const int length = number == 0 ? 100 : 15;
    request.prompt.at_start = RandomTokens(length, engine.model_info().vocab, 100 + number);
    Usage usage;
    std::vector<int32_t> said = Ask(engine, std::move(request), usage);
    if (replayed != nullptr) *replayed = usage.replayed_tokens;
    return said;
  }

  // Sends all of a conversation and another message, and puts the answer behind them.
  static Usage TurnWhole(Engine& engine, std::vector<int32_t>& told, int number) {
    const std::vector<int32_t> more = RandomTokens(15, engine.model_info().vocab, 100 + number);
    told.insert(told.end(), more.begin(), more.end());
    Request request;
    request.prompt.at_start = told;
    request.whole_history = true;
    request.on_mismatch = OnMismatch::kReplace;
    Usage usage;
    const std::vector<int32_t> said = Ask(engine, std::move(request), usage);
    told.insert(told.end(), said.begin(), said.end());
    return usage;
  }

  static std::vector<int32_t> Ask(Engine& engine, Request request, Usage& usage) {
    request.session.name = "s";
    request.prompt.same_everywhere = true;
    request.sampling.temperature = 0;
    request.stop.max_tokens = 6;
    auto stream = engine.Submit(std::move(request)).value();
    std::vector<int32_t> tokens;
    while (true) {
      const std::optional<TokenEvent> event = stream->Next(absl::Seconds(60));
      if (!event.has_value()) {
        ADD_FAILURE() << "nothing came for a minute";
        return tokens;
      }
      tokens.insert(tokens.end(), event->token_ids.begin(), event->token_ids.end());
      if (!event->is_last) continue;
      EXPECT_EQ(event->status, absl::OkStatus());
      usage = event->usage;
      return tokens;
    }
  }

  // Of the session, those that are not whole without an earlier one.
  static int64_t SnapshotsThatGoOn(const std::string& sessions) {
    PosixFileSystem files;
    StoreReport report;
    const auto store = SessionStore::Open(files, sessions, {}, report).value();
    const auto snapshots = store->ReadSnapshots(store->Find("", "s")->id).value();
    return std::count_if(snapshots.begin(), snapshots.end(),
                         [](const SnapshotRecord& one) { return one.base != 0; });
  }

  RealClock clock_;
};

TEST_P(EngineRestartTest, ASessionGoesOnAsIfTheEngineHadNotEnded) {
  constexpr int kTurns = 3;
  for (const ModelSpec& spec : ConformanceSpecs(GetParam()->model_type)) {
    SCOPED_TRACE(spec.config.dump());
    const TestFolder model;
    MakeFolder(spec, model);
    std::vector<std::vector<int32_t>> want;
    {
      const auto engine = Start(model, "", 0);
      if (engine->model_info().classes.exist()) return;  // it keeps no sessions
      for (int turn = 0; turn < kTurns; ++turn) want.push_back(Turn(*engine, turn));
    }
    for (const bool drains : {false, true}) {
      const TestFolder sessions;
      for (int turn = 0; turn < kTurns; ++turn) {
        const auto engine = Start(model, sessions.path() + "/store", 0);
        int64_t replayed = 0;
        EXPECT_EQ(Turn(*engine, turn, &replayed), want[turn]) << "turn " << turn;
        EXPECT_EQ(replayed, drains || turn == 0 ? 0 : 85 + 21 * turn - 1);
        if (drains) engine->Drain(absl::Seconds(60));
      }
      if (drains && absl::string_view(GetParam()->model_type) == "llama") {
        EXPECT_GT(SnapshotsThatGoOn(sessions.path() + "/store"), 0);
      }
    }
  }
}

// From the snapshot in front of the edit, and from the log alone. What is stored then leads to the
// same state, as its digest tells when it is fed again.
TEST_P(EngineRestartTest, AnEditedConversationIsAsIfItHadBeenSentAtOnce) {
  for (const ModelSpec& spec : ConformanceSpecs(GetParam()->model_type)) {
    SCOPED_TRACE(spec.config.dump());
    const TestFolder model;
    MakeFolder(spec, model);
    for (const bool drains : {false, true}) {
      const TestFolder sessions;
      const auto start = [&] { return Start(model, sessions.path() + "/store", 0); };
      std::vector<int32_t> told;
      auto engine = start();
      if (engine->model_info().classes.exist()) return;  // it keeps no sessions
      for (int turn = 0; turn < 2; ++turn) TurnWhole(*engine, told, turn);
      if (drains) engine->Drain(absl::Seconds(60));
      std::vector<int32_t> edited = told, alone = told;
      engine.reset();
      engine = start();
      TurnWhole(*engine, told, 2);
      engine.reset();
      engine = start();
      const Usage usage = TurnWhole(*engine, edited, 3);
      EXPECT_EQ(usage.rewound_from, static_cast<int64_t>(told.size()));
      EXPECT_EQ(usage.resumed_tokens, drains ? 2 * 21 - 1 : 0);
      EXPECT_EQ(usage.resumed_tokens + usage.fed_tokens, static_cast<int64_t>(edited.size()) - 1);
      TurnWhole(*Start(model, "", 0), alone, 3);
      EXPECT_EQ(edited, alone);
      engine.reset();
      engine = start();
      EXPECT_EQ(TurnWhole(*engine, edited, 4).rewound_from, 0);
      engine.reset();
      TurnWhole(*Start(model, "", 0), alone, 4);
      EXPECT_EQ(edited, alone);
    }
  }
}

// No log leads to a state that came in a file: it is a snapshot before it is answered, and the log
// goes on from there.
TEST_P(EngineRestartTest, AnImportedSessionIsDurableFromTheFirst) {
  const TestFolder model, sessions;
  const ModelSpec spec = ConformanceSpecs(GetParam()->model_type).front();
  MakeFolder(spec, model);
  std::vector<std::vector<int32_t>> want;
  std::string file;
  {
    const auto engine = Start(model, "", 0);
    if (engine->model_info().classes.exist()) return;  // it keeps no sessions
    Turn(*engine, 0);
    const auto source = engine->ExportSession({.name = "s"});
    ASSERT_TRUE(source.ok()) << source.status();
    for (std::string piece = (*source)->Next(); !piece.empty(); piece = (*source)->Next()) {
      file += piece;
    }
    for (int turn = 1; turn < 3; ++turn) want.push_back(Turn(*engine, turn));
  }
  const std::string store = sessions.path() + "/store";
  {
    const auto engine = Start(model, store, 0);
    const auto imported = engine->ImportSession({.name = "s"}, absl::ZeroDuration(), file);
    ASSERT_TRUE(imported.ok()) << imported.status();
    EXPECT_EQ(imported->session.durability, Durability::kTurn);
    // Answers say of its bytes what is durable by then.
    const int64_t stored = imported->session.stored_bytes;
    EXPECT_GT(stored, 0);
    EXPECT_EQ(engine->GetSession({.name = "s"})->stored_bytes, stored);
    EXPECT_EQ(engine->ForkSession({.name = "s"}, {.name = "t"}, absl::ZeroDuration())->stored_bytes,
              stored);
    const auto listed = engine->ListSessions({.owner = ""});
    ASSERT_TRUE(listed.ok()) << listed.status();
    EXPECT_EQ(listed->sessions.at(1).stored_bytes, stored);
    EXPECT_EQ(listed->usage.stored_bytes, 2 * stored);
    EXPECT_EQ(engine->store()->UsageOfAll().bytes, 2 * stored);
  }
  for (int turn = 1; turn < 3; ++turn) {
    const auto engine = Start(model, store, 0);
    int64_t replayed = 0;
    EXPECT_EQ(Turn(*engine, turn, &replayed), want[turn - 1]) << "turn " << turn;
    EXPECT_EQ(replayed, turn == 1 ? 0 : 21) << "from where it came in";
  }
}

INSTANTIATE_TEST_SUITE_P(ModelTypes, EngineRestartTest,
                         testing::ValuesIn(ArchitecturesThat(/*classify=*/false)),
                         [](const auto& tested) {
                           std::string name(tested.param->model_type);
                           for (char& c : name) c = c == '-' || c == '.' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace mneme
