#include "bench/bench_sessions.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kSeed = 1;

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

SamplingParams ParamsOf(DrawKind kind) {
  SamplingParams params;
  params.temperature = kind == DrawKind::kGreedy ? 0.0f : 0.8f;
  if (kind == DrawKind::kTopP) params.top_p = 0.95f;
  return params;
}

}  // namespace

StepCost& StepCost::operator+=(const StepCost& other) {
  seconds += other.seconds;
  sampling_seconds += other.sampling_seconds;
  weight_bytes += other.weight_bytes;
  state_bytes += other.state_bytes;
  flops += other.flops;
  return *this;
}

std::string Name(DrawKind kind) {
  return kind == DrawKind::kGreedy ? "greedy" : "t 0.8, top_p 0.95";
}

absl::StatusOr<std::unique_ptr<BenchSessions>> BenchSessions::Create(const Options& options) {
  ExitCode code = kExitFailure;
  MNEME_ASSIGN_OR_RETURN(ToolRunner tool, ToolRunner::Load(options.model, &code));
  auto sessions = absl::WrapUnique(new BenchSessions(std::move(tool)));
  ToolRunner& owned = sessions->tool_;
  if (options.times_operations) {
    auto timed = std::make_unique<TimedBackend>(std::move(owned.backend));
    sessions->timed_ = timed.get();
    owned.backend = std::move(timed);
  }
  MNEME_RETURN_IF_ERROR(owned.Prepare({.slots = options.sessions,
                                       .rows = options.rows,
                                       .tokens = std::max(options.chunk, options.rows),
                                       .logit_rows = options.rows}));
  MNEME_ASSIGN_OR_RETURN(sessions->traffic_,
                         StepTraffic::Create(options.model.model, *owned.model, *owned.backend));
  sessions->chunk_ = options.chunk;
  sessions->sessions_.resize(static_cast<size_t>(options.sessions));
  for (Session& session : sessions->sessions_) session.slot = *owned.pool->Acquire();
  return sessions;
}

std::map<std::string, double> BenchSessions::TakeOperationSeconds() {
  CHECK(timed_ != nullptr) << "operations that nobody times";
  return timed_->TakeSeconds();
}

void BenchSessions::Restart(int session) {
  tool_.pool->Release(sessions_[session].slot);
  sessions_[session] = {.slot = *tool_.pool->Acquire()};
}

absl::StatusOr<StepCost> BenchSessions::Feed(int session, int64_t tokens, bool progress) {
  CHECK_GT(tokens, 0);
  std::vector<int32_t> ids(static_cast<size_t>(std::min<int64_t>(chunk_, tokens)));
  StepCost total;
  int shown = -1;
  for (int64_t fed = 0; fed < tokens;) {
    const auto count = static_cast<size_t>(std::min<int64_t>(chunk_, tokens - fed));
    for (size_t i = 0; i < count; ++i) {
      ids[i] = static_cast<int32_t>(UniformDouble(kSeed, 0, fed_++) * tool_.config.vocab);
    }
    fed += static_cast<int64_t>(count);
    plan_.Clear();
    plan_.AddRow({.slot = sessions_[session].slot,
                  .position = sessions_[session].position,
                  .tokens = std::span(ids).first(count),
                  .samples = fed == tokens,
                  .candidate = session});
    MNEME_ASSIGN_OR_RETURN(const StepCost cost, Step(DrawKind::kGreedy));
    total += cost;
    const int percent = static_cast<int>(100 * fed / tokens);
    if (progress && percent / 5 != shown / 5) {
      std::fprintf(stderr, "\r  feeding %lld tokens: %d %%%s", static_cast<long long>(tokens),
                   percent, fed == tokens ? "\n" : "");
      shown = percent;
    }
  }
  return total;
}

absl::StatusOr<StepCost> BenchSessions::Decode(std::span<const int> sessions, DrawKind kind) {
  plan_.Clear();
  for (const int session : sessions) {
    plan_.AddRow({.slot = sessions_[session].slot,
                  .position = sessions_[session].position,
                  .tokens = {&sessions_[session].next_token, 1},
                  .samples = true,
                  .candidate = session});
  }
  plan_.decode_rows = plan_.rows();
  return Step(kind);
}

absl::StatusOr<StepCost> BenchSessions::Step(DrawKind kind) {
  StepCost cost;
  const Clock::time_point start = Clock::now();
  traffic_->BeginStep(plan_);
  draws_.Clear();
  for (int row = 0; row < plan_.rows(); ++row) {
    if (plan_.logit_offsets[row] == plan_.logit_offsets[row + 1]) continue;
    const int session = plan_.candidates[row];
    const Sampler sampler(ParamsOf(kind), /*seed=*/kSeed + static_cast<uint64_t>(session), {},
                          /*logprobs=*/-1, /*prompt_logprobs=*/-1);
    const auto fed = static_cast<int64_t>(plan_.row_tokens(row).size());
    sampler.AppendDraw(history_, /*choice=*/0, sessions_[session].position + fed, /*ban=*/false,
                       draws_);
  }
  MNEME_RETURN_IF_ERROR(tool_.runner->Forward(plan_, &*traffic_));
  const Clock::time_point computed = Clock::now();
  MNEME_RETURN_IF_ERROR(tool_.runner->Sample(draws_, result_));
  cost.sampling_seconds = Since(computed);
  cost.seconds = Since(start);
  cost.weight_bytes = traffic_->weight_bytes();
  cost.state_bytes = traffic_->state_bytes();
  cost.flops = traffic_->flops();
  for (int row = 0; row < plan_.rows(); ++row) {
    Session& session = sessions_[plan_.candidates[row]];
    session.position += static_cast<int64_t>(plan_.row_tokens(row).size());
    if (plan_.logit_offsets[row] < plan_.logit_offsets[row + 1]) {
      session.next_token = result_.tokens[plan_.logit_offsets[row]];
    }
  }
  return cost;
}

}  // namespace mneme
