// W3C Trace Context: which trace of a distributed system a call belongs to.
// https://www.w3.org/TR/trace-context/
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace mneme {

// Empty ids: the caller sent none, or none that is valid. A header that is not valid is ignored, as
// the standard asks; a call never fails for it.
struct TraceContext {
  std::string trace_id;   // 32 hexadecimal digits, lower case
  std::string parent_id;  // 16, of the caller's span
  std::string span_id;    // 16, of this call, made up here
  std::string flags;      // 2
  std::string state;      // the header tracestate as it came

  bool valid() const { return !trace_id.empty(); }
  // The header that says: of this trace, and caused by this call.
  std::string TraceParent() const;
};

// `traceparent` and `tracestate` are the headers' values, empty where there is none. Several
// tracestate headers are joined by commas.
TraceContext ReadTraceContext(absl::string_view traceparent, absl::string_view tracestate);

// Whether `tracestate` is a list of at most 32 "key=value" of at most 512 characters in all.
bool IsTraceState(absl::string_view tracestate);

}  // namespace mneme
