#include "server/grpc/call_names.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "server/requests/request_id.h"

namespace mneme {

std::string ChooseRequestId(absl::string_view own, const grpc::CallbackServerContext& context) {
  if (!own.empty()) return std::string(own);
  const auto& metadata = context.client_metadata();
  const auto given = metadata.find("x-request-id");
  if (given == metadata.end()) return RequestIdOr("");
  return RequestIdOr(absl::string_view(given->second.data(), given->second.size()));
}

TraceContext AnswerTrace(grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto parents = metadata.equal_range("traceparent");
  // More than one caller cannot be: the standard has that count as none.
  if (parents.first == parents.second || std::next(parents.first) != parents.second) return {};
  std::string state;
  for (auto [it, end] = metadata.equal_range("tracestate"); it != end; ++it) {
    absl::StrAppend(&state, state.empty() ? "" : ",",
                    absl::string_view(it->second.data(), it->second.size()));
  }
  const grpc::string_ref& parent = parents.first->second;
  TraceContext trace = ReadTraceContext(absl::string_view(parent.data(), parent.size()), state);
  if (trace.valid()) context.AddInitialMetadata("traceparent", trace.TraceParent());
  if (!trace.state.empty()) context.AddInitialMetadata("tracestate", trace.state);
  return trace;
}

void SendRequestId(grpc::CallbackServerContext& context) {
  (void)AnswerTrace(context);
  context.AddInitialMetadata("x-request-id", ChooseRequestId("", context));
}

}  // namespace mneme
