// One request under way: how a handler answers it, whole or as a stream, now or later.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/http/http_message.h"

namespace mneme {

// A body that comes into being while it is sent. Pulled by the connection, which asks again only
// when everything before was written: a client that reads slowly slows its source down, and nothing
// piles up.
class HttpBody {
 public:
  enum class State {
    kMore,   // ask again once `out` was written
    kLater,  // nothing more now; HttpCall::Wake() follows
    kEnd,    // `out` is the last of it
  };
  virtual ~HttpBody() = default;
  // Appends to `out`. On the connection's thread; must return quickly.
  virtual State Read(std::string& out) = 0;
  // Bytes to send after a while of nothing, so that proxies do not take the connection for dead.
  virtual std::string KeepAlive() { return ""; }
};

// Exactly one of Send and Stream is called, once, from any thread; a call that is dropped without
// either is answered with 500. All methods are thread-safe and never block.
class HttpCall {
 public:
  virtual ~HttpCall() = default;

  virtual const HttpRequest& request() const = 0;
  virtual void Send(HttpResponse response) = 0;
  // `head` has no body of its own. The connection destroys `body` when it is sent or the client has
  // left, whichever comes first.
  virtual void Stream(HttpResponse head, std::shared_ptr<HttpBody> body) = 0;
  // The body has more to give.
  virtual void Wake() = 0;
  // `left` runs at most once, on the connection's thread: when the client leaves before the
  // response was sent in full, or at once if it has left.
  virtual void OnClientLeft(std::function<void()> left) = 0;
  virtual bool client_left() const = 0;
};

using HttpHandler = std::function<void(std::shared_ptr<HttpCall>)>;

}  // namespace mneme
