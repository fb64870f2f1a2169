#include "server/http/http_connection.h"

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "server/http/http_connection_call.h"
#include "server/http/http_cors.h"
#include "server/http/http_error.h"
#include "server/http/http_response_head.h"
#include "server/http/http_trace.h"
#include "server/process/out_of_memory.h"
#include "server/requests/request_id.h"

namespace mneme {
namespace {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

// Bytes of pipelined requests that are read while another one is answered.
constexpr size_t kMaxReadAhead = 65536;
// One write; the write time-out counts from one to the next.
constexpr size_t kMaxWriteBytes = 262144;
// For what a refused client has sent already: closing at once would reset the connection, and the
// client would never see why.
constexpr absl::Duration kLinger = absl::Seconds(2);

}  // namespace

HttpConnection::HttpConnection(HttpShared& shared, asio::any_io_executor executor,
                               std::unique_ptr<ByteStream> stream, std::string peer,
                               std::function<void(HttpConnection*)> on_closed)
    : living_(shared.living),
      shared_(shared),
      executor_(std::move(executor)),
      stream_(std::move(stream)),
      peer_(std::move(peer)),
      on_closed_(std::move(on_closed)),
      timer_(executor_) {}

HttpConnection::~HttpConnection() = default;

void HttpConnection::Start() {
  ArmTimer(shared_.options.header_timeout, [this] { Close(); });
  stream_->Handshake([self = shared_from_this()](ErrorCode error) {
    if (error || self->phase_ == Phase::kClosed) return self->Close();
    self->BeginRequest();
    self->ReadMore();
  });
}

void HttpConnection::StartRefusing() {
  ArmTimer(shared_.options.header_timeout, [this] { Close(); });
  stream_->Handshake([self = shared_from_this()](ErrorCode error) {
    if (error || self->phase_ == Phase::kClosed) return self->Close();
    self->request_ = std::make_shared<HttpRequest>();
    self->request_->id = RequestIdOr("");
    self->request_->peer = self->peer_;
    self->begin_ = RealClock().Monotonic();
    HttpResponse response = ErrorResponse(503, "too many connections", "too_many_connections");
    response.fields.push_back({"Retry-After", "1"});
    self->Refuse(std::move(response));
  });
}

void HttpConnection::PostCloseIfIdle() {
  asio::post(executor_, [self = shared_from_this()] {
    if (self->phase_ == Phase::kIdle || self->phase_ == Phase::kHandshake) self->Close();
  });
}

void HttpConnection::PostClose() {
  asio::post(executor_, [self = shared_from_this()] { self->Close(); });
}

void HttpConnection::PostEvict() {
  use_.Serve();  // nobody chooses it again
  asio::post(executor_, [self = shared_from_this()] {
    const Phase phase = self->phase_;
    const bool is_idle = phase == Phase::kIdle || phase == Phase::kHandshake;
    if (is_idle || (phase == Phase::kHeader && !self->use_.is_known())) self->Close();
  });
}

// --- Reading ---

void HttpConnection::BeginRequest() {
  phase_ = Phase::kIdle;
  use_.BeginIdle();
  parser_ = std::make_unique<HttpParser>(
      shared_.options.limits, [this](const std::string& method, const std::string& path) {
        const HttpRoutes::Match match = shared_.routes.Find(method, path);
        if (match.route == nullptr || match.route->max_body_bytes == nullptr) return int64_t{-1};
        return match.route->max_body_bytes(match.argument);
      });
  header_checked_ = false;
  match_ = {};
  request_ = nullptr;
  ArmTimer(shared_.options.idle_timeout, [this] { Close(); });
}

void HttpConnection::ReadMore() {
  if (reading_ || phase_ == Phase::kClosed) return;
  reading_ = true;
  stream_->ReadSome(asio::buffer(read_buffer_),
                    [self = shared_from_this()](ErrorCode error, size_t bytes) {
                      self->reading_ = false;
                      RunOrRefuse([&] { self->OnRead(error, bytes); },
                                  [&](const absl::Status& why) { self->GiveUpReading(why); });
                    });
}

void HttpConnection::GiveUpReading(const absl::Status& why) {
  if (phase_ != Phase::kHeader && phase_ != Phase::kBody) return Close();
  std::string().swap(in_);
  std::string().swap(parser_->request().body);
  MakeRequest();
  Refuse(ErrorResponse(why), why);
}

void HttpConnection::OnRead(ErrorCode error, size_t bytes) {
  if (phase_ == Phase::kClosed) return;
  // The client's end of the connection is taken for its leaving, also in the middle of a response.
  // A write under way knows better whether the response was taken: a client may close at its last
  // byte, before this side has heard of the write's end.
  if (error && writing_) {
    client_closed_ = true;
    return;
  }
  if (error) return Close();
  if (phase_ == Phase::kLingering) return ReadMore();
  in_.append(read_buffer_.data(), bytes);
  if (phase_ == Phase::kHandling || phase_ == Phase::kWriting) {
    if (in_.size() < kMaxReadAhead) ReadMore();
    return;
  }
  Process();
}

void HttpConnection::Process() {
  if (phase_ == Phase::kIdle) {
    if (in_.empty()) return ReadMore();
    phase_ = Phase::kHeader;
    use_.BeginRequest();
    begin_ = RealClock().Monotonic();
    ArmTimer(shared_.options.header_timeout, [this] { TimeOut("header"); });
  }
  while (true) {
    const HttpParser::State before = parser_->state();
    const HttpParser::State state = parser_->Feed(in_);
    if (state == HttpParser::State::kFailed) {
      MakeRequest();
      return Refuse(ErrorResponse(parser_->error_status(), parser_->error_message()));
    }
    if (state != HttpParser::State::kHeader && !header_checked_) {
      header_checked_ = true;
      MakeRequest();
      if (!CheckHeader()) return;
      phase_ = Phase::kBody;
      ArmTimer(shared_.options.body_timeout, [this] { TimeOut("body"); });
      // A client that waits for this line sends its body after it. Nobody else is writing now.
      if (parser_->expects_continue() && state == HttpParser::State::kBody && in_.empty()) {
        return WriteOut("HTTP/1.1 100 Continue\r\n\r\n", [this] {
          ArmTimer(shared_.options.body_timeout, [this] { TimeOut("body"); });
          ReadMore();
        });
      }
    }
    if (state == HttpParser::State::kDone) return Dispatch();
    if (state == before) return ReadMore();
  }
}

void HttpConnection::TimeOut(absl::string_view part) {
  MakeRequest();
  Refuse(ErrorResponse(408, absl::StrCat("the request's ", part, " did not arrive in time")));
}

void HttpConnection::MakeRequest() {
  if (request_ != nullptr) return;
  request_ = std::make_shared<HttpRequest>(std::move(parser_->request()));
  request_->id = RequestIdOr(request_->Field("x-request-id"));
  request_->peer = peer_;
  request_->peer_identity = stream_->PeerIdentity();
  request_->trace = TraceOf(*request_);
  request_->received = begin_;
  match_ = shared_.routes.Find(request_->method, request_->path);
  if (match_.route != nullptr) {
    request_->route = match_.route->pattern;
    request_->route_argument = match_.argument;
  }
  minor_version_ = header_checked_ ? parser_->minor_version() : 1;
  keep_alive_ = header_checked_ && parser_->keep_alive();
}

bool HttpConnection::CheckHeader() {
  const HttpRoute* const route = match_.route;
  if (std::optional<HttpResponse> preflight =
          AnswerPreflight(shared_.options.allowed_origins, *request_, match_.allowed)) {
    AnswerAtOnce(*std::move(preflight));
    return false;
  }
  if (shared_.options.authenticator != nullptr && (route == nullptr || !route->is_open)) {
    absl::StatusOr<std::string> owner = shared_.options.authenticator->Authenticate(*request_);
    if (!owner.ok()) {
      Refuse(ErrorResponse(owner.status()), owner.status());
      return false;
    }
    request_->owner = *std::move(owner);
  }
  if (route != nullptr && !route->is_open) use_.BecomeKnown();
  if (route == nullptr && match_.allowed.empty()) {
    Refuse(ErrorResponse(404, absl::StrCat("nothing is served at ", request_->path)));
    return false;
  }
  if (route == nullptr) {
    HttpResponse response = ErrorResponse(
        405, absl::StrCat(request_->path, " takes ", match_.allowed, ", not ", request_->method));
    response.fields.push_back({"Allow", match_.allowed});
    Refuse(std::move(response));
    return false;
  }
  if (request_->method == "POST" && !parser_->has_length()) {
    keep_alive_ = false;  // what follows may be a body all the same
    Refuse(ErrorResponse(411, "a POST needs Content-Length or Transfer-Encoding: chunked"));
    return false;
  }
  if (route->admit != nullptr) {
    if (const absl::Status refusal = route->admit(*request_); !refusal.ok()) {
      Refuse(ErrorResponse(refusal), refusal);
      return false;
    }
  }
  return true;
}

void HttpConnection::Dispatch() {
  phase_ = Phase::kHandling;
  use_.Serve();
  DisarmTimer();
  request_->body = std::move(parser_->request().body);
  request_->received = RealClock().Monotonic();
  const auto call =
      std::make_shared<HttpConnectionCall>(weak_from_this(), request_, ++call_number_);
  call_ = call;
  if (in_.size() < kMaxReadAhead) ReadMore();
  match_.route->handler(call);
}

void HttpConnection::Refuse(HttpResponse response) {
  const int status = response.status;
  Refuse(std::move(response), absl::Status(StatusCodeOf(status), HttpReason(status)));
}

void HttpConnection::Refuse(HttpResponse response, absl::Status why) {
  refusal_ = std::move(why);
  AnswerAtOnce(std::move(response));
}

void HttpConnection::AnswerAtOnce(HttpResponse response) {
  const bool is_whole = parser_ != nullptr && parser_->state() == HttpParser::State::kDone;
  if (!is_whole) keep_alive_ = false;
  phase_ = Phase::kHandling;
  OnAnswer(call_number_, std::move(response), nullptr);
}

// --- Answering ---

void HttpConnection::OnAnswer(int64_t call_number, HttpResponse head,
                              std::shared_ptr<HttpBody> body) {
  if (phase_ != Phase::kHandling || call_number != call_number_) return;
  phase_ = Phase::kWriting;
  status_ = head.status;
  sent_bytes_ = 0;
  if (shared_.draining.load()) keep_alive_ = false;
  AddTrace(request_->trace, head);
  AddCors(shared_.options.allowed_origins, *request_, head);
  const bool head_only = request_->method == "HEAD";
  const bool is_stream = body != nullptr;
  chunked_ = is_stream && minor_version_ >= 1;
  if (is_stream && !chunked_) keep_alive_ = false;  // HTTP/1.0: the body ends with the connection
  std::string text = ResponseHead(head, {.request_id = request_->id,
                                         .is_stream = is_stream,
                                         .chunked = chunked_,
                                         .keep_alive = keep_alive_});
  if (is_stream && !head_only) {
    body_ = std::move(body);
    Pump(std::move(text));
    return;
  }
  if (!head_only) text.append(head.body);
  WriteOut(std::move(text), [this] { FinishExchange(); });
}

void HttpConnection::OnWake(int64_t call_number) {
  if (!body_waits_ || call_number != call_number_) return;
  body_waits_ = false;
  Pump("");
}

void HttpConnection::Pump(std::string text) {
  std::string data;
  HttpBody::State state = HttpBody::State::kMore;
  while (state == HttpBody::State::kMore && data.size() < kMaxWriteBytes) {
    state = body_->Read(data);
  }
  AppendBody(data, state == HttpBody::State::kEnd, text);
  if (state == HttpBody::State::kEnd) {
    return WriteOut(std::move(text), [this] { FinishExchange(); });
  }
  if (!text.empty()) return WriteOut(std::move(text), [this] { Pump(""); });
  body_waits_ = true;
  ArmTimer(shared_.options.stream_keep_alive, [this] {
    if (!body_waits_) return;
    body_waits_ = false;
    std::string ping;
    AppendBody(body_->KeepAlive(), false, ping);
    WriteOut(std::move(ping), [this] { Pump(""); });
  });
}

void HttpConnection::AppendBody(absl::string_view data, bool is_last, std::string& out) const {
  if (!chunked_) return absl::StrAppend(&out, data);
  if (!data.empty()) absl::StrAppend(&out, absl::Hex(data.size()), "\r\n", data, "\r\n");
  if (is_last) absl::StrAppend(&out, "0\r\n\r\n");
}

void HttpConnection::WriteOut(std::string data, std::function<void()> next) {
  out_ = std::move(data);
  out_offset_ = 0;
  after_write_ = std::move(next);
  WriteRest();
}

void HttpConnection::WriteRest() {
  const size_t bytes = std::min(out_.size() - out_offset_, kMaxWriteBytes);
  if (bytes == 0) {
    std::exchange(after_write_, nullptr)();
    // The response is not over yet, or no further request can come.
    if (client_closed_ && !writing_) Close();
    return;
  }
  writing_ = true;
  ArmTimer(phase_ == Phase::kBody ? shared_.options.body_timeout : shared_.options.write_timeout,
           [this] { Close(); });
  stream_->Write(asio::const_buffer(out_.data() + out_offset_, bytes),
                 [self = shared_from_this(), bytes](ErrorCode error) {
                   self->writing_ = false;
                   if (self->phase_ == Phase::kClosed) return;
                   if (error) return self->Close();
                   self->out_offset_ += bytes;
                   self->sent_bytes_ += static_cast<int64_t>(bytes);
                   self->WriteRest();
                 });
}

void HttpConnection::FinishExchange() {
  DisarmTimer();
  Report(/*complete=*/true);
  body_ = nullptr;
  if (const auto call = call_.lock()) call->Finish();
  call_.reset();
  if (!keep_alive_ || shared_.draining.load()) return Linger();
  BeginRequest();
  // Not from here: a client that pipelines many requests would nest them on the stack.
  asio::post(executor_, [self = shared_from_this()] {
    if (self->phase_ == Phase::kIdle) self->Process();
  });
}

void HttpConnection::Report(bool complete) {
  if (request_ == nullptr) return;
  if (shared_.options.on_exchange) {
    shared_.options.on_exchange({.request = *request_,
                                 .status = status_,
                                 .sent_bytes = sent_bytes_,
                                 .duration = RealClock().Monotonic() - begin_,
                                 .complete = complete,
                                 .refusal = refusal_});
  }
  request_ = nullptr;
  status_ = 0;
  refusal_ = absl::OkStatus();
}

void HttpConnection::Linger() {
  phase_ = Phase::kLingering;
  ArmTimer(kLinger, [this] { Close(); });
  stream_->CloseSend([self = shared_from_this()](ErrorCode error) {
    if (error) return self->Close();
    self->ReadMore();
  });
}

void HttpConnection::Close() {
  if (phase_ == Phase::kClosed) return;
  const bool was_answering = phase_ == Phase::kHandling || phase_ == Phase::kWriting;
  phase_ = Phase::kClosed;
  DisarmTimer();
  stream_->Close();
  if (was_answering) Report(/*complete=*/false);
  body_waits_ = false;
  body_ = nullptr;
  if (const auto call = call_.lock()) call->Leave();
  call_.reset();
  after_write_ = nullptr;
  if (on_closed_) std::exchange(on_closed_, nullptr)(this);
}

void HttpConnection::ArmTimer(absl::Duration timeout, std::function<void()> expired) {
  const int64_t generation = ++timer_generation_;
  timer_.expires_after(absl::ToChronoNanoseconds(timeout));
  timer_.async_wait(
      [weak = weak_from_this(), generation, expired = std::move(expired)](ErrorCode error) {
        const std::shared_ptr<HttpConnection> self = weak.lock();
        if (error || self == nullptr || generation != self->timer_generation_) return;
        if (self->phase_ != Phase::kClosed) expired();
      });
}

void HttpConnection::DisarmTimer() {
  ++timer_generation_;
  timer_.cancel();
}

}  // namespace mneme
