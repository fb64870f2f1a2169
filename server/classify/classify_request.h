// Documents of a call, whichever protocol it came by, as requests of the engine's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/work_meter.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "server/requests/engine_access.h"
#include "server/requests/request_conversion.h"

namespace mneme {

inline constexpr size_t kMaxDocuments = 1024;  // of a call

struct ClassifyDocument {
  std::string text;
  std::optional<std::string> pair;
  bool has_ids = false;  // in place of `text`
  std::vector<int32_t> ids, types;
};

struct ClassifyCall {
  std::string model;
  std::vector<ClassifyDocument> documents;
  int priority = 0;
  bool special_tokens = true;  // around texts
  bool parse_special = true;
};

// One for each document. Errors name fields of ClassifyRequest: "documents[2].text". Of the call
// "x" of several they are "x-0", "x-1" and so on. Tokenises on the caller's thread.
absl::StatusOr<std::vector<Request>> ToEngineRequests(ClassifyCall classify, const CallFacts& call,
                                                      const Engine& engine,
                                                      const ServingFacts& facts, WorkMeter& meter);

}  // namespace mneme
