#pragma once

#include "absl/status/status.h"
#include "clients/cli/bench_metrics.h"
#include "mneme/v1/inference.pb.h"

namespace mneme::cli {

// Fills a record while its answer streams in. Times in seconds since the start of the benchmark.
class RecordFiller {
 public:
  RecordFiller(RequestRecord& record, const v1::GenerateRequest& request, double now);

  void OnMessage(const v1::GenerateResponse& response, double now);
  void OnEnd(const absl::Status& status, double now);

 private:
  RequestRecord& record_;
  double last_;  // when tokens came, or the start
};

}  // namespace mneme::cli
