// Requests over HTTP/1.1 to one server, with TLS where it is asked for.
#pragma once

#include <utility>  // in front of awaitable.hpp of Boost 1.74, which forgets it
// A group of its own, so that it stays there.

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "clients/cli/command.h"

namespace mneme::cli {

struct HttpQuestion {
  std::string method;
  std::string path;
  std::string body;  // JSON, or empty
};

struct HttpHead {
  int status = 0;  // 0: no answer yet
};

// A server, and the connection to it that is kept between exchanges. Only the thread that runs `io`
// uses it, but for has_connected().
class HttpPeer {
 public:
  HttpPeer(const Connection& connection, boost::asio::io_context& io);
  ~HttpPeer();

  // `head` is set before the first piece of the body, which goes to `on_piece` as it comes. Not OK
  // if there was no whole answer: UNAVAILABLE, DEADLINE_EXCEEDED, or INVALID_ARGUMENT for TLS files
  // that are not in order.
  // The arguments must live until then.
  using OnPiece = std::function<void(absl::string_view)>;
  boost::asio::awaitable<absl::Status> Exchange(const HttpQuestion& question, HttpHead& head,
                                                const OnPiece& on_piece);

  void CloseIdle();
  // Whether a connection was ever made. Any thread.
  bool has_connected() const { return has_connected_; }

 private:
  struct Link;  // a connection

  boost::asio::awaitable<absl::Status> Open(std::unique_ptr<Link>& link);
  boost::asio::awaitable<absl::Status> Converse(Link& link, const HttpQuestion& question,
                                                HttpHead& head, bool& is_reusable,
                                                const OnPiece& on_piece);

  boost::asio::io_context& io_;
  const std::string host_;
  const std::string port_;
  const std::string host_field_;
  const std::string api_key_;
  const absl::Duration timeout_;
  const std::string server_name_;
  absl::Status tls_status_;
  std::unique_ptr<boost::asio::ssl::context> tls_;  // null: plain
  std::vector<std::unique_ptr<Link>> idle_;
  std::atomic<bool> has_connected_{false};
};

}  // namespace mneme::cli
