#include "server/http/http_connection_call.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "server/http/http_connection.h"
#include "server/http/http_error.h"

namespace mneme {

HttpConnectionCall::HttpConnectionCall(std::weak_ptr<HttpConnection> connection,
                                       std::shared_ptr<HttpRequest> request, int64_t number)
    : connection_(std::move(connection)), request_(std::move(request)), number_(number) {}

HttpConnectionCall::~HttpConnectionCall() {
  Answer(ErrorResponse(500, "the request was dropped", "dropped"), nullptr);
}

void HttpConnectionCall::Answer(HttpResponse head, std::shared_ptr<HttpBody> body) {
  {
    absl::MutexLock lock(&mu_);
    if (answered_) return;
    answered_ = true;
  }
  Post([number = number_, head = std::move(head),
        body = std::move(body)](HttpConnection& connection) mutable {
    connection.OnAnswer(number, std::move(head), std::move(body));
  });
}

void HttpConnectionCall::Wake() {
  Post([number = number_](HttpConnection& connection) { connection.OnWake(number); });
}

void HttpConnectionCall::Post(std::function<void(HttpConnection&)> task) {
  const std::shared_ptr<HttpConnection> connection = connection_.lock();
  if (connection == nullptr) return;
  boost::asio::post(connection->executor(),
                    [connection, task = std::move(task)] { task(*connection); });
}

void HttpConnectionCall::OnClientLeft(std::function<void()> left) {
  {
    absl::MutexLock lock(&mu_);
    if (finished_) return;
    if (!left_) {
      on_left_ = std::move(left);
      return;
    }
  }
  Post([left = std::move(left)](HttpConnection&) { left(); });
}

bool HttpConnectionCall::client_left() const {
  absl::MutexLock lock(&mu_);
  return left_;
}

void HttpConnectionCall::Finish() {
  std::function<void()> dropped;  // destroyed without the lock
  absl::MutexLock lock(&mu_);
  finished_ = true;
  dropped = std::exchange(on_left_, nullptr);
}

void HttpConnectionCall::Leave() {
  std::function<void()> left;
  {
    absl::MutexLock lock(&mu_);
    if (finished_) return;
    left_ = true;
    left = std::exchange(on_left_, nullptr);
  }
  if (left) left();
}

}  // namespace mneme
