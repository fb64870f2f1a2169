#include "server/http/http_trace.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace mneme {

TraceContext TraceOf(const HttpRequest& request) {
  absl::string_view parent;
  std::string state;
  int parents = 0;
  for (const HttpField& field : request.fields) {
    if (absl::EqualsIgnoreCase(field.name, "traceparent")) {
      parent = field.value;
      ++parents;
    } else if (absl::EqualsIgnoreCase(field.name, "tracestate")) {
      absl::StrAppend(&state, state.empty() ? "" : ",", field.value);
    }
  }
  // More than one caller cannot be: the standard has that count as none.
  return parents == 1 ? ReadTraceContext(parent, state) : TraceContext();
}

void AddTrace(const TraceContext& trace, HttpResponse& response) {
  if (trace.valid()) response.fields.push_back({"traceparent", trace.TraceParent()});
  if (!trace.state.empty()) response.fields.push_back({"tracestate", trace.state});
}

}  // namespace mneme
