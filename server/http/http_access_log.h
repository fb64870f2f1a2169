// One line for each call over HTTP, at its end: who asked for what, and what came of it. A request
// to generate has its own line beside it (server/requests/request_log.h), under the same id. Never
// a query, a header but for ids, or a body.
#pragma once

#include <atomic>
#include <string>

#include "server/http/http_server.h"

namespace mneme {

// Thread-safe.
class HttpAccessLog {
 public:
  enum class Which {
    kAll,
    kNoProbes,  // all but GET /health, /ping and /metrics that were answered as they are for: 200,
                // 503
    kFailed,    // of those: answered with 400 or more, or not to the end
    kNone,
  };

  explicit HttpAccessLog(Which which) : which_(which) {}

  // `api` is the server's name in the log: HttpServerOptions::api.
  void Add(const std::string& api, const HttpExchange& exchange) const;
  void set_which(Which which) { which_.store(which, std::memory_order_relaxed); }

 private:
  std::atomic<Which> which_;
};

}  // namespace mneme
