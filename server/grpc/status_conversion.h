// absl::Status, as everything below RPC speaks it, to grpc::Status with google.rpc details.
//
// The payloads of engine/status_payload.h become
//   reason                ErrorInfo.reason; without one, the name of the code
//   field                 BadRequest.field_violations
//   position              ErrorInfo.metadata["position"]
//   retry_after_ms        RetryInfo.retry_delay; without one, 1 s where WaitingHelps
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace mneme {

// OUT_OF_RANGE, which a tokenizer says of an id, is INVALID_ARGUMENT on the wire.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace mneme
