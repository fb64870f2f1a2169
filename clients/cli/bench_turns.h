// A load test of conversations prints this beside the block: turns that continue a named session,
// and forks of it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "clients/cli/bench_load.h"

namespace mneme::cli {

struct TurnSettings {
  int conversations = 1;
  int turns = 1;
  std::vector<double> percentiles = {99};
};

// A line per turn, then resume TTFT (of every turn but the first) and fork latency, if there were
// forks.
std::string FormatTurns(const LoadResult& result, const TurnSettings& settings);

// The same as members of the result's JSON object: "resume_ttfts", "mean_resume_ttft_ms", ...
std::map<std::string, std::string> TurnsAsJson(const LoadResult& result,
                                               const TurnSettings& settings);

}  // namespace mneme::cli
