#include "tests/engine/loop_harness.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "tokenizers/byte_tokenizer.h"

namespace mneme {

void Answer::Add(TokenEvent event) {
  ASSERT_FALSE(ended) << "an event after the last one";
  ++events;
  if (event.is_start) {
    EXPECT_EQ(events, 1) << "the start comes first";
    start = event;
    return;
  }
  const size_t choices = std::max<size_t>(text.size(), event.choice + 1);
  text.resize(choices);
  tokens.resize(choices);
  logprobs.resize(choices);
  finish.resize(choices);
  stop_matched.resize(choices);
  if (event.is_prompt) {
    for (const auto& generated : tokens) {
      EXPECT_TRUE(generated.empty()) << "the prompt comes before the answer";
    }
    prompt_text += event.text;
    prompt_tokens.insert(prompt_tokens.end(), event.token_ids.begin(), event.token_ids.end());
    prompt_logprobs.insert(prompt_logprobs.end(), event.logprobs.begin(), event.logprobs.end());
  } else {
    EXPECT_EQ(finish[event.choice], FinishReason::kNone) << "a choice goes on after its end";
    text[event.choice] += event.text;
    auto& ids = tokens[event.choice];
    ids.insert(ids.end(), event.token_ids.begin(), event.token_ids.end());
    auto& scores = logprobs[event.choice];
    scores.insert(scores.end(), event.logprobs.begin(), event.logprobs.end());
  }
  finish[event.choice] = event.finish;
  stop_matched[event.choice] = event.stop_matched;
  if (event.is_last) {
    ended = true;
    last = std::move(event);
  }
}

LoopHarness::LoopHarness(HarnessOptions harness_options)
    : options(std::move(harness_options)),
      model({.vocab = options.byte_tokenizer ? 258 : options.vocab,
             .first_token_bonus = options.first_token_bonus,
             .max_context = options.max_context,
             .poison_token = options.poison_token,
             .narrow_token = options.narrow_token,
             .on_step = [this](int rows, int /*tokens*/) {
               clock.Advance(options.step_time);
               rows_per_step.push_back(rows);
               if (on_step) on_step();
             }}) {
  SetMinLogSeverity(LogSeverity::kFatal);
  if (options.byte_tokenizer) {
    options.vocab = 258;
    tokenizer = MakeByteTokenizer(258, 256, 257).value();
  }
  backend.set_asynchronous(options.asynchronous);
  pool = StatePool::Create(backend, model, options.slots).value();
  const int64_t page = 4096;  // a state of the fake model
  if (options.prefix_states > 0) {
    prefixes = HostStates::Create(backend, *pool, options.prefix_states * page,
                                  /*max_tokens_a_session=*/1, HostStates::kPrefixes)
                   .value();
  }
  if (options.host_states > 0) {
    host = HostStates::Create(backend, *pool, (options.host_states + 1) * page,
                              /*max_tokens_a_session=*/1)
               .value();
  }
  if (options.disk != nullptr) {
    auto opened = SessionStore::Open(*options.disk, "/store", options.store, report);
    CHECK(opened.ok()) << opened.status();
    store = *std::move(opened);
    states = StoredStates::Create(backend, model, *pool, *store, *options.disk,
                                  {.model = kHarnessModel}, stats)
                 .value();
  }
  runner = ModelRunner::Create(
               backend, model, *pool,
               {.rows = options.engine.max_rows,
                .tokens = options.engine.max_tokens_per_step,
                .logit_rows = options.engine.max_rows + options.engine.max_logit_rows_per_step,
                .graphs = options.engine.graphs})
               .value();
  loop = std::make_unique<EngineLoop>(
      EngineParts{.model = model,
                  .tokenizer = tokenizer.get(),
                  .pool = *pool,
                  .runner = *runner,
                  .host = host.get(),
                  .prefixes = prefixes.get(),
                  .store = store.get(),
                  .states = states.get(),
                  .model_id = options.model_id == 0 ? kHarnessModel : options.model_id,
                  .notifier = nullptr,
                  .stats = stats,
                  .clock = clock,
                  .end_tokens = options.end_tokens},
      options.engine, /*seed=*/7);
}

LoopHarness::~LoopHarness() {
  loop.reset();
  int named = 0;  // the loop's own sessions keep their slabs to the end
  for (int slot = 0; slot < pool->slots(); ++slot) named += pool->taken(slot) ? 1 : 0;
  EXPECT_LE(named, pool->slots());
}

absl::StatusOr<std::shared_ptr<TokenStream>> LoopHarness::Submit(Request request) {
  return loop->Submit(std::move(request));
}

void LoopHarness::Read(TokenStream& stream, Answer& answer) {
  while (std::optional<TokenEvent> event = stream.TryNext()) answer.Add(*std::move(event));
}

Answer LoopHarness::Finish(TokenStream& stream) {
  Answer answer;
  for (int turn = 0; turn < 100'000 && !answer.ended; ++turn) {
    Turn();
    Read(stream, answer);
  }
  EXPECT_TRUE(answer.ended) << "the request does not end";
  return answer;
}

Answer LoopHarness::Generate(Request request) {
  auto stream = Submit(std::move(request));
  if (stream.ok()) return Finish(**stream);
  Answer answer;
  answer.ended = true;
  answer.last.status = stream.status();
  return answer;
}

void LoopHarness::Turn() {
  loop->RunOnce(loop->store_is_busy() ? absl::Milliseconds(1) : absl::ZeroDuration());
}

void LoopHarness::TurnUntilStored() {
  do {
    TurnUntilQuiet();
  } while (loop->store_is_busy());
}

void LoopHarness::TurnUntilQuiet() {
  // A turn may take the tokens of a step that the one before began, and the next one deliver them.
  for (int quiet = 0; quiet < 2; ++quiet) {
    const size_t before = rows_per_step.size();
    Turn();
    if (rows_per_step.size() > before) quiet = -1;
  }
  EXPECT_EQ(loop->CheckIntegrity(), absl::OkStatus());
}

std::vector<SessionInfo> ListSessions(EngineLoop& loop, const std::string& owner,
                                      const std::string& name_prefix) {
  const SessionQuery query = {.owner = owner, .name_prefix = name_prefix};
  return loop.commands().PageOf(loop.commands().ListHere(query), query).sessions;
}

Request Greedy(std::vector<int32_t> prompt, int max_tokens, std::string session) {
  Request request;
  request.session.name = std::move(session);
  request.prompt = {prompt, prompt};
  request.sampling.temperature = 0;
  request.stop.max_tokens = max_tokens;
  return request;
}

void OracleSession::FeedPrompt(const std::vector<int32_t>& prompt) {
  if (pending.has_value()) {
    memory.Feed(*std::exchange(pending, std::nullopt));
    ++fed;
  }
  for (const int32_t token : prompt) {
    memory.Feed(token);
    ++fed;
    history.emplace_back(token, false);
  }
}

int32_t OracleSession::Sample(const HarnessOptions& options, const SamplingParams& params,
                              uint64_t seed, int choice, const std::vector<int32_t>& banned) {
  if (pending.has_value()) FeedPrompt({});
  std::vector<double> z = memory.Logits(options.vocab, options.first_token_bonus);
  for (const auto& [token, bias] : params.logit_bias) z[token] += bias <= -100 ? -INFINITY : bias;
  for (const int32_t token : banned) z[token] = -INFINITY;
  std::map<int32_t, int> counts;
  const size_t window = options.engine.history_tokens;
  for (size_t i = history.size() > window ? history.size() - window : 0; i < history.size(); ++i) {
    counts[history[i].first] += history[i].second ? 1 : 0;
  }
  for (const auto& [token, generated] : counts) {
    z[token] =
        z[token] > 0 ? z[token] / params.repetition_penalty : z[token] * params.repetition_penalty;
    if (generated > 0) z[token] -= params.presence_penalty;
    z[token] -= static_cast<double>(params.frequency_penalty) * generated;
  }
  std::vector<int32_t> order(z.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return z[a] > z[b]; });
  int32_t token = order[0];
  if (params.temperature > 0) {
    size_t kept = params.top_k > 0 ? std::min<size_t>(params.top_k, order.size()) : order.size();
    std::vector<double> p(kept);
    double total = 0;
    for (size_t i = 0; i < kept; ++i) {
      total += p[i] = std::exp((z[order[i]] - z[order[0]]) / params.temperature);
    }
    const double u = UniformDouble(seed, choice, fed);
    double sum = 0;
    for (size_t i = 0; i < kept; ++i) {
      sum += p[i];
      if (sum / total > u) {
        token = order[i];
        break;
      }
    }
  }
  pending = token;
  history.emplace_back(token, true);
  return token;
}

std::vector<int32_t> OracleSession::Generate(const HarnessOptions& options, const Request& request,
                                             uint64_t seed, int choice) {
  std::vector<int32_t> stops = request.stop.stop_token_ids;
  if (!request.stop.ignore_eos) {
    stops.insert(stops.end(), options.end_tokens.begin(), options.end_tokens.end());
  }
  std::vector<int32_t> tokens;
  while (static_cast<int>(tokens.size()) < request.stop.max_tokens) {
    const bool ban = static_cast<int>(tokens.size()) < request.stop.min_tokens;
    tokens.push_back(
        Sample(options, request.sampling, seed, choice, ban ? stops : std::vector<int32_t>{}));
    if (std::find(stops.begin(), stops.end(), tokens.back()) != stops.end()) break;
  }
  return tokens;
}

double OracleLogprob(const std::vector<double>& logits, int32_t token) {
  double total = 0;
  for (const double logit : logits) total += std::exp(logit);
  return logits[token] - std::log(total);
}

}  // namespace mneme
