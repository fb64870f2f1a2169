#include "clients/cpp/client.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "mneme/v1/inference.grpc.pb.h"

namespace mneme {
namespace {

// The last channel of a process takes gRPC's callback threads with it, which cannot join
// themselves: a call that still holds the channel after its last callback would end it on one of
// them.
TEST(ClientTest, MayBeDestroyedOnceTheLastCallbackHasBegun) {
  std::optional<Client> client(ClientOptions{.target = "unix:/no/such/socket"});
  absl::Notification has_begun;
  absl::Notification has_ended;
  absl::StatusCode code = absl::StatusCode::kOk;
  client->GenerateAsync(
      v1::GenerateRequest(), [](const v1::GenerateResponse&) {},
      [&](const absl::Status& status) {
        code = status.code();
        has_begun.Notify();
        absl::SleepFor(absl::Milliseconds(100));  // the client goes meanwhile
        has_ended.Notify();
      });
  has_begun.WaitForNotification();
  client.reset();
  has_ended.WaitForNotification();
  EXPECT_EQ(code, absl::StatusCode::kUnavailable);
  absl::SleepFor(absl::Milliseconds(200));  // for gRPC's thread to go on, and to crash if it does
}

// A server whose streams end as a test says.
class StreamService final : public v1::Inference::Service {
 public:
  StreamService() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  std::string target() const { return absl::StrCat("127.0.0.1:", port_); }

  // Ends with OK and without its last message; or, for a prompt, only when it is cancelled.
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    v1::GenerateResponse response;
    response.mutable_started();
    writer->Write(response);
    while (!request->text().empty() && !context->IsCancelled()) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    return grpc::Status::OK;
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST(ClientTest, AStreamWithoutItsLastMessageIsDataLoss) {
  StreamService service;
  Client client({.target = service.target()});
  const auto ignore = [](const v1::GenerateResponse&) {};
  EXPECT_EQ(client.Generate(v1::GenerateRequest(), ignore).code(), absl::StatusCode::kDataLoss);
  absl::Status status;
  absl::Notification done;
  client.GenerateAsync(v1::GenerateRequest(), ignore, [&](const absl::Status& end) {
    status = end;
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
}

TEST(ClientTest, ATokenCancelsAllCallsThatHaveIt) {
  StreamService service;
  Client client({.target = service.target(), .timeout = absl::Minutes(1)});
  v1::GenerateRequest endless;
  endless.set_text("x");
  CancelToken token;
  absl::BlockingCounter begun(2);
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i) {
    callers.emplace_back([&] {
      const absl::Status status = client.Generate(
          endless, [&](const v1::GenerateResponse&) { begun.DecrementCount(); }, &token);
      EXPECT_TRUE(absl::IsCancelled(status)) << status;
    });
  }
  begun.Wait();
  token.Cancel();
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace mneme
