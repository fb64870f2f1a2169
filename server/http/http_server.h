// An HTTP/1.1 server: connections, limits and time-outs. What is served are its routes.
//
// Threads: a few of its own, which no request ever blocks; each connection is served by one of them
// at a time. Handlers answer later and from other threads if their work takes long (http_call.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/http/http_authenticator.h"
#include "server/http/http_parser.h"
#include "server/http/http_routes.h"
#include "server/net/connection_evictor.h"
#include "server/net/listening_sockets.h"
#include "server/requests/server_stats.h"

namespace mneme {

class ByteStreamFactory;

// One answered request, for logs and metrics.
struct HttpExchange {
  const HttpRequest& request;  // without its body; `route` is empty where none matched
  int status = 0;
  int64_t sent_bytes = 0;
  absl::Duration duration;
  bool complete = true;  // false: the client left first
  absl::Status refusal;  // why no handler was asked; OK if one was, or for a preflight
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                   // 0: any free one
  std::string host_flag = "--host";  // where it is set, for messages about it
  std::string port_flag = "--http-port";
  int threads = 2;
  // Beyond it an idle connection is closed; where there is none, the new one is answered with 503.
  int max_connections = 4096;
  std::string max_connections_flag = "--http-max-connections";  // empty: it is fixed
  std::string api = "http";                                     // in the log
  HttpParserLimits limits;
  // From a request's first byte to the end of its header: a client that sends it in drops is cut.
  absl::Duration header_timeout = absl::Seconds(10);
  absl::Duration body_timeout = absl::Seconds(60);  // from there to the end of its body
  absl::Duration idle_timeout = absl::Seconds(75);  // between requests, and before the first
  // Without a client taking anything, or acknowledging anything (TCP_USER_TIMEOUT).
  absl::Duration write_timeout = absl::Seconds(60);
  absl::Duration stream_keep_alive = absl::Seconds(15);  // see HttpBody::KeepAlive

  std::shared_ptr<HttpAuthenticator> authenticator;   // null: everybody is anonymous
  std::shared_ptr<ByteStreamFactory> stream_factory;  // null: plain TCP
  std::vector<std::string> allowed_origins;           // see http_cors.h
  ConnectionStats* stats = nullptr;                   // null: nobody counts connections
  // That of the process's other ports, where it has some.
  std::shared_ptr<ConnectionEvictor> evictor = std::make_shared<ConnectionEvictor>();
  // After each request, on the connection's thread; may be empty.
  std::function<void(const HttpExchange&)> on_exchange;
};

class HttpServer {
 public:
  // Errors as of ListeningSockets::Open.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                           HttpRoutes routes);
  ~HttpServer();  // as Shutdown(0)
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  const ListeningSockets& sockets() const;  // where it listens; the descriptors are its own
  int port() const { return sockets().port(); }
  int64_t open_connections() const;

  // Takes no more connections, closes idle ones, lets responses end for up to `grace` and cuts the
  // rest off. Blocks; idempotent.
  void Shutdown(absl::Duration grace);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace mneme
