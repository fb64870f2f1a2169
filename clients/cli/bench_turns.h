// mneme bench --turns: conversations whose turns continue a named session, and forks of it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "clients/cli/bench_metrics.h"
#include "clients/cpp/client.h"

namespace mneme::cli {

struct TurnSettings {
  int conversations = 1;
  int turns = 1;
  int concurrency = 1;  // conversations at once
  absl::Duration gap;   // between an answer and the next turn
  std::vector<double> percentiles = {99};
};

struct TurnMetrics {
  std::vector<RequestRecord> records;  // [conversations, turns]
  std::vector<double> fork_latency;    // seconds; of one fork of each conversation, at its end
  double duration = 0;                 // seconds
};

// Runs the conversations, one named session each, and deletes the sessions. `requests` are the
// turns, less their session: [conversations, turns]. An error ends its conversation and is in the
// record of the turn.
TurnMetrics MeasureTurns(Client& client, const TurnSettings& settings,
                         const std::vector<v1::GenerateRequest>& requests);

// A line per turn, then resume TTFT (of every turn but the first) and fork latency.
std::string FormatTurns(const TurnMetrics& metrics, const TurnSettings& settings);

// The same as members of the result's JSON object: "resume_ttfts", "mean_resume_ttft_ms", ...
std::map<std::string, std::string> TurnsAsJson(const TurnMetrics& metrics,
                                               const TurnSettings& settings);

}  // namespace mneme::cli
