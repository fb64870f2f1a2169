#include "clients/cpp/utf8_check.h"

#include <gtest/gtest.h>

#include <string>

#include "mneme/v1/inference.pb.h"

namespace mneme {
namespace {

std::string ErrorOf(const google::protobuf::Message& message) {
  return std::string(CheckUtf8(message).message());
}

TEST(Utf8CheckTest, TextOfAnyDepthIsAccepted) {
  v1::GenerateRequest request;
  EXPECT_TRUE(CheckUtf8(request).ok());
  request.set_text("caf\xc3\xa9");
  request.mutable_session()->set_name("anna");
  request.mutable_stopping()->add_stop_strings("\xf0\x9f\x98\x80");
  (*request.mutable_sampling()->mutable_logit_bias())[3] = 1;
  EXPECT_TRUE(CheckUtf8(request).ok());
}

TEST(Utf8CheckTest, TheFirstBadFieldIsNamedWithTheOffset) {
  v1::GenerateRequest request;
  request.set_text("caf\xc3");
  EXPECT_EQ(ErrorOf(request), "text is not valid UTF-8: byte 0xc3 at offset 3");
  request.set_text("fine");
  request.mutable_session()->set_name("\x80");
  EXPECT_EQ(ErrorOf(request), "session.name is not valid UTF-8: byte 0x80 at offset 0");
  request.clear_session();
  request.mutable_stopping()->add_stop_strings("fine");
  request.mutable_stopping()->add_stop_strings("\xed\xa0\x80");  // half of a surrogate pair
  EXPECT_EQ(ErrorOf(request), "stopping.stop_strings[1] is not valid UTF-8: byte 0xed at offset 0");
  EXPECT_EQ(CheckUtf8(request).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace mneme
