// The trace of an HTTP request: read from its header, sent back in the response's.
#pragma once

#include "server/http/http_message.h"
#include "server/requests/trace_context.h"

namespace mneme {

TraceContext TraceOf(const HttpRequest& request);

// Adds the fields `traceparent`, with the request's own span, and `tracestate`, where there is a
// trace.
void AddTrace(const TraceContext& trace, HttpResponse& response);

}  // namespace mneme
