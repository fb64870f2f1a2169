// How a load test reaches a server: gRPC, or the endpoints that OpenAI's clients know.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "clients/cli/bench_plan.h"
#include "clients/cli/bench_record.h"
#include "clients/cli/command.h"

namespace mneme::cli {

// How every request is sampled.
struct BenchSampling {
  double temperature = 0;
  bool ignore_eos = true;
};

struct ServedModel {
  std::string name;
  int vocab = 0;           // 0: the server does not say
  int64_t slab_bytes = 0;  // state of a session; 0: the server does not say
};

// Sums and counts of the server's own histograms, since it started.
struct ServerCounts {
  struct Mean {
    double sum = 0;
    double count = 0;
  };
  Mean decode_rows;
  Mean step_seconds;
  Mean queue_seconds;
};

// Thread-safe.
class BenchTransport {
 public:
  virtual ~BenchTransport() = default;

  // Waits up to `timeout` while the server loads its model.
  virtual absl::StatusOr<ServedModel> Connect(absl::Duration timeout) = 0;
  virtual absl::StatusOr<int> CountTokens(const std::string& text) = 0;
  virtual absl::StatusOr<ServerCounts> Counts() = 0;

  // Sends a turn, in the session of that name or, if it is empty, in none. The filler hears of the
  // answer on a thread of the transport's, `on_done` last. All must have ended before the transport
  // is destroyed.
  virtual void Send(const PlannedTurn& turn, const std::string& session,
                    std::shared_ptr<RecordFiller> filler,
                    std::function<void(bool is_ok)> on_done) = 0;

  // At the end of a conversation: the time of a fork of its session. Both are gone then. Blocks.
  virtual absl::StatusOr<double> ForkAndDelete(const std::string& session) = 0;
};

std::unique_ptr<BenchTransport> MakeGrpcTransport(const Connection& connection,
                                                  const BenchSampling& sampling, int streams);

enum class HttpKind { kCompletions, kChat };
std::unique_ptr<BenchTransport> MakeHttpTransport(const Connection& connection,
                                                  const BenchSampling& sampling, HttpKind kind);

}  // namespace mneme::cli
