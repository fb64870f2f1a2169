// Compares what happened in a schedule with an oracle that feeds one conversation after the other,
// token by token. A request has its session to itself from submission to end, so it counts as one
// event at the time of its submission.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/token_stream.h"
#include "tests/engine/loop_harness.h"

namespace mneme {

// Something that happened, in order.
struct ScheduleEvent {
  enum Kind { kRequest, kCreate, kFork, kDelete, kVanish } kind;
  Request request;  // kRequest
  std::shared_ptr<TokenStream> stream;
  Answer answer;
  std::string name, source;  // all others
  absl::Status status;       // of the command
  int64_t position = 0;      // kFork: what the engine said
};

// Reports differences as test failures.
class ScheduleJudge {
 public:
  explicit ScheduleJudge(const HarnessOptions& options) : options_(options) {}

  // `log` in the order of submission; all requests have ended.
  void Judge(std::span<const std::unique_ptr<ScheduleEvent>> log);

  int answers() const { return answers_; }
  int64_t cached() const { return cached_; }  // tokens, of all answers
  int edits() const { return edits_; }        // sessions that went back for a conversation
  const std::map<std::string, int>& outcomes() const { return outcomes_; }

 private:
  void JudgeRequest(const ScheduleEvent& event);
  void JudgeRefusal(const Request& request, const Answer& answer, const OracleSession& session);
  // What a whole conversation finds of its session, and leaves to be fed.
  void FitWhole(const Request& request, const Answer& answer, OracleSession& session,
                std::vector<int32_t>& prompt);
  void JudgeReplay(const Request& request, const Answer& answer);
  void JudgePrompt(const Request& request, const Answer& answer, const OracleSession& session,
                   const std::vector<int32_t>& feed, bool had_pending);
  void JudgeLogprobs(OracleSession at, const std::vector<int32_t>& tokens,
                     const std::vector<TokenLogprob>& logprobs, int top);
  void JudgeLogprob(const OracleSession& at, const TokenLogprob& got, int top);

  const HarnessOptions options_;
  int answers_ = 0;
  int edits_ = 0;
  int64_t cached_ = 0;
  std::map<std::string, int> outcomes_;
  std::map<std::string, OracleSession> sessions_;
  std::map<std::string, const Answer*> finished_;  // by key
};

}  // namespace mneme
