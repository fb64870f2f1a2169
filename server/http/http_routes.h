// Which handler answers which method and path.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/http/http_call.h"

namespace mneme {

struct HttpRoute {
  std::string method;  // "GET" answers HEAD, too
  // "/v1/models", or "/v1/models/{model}", whose braces match all that is left.
  std::string pattern;
  HttpHandler handler;   // on the connection's thread: it must return quickly
  bool is_open = false;  // for everybody, without the authenticator: probes
  // The longest body, where it is not that of all routes, by what the pattern's braces match; below
  // 0: that of all.
  std::function<int64_t(absl::string_view argument)> max_body_bytes;
  // Asked once the header of an authenticated request is there, before its body is read; may be
  // empty. On the connection's thread: it must return quickly.
  std::function<absl::Status(HttpRequest&)> admit;
};

// Filled before the server starts, constant afterwards.
class HttpRoutes {
 public:
  void Add(HttpRoute route) { routes_.push_back(std::move(route)); }

  struct Match {
    const HttpRoute* route = nullptr;  // null: see `allowed`
    std::string argument;
    std::string allowed;  // methods of the path, "GET, HEAD"; empty: no such path
  };
  Match Find(absl::string_view method, absl::string_view path) const;

 private:
  std::vector<HttpRoute> routes_;
};

}  // namespace mneme
