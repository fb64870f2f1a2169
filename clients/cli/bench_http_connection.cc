#include "clients/cli/bench_http_connection.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace mneme::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using ErrorCode = boost::system::error_code;
using asio::ip::tcp;

constexpr size_t kPieceBytes = 16384;
constexpr uint64_t kMaxBodyBytes = uint64_t{1} << 40;  // Boost 1.74 takes no limit for one of 0
constexpr std::chrono::seconds kConnectTimeout{30};

std::pair<std::string, std::string> SplitAddress(const std::string& server) {
  const size_t colon = server.rfind(':');
  if (colon == std::string::npos) return {server, "80"};
  std::string host = server.substr(0, colon);
  if (host.size() > 1 && host.front() == '[') host = host.substr(1, host.size() - 2);  // IPv6
  return {host, server.substr(colon + 1)};
}

// For co_await: errors go to `error` instead of being thrown.
auto Into(ErrorCode& error) { return asio::redirect_error(asio::use_awaitable, error); }

absl::Status Failure(absl::string_view what, const ErrorCode& error) {
  const std::string message = absl::StrCat(what, ": ", error.message());
  return error == beast::error::timeout ? absl::DeadlineExceededError(message)
                                        : absl::UnavailableError(message);
}

absl::Status ReadTls(const ClientTls& from, asio::ssl::context& tls) {
  ErrorCode error;
  tls.set_verify_mode(asio::ssl::verify_peer, error);
  const auto check = [&error](absl::string_view what) {
    return error ? absl::InvalidArgumentError(absl::StrCat(what, ": ", error.message()))
                 : absl::OkStatus();
  };
  if (from.authorities.empty()) {
    tls.set_default_verify_paths(error);
    MNEME_RETURN_IF_ERROR(check("the system's certificate authorities"));
  } else {
    tls.add_certificate_authority(asio::buffer(from.authorities), error);
    MNEME_RETURN_IF_ERROR(check("--tls-ca"));
  }
  if (!from.certificate.empty()) {
    tls.use_certificate_chain(asio::buffer(from.certificate), error);
    MNEME_RETURN_IF_ERROR(check("--tls-cert"));
  }
  if (!from.private_key.empty()) {
    tls.use_private_key(asio::buffer(from.private_key), asio::ssl::context::pem, error);
    MNEME_RETURN_IF_ERROR(check("--tls-key"));
  }
  return absl::OkStatus();
}

}  // namespace

// The plain stream is the lowest layer of the other one, or alone.
struct HttpPeer::Link {
  Link(asio::io_context& io, asio::ssl::context* tls) {
    if (tls != nullptr) {
      secure.emplace(io, *tls);
    } else {
      plain.emplace(io);
    }
  }
  beast::tcp_stream& tcp() { return secure ? beast::get_lowest_layer(*secure) : *plain; }

  // f(stream) for whichever it is.
  template <typename F>
  auto With(F f) {
    return secure ? f(*secure) : f(*plain);
  }

  std::optional<beast::tcp_stream> plain;
  std::optional<beast::ssl_stream<beast::tcp_stream>> secure;
  beast::flat_buffer buffer;
  bool is_fresh = true;
};

HttpPeer::HttpPeer(const Connection& connection, asio::io_context& io)
    : io_(io),
      host_(SplitAddress(connection.server).first),
      port_(SplitAddress(connection.server).second),
      host_field_(connection.server),
      api_key_(connection.api_key),
      timeout_(connection.timeout),
      server_name_(connection.tls.has_value() && !connection.tls->server_name.empty()
                       ? connection.tls->server_name
                       : host_) {
  if (!connection.tls.has_value()) return;
  tls_ = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_client);
  tls_status_ = ReadTls(*connection.tls, *tls_);
}

HttpPeer::~HttpPeer() = default;

void HttpPeer::CloseIdle() { idle_.clear(); }

asio::awaitable<absl::Status> HttpPeer::Exchange(const HttpQuestion& question, HttpHead& head,
                                                 const OnPiece& on_piece) {
  if (!tls_status_.ok()) co_return tls_status_;
  while (true) {
    std::unique_ptr<Link> link;
    if (!idle_.empty()) {
      link = std::move(idle_.back());
      idle_.pop_back();
    } else {
      const absl::Status opened = co_await Open(link);
      if (!opened.ok()) co_return opened;
    }
    bool is_reusable = false;
    const absl::Status status = co_await Converse(*link, question, head, is_reusable, on_piece);
    // The server may have closed a connection that was idle, just now: that is no answer to this.
    if (!status.ok() && head.status == 0 && !link->is_fresh) continue;
    link->is_fresh = false;
    if (status.ok() && is_reusable) idle_.push_back(std::move(link));
    co_return status;
  }
}

asio::awaitable<absl::Status> HttpPeer::Open(std::unique_ptr<Link>& link) {
  ErrorCode error;
  link = std::make_unique<Link>(io_, tls_.get());
  tcp::resolver resolver(io_);
  const auto endpoints = co_await resolver.async_resolve(host_, port_, Into(error));
  if (error) co_return Failure(absl::StrCat("no address of ", host_field_), error);
  link->tcp().expires_after(kConnectTimeout);
  co_await link->tcp().async_connect(endpoints, Into(error));
  if (error) co_return Failure(absl::StrCat("no connection to ", host_field_), error);
  link->tcp().socket().set_option(tcp::no_delay(true), error);
  if (link->secure) {
    SSL_set_tlsext_host_name(link->secure->native_handle(), server_name_.c_str());
    link->secure->set_verify_callback(asio::ssl::host_name_verification(server_name_), error);
    co_await link->secure->async_handshake(asio::ssl::stream_base::client, Into(error));
    if (error) co_return Failure("the TLS handshake failed", error);
  }
  has_connected_ = true;
  co_return absl::OkStatus();
}

asio::awaitable<absl::Status> HttpPeer::Converse(Link& link, const HttpQuestion& question,
                                                 HttpHead& head, bool& is_reusable,
                                                 const OnPiece& on_piece) {
  ErrorCode error;
  if (timeout_ == absl::InfiniteDuration()) {
    link.tcp().expires_never();
  } else {
    link.tcp().expires_after(absl::ToChronoNanoseconds(timeout_));
  }
  http::request<http::string_body> request;
  request.method_string(question.method);
  request.target(question.path);
  request.set(http::field::host, host_field_);
  if (!api_key_.empty()) request.set(http::field::authorization, absl::StrCat("Bearer ", api_key_));
  if (!question.body.empty()) {
    request.set(http::field::content_type, "application/json");
    request.body() = question.body;
  }
  request.prepare_payload();
  const auto write = [&](auto& s) { return http::async_write(s, request, Into(error)); };
  co_await link.With(write);
  if (error) co_return Failure("the request was not sent", error);

  http::response_parser<http::buffer_body> parser;
  parser.body_limit(kMaxBodyBytes);
  const auto read_header = [&](auto& s) {
    return http::async_read_header(s, link.buffer, parser, Into(error));
  };
  co_await link.With(read_header);
  if (error) co_return Failure("no answer", error);
  head.status = static_cast<int>(parser.get().result_int());
  const auto read_some = [&](auto& s) {
    return http::async_read_some(s, link.buffer, parser, Into(error));
  };
  char piece[kPieceBytes];
  while (!parser.is_done()) {
    parser.get().body().data = piece;
    parser.get().body().size = sizeof(piece);
    co_await link.With(read_some);
    if (error == http::error::need_buffer) error = {};
    if (error) co_return Failure("the answer broke off", error);
    if (const size_t size = sizeof(piece) - parser.get().body().size; size > 0) {
      on_piece({piece, size});
    }
  }
  is_reusable = parser.keep_alive();
  co_return absl::OkStatus();
}

}  // namespace mneme::cli
