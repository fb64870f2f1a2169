// From a checked configuration to a running engine: backend, weights, tokenizer, slabs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "mneme/v1/config.pb.h"
#include "server/requests/engine_access.h"

namespace mneme {

// The kind of failure, as the process's exit code.
enum class LoadFailure { kArguments = 2, kModel = 3, kDevice = 4 };

struct LoadError {
  absl::Status status;
  LoadFailure failure = LoadFailure::kModel;
};

struct LoadedModel {
  std::unique_ptr<Engine> engine;
  ServingFacts facts;
};

using LoadProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

// The engine's questions and reports to the server; see EngineOptions. Either may be empty.
struct EngineHooks {
  RequestReporter on_request_end;
  std::function<int(const std::string& owner)> owner_session_limit;
};

// Takes as long as the weights take to be read. On failure `error` is set and null returned.
std::unique_ptr<LoadedModel> LoadEngine(const v1::ServerConfig& config, Clock& clock,
                                        const LoadProgress& progress, EngineHooks hooks,
                                        LoadError& error);

// The answer to --plan: model, state layout and how many sessions fit. Refuses what LoadEngine
// does, tokenizer and damaged weights included; but no memory is taken for weights and slabs, and
// what the weights will take counts as used.
absl::StatusOr<std::string> PlanText(const v1::ServerConfig& config, LoadError& error);

// The cheap half of LoadEngine, for errors that need no wait: is there a model that this server
// knows?
absl::Status CheckModelFolder(const v1::ServerConfig& config);

}  // namespace mneme
