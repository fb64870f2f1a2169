// The headers traceparent (the first line) and tracestate (the rest).

#include <cstdint>

#include "server/requests/trace_context.h"
#include "tests/fuzz/bounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using mneme::Require;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t line = text.find('\n');
  const absl::string_view state = line == absl::string_view::npos ? "" : text.substr(line + 1);
  const mneme::TraceContext trace = mneme::ReadTraceContext(text.substr(0, line), state);
  if (!trace.valid()) {
    Require(trace.span_id.empty() && trace.state.empty(), "nothing of a trace that is not valid");
    return 0;
  }
  Require(trace.trace_id.size() == 32 && trace.parent_id.size() == 16, "ids of their lengths");
  Require(trace.span_id.size() == 16 && trace.span_id != trace.parent_id, "a span of its own");
  Require(trace.state.empty() || mneme::IsTraceState(trace.state), "a state that is one");
  const mneme::TraceContext next = mneme::ReadTraceContext(trace.TraceParent(), trace.state);
  Require(next.valid() && next.trace_id == trace.trace_id && next.parent_id == trace.span_id,
          "what is sent on is read as the same trace");
  Require(next.flags == trace.flags && next.state == trace.state, "and nothing is lost of it");
  return 0;
}
