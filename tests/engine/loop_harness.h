// An engine loop that a test turns by hand, on the fake model and a fake clock; and the oracle:
// what the fake model has to say, worked out token by token.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine_loop.h"
#include "engine/engine_stats.h"
#include "engine/model_runner.h"
#include "engine/state_pool.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_model.h"
#include "tokenizers/tokenizer.h"

namespace mneme {

constexpr uint64_t kHarnessModel = 5;  // SessionRecord::model

struct HarnessOptions {
  int slots = 4;
  int vocab = 32;
  bool byte_tokenizer = false;  // then vocab is 258: bytes, BOS 256, EOS 257
  double first_token_bonus = 0;
  int32_t poison_token = -1, narrow_token = -1;  // FakeModelOptions
  int max_context = 0;                           // the same
  std::vector<int32_t> end_tokens;
  absl::Duration step_time = absl::Milliseconds(1);
  bool asynchronous = false;   // FaultyBackend
  uint64_t model_id = 0;       // what stored sessions agree in; 0: always the same
  FileSystem* disk = nullptr;  // sessions are stored there, in the folder "store"; null: nowhere
  SessionStore::Options store = {.lazy = absl::Milliseconds(1)};
  int host_states = 0;    // that can be parked, and room for one more; 0: none
  int prefix_states = 0;  // of the prefix cache; 0: there is none
  // Without graphs a step is one forward pass, which is what the harness counts.
  EngineOptions engine = {.graphs = false,
                          .max_rows = 4,
                          .max_tokens_per_step = 16,
                          .max_logit_rows_per_step = 8,
                          .max_queued_requests = 16,
                          .stream_capacity_events = 1000,
                          .max_decode_slowdown = 2.7};
};

// The key of a session that everybody may use.
inline SessionKey Key(std::string name) { return {"", std::move(name)}; }

// All events of a request, put together.
struct Answer {
  bool ended = false;
  int events = 0;
  std::vector<std::string> text;                    // by choice
  std::vector<std::vector<int32_t>> tokens;         // by choice, sampled ones
  std::vector<std::vector<TokenLogprob>> logprobs;  // by choice
  std::vector<FinishReason> finish;
  std::vector<std::string> stop_matched;
  std::string prompt_text;
  std::vector<int32_t> prompt_tokens;
  std::vector<TokenLogprob> prompt_logprobs;
  std::optional<TokenEvent> start;
  TokenEvent last;

  const absl::Status& status() const { return last.status; }
  void Add(TokenEvent event);
};

class LoopHarness {
 public:
  explicit LoopHarness(HarnessOptions options = {});
  ~LoopHarness();

  // Submits; the stream is kept until the harness goes.
  absl::StatusOr<std::shared_ptr<TokenStream>> Submit(Request request);
  // Reads what is there.
  static void Read(TokenStream& stream, Answer& answer);
  // Turns the loop and reads until the request ends.
  Answer Finish(TokenStream& stream);
  // Both; a request that Submit refuses is an answer with that status.
  Answer Generate(Request request);
  // Turns until no step runs any more, then checks the loop's integrity.
  void TurnUntilQuiet();
  // Waits a moment for the store where that has something to do.
  void Turn();
  // Turns until what is told to the store is durable, and nothing is written or read.
  void TurnUntilStored();

  HarnessOptions options;
  FakeClock clock;
  FaultyBackend backend;
  FakeModel model;
  std::unique_ptr<Tokenizer> tokenizer;
  EngineStats stats;
  std::unique_ptr<StatePool> pool;
  std::unique_ptr<HostStates> host, prefixes;
  std::unique_ptr<SessionStore> store;
  StoreReport report;  // of the store
  std::unique_ptr<StoredStates> states;
  std::unique_ptr<ModelRunner> runner;
  std::unique_ptr<EngineLoop> loop;
  std::vector<int> rows_per_step;
  std::function<void()> on_step;  // inside each step
};

// All sessions of an owner whose names begin so.
std::vector<SessionInfo> ListSessions(EngineLoop& loop, const std::string& owner,
                                      const std::string& name_prefix);

// A greedy request for token ids: `prompt` at any position, `max_tokens` of an answer.
Request Greedy(std::vector<int32_t> prompt, int max_tokens, std::string session = "");

// One conversation as it should be.
struct OracleSession {
  FakeMemory memory;
  int64_t fed = 0;
  std::optional<int32_t> pending;
  std::vector<std::pair<int32_t, bool>> history;  // token, generated

  int64_t position() const { return fed + (pending.has_value() ? 1 : 0); }
  void FeedPrompt(const std::vector<int32_t>& prompt);  // the pending token first
  // Feeds the pending token, if any, and samples one that becomes pending.
  int32_t Sample(const HarnessOptions& options, const SamplingParams& params, uint64_t seed,
                 int choice, const std::vector<int32_t>& banned = {});
  // The answer to a request whose prompt has been fed: tokens until a stop token or max_tokens.
  std::vector<int32_t> Generate(const HarnessOptions& options, const Request& request,
                                uint64_t seed, int choice);
};

// Natural logarithm of the softmax.
double OracleLogprob(const std::vector<double>& logits, int32_t token);

}  // namespace mneme
