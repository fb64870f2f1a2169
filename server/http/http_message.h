// A request and a response of HTTP/1.1, as plain data: what handlers see. No HTTP library here.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/requests/trace_context.h"

namespace mneme {

struct HttpField {
  std::string name;
  std::string value;
};

struct HttpRequest {
  std::string method;  // "POST"
  std::string path;    // percent-decoded, without the query
  // What is behind the last "/" that was sent as one, percent-decoded: of "/a/b%2Fc" "b/c".
  std::string last_segment;
  std::string query;  // as it was sent, without the "?"
  std::vector<HttpField> fields;
  std::string body;

  // Filled by the server.
  std::string id;              // x-request-id: the client's if it sent a fitting one, else random
  std::string peer;            // "127.0.0.1:4711"
  std::string peer_identity;   // subject of the client's certificate; empty without one
  std::string owner;           // of sessions, says the authenticator; empty: the anonymous owner
  std::string route;           // the pattern that matched: "/v1/models/{model}"
  std::string route_argument;  // what its "{...}" stands for
  std::shared_ptr<const void> place;  // that HttpRoute::admit took; goes with the request
  TraceContext trace;  // of its traceparent and tracestate, with a span for this request
  // When all of it was there, or its first byte if it never came to an end; monotonic.
  absl::Duration received;

  // The first field of that name, upper or lower case; empty without one.
  absl::string_view Field(absl::string_view name) const {
    for (const HttpField& field : fields) {
      if (absl::EqualsIgnoreCase(field.name, name)) return field.value;
    }
    return "";
  }
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<HttpField> fields;  // beside those the server adds itself
  std::string body;
};

// "Not Found" for 404.
absl::string_view HttpReason(int status);

}  // namespace mneme
