// One connection of HttpServer: reads a request, has it answered, writes the response, and again.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/clock.h"
#include "server/http/byte_stream.h"
#include "server/http/http_call.h"
#include "server/http/http_parser.h"
#include "server/http/http_server.h"
#include "server/net/connection_evictor.h"

namespace mneme {

class HttpConnectionCall;

// The common part of a server's connections; outlives them.
struct HttpShared {
  HttpServerOptions options;
  HttpRoutes routes;
  std::atomic<int64_t> living{0};     // connections whose memory is still in use
  std::atomic<bool> draining{false};  // no connection is kept for a further request
};

// A connection's use, for whoever has to choose one to close. Written on the connection's strand,
// read by any thread.
class ConnectionUse {
 public:
  // It waits for a request. One that has shown no right to be here has done so since it was opened.
  void BeginIdle() { idle_since_ = is_known_ ? Now() : opened_; }
  // A request has begun to arrive.
  void BeginRequest() {
    if (is_known_) idle_since_ = 0;
  }
  // A request may be made by whoever makes it, and not by everybody.
  void BecomeKnown() {
    is_known_ = true;
    idle_since_ = 0;
  }
  void Serve() { idle_since_ = 0; }

  bool is_idle() const { return idle_since_ != 0; }
  bool is_known() const { return is_known_; }
  ConnectionWorth worth() const {
    return {.is_known = is_known_.load(), .since = absl::Nanoseconds(idle_since_.load())};
  }

 private:
  static int64_t Now() { return absl::ToInt64Nanoseconds(RealClock().Monotonic()); }

  const int64_t opened_ = Now();
  std::atomic<int64_t> idle_since_{opened_};  // 0: it is in use
  std::atomic<bool> is_known_{false};
};

// Everything runs on the strand `executor`, but for Post-ing methods, which any thread may call.
//
//   handshake -> idle -> header -> body -> handling -> writing -> idle ...
//                                                             \-> lingering -> closed
//
// While a request is handled and its response written, the next bytes of the client are read, up to
// a bound: pipelined requests, which wait, or the end of the connection, which ends the work.
class HttpConnection final : public std::enable_shared_from_this<HttpConnection> {
 public:
  // `on_closed` runs once.
  HttpConnection(HttpShared& shared, boost::asio::any_io_executor executor,
                 std::unique_ptr<ByteStream> stream, std::string peer,
                 std::function<void(HttpConnection*)> on_closed);
  ~HttpConnection();

  void Start();
  // For a connection too many: says so and closes.
  void StartRefusing();
  // For any thread. Where a request is under way, HttpShared::draining ends it after the answer.
  void PostCloseIfIdle();
  void PostClose();
  // Unless it has come to be in use.
  void PostEvict();
  const ConnectionUse& use() const { return use_; }
  const boost::asio::any_io_executor& executor() const { return executor_; }

 private:
  friend class HttpConnectionCall;
  enum class Phase { kHandshake, kIdle, kHeader, kBody, kHandling, kWriting, kLingering, kClosed };

  // Reading.
  void BeginRequest();
  void ReadMore();
  void OnRead(boost::system::error_code error, size_t bytes);
  // There is no memory for what was read, says `why`.
  void GiveUpReading(const absl::Status& why);
  void Process();
  void TimeOut(absl::string_view part);
  // From what has been parsed so far, once; finds its route.
  void MakeRequest();
  // False: the request was answered.
  bool CheckHeader();
  void Dispatch();
  // Answers without the handler; closes the connection unless the whole request was read.
  void AnswerAtOnce(HttpResponse response);
  // The same, and says so to `on_exchange`.
  void Refuse(HttpResponse response);
  void Refuse(HttpResponse response, absl::Status why);

  // Answering. What comes for an earlier call is ignored.
  void OnAnswer(int64_t call_number, HttpResponse head, std::shared_ptr<HttpBody> body);
  void OnWake(int64_t call_number);
  // Writes `text` and what the body has, until it has nothing more for now.
  void Pump(std::string text);
  void AppendBody(absl::string_view data, bool is_last, std::string& out) const;
  void WriteOut(std::string data, std::function<void()> next);
  void WriteRest();
  void FinishExchange();
  void Report(bool complete);
  void Linger();
  void Close();

  void ArmTimer(absl::Duration timeout, std::function<void()> expired);
  void DisarmTimer();

  // First, so that it ends last.
  struct Living {
    explicit Living(std::atomic<int64_t>& count) : count(count) { ++count; }
    ~Living() { --count; }
    Living(const Living&) = delete;
    Living& operator=(const Living&) = delete;
    std::atomic<int64_t>& count;
  } living_;
  const HttpShared& shared_;
  const boost::asio::any_io_executor executor_;
  const std::unique_ptr<ByteStream> stream_;
  const std::string peer_;
  std::function<void(HttpConnection*)> on_closed_;
  boost::asio::steady_timer timer_;
  int64_t timer_generation_ = 0;

  Phase phase_ = Phase::kHandshake;
  ConnectionUse use_;

  std::array<char, 16384> read_buffer_;
  bool reading_ = false;
  std::string in_;  // read and not yet parsed
  std::unique_ptr<HttpParser> parser_;
  bool header_checked_ = false;
  HttpRoutes::Match match_;

  // The request under way, and its answer.
  std::shared_ptr<HttpRequest> request_;
  std::weak_ptr<HttpConnectionCall> call_;
  absl::Duration begin_;  // monotonic
  int64_t call_number_ = 0;
  bool keep_alive_ = true;
  int minor_version_ = 1;
  int status_ = 0;
  absl::Status refusal_;
  int64_t sent_bytes_ = 0;
  std::shared_ptr<HttpBody> body_;
  bool chunked_ = false;
  bool body_waits_ = false;  // for OnWake

  bool writing_ = false;
  bool client_closed_ = false;  // noticed while writing
  std::string out_;             // being written, from out_offset_
  size_t out_offset_ = 0;
  std::function<void()> after_write_;
};

}  // namespace mneme
