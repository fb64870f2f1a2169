// The parts that are gRPC's own: health, reflection, malformed and oversized messages, the port.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "clients/cpp/error_details.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "mneme/v1/inference.grpc.pb.h"
#include "server/grpc/health_service.h"
#include "tests/server/grpc/server_fixture.h"

namespace mneme {
namespace {

using ::grpc::health::v1::HealthCheckRequest;
using ::grpc::health::v1::HealthCheckResponse;
using ::grpc::reflection::v1::ServerReflectionRequest;
using ::grpc::reflection::v1::ServerReflectionResponse;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

class TransportTest : public ServerTest {
 protected:
  TransportTest() : channel_(grpc::CreateChannel(target(), grpc::InsecureChannelCredentials())) {}

  // Answer to one reflection request, asked with the stub of either version.
  template <typename Stub>
  ServerReflectionResponse Reflection(const ServerReflectionRequest& request) {
    grpc::ClientContext context;
    Stub stub(channel_);
    auto stream = stub.ServerReflectionInfo(&context);
    ServerReflectionResponse response;
    EXPECT_TRUE(stream->Write(request));
    EXPECT_TRUE(stream->Read(&response));
    EXPECT_TRUE(stream->WritesDone());
    EXPECT_TRUE(stream->Finish().ok());
    return response;
  }

  grpc::Status SendRaw(const std::string& method, const std::string& bytes) {
    return CallRaw(channel_, method, bytes);
  }

  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(TransportTest, HealthFollowsTheServerUnderEachName) {
  grpc::health::v1::Health::Stub stub(channel_);
  for (const char* service : {"", "mneme.v1.Inference", "mneme.v1.Sessions"}) {
    for (const bool serving : {true, false}) {
      server_->SetServing(serving);
      grpc::ClientContext context;
      HealthCheckRequest request;
      HealthCheckResponse response;
      request.set_service(service);
      ASSERT_TRUE(stub.Check(&context, request, &response).ok());
      EXPECT_EQ(response.status(),
                serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING);
    }
  }
  grpc::ClientContext context;
  HealthCheckRequest request;
  HealthCheckResponse response;
  request.set_service("no.such.Service");
  EXPECT_EQ(stub.Check(&context, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(TransportTest, WatchTellsEveryChange) {
  grpc::health::v1::Health::Stub stub(channel_);
  grpc::ClientContext context;
  const auto reader = stub.Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  for (const bool serving : {true, false, true}) {
    server_->SetServing(serving);
    ASSERT_TRUE(reader->Read(&response));
    EXPECT_EQ(response.status(),
              serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING);
  }
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(TransportTest, WatchOfAnUnknownServiceStaysOpen) {
  grpc::health::v1::Health::Stub stub(channel_);
  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service("no.such.Service");
  const auto reader = stub.Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  server_->SetServing(false);  // is no news for this one
  server_->Shutdown(absl::Seconds(30));
  EXPECT_FALSE(reader->Read(&response));
}

TEST_F(TransportTest, AWatchThatComesAfterTheOthersWereEndedEndsAtOnce) {
  HealthService service({});
  service.EndWatches();
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  grpc::health::v1::Health::Stub stub(server->InProcessChannel({}));
  grpc::ClientContext context;
  const auto reader = stub.Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server->Shutdown();
}

TEST_F(TransportTest, BothReflectionsListTheServices) {
  ServerReflectionRequest request;
  request.set_list_services("");
  for (const ServerReflectionResponse& response :
       {Reflection<grpc::reflection::v1::ServerReflection::Stub>(request),
        Reflection<grpc::reflection::v1alpha::ServerReflection::Stub>(request)}) {
    std::set<std::string> names;
    for (const auto& service : response.list_services_response().service()) {
      names.insert(service.name());
    }
    EXPECT_THAT(names, IsSupersetOf({"mneme.v1.Inference", "mneme.v1.Sessions",
                                     "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                                     "grpc.reflection.v1alpha.ServerReflection"}));
  }
}

TEST_F(TransportTest, ReflectionGivesFilesWithTheirImports) {
  ServerReflectionRequest request;
  request.set_file_containing_symbol("mneme.v1.Inference");
  const auto response = Reflection<grpc::reflection::v1::ServerReflection::Stub>(request);
  std::set<std::string> names;
  for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
    google::protobuf::FileDescriptorProto file;
    ASSERT_TRUE(file.ParseFromString(bytes));
    names.insert(file.name());
  }
  EXPECT_THAT(names, IsSupersetOf({"mneme/v1/inference.proto", "google/protobuf/timestamp.proto"}));
  request.set_file_by_filename("mneme/v1/sessions.proto");
  EXPECT_TRUE(Reflection<grpc::reflection::v1::ServerReflection::Stub>(request)
                  .has_file_descriptor_response());
  request.set_file_containing_symbol("mneme.v1.Nothing");
  EXPECT_EQ(Reflection<grpc::reflection::v1::ServerReflection::Stub>(request)
                .error_response()
                .error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(TransportTest, BytesThatAreNoMessageAreInvalidArguments) {
  const std::string bad_utf8 = "\x1a\x02\xff\xfe";  // field 3, a string of two bytes
  for (const char* method : {"/mneme.v1.Inference/Generate", "/mneme.v1.Inference/Tokenize",
                             "/mneme.v1.Sessions/Create"}) {
    const grpc::Status status = SendRaw(method, "\xff\xff\xff");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(),
                HasSubstr("the request is not a protobuf message, expected a mneme.v1."));
  }
  const auto generate = [this](const std::string& bytes) {
    const grpc::Status status = SendRaw("/mneme.v1.Inference/Generate", bytes);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return MakeStatus(3, status.error_message(), status.error_details());
  };
  const absl::Status top = generate(bad_utf8);
  EXPECT_EQ(top.message(), "text is not valid UTF-8 at byte 0");
  EXPECT_EQ(DetailsOf(top).reason, "MALFORMED_REQUEST");
  EXPECT_EQ(DetailsOf(top).fields[0].field, "text");
  const absl::Status nested =
      generate(std::string("\x3a\x05\x2a\x03"
                           "ab\xff"));  // 7: stopping, 5: stop_strings
  EXPECT_EQ(nested.message(), "stopping.stop_strings is not valid UTF-8 at byte 2");
  EXPECT_EQ(generate("\x3a\x01\xff").message(),
            "stopping is not a protobuf message, expected a mneme.v1.StoppingOptions");
  // A packed list of ids whose last one breaks off.
  EXPECT_EQ(generate("\x22\x03\x0a\x01\xff").message(),
            "the request is not a valid mneme.v1.GenerateRequest message");
}

TEST_F(TransportTest, UnknownMethodsAreUnimplemented) {
  EXPECT_EQ(SendRaw("/mneme.v1.Inference/Nothing", "").error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(TransportTest, AMessageThatIsTooLargeIsResourceExhausted) {
  const std::string text(config_.max_message_bytes() + 1, 'x');
  v1::TokenizeRequest request;
  request.set_text(text);
  const absl::Status status = client_->Tokenize(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("16777216"));
}

TEST_F(TransportTest, TheRequestIdComesWithTheInitialMetadata) {
  v1::Inference::Stub stub(channel_);
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "from-metadata");
  v1::GenerateRequest request;
  request.set_text("a");
  const auto reader = stub.Generate(&context, request);
  FakeRequest& fake = engine_.WaitForRequest(0);
  EXPECT_EQ(fake.request.id, "from-metadata");
  fake.PushEnd();
  v1::GenerateResponse response;
  EXPECT_TRUE(reader->Read(&response));
  EXPECT_TRUE(reader->Finish().ok());
  const auto& metadata = context.GetServerInitialMetadata();
  ASSERT_EQ(metadata.count("x-request-id"), 1u);
  EXPECT_EQ(metadata.find("x-request-id")->second, "from-metadata");
}

TEST_F(TransportTest, PortsInUseAndHostsThatAreNoneAreSaidSo) {
  v1::NetworkSection config;
  config.set_grpc_port(server_->port());
  EngineAccess access(clock_);
  const absl::Status in_use = GrpcServer::Start(config, access, *security_).status();
  EXPECT_EQ(in_use.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(in_use.message()),
              AllOf(HasSubstr(target()), HasSubstr("in use"), HasSubstr("--grpc-port")));
  config.set_host(std::string(64, 'x'));  // no label of a name is that long: no server is asked
  EXPECT_EQ(GrpcServer::Start(config, access, *security_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(TransportTest, ManyStreamsShareOneConnection) {
  constexpr int kStreams = 300;
  absl::Mutex mu;
  int done = 0;
  int failed = 0;
  v1::GenerateRequest request;
  request.set_text("a");
  for (int i = 0; i < kStreams; ++i) {
    client_->GenerateAsync(
        request, [](const v1::GenerateResponse&) {},
        [&](const absl::Status& status) {
          absl::MutexLock lock(&mu);
          done += 1;
          failed += status.ok() ? 0 : 1;
        });
  }
  // All are open at once before the first one ends.
  engine_.WaitForRequest(kStreams - 1);
  for (int i = 0; i < kStreams; ++i) engine_.WaitForRequest(i).PushEnd();
  absl::MutexLock lock(&mu);
  const auto all_done = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu) { return done == kStreams; };
  mu.Await(absl::Condition(&all_done));
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace mneme
