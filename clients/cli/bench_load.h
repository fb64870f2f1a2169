// Sends a plan at its times and records what comes back.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "clients/cli/bench_metrics.h"
#include "clients/cli/bench_plan.h"
#include "clients/cli/bench_transport.h"

namespace mneme::cli {

struct LoadResult {
  std::vector<RequestRecord> records;  // [conversations, turns]
  std::vector<double> fork_latency;    // seconds; of one fork of each conversation, at its end
  double duration = 0;                 // seconds, until the last answer
};

// Blocks until all conversations have ended. Those of several turns have a named session each,
// which is deleted in the end. An error ends its conversation; the records of turns that were
// therefore not sent are failures and say so. At most `max_concurrency` conversations are open at
// once: later ones wait, beyond their arrival if need be. Two threads, however many there are,
// beside the transport's.
LoadResult RunLoad(BenchTransport& transport, const std::vector<PlannedConversation>& plan,
                   std::optional<int> max_concurrency);

}  // namespace mneme::cli
