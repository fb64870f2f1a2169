// The server's numbers in Prometheus' text format: GET /metrics. docs/operations.md lists them.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "server/metrics/metric_writer.h"
#include "server/requests/engine_access.h"
#include "server/security/security.h"

namespace mneme {

// Thread-safe: every call reads the counters as they are; nothing is kept.
class Metrics final : public prometheus::Collectable {
 public:
  static constexpr char kContentType[] = "text/plain; version=0.0.4; charset=utf-8";

  // `vllm_names`: also the names that gateways and dashboards made for vLLM read. `access` and
  // `security` must outlive it.
  Metrics(const EngineAccess& access, const Security& security, bool vllm_names)
      : access_(access), security_(security), vllm_(vllm_names) {}

  std::vector<prometheus::MetricFamily> Collect() const override;
  std::string Text() const;

 private:
  const EngineAccess& access_;
  const Security& security_;
  const bool vllm_;
};

// Metrics of the guards of the ports.
void WriteSecurityMetrics(const Security& security, const ServerStats& stats, MetricWriter& out);

// Metrics of the engine's counts. The writers' labels say which model it runs.
void WriteRequestMetrics(const EngineStats& stats, const ServerStats& server,
                         const EngineOptions& options, MetricWriter& out);
void WriteStepMetrics(const EngineStats& stats, const LoopActivity& activity,
                      const EngineOptions& options, MetricWriter& out);
void WriteSessionMetrics(const EngineStats& stats, const CapacityPlan& capacity, MetricWriter& out);

// vLLM's names, with its meanings: state slots stand for its cache blocks, tokens resumed from a
// session's state for prefix cache hits.
void WriteVllmMetrics(const EngineStats& stats, const CapacityPlan& capacity, MetricWriter& out);

}  // namespace mneme
