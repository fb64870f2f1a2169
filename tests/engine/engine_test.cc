// The engine as its users see it: threads, blocking commands, shutdown.
#include "engine/engine.h"

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/status_payload.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"
#include "tests/support/fake_model.h"

namespace mneme {
namespace {

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() { SetMinLogSeverity(LogSeverity::kFatal); }

  std::unique_ptr<Engine> Make(EngineOptions options, FakeModelOptions model = {}) {
    return Engine::Create(std::make_unique<FaultyBackend>(), std::make_unique<FakeModel>(model),
                          nullptr, {}, options, clock)
        .value();
  }

  static Answer Collect(TokenStream& stream) {
    Answer answer;
    while (!answer.ended) {
      std::optional<TokenEvent> event = stream.Next(absl::Seconds(60));
      if (!event.has_value()) {
        ADD_FAILURE() << "nothing came for a minute";
        break;
      }
      answer.Add(*std::move(event));
    }
    return answer;
  }

  RealClock clock;
};

EngineOptions Small() {
  return {.max_sessions = 8,
          .max_rows = 4,
          .max_tokens_per_step = 16,
          .max_logit_rows_per_step = 8,
          .stream_capacity_events = 8};
}

TEST_F(EngineTest, AnswersAndKeepsSessions) {
  auto engine = Make(Small());
  EXPECT_EQ(engine->capacity().sessions, 8);
  const Answer answer = Collect(*engine->Submit(Greedy({1, 2}, 5, "s")).value());
  EXPECT_EQ(answer.status(), absl::OkStatus());
  EXPECT_EQ(engine->GetSession({"", "s"})->position, 7);
  EXPECT_EQ(engine->ForkSession({"", "s"}, {"", "t"}, absl::ZeroDuration())->position, 7);
  EXPECT_EQ(engine->ListSessions({.owner = ""})->total, 2);
  EXPECT_EQ(engine->DeleteSession({"", "s"}), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(engine->GetSession({"", "s"}).status()));
  EXPECT_EQ(engine->CreateSession({"", "u"}, absl::InfiniteDuration())->ttl,
            absl::InfiniteDuration());
  EXPECT_EQ(engine->health(), absl::OkStatus());
}

TEST_F(EngineTest, BadOptionsAreErrors) {
  const auto error_of = [&](const EngineOptions& options) {
    return Engine::Create(std::make_unique<FaultyBackend>(), std::make_unique<FakeModel>(), nullptr,
                          {}, options, clock)
        .status();
  };
  EngineOptions options = Small();
  options.max_rows = 0;
  EXPECT_EQ(error_of(options), absl::InvalidArgumentError("max_rows is 0, expected at least 1"));
  options = Small();
  options.max_decode_slowdown = 0.5;
  EXPECT_EQ(error_of(options),
            absl::InvalidArgumentError("max_decode_slowdown is 0.5, expected 0 or at least 1"));
}

TEST_F(EngineTest, NoMemoryForASingleSessionIsAnError) {
  auto backend = std::make_unique<FaultyBackend>();
  backend->set_available_bytes(1 << 20);
  EXPECT_TRUE(absl::IsResourceExhausted(
      Engine::Create(std::move(backend), std::make_unique<FakeModel>(), nullptr, {}, {}, clock)
          .status()));
}

TEST_F(EngineTest, DrainLetsRunningRequestsFinishAndRefusesNewOnes) {
  auto engine = Make(Small());
  auto stream = engine->Submit(Greedy({1}, 6)).value();
  engine->Drain(absl::Seconds(60));
  EXPECT_EQ(Collect(*stream).status(), absl::OkStatus());
  const absl::Status refused = engine->Submit(Greedy({1}, 1)).status();
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_EQ(ReasonOf(refused), kReasonDraining);
}

TEST_F(EngineTest, DrainEndsWhatDoesNotFinishInTime) {
  auto engine = Make(Small());
  auto stream = engine->Submit(Greedy({1}, 1'000'000, "s")).value();  // nobody reads it
  engine->Drain(absl::Milliseconds(20));
  EXPECT_TRUE(absl::IsUnavailable(Collect(*stream).status()));
}

TEST_F(EngineTest, DestructionEndsRequestsInFlight) {
  auto engine = Make(Small());
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 20; ++i) streams.push_back(engine->Submit(Greedy({i}, 1'000'000)).value());
  engine.reset();
  for (const auto& stream : streams) {
    EXPECT_TRUE(absl::IsUnavailable(Collect(*stream).status()));
    stream->Cancel();
  }
}

TEST_F(EngineTest, ReadersMayOutliveTheEngine) {
  auto engine = Make(Small());
  auto stream = engine->Submit(Greedy({1}, 1'000'000)).value();
  stream->SetReadyCallback([] {});
  engine.reset();
  stream.reset();
}

TEST_F(EngineTest, AnIdleEngineSleeps) {
  std::atomic<int> steps{0};
  auto engine = Make(Small(), {.on_step = [&](int, int) { ++steps; }});
  auto stream = engine->Submit(Greedy({1}, 1'000)).value();
  // The stream holds 8 events, the start and 7 tokens; then the engine waits for its reader.
  while (steps < 7) std::this_thread::yield();
  for (int turn = 0; turn < 5; ++turn) (void)engine->GetSession({"", "none"});
  EXPECT_EQ(steps, 7);
  EXPECT_EQ(Collect(*stream).tokens[0].size(), 1000) << "and goes on as it is read";
}

TEST_F(EngineTest, ADeadlineWakesAnIdleEngine) {
  auto engine = Make(Small());
  Request request = Greedy({1}, 1'000'000);
  request.deadline = clock.Monotonic() + absl::Milliseconds(30);
  auto stream = engine->Submit(request).value();  // pauses: nobody reads until it has passed
  engine->Drain(absl::Seconds(60));
  EXPECT_TRUE(absl::IsDeadlineExceeded(Collect(*stream).status()));
}

// A reader as RPCs are: callbacks on the notifier thread, no thread of its own.
class CallbackReader {
 public:
  explicit CallbackReader(std::shared_ptr<TokenStream> stream) : stream_(std::move(stream)) {
    stream_->SetReadyCallback([this] { Read(); });
    Read();
  }
  ~CallbackReader() { stream_->SetReadyCallback(nullptr); }
  void Wait() { done_.WaitForNotification(); }
  Answer answer;

 private:
  void Read() {
    while (std::optional<TokenEvent> event = stream_->TryNext()) {
      answer.Add(*std::move(event));
      if (answer.ended) done_.Notify();
    }
  }
  absl::Notification done_;
  std::shared_ptr<TokenStream> stream_;
};

TEST_F(EngineTest, CallbacksDeliverEverything) {
  auto engine = Make(Small());
  std::vector<std::unique_ptr<CallbackReader>> readers;
  for (int i = 0; i < 40; ++i) {
    readers.push_back(
        std::make_unique<CallbackReader>(engine->Submit(Greedy({i % 30}, 50)).value()));
  }
  for (int i = 0; i < 40; ++i) {
    readers[i]->Wait();
    OracleSession oracle;
    oracle.FeedPrompt({i % 30});
    EXPECT_EQ(readers[i]->answer.tokens[0],
              oracle.Generate(HarnessOptions{}, Greedy({}, 50), 0, 0));
  }
}

// Many threads do what clients do; the point is what a sanitizer sees. Answers of sessions of their
// own are compared with the oracle.
TEST_F(EngineTest, ManyThreadsAtOnce) {
  EngineOptions options = Small();
  options.max_sessions = 12;
  auto engine = Make(options);
  std::atomic<int> compared{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(/*seed=*/100 + t);
      const std::string name = absl::StrCat("thread", t);
      OracleSession oracle;
      for (int round = 0; round < 40; ++round) {
        const auto choice = random() % 10;
        if (choice < 6) {
          const std::vector<int32_t> prompt(1 + random() % 20, static_cast<int>(random() % 32));
          const Request request = Greedy(prompt, 1 + static_cast<int>(random() % 8), name);
          auto stream = engine->Submit(request);
          if (!stream.ok()) continue;
          const Answer answer = Collect(**stream);
          if (!answer.status().ok()) continue;  // no slab free
          oracle.FeedPrompt(prompt);
          EXPECT_EQ(answer.tokens[0], oracle.Generate(HarnessOptions{}, request, 0, 0));
          ++compared;
        } else if (choice < 8) {
          auto stream = engine->Submit(Greedy({1, 2, 3}, 100));
          if (!stream.ok()) continue;
          for (unsigned i = 0; i < random() % 5; ++i) (void)(*stream)->Next(absl::Seconds(1));
          if (random() % 2 == 0) (*stream)->Cancel();
        } else if (choice == 8) {
          const std::string copy = absl::StrCat(name, "-copy");
          if (engine->ForkSession({"", name}, {"", copy}, absl::ZeroDuration()).ok()) {
            EXPECT_EQ(engine->DeleteSession({"", copy}), absl::OkStatus());
          }
          (void)engine->ListSessions({.owner = ""});
        } else {
          (void)engine->health();
          (void)engine->stats().step_seconds.counts();
        }
      }
      engine->DeleteSession({"", name}).IgnoreError();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(compared, 20);
  engine->Drain(absl::Seconds(60));
  EXPECT_EQ(engine->ListSessions({.owner = ""})->total, 0);
}

}  // namespace
}  // namespace mneme
