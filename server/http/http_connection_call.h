// HttpCall of an HttpConnection: carries answers from any thread to the connection's own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/http/http_call.h"

namespace mneme {

class HttpConnection;

class HttpConnectionCall final : public HttpCall,
                                 public std::enable_shared_from_this<HttpConnectionCall> {
 public:
  // `number` tells the connection which of its requests this is about.
  HttpConnectionCall(std::weak_ptr<HttpConnection> connection, std::shared_ptr<HttpRequest> request,
                     int64_t number);
  ~HttpConnectionCall() override;

  const HttpRequest& request() const override { return *request_; }
  void Send(HttpResponse response) override { Answer(std::move(response), nullptr); }
  void Stream(HttpResponse head, std::shared_ptr<HttpBody> body) override {
    Answer(std::move(head), std::move(body));
  }
  void Wake() override;
  void OnClientLeft(std::function<void()> left) override ABSL_LOCKS_EXCLUDED(mu_);
  bool client_left() const override ABSL_LOCKS_EXCLUDED(mu_);

  // The connection's side, on its strand: the response was sent, or the client is gone.
  void Finish() ABSL_LOCKS_EXCLUDED(mu_);
  void Leave() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Answer(HttpResponse head, std::shared_ptr<HttpBody> body) ABSL_LOCKS_EXCLUDED(mu_);

  // Runs `task` on the connection's strand, if that still exists.
  void Post(std::function<void(HttpConnection&)> task);

  const std::weak_ptr<HttpConnection> connection_;
  const std::shared_ptr<HttpRequest> request_;
  const int64_t number_;

  mutable absl::Mutex mu_;
  bool answered_ ABSL_GUARDED_BY(mu_) = false;
  bool left_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void()> on_left_ ABSL_GUARDED_BY(mu_);
};

}  // namespace mneme
