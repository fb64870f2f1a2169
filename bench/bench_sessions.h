// Sessions on a loaded model, fed and decoded step by step through the engine's runner, with each
// step's time and traffic.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/step_traffic.h"
#include "bench/timed_backend.h"
#include "engine/model_runner.h"
#include "engine/sampler.h"
#include "engine/sessions/token_history.h"
#include "engine/step_plan.h"
#include "tools/tool_runner.h"

namespace mneme {

struct StepCost {
  double seconds = 0;           // planning, forward and sampling
  double sampling_seconds = 0;  // of these
  double weight_bytes = 0;
  double state_bytes = 0;
  double flops = 0;

  StepCost& operator+=(const StepCost& other);
};

enum class DrawKind { kGreedy, kTopP };
std::string Name(DrawKind kind);  // "greedy", "t 0.8, top_p 0.95"

class BenchSessions {
 public:
  // Loads the model and makes room for `sessions`, of which up to `rows` run in a step, and for
  // chunks of `chunk` tokens. Sessions begin empty.
  struct Options {
    ModelFlags model;
    int sessions = 1;
    int rows = 1;
    int chunk = 512;
    bool times_operations = false;  // so that TakeOperationSeconds() has something to say
  };
  static absl::StatusOr<std::unique_ptr<BenchSessions>> Create(const Options& options);

  // Feeds `tokens` random tokens, the last of which is followed by a greedy draw; the sum of all
  // its steps. `progress`: shows one on standard error.
  absl::StatusOr<StepCost> Feed(int session, int64_t tokens, bool progress = false);
  // Forgets all that was fed.
  void Restart(int session);

  // Feeds each session the token that was drawn for it last, and draws the next.
  absl::StatusOr<StepCost> Decode(std::span<const int> sessions, DrawKind kind);

  // Seconds by operation since the last call.
  std::map<std::string, double> TakeOperationSeconds();

  int64_t position(int session) const { return sessions_[session].position; }
  const StepTraffic& traffic() const { return *traffic_; }
  Backend& backend() { return *tool_.backend; }
  const Model& model() const { return *tool_.model; }

 private:
  struct Session {
    int slot = -1;
    int32_t next_token = 0;
    int64_t position = 0;
  };

  explicit BenchSessions(ToolRunner tool) : tool_(std::move(tool)) {}
  // Runs plan_ and takes the drawn tokens; candidates are indices of sessions.
  absl::StatusOr<StepCost> Step(DrawKind kind);

  ToolRunner tool_;
  TimedBackend* timed_ = nullptr;  // that of tool_, where operations are timed
  int chunk_ = 0;
  std::optional<StepTraffic> traffic_;
  std::vector<Session> sessions_;
  uint64_t fed_ = 0;  // random tokens so far
  TokenHistory history_;
  StepPlan plan_;
  SamplingBatch draws_;
  StepResult result_;
};

}  // namespace mneme
