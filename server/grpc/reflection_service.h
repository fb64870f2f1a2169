// Server reflection, so that clients such as grpcurl need no proto files: grpc.reflection.v1 and
// its older name v1alpha, whose messages are the same on the wire.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"

namespace mneme {

// Answers one request from the descriptors that are linked into the program. `services` are the
// full names to list.
grpc::reflection::v1::ServerReflectionResponse Reflect(
    const grpc::reflection::v1::ServerReflectionRequest& request,
    const std::set<std::string>& services);

// The stream of one client: a response for each request, in order.
class ReflectionStream final
    : public grpc::ServerBidiReactor<grpc::reflection::v1::ServerReflectionRequest,
                                     grpc::reflection::v1::ServerReflectionResponse> {
 public:
  // Deletes itself when gRPC is done with it.
  explicit ReflectionStream(const std::set<std::string>& services) : services_(services) {
    StartRead(&request_);
  }
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }

 private:
  const std::set<std::string>& services_;
  grpc::reflection::v1::ServerReflectionRequest request_;
  grpc::reflection::v1::ServerReflectionResponse response_;
};

// `Service` is the CallbackService of either name.
template <typename Service>
class ReflectionService final : public Service {
 public:
  explicit ReflectionService(std::set<std::string> services) : services_(std::move(services)) {}

  grpc::ServerBidiReactor<grpc::reflection::v1::ServerReflectionRequest,
                          grpc::reflection::v1::ServerReflectionResponse>*
  ServerReflectionInfo(grpc::CallbackServerContext*) override {
    return new ReflectionStream(services_);
  }

 private:
  const std::set<std::string> services_;
};

using ReflectionV1 = ReflectionService<grpc::reflection::v1::ServerReflection::CallbackService>;
using ReflectionV1Alpha =
    ReflectionService<grpc::reflection::v1alpha::ServerReflection::CallbackService>;

}  // namespace mneme
