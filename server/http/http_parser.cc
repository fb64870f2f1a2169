// One of Beast's own assertions is wrong: a body whose first chunk is its last, "0", may be four
// bytes when Beast looks at it again, which demands five. Without it that is read as it should be.
#define BOOST_DISABLE_ASSERTS
#include "server/http/http_parser.h"

#include <boost/beast/http/basic_parser.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/http/url.h"

namespace mneme {
namespace {

namespace http = boost::beast::http;
using boost::beast::string_view;
using ErrorCode = boost::beast::error_code;

absl::string_view View(string_view text) { return {text.data(), text.size()}; }

}  // namespace

class HttpParser::Impl final : public http::basic_parser<true> {
 public:
  Impl(const HttpParserLimits& limits, BodyLimit body_limit_of)
      : limits_(limits), body_limit_of_(std::move(body_limit_of)) {
    header_limit(static_cast<std::uint32_t>(limits.max_header_bytes));
    body_limit(static_cast<std::uint64_t>(limits.max_body_bytes));
  }

  State Feed(std::string& in) {
    if (state_ == State::kDone || state_ == State::kFailed) return state_;
    ErrorCode error;
    size_t used = 0;
    bool goes_on = true;
    while (goes_on) {
      goes_on = is_header_done();  // the header by itself, the body in one go
      const absl::string_view left = absl::string_view(in).substr(used);
      const size_t step = Step(left, error);
      if (state_ == State::kFailed) return state_;
      used += step;
      goes_on = goes_on && !error && !is_done() && used < in.size();
    }
    in.erase(0, used);
    if (error == http::error::need_more) {
      // A header or the line in front of a chunk that goes on for ever.
      if (in.size() > static_cast<size_t>(limits_.max_header_bytes)) FailTooLong();
      return state_;
    }
    if (error) {
      if (state_ != State::kFailed) Explain(error);
      return state_;
    }
    if (is_done()) {
      state_ = State::kDone;
    } else if (is_header_done()) {
      state_ = State::kBody;
    }
    return state_;
  }

  HttpRequest request_;
  State state_ = State::kHeader;
  bool expects_continue_ = false;
  bool has_length_ = false;
  int minor_version_ = 1;
  int error_status_ = 0;
  std::string error_message_;

 private:
  // Looks for a line of a header, or of trailers, that begins with white space: once a way to go on
  // with the line before it, which Beast still takes for that, and others for a field of its own.
  class FoldedLines {
   public:
    // Whether there is one in `bytes`, which stand behind those of the calls before.
    bool AreIn(absl::string_view bytes) {
      for (const char c : bytes) {
        if (begins_line_ && (c == ' ' || c == '\t')) return true;
        begins_line_ = c == '\n';
      }
      return false;
    }

   private:
    bool begins_line_ = false;  // the next byte does
  };

  // Gives Beast, which is not eager by default, the next part: some lines of the header, the head
  // of a chunk, what is there of a body, or the last chunk's head together with the trailers.
  // Returns how many bytes it took.
  size_t Step(absl::string_view bytes, ErrorCode& error) {
    const bool is_header = !is_header_done();
    const size_t used = put(boost::asio::const_buffer(bytes.data(), bytes.size()), error);
    const absl::string_view taken = bytes.substr(0, used);
    if (is_header && header_folds_.AreIn(taken)) {
      Fail(400, "a line of the header begins with white space");
    } else if (in_last_chunk_ && trailer_folds_.AreIn(taken)) {
      Fail(400, "a line of the trailers begins with white space");
    }
    return used;
  }

  State Fail(int status, std::string message) {
    state_ = State::kFailed;
    error_status_ = status;
    error_message_ = std::move(message);
    return state_;
  }
  // For use inside Beast's callbacks, which end the parsing by an error code of their own.
  void Refuse(ErrorCode& error, int status, std::string message) {
    Fail(status, std::move(message));
    error = http::error::bad_value;
  }

  void RefuseTooLong(ErrorCode& error) {
    FailTooLong();
    error = http::error::bad_value;
  }

  void FailTooLong() {
    if (is_header_done()) {
      // The request has been taken from here by now, and tells nothing.
      Fail(431, absl::StrCat("the extensions of a chunk, or the trailers, are longer than ",
                             limits_.max_header_bytes, " bytes (--max-header-size)"));
    } else if (request_.method.empty()) {
      Fail(414, absl::StrCat("the request's target is longer than ", limits_.max_target_bytes,
                             " bytes"));
    } else {
      Fail(431, absl::StrCat("the request's header is longer than ", limits_.max_header_bytes,
                             " bytes (--max-header-size)"));
    }
  }

  void Explain(ErrorCode error) {
    if (error == http::error::header_limit) {
      FailTooLong();
    } else if (error == http::error::body_limit) {
      Fail(413, own_body_bytes_ >= 0
                    ? absl::StrCat("the request's body is longer than ", own_body_bytes_, " bytes")
                    : absl::StrCat("the request's body is longer than ", limits_.max_body_bytes,
                                   " bytes (--max-message-size)"));
    } else if (error == http::error::bad_version) {
      Fail(505, "expected HTTP/1.1 or HTTP/1.0");
    } else {
      Fail(400, absl::StrCat("not a request of HTTP/1.1: ", error.message()));
    }
  }

  void on_request_impl(http::verb, string_view method, string_view target, int version,
                       ErrorCode& error) override {
    minor_version_ = version - 10;
    request_.method = std::string(method);
    absl::string_view rest = View(target);
    if (static_cast<int>(rest.size()) > limits_.max_target_bytes) {
      return Refuse(error, 414,
                    absl::StrCat("the request's target has ", rest.size(),
                                 " bytes, expected at most ", limits_.max_target_bytes));
    }
    // The absolute form, which clients send to proxies.
    for (const absl::string_view scheme : {"http://", "https://"}) {
      if (!absl::StartsWithIgnoreCase(rest, scheme)) continue;
      const size_t slash = rest.find('/', scheme.size());
      rest = slash == absl::string_view::npos ? "/" : rest.substr(slash);
    }
    const size_t mark = rest.find('?');
    if (mark != absl::string_view::npos) request_.query = std::string(rest.substr(mark + 1));
    const absl::string_view path = rest.substr(0, mark);
    if (!PercentDecode(path, request_.path)) {
      return Refuse(error, 400, "the request's target has a % without two hexadecimal digits");
    }
    (void)PercentDecode(path.substr(path.rfind('/') + 1), request_.last_segment);  // a part of it
    if (body_limit_of_ == nullptr) return;
    own_body_bytes_ = body_limit_of_(request_.method, request_.path);
    if (own_body_bytes_ >= 0) body_limit(static_cast<std::uint64_t>(own_body_bytes_));
  }

  void on_field_impl(http::field name, string_view name_text, string_view value,
                     ErrorCode& error) override {
    if (is_header_done()) {  // trailers may not add to what was decided from the header
      trailer_bytes_ += static_cast<int64_t>(name_text.size() + value.size());
      if (trailer_bytes_ > limits_.max_header_bytes) RefuseTooLong(error);
      return;
    }
    if (name == http::field::transfer_encoding) {
      has_length_ = true;
      if (!absl::EqualsIgnoreCase(View(value), "chunked")) {
        return Refuse(error, 501, "Transfer-Encoding other than chunked is not supported");
      }
      if (!request_.Field("Content-Length").empty()) {
        return Refuse(error, 400, "both Content-Length and Transfer-Encoding");
      }
    } else if (name == http::field::content_length) {
      has_length_ = true;
      if (!request_.Field("Content-Length").empty() || absl::StrContains(View(value), ',')) {
        return Refuse(error, 400, "more than one Content-Length");
      }
      if (!request_.Field("Transfer-Encoding").empty()) {
        return Refuse(error, 400, "both Content-Length and Transfer-Encoding");
      }
    } else if (name == http::field::host && !request_.Field("Host").empty()) {
      return Refuse(error, 400, "more than one Host");
    } else if (name == http::field::expect) {
      if (!absl::EqualsIgnoreCase(View(value), "100-continue")) {
        return Refuse(error, 417, "Expect other than 100-continue is not supported");
      }
      expects_continue_ = minor_version_ >= 1;
    }
    request_.fields.push_back({std::string(name_text), std::string(value)});
  }

  void on_header_impl(ErrorCode& error) override {
    if (minor_version_ >= 1 && request_.Field("Host").empty()) {
      Refuse(error, 400, "Host is missing");
    }
  }

  void on_body_init_impl(const boost::optional<std::uint64_t>&, ErrorCode&) override {}
  size_t on_body_impl(string_view body, ErrorCode&) override {
    request_.body.append(body.data(), body.size());
    return body.size();
  }
  void on_chunk_header_impl(std::uint64_t size, string_view extensions, ErrorCode& error) override {
    in_last_chunk_ = size == 0;
    if (static_cast<int64_t>(extensions.size()) > limits_.max_header_bytes) RefuseTooLong(error);
  }
  size_t on_chunk_body_impl(std::uint64_t, string_view body, ErrorCode&) override {
    request_.body.append(body.data(), body.size());
    return body.size();
  }
  void on_finish_impl(ErrorCode&) override {}
  void on_response_impl(int, string_view, int, ErrorCode&) override {}

  const HttpParserLimits limits_;
  const BodyLimit body_limit_of_;
  int64_t own_body_bytes_ = -1;
  FoldedLines header_folds_;
  FoldedLines trailer_folds_;
  bool in_last_chunk_ = false;
  int64_t trailer_bytes_ = 0;
};

HttpParser::HttpParser(const HttpParserLimits& limits, BodyLimit body_limit)
    : impl_(std::make_unique<Impl>(limits, std::move(body_limit))) {}
HttpParser::~HttpParser() = default;

HttpParser::State HttpParser::Feed(std::string& in) { return impl_->Feed(in); }
HttpParser::State HttpParser::state() const { return impl_->state_; }
HttpRequest& HttpParser::request() { return impl_->request_; }
bool HttpParser::keep_alive() const { return impl_->keep_alive(); }
int HttpParser::minor_version() const { return impl_->minor_version_; }
bool HttpParser::expects_continue() const { return impl_->expects_continue_; }
bool HttpParser::has_length() const { return impl_->has_length_; }
int HttpParser::error_status() const { return impl_->error_status_; }
const std::string& HttpParser::error_message() const { return impl_->error_message_; }

}  // namespace mneme
