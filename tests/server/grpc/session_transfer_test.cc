// Sessions.Export and Import over the wire: streams, their bounds, and whom they refuse when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "clients/cpp/error_details.h"
#include "mneme/v1/sessions.grpc.pb.h"
#include "server/requests/session_transfers.h"
#include "tests/server/grpc/server_fixture.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

class SessionTransferTest : public ServerTest {
 protected:
  void Create(const std::string& name) {
    v1::CreateSessionRequest request;
    request.set_name(name);
    ASSERT_TRUE(client_->CreateSession(request).ok());
  }
  absl::StatusOr<std::string> Export(const std::string& name) {
    std::string file;
    messages_ = 0;
    const absl::Status status =
        client_->ExportSession(name, [&](const v1::ExportSessionResponse& response) {
          if (messages_++ == 0) file_bytes_ = response.file_bytes();
          file += response.data();
          return absl::OkStatus();
        });
    if (!status.ok()) return status;
    return file;
  }
  absl::StatusOr<v1::ImportSessionResponse> Import(const std::string& name, std::string file,
                                                   size_t piece = 1 << 20, int64_t file_bytes = 0) {
    v1::ImportSessionRequest first;
    first.set_name(name);
    first.set_file_bytes(file_bytes);
    size_t sent = 0;
    return client_->ImportSession(first, [&]() -> absl::StatusOr<std::string> {
      std::string next = file.substr(std::min(sent, file.size()), piece);
      sent += next.size();
      return next;
    });
  }
  void Limit(const SessionTransfers::Limits& limits) {
    ServingFacts facts;
    facts.session_transfers = std::make_shared<SessionTransfers>(limits);
    access_.Publish(engine_, facts);
  }

  int messages_ = 0;
  int64_t file_bytes_ = 0;
};

TEST_F(SessionTransferTest, ASessionGoesOutAndComesBackUnderAnotherName) {
  Create("a");
  engine_.SetPosition({"", "a"}, 41);
  engine_.set_file_numbers(1 << 20);
  const auto file = Export("a");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_GT(messages_, 4) << "4 MiB in pieces of one";
  EXPECT_EQ(file_bytes_, static_cast<int64_t>(file->size()));
  for (const size_t piece : {size_t{1} << 20, size_t{100000}}) {
    const std::string name = absl::StrCat("b", piece);
    const auto imported = Import(name, *file, piece, file_bytes_);
    ASSERT_TRUE(imported.ok()) << imported.status();
    EXPECT_EQ(imported->session().name(), name);
    EXPECT_EQ(imported->session().position(), 41);
    EXPECT_EQ(imported->file_state_dtype(), "f32");
    EXPECT_EQ(imported->state_dtype(), "f16");
    EXPECT_EQ(imported->rounded_tensors(), 3);
    EXPECT_EQ(imported->file_engram_capacity(), 64);
    EXPECT_EQ(imported->engram_capacity(), 128);
    EXPECT_EQ(client_->GetSession(name)->position(), 41);
  }
  EXPECT_THAT(Import("", *file)->session().name(), HasSubstr("session-"));
}

TEST_F(SessionTransferTest, ErrorsNameWhatIsWrong) {
  EXPECT_EQ(Export("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Export("").status().code(), absl::StatusCode::kInvalidArgument);
  Create("a");
  const std::string file = *Export("a");

  EXPECT_EQ(DetailsOf(Import("a", file).status()).reason, "SESSION_EXISTS");
  EXPECT_EQ(Import("with space", file).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DetailsOf(Import("b", file.substr(1)).status()).reason, "BAD_FILE");
  EXPECT_EQ(DetailsOf(Import("b", "").status()).reason, "BAD_FILE");
  std::string damaged = file;
  damaged[file.size() - 40] ^= 1;
  const absl::Status loss = Import("b", damaged).status();
  EXPECT_EQ(loss.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(DetailsOf(loss).reason, "CHECKSUM_MISMATCH");
  EXPECT_EQ(client_->GetSession("b").status().code(), absl::StatusCode::kNotFound);

  const auto stub =
      v1::Sessions::NewStub(grpc::CreateChannel(target(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::ImportSessionResponse response;
  const auto writer = stub->Import(&context, &response);
  writer->WritesDone();
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT) << "no message";
}

TEST_F(SessionTransferTest, AFileThatIsTooLargeIsRefusedBeforeAllOfItCame) {
  Create("a");
  const std::string file = *Export("a");
  const auto size = static_cast<int64_t>(file.size());
  Limit({.file_bytes = size});
  EXPECT_TRUE(Import("b", file).ok());
  Limit({.file_bytes = size - 1});
  for (const int64_t declared : {size, int64_t{0}}) {
    const absl::Status status = Import("c", file, 100, declared).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(DetailsOf(status).reason, "FILE_TOO_LARGE");
    EXPECT_THAT(std::string(status.message()), HasSubstr("--max-session-file-size"));
  }
}

TEST_F(SessionTransferTest, PlacesAreBoundedAndComeBack) {
  Create("a");
  const std::string file = *Export("a");
  Limit({.at_once = 1});
  {
    const auto place = access_.facts().session_transfers->Begin(SessionTransfers::kImport);
    ASSERT_TRUE(place.ok());
    for (const absl::Status& status : {Export("a").status(), Import("b", file).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("--max-session-transfers"));
    }
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Export("a").ok());
    EXPECT_TRUE(Import(absl::StrCat("b", i), file).ok());
    EXPECT_FALSE(Import("b0", file).ok());
  }
  Limit({.at_once = 0});
  EXPECT_EQ(Export("a").status().code(), absl::StatusCode::kFailedPrecondition);
}

// A client that leaves in the middle gives its place back.
TEST_F(SessionTransferTest, WhoLeavesIsForgotten) {
  Create("a");
  engine_.set_file_numbers(1 << 22);
  Limit({.at_once = 1});
  const absl::Status left = client_->ExportSession(
      "a", [](const v1::ExportSessionResponse&) { return absl::AbortedError("enough"); });
  EXPECT_EQ(left.message(), "enough");
  v1::ImportSessionRequest first;
  first.set_name("b");
  const auto abandoned = client_->ImportSession(
      first, []() -> absl::StatusOr<std::string> { return absl::AbortedError("no more"); });
  EXPECT_EQ(abandoned.status().message(), "no more");
  absl::Status status;
  do {
    status = Export("a").status();
  } while (absl::IsResourceExhausted(status));
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace mneme
