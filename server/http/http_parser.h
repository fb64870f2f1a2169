// Bytes to requests of HTTP/1.x. The only file that includes Boost.Beast.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "server/http/http_message.h"

namespace mneme {

struct HttpParserLimits {
  int max_target_bytes = 8192;
  int max_header_bytes = 32768;  // request line included
  int64_t max_body_bytes = int64_t{16} << 20;
};

// Parses one request, on one thread at a time.
class HttpParser {
 public:
  enum class State { kHeader, kBody, kDone, kFailed };

  // The longest body of a request to this path, asked once its line is there; below 0: that of
  // `limits`.
  using BodyLimit = std::function<int64_t(const std::string& method, const std::string& path)>;

  // `body_limit` may be empty.
  explicit HttpParser(const HttpParserLimits& limits, BodyLimit body_limit = nullptr);
  ~HttpParser();

  // Takes what it can off the front of `in`: the header if all of it is there, or bytes of the
  // body, but not both, so that the header can be looked at before the body. Returns the state,
  // which stays the same when more bytes are needed.
  State Feed(std::string& in);

  State state() const;
  HttpRequest& request();  // its header from kBody on, its body at kDone
  // From kBody on.
  bool keep_alive() const;  // what the client wants
  int minor_version() const;
  bool expects_continue() const;
  bool has_length() const;  // Content-Length or chunks: there is a body, if an empty one
  // At kFailed: the status to answer with, and why.
  int error_status() const;
  const std::string& error_message() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mneme
