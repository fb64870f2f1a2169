// gRPC's side of the guard: TLS from files that may change, and who calls.
#pragma once

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/security/access.h"
#include "server/security/security.h"

namespace mneme {

// For the listening port. Each connection gets the certificate of the moment; each call is refused
// before its message is read unless its caller may make it (GrpcAccess). `security` must outlive
// the credentials, and these the server.
std::shared_ptr<grpc::ServerCredentials> GuardedCredentials(Security& security);

// The caller of a call that GuardedCredentials let in, whose connection is then known. An error if
// the key was taken away since.
absl::StatusOr<CallerRef> CallerOf(const grpc::CallbackServerContext& context,
                                   const Security& security, Access access);

// Where a call comes from, as SocketAddress::Text writes it.
std::string PeerText(const grpc::CallbackServerContext& context);

}  // namespace mneme
