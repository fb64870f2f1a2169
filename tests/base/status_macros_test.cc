#include "base/status_macros.h"

#include <memory>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

absl::Status Check(bool ok) { return ok ? absl::OkStatus() : absl::NotFoundError("no such thing"); }

absl::StatusOr<std::unique_ptr<int>> Make(int value) {
  if (value < 0) return absl::InvalidArgumentError("negative");
  return std::make_unique<int>(value);
}

absl::StatusOr<int> Sum(bool ok, int a, int b) {
  MNEME_RETURN_IF_ERROR(Check(ok));
  MNEME_ASSIGN_OR_RETURN(const std::unique_ptr<int> first, Make(a));
  int second = 0;
  MNEME_ASSIGN_OR_RETURN(const auto moved, Make(b));
  second = *moved;
  return *first + second;
}

TEST(StatusMacrosTest, ValuesPassThroughAndMoveOnlyTypesAreMoved) {
  const absl::StatusOr<int> sum = Sum(true, 2, 3);
  ASSERT_TRUE(sum.ok()) << sum.status();
  EXPECT_EQ(*sum, 5);
}

TEST(StatusMacrosTest, TheFirstErrorIsReturnedUnchanged) {
  EXPECT_EQ(Sum(false, -1, -1).status(), absl::NotFoundError("no such thing"));
  EXPECT_EQ(Sum(true, -1, 1).status(), absl::InvalidArgumentError("negative"));
  EXPECT_EQ(Sum(true, 1, -1).status(), absl::InvalidArgumentError("negative"));
}

absl::Status InBranches(bool first, bool ok) {
  if (first)
    MNEME_RETURN_IF_ERROR(Check(ok));
  else
    MNEME_RETURN_IF_ERROR(absl::AbortedError("else"));
  return absl::OkStatus();
}

TEST(StatusMacrosTest, ReturnIfErrorIsOneStatement) {
  EXPECT_EQ(InBranches(true, true), absl::OkStatus());
  EXPECT_EQ(InBranches(true, false).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(InBranches(false, true).code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace mneme
