// Sessions that leave an engine as files and go on in the same one, or in another: every
// model_type.
#include <map>
#include <memory>
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
#include "models/architecture.h"
#include "tests/engine/outcome.h"
#include "tests/models/conformance_specs.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"

namespace mneme {
namespace {

using testing::HasSubstr;

Request PenalizedRequest(std::vector<int32_t> prompt, int tokens, const std::string& session) {
  Request request;
  request.session.name = session;
  request.prompt.at_start = std::move(prompt);
  request.prompt.same_everywhere = true;
  request.sampling.temperature = 0;
  request.sampling.repetition_penalty = 1.3;  // so that the history counts
  request.stop.max_tokens = tokens;
  request.stop.ignore_eos = true;
  request.logprobs = 0;
  return request;
}

Outcome Ask(Engine& engine, Request request) {
  auto stream = engine.Submit(std::move(request));
  CHECK_OK(stream.status());
  Outcome outcome = Collect(**stream);
  EXPECT_EQ(outcome.last.status, absl::OkStatus());
  return outcome;
}

std::string Export(Engine& engine, const SessionKey& key) {
  auto source = engine.ExportSession(key);
  CHECK_OK(source.status());
  std::string file;
  for (std::string piece = (*source)->Next(); !piece.empty(); piece = (*source)->Next()) {
    file += piece;
  }
  EXPECT_LE(static_cast<int64_t>(file.size()), engine.max_session_file_bytes());
  return file;
}

class SessionTransferTest : public testing::Test {
 protected:
  SessionTransferTest() { SetMinLogSeverity(LogSeverity::kFatal); }

  std::unique_ptr<Engine> Make(std::unique_ptr<Backend> backend, EngineOptions options = {}) {
    auto model = LoadModel(folder_.path(), *backend, nullptr);
    CHECK_OK(model.status());
    if (options.max_sessions == 0) options.max_sessions = 4;
    options.max_rows = 4;
    options.max_tokens_per_step = 32;
    auto engine = Engine::Create(std::move(backend), *std::move(model), /*tokenizer=*/nullptr, {},
                                 options, clock_);
    CHECK_OK(engine.status());
    return *std::move(engine);
  }
  static std::vector<int32_t> Text(const Engine& engine, int tokens, uint64_t seed) {
    return RandomTokens(tokens, engine.model_info().vocab, seed);
  }

  RealClock clock_;
  TestFolder folder_;
};

class EveryModelTest : public SessionTransferTest,
                       public testing::WithParamInterface<const Architecture*> {};

// On the CPU bit for bit, log-probabilities included: the pending token, the history and the state
// are the same.
TEST_P(EveryModelTest, ASessionGoesOnHereAndElsewhereAsTheOriginalDoes) {
  for (const ModelSpec& spec : ConformanceSpecs(GetParam()->model_type)) {
    SCOPED_TRACE(spec.config.dump());
    MakeFolder(spec, folder_);
    const auto engine = Make(AvailableBackends().front().Make());
    const auto elsewhere = Make(AvailableBackends().front().Make());
    const std::vector<int32_t> first = Text(*engine, 70, 1), second = Text(*engine, 9, 2);
    Ask(*engine, PenalizedRequest(first, 5, "a"));
    const std::string file = Export(*engine, {"", "a"});
    EXPECT_EQ(Export(*engine, {"", "a"}).size(), file.size());
    for (Engine* target : {engine.get(), elsewhere.get()}) {
      const auto imported = target->ImportSession({"", "b"}, absl::ZeroDuration(), file);
      ASSERT_EQ(imported.status(), absl::OkStatus());
      EXPECT_EQ(imported->rounded_tensors, 0);
      EXPECT_EQ(imported->session.position, engine->GetSession({"", "a"})->position);
      EXPECT_TRUE(imported->session.has_pending_token);
    }
    const Outcome want = Ask(*engine, PenalizedRequest(second, 12, "a"));
    for (Engine* target : {engine.get(), elsewhere.get()}) {
      const Outcome got = Ask(*target, PenalizedRequest(second, 12, "b"));
      EXPECT_EQ(got.tokens, want.tokens);
      EXPECT_EQ(got.logprobs, want.logprobs);
    }
  }
}

std::vector<const Architecture*> Generating() {
  std::vector<const Architecture*> all;
  for (const Architecture& architecture : Architectures()) {
    if (!architecture.classifies) all.push_back(&architecture);
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, EveryModelTest, testing::ValuesIn(Generating()),
                         [](const auto& info) { return std::string(info.param->model_type); });

// The reference keeps f64: a CPU rounds it, and says of how much.
TEST_F(SessionTransferTest, AnotherStateDtypeIsConvertedAndSaidSo) {
  MakeFolder(ConformanceSpecs("gated_deltanet").front(), folder_);
  const auto reference = Make(MakeReference());
  const auto cpu = Make(AvailableBackends().front().Make());
  const std::vector<int32_t> text = Text(*cpu, 40, 1), more = Text(*cpu, 5, 2);
  Ask(*reference, PenalizedRequest(text, 3, "a"));
  const auto down =
      cpu->ImportSession({"", "b"}, absl::ZeroDuration(), Export(*reference, {"", "a"}));
  ASSERT_EQ(down.status(), absl::OkStatus());
  EXPECT_EQ(down->file_state_dtype, "f64");
  EXPECT_EQ(down->state_dtype, "f32");
  EXPECT_GT(down->rounded_tensors, 0);
  const Outcome want = Ask(*reference, PenalizedRequest(more, 8, "a"));
  EXPECT_EQ(Ask(*cpu, PenalizedRequest(more, 8, "b")).tokens, want.tokens);

  Ask(*cpu, PenalizedRequest(text, 3, "c"));
  const auto up =
      reference->ImportSession({"", "d"}, absl::ZeroDuration(), Export(*cpu, {"", "c"}));
  ASSERT_EQ(up.status(), absl::OkStatus());
  EXPECT_EQ(up->rounded_tensors, 0);
}

TEST_F(SessionTransferTest, WhoMayDoWhatWhen) {
  MakeFolder(ConformanceSpecs("gated_deltanet").front(), folder_);
  const auto engine = Make(AvailableBackends().front().Make(),
                           {.max_sessions = 2, .owner_session_limit = [](const std::string& owner) {
                              return owner == "poor" ? 1 : 0;
                            }});
  Request request = PenalizedRequest(Text(*engine, 20, 1), 3, "a");
  request.session.owner = "alice";
  Ask(*engine, request);
  const std::string file = Export(*engine, {"alice", "a"});
  const auto import = [&](const SessionKey& key, const std::string& bytes) {
    return engine->ImportSession(key, absl::ZeroDuration(), bytes).status();
  };
  EXPECT_EQ(ReasonOf(engine->ExportSession({"bob", "a"}).status()), kReasonNoSession);
  EXPECT_EQ(ReasonOf(import({"alice", "a"}, "no file")), kReasonSessionExists) << "first of all";
  EXPECT_EQ(import({"bob", ""}, file).code(), absl::StatusCode::kInvalidArgument);
  std::string damaged = file;
  damaged[file.size() - 100] ^= 1;
  EXPECT_EQ(ReasonOf(import({"bob", "b"}, damaged)), kReasonChecksum);
  EXPECT_EQ(engine->stats().slabs_used.value(), 1) << "nothing was taken";
  EXPECT_EQ(import({"poor", "b"}, file), absl::OkStatus()) << "a file is who has it";
  EXPECT_EQ(ReasonOf(import({"poor", "c"}, file)), kReasonSessionLimit);
  EXPECT_EQ(ReasonOf(import({"bob", "c"}, file)), kReasonNoFreeSlab);
  EXPECT_EQ(engine->stats().sessions.value(), 2);

  // While a request for it runs: its reader is slow.
  Request slow = PenalizedRequest({1}, 5000, "a");
  slow.session.owner = "alice";
  auto running = engine->Submit(slow).value();
  ASSERT_TRUE(running->Next(absl::Seconds(60)).has_value());
  const absl::Status busy = engine->ExportSession({"alice", "a"}).status();
  EXPECT_EQ(ReasonOf(busy), kReasonSessionBusy);
}

TEST_F(SessionTransferTest, AnotherModelRefusesIt) {
  const std::vector<ModelSpec> specs = ConformanceSpecs("gated_deltanet");
  MakeFolder(specs.front(), folder_);
  const auto engine = Make(AvailableBackends().front().Make());
  Ask(*engine, PenalizedRequest(Text(*engine, 20, 1), 3, "a"));
  const std::string file = Export(*engine, {"", "a"});
  ModelSpec other = specs.front();
  other.seed += 1;
  const TestFolder folder;
  MakeFolder(other, folder);
  auto backend = AvailableBackends().front().Make();
  auto model = LoadModel(folder.path(), *backend, nullptr);
  CHECK_OK(model.status());
  const auto stranger = Engine::Create(std::move(backend), *std::move(model), nullptr, {},
                                       {.max_sessions = 2, .max_rows = 2}, clock_);
  CHECK_OK(stranger.status());
  const absl::Status status =
      (*stranger)->ImportSession({"", "a"}, absl::ZeroDuration(), file).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(ReasonOf(status), kReasonOtherModel);
  EXPECT_THAT(std::string(status.message()), HasSubstr("weights or configuration differ"));
}

// Where all slabs are taken, one that rests makes room; what is parked is exported as it is.
TEST_F(SessionTransferTest, ParkedSessionsMakeRoomAndAreExported) {
  MakeFolder(ConformanceSpecs("gated_deltanet").front(), folder_);
  const auto engine = Make(AvailableBackends().front().Make(),
                           {.max_sessions = 1, .host_state_memory_bytes = int64_t{16} << 20});
  const std::vector<int32_t> text = Text(*engine, 30, 1), more = Text(*engine, 4, 2);
  Ask(*engine, PenalizedRequest(text, 3, "a"));
  const std::string file = Export(*engine, {"", "a"});
  for (const char* name : {"b", "c"}) {
    ASSERT_EQ(engine->ImportSession({"", name}, absl::ZeroDuration(), file).status(),
              absl::OkStatus());
  }
  EXPECT_EQ(engine->GetSession({"", "a"})->residence, Residence::kParked);
  const std::string again = Export(*engine, {"", "a"});
  EXPECT_EQ(again.size(), file.size());
  ASSERT_EQ(engine->ImportSession({"", "d"}, absl::ZeroDuration(), again).status(),
            absl::OkStatus());
  const Outcome want = Ask(*engine, PenalizedRequest(more, 6, "a"));
  for (const char* name : {"b", "c", "d"}) {
    const Outcome got = Ask(*engine, PenalizedRequest(more, 6, name));
    EXPECT_EQ(got.tokens, want.tokens) << name;
    EXPECT_EQ(got.logprobs, want.logprobs) << name;
  }
}

}  // namespace
}  // namespace mneme
