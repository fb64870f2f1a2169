// The status line and header of a response, as bytes.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "server/http/http_message.h"

namespace mneme {

struct ResponseFraming {
  absl::string_view request_id;
  bool is_stream = false;  // the body's length is not known
  bool chunked = false;
  bool keep_alive = true;
};

// Ends with the empty line.
std::string ResponseHead(const HttpResponse& response, const ResponseFraming& framing);

}  // namespace mneme
