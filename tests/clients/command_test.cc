#include "clients/cli/command.h"

#include <gtest/gtest.h>

namespace mneme::cli {
namespace {

TEST(CommandTest, ALostSessionIsARefusal) {
  EXPECT_EQ(ExitCodeOf(absl::DataLossError("it was lost")), kRefused);
}

// Codes of errors that the server sends; the rest is nobody's to act upon.
TEST(CommandTest, ExitCodesFollowFromTheKindOfError) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), kOk);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("x")), kRefused);
  EXPECT_EQ(ExitCodeOf(absl::ResourceExhaustedError("x")), kExhausted);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("x")), kUnavailable);
  EXPECT_EQ(ExitCodeOf(absl::InternalError("x")), kFailed);
}

}  // namespace
}  // namespace mneme::cli
