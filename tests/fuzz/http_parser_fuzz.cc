// Bytes that claim to be a request of HTTP/1.1: what they mean must not depend on the pieces in
// which they arrive.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>

#include "server/http/http_parser.h"
#include "tests/fuzz/bounds.h"

namespace mneme {
namespace {

struct Outcome {
  HttpParser::State state = HttpParser::State::kHeader;
  HttpRequest request;
  int error_status = 0;
  std::string rest;  // of the next request, where this one is whole
};

// As a connection does it. `next` says how many bytes come together.
Outcome Parse(const std::string& bytes, const std::function<size_t()>& next) {
  constexpr HttpParserLimits kLimits = {
      .max_target_bytes = 64, .max_header_bytes = 512, .max_body_bytes = 256};
  HttpParser parser(kLimits);
  std::string in;
  size_t used = 0;
  while (used < bytes.size()) {
    const size_t size = std::min(bytes.size() - used, next());
    in.append(bytes, used, size);
    used += size;
    for (HttpParser::State before = parser.state(); parser.Feed(in) != before;) {
      before = parser.state();
    }
    if (parser.state() == HttpParser::State::kFailed) break;
    if (parser.state() == HttpParser::State::kDone) break;
  }
  Outcome outcome;
  outcome.state = parser.state();
  outcome.request = parser.request();
  outcome.error_status = parser.error_status();
  outcome.rest = in + bytes.substr(used);
  return outcome;
}

void Check(const Outcome& whole, const Outcome& pieces) {
  using State = HttpParser::State;
  // A request that never ends may be found wrong at once, or not yet.
  const auto is_open = [](State state) { return state == State::kHeader || state == State::kBody; };
  if (whole.state == State::kFailed && is_open(pieces.state)) return;
  if (pieces.state == State::kFailed && is_open(whole.state)) return;
  Require(whole.state == pieces.state, "the same end, whatever the pieces");
  if (whole.state == State::kFailed) {
    Require(whole.error_status >= 400 && pieces.error_status >= 400, "an error has a status");
    return;
  }
  if (whole.state != State::kDone) return;
  Require(whole.request.method == pieces.request.method, "the same method");
  Require(whole.request.path == pieces.request.path, "the same path");
  Require(whole.request.query == pieces.request.query, "the same query");
  Require(whole.request.body == pieces.request.body, "the same body");
  Require(whole.request.body.size() <= 256, "a body within its limit");
  Require(whole.rest == pieces.rest, "the same end of the request");
  Require(std::equal(whole.request.fields.begin(), whole.request.fields.end(),
                     pieces.request.fields.begin(), pieces.request.fields.end(),
                     [](const HttpField& a, const HttpField& b) {
                       return a.name == b.name && a.value == b.value;
                     }),
          "the same fields");
}

}  // namespace
}  // namespace mneme

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const mneme::Outcome whole = mneme::Parse(bytes, [&] { return bytes.size(); });
  mneme::Check(whole, mneme::Parse(bytes, [] { return size_t{1}; }));
  uint32_t random = static_cast<uint32_t>(std::hash<std::string>()(bytes));
  mneme::Check(whole, mneme::Parse(bytes, [&random] {
                 random = random * 1664525 + 1013904223;
                 return size_t{1} + (random >> 24) % 40;
               }));
  return 0;
}
