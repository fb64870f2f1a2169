// A session's past, as an oracle has it, and the commands that lead back into it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/engine_loop.h"
#include "tests/engine/loop_harness.h"

namespace mneme {

// A session as it was after each of its turns.
class Past {
 public:
  const OracleSession& now() const { return ends_.back(); }
  void Add(OracleSession end) { ends_.push_back(std::move(end)); }
  size_t ends() const { return ends_.size(); }

  // At a position: the last turn that ended there, or as many tokens fed.
  OracleSession At(int64_t position) const { return Back(position).now(); }
  Past Back(int64_t position) const {
    Past past = *this;
    for (; !past.ends_.empty(); past.ends_.pop_back()) {
      if (past.now().position() == position && KeptPending(past.ends_.size() - 1)) return past;
      if (past.now().fed < position) break;
    }
    if (past.ends_.empty() || past.now().fed > position) past.ends_ = {OracleSession()};
    if (position > past.now().fed) past.ends_.push_back(PartOf(position));
    return past;
  }
  Past BackTo(size_t ends) const {
    Past past = *this;
    past.ends_.resize(ends);
    return past;
  }
  // Where so many tokens were fed, and none was pending.
  Past BackToFed(int64_t fed) const {
    Past past = *this;
    while (past.now().fed > fed) past.ends_.pop_back();
    if (past.now().fed < fed || past.now().pending.has_value()) past.ends_.push_back(PartOf(fed));
    return past;
  }

 private:
  // Whether the conversation went on from the token that was pending there.
  bool KeptPending(size_t end) const {
    const OracleSession& there = ends_[end];
    if (!there.pending.has_value()) return true;
    for (const OracleSession& next : std::span(ends_).subspan(end + 1)) {
      if (next.fed > there.fed) {
        return next.history[static_cast<size_t>(there.fed)].first == *there.pending;
      }
      if (!next.pending.has_value()) return false;
    }
    return true;
  }
  // As the turn went that fed the last of them.
  OracleSession PartOf(int64_t fed) const {
    const auto turn = std::find_if(ends_.begin(), ends_.end(),
                                   [&](const OracleSession& end) { return end.fed >= fed; });
    OracleSession part;
    for (int64_t i = 0; i < fed; ++i) {
      const auto& token = turn->history[static_cast<size_t>(i)];
      part.memory.Feed(token.first);
      part.history.push_back(token);
      ++part.fed;
    }
    return part;
  }

  std::vector<OracleSession> ends_ = {OracleSession()};
};

inline Request Penalised(std::vector<int32_t> prompt, int tokens, std::string session) {
  Request request = Greedy(std::move(prompt), tokens, std::move(session));
  request.sampling.frequency_penalty = 0.7f;
  request.sampling.presence_penalty = 0.3f;
  return request;
}

// Takes the session through the request; returns the answer.
inline std::vector<int32_t> Apply(const HarnessOptions& options, const Request& request,
                                  OracleSession& session) {
  session.FeedPrompt(request.prompt.at_start);
  return session.Generate(options, request, 0, 0);
}

// The same of a whole conversation, in a session that goes back to where that parts from it.
inline std::vector<int32_t> ApplyWhole(const HarnessOptions& options, const Request& request,
                                       Past& past) {
  const std::vector<int32_t>& prompt = request.prompt.at_start;
  int64_t common = 0;
  while (common < past.now().fed && common + 1 < static_cast<int64_t>(prompt.size()) &&
         past.now().history[static_cast<size_t>(common)].first ==
             prompt[static_cast<size_t>(common)]) {
    ++common;
  }
  const bool goes_on = common == past.now().fed;
  if (!goes_on) past = past.BackToFed(common);
  OracleSession next = past.now();
  if (next.pending.has_value()) next.history.pop_back();
  next.pending.reset();
  // Tokens that a client sends again count as sent, even if the model once generated them.
  for (auto& token : next.history) token.second = token.second && goes_on;
  next.FeedPrompt({prompt.begin() + common, prompt.end()});
  std::vector<int32_t> said = next.Generate(options, request, 0, 0);
  past.Add(std::move(next));
  return said;
}

// Turns the loop until a command is done.
template <typename Answer>
Answer Await(LoopHarness& h, const std::function<void(std::function<void(const Answer&)>)>& run) {
  std::optional<Answer> answer;
  run([&](const Answer& given) { answer = given; });
  for (int turn = 0; turn < 10'000 && !answer.has_value(); ++turn) h.Turn();
  CHECK(answer.has_value()) << "the command does not end";
  return *answer;
}

inline absl::StatusOr<SessionInfo> Rewind(LoopHarness& h, const std::string& name,
                                          RewindTarget to) {
  return Await<absl::StatusOr<SessionInfo>>(
      h, [&](auto done) { h.loop->commands().Rewind(Key(name), to, done); });
}

inline absl::StatusOr<SessionInfo> ForkAt(LoopHarness& h, const std::string& name,
                                          const std::string& target, RewindTarget at) {
  return Await<absl::StatusOr<SessionInfo>>(h, [&](auto done) {
    h.loop->commands().ForkAt(Key(name), Key(target), absl::ZeroDuration(), at, done);
  });
}

inline absl::StatusOr<CheckpointInfo> Checkpoint(LoopHarness& h, const std::string& session,
                                                 const std::string& name) {
  return Await<absl::StatusOr<CheckpointInfo>>(
      h, [&](auto done) { h.loop->commands().CreateCheckpoint(Key(session), name, done); });
}

inline absl::Status DropCheckpoint(LoopHarness& h, const std::string& session,
                                   const std::string& name) {
  return Await<absl::Status>(
      h, [&](auto done) { h.loop->commands().DeleteCheckpoint(Key(session), name, done); });
}

inline absl::Status Delete(LoopHarness& h, const std::string& name) {
  return Await<absl::Status>(h, [&](auto done) {
    const absl::Status status = h.loop->commands().Delete(Key(name), done);
    if (!status.ok()) done(status);
  });
}

}  // namespace mneme
