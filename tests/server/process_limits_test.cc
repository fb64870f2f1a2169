// How many connections fit into how many files.
#include "server/process/process_limits.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

TEST(ProcessLimitsTest, ConnectionsThatFitAreLeftAlone) {
  const ConnectionLimits wanted = {.grpc = 4096, .http = 4096};
  EXPECT_EQ(FitConnections(wanted, 1 << 20).value(), wanted);
  EXPECT_EQ(FitConnections({.grpc = 4096, .http = 0}, 4096 + 100).value(),
            (ConnectionLimits{.grpc = 4096, .http = 0}));
}

TEST(ProcessLimitsTest, OthersShareWhatIsLeft) {
  const ConnectionLimits even = FitConnections({.grpc = 4096, .http = 4096}, 1024).value();
  EXPECT_EQ(even.grpc, even.http);
  EXPECT_GT(even.grpc, 400);
  EXPECT_LT(even.grpc + even.http, 1024);
  const ConnectionLimits uneven = FitConnections({.grpc = 3000, .http = 1000}, 1024).value();
  EXPECT_NEAR(static_cast<double>(uneven.grpc) / static_cast<double>(uneven.http), 3, 0.1);
  EXPECT_EQ(FitConnections({.grpc = 4096, .http = 0}, 1024).value().http, 0);
}

TEST(ProcessLimitsTest, NoPortIsLeftWithoutConnections) {
  for (int64_t files = 0; files < 300; ++files) {
    const auto fitting = FitConnections({.grpc = 100'000, .http = 20}, files);
    if (!fitting.ok()) continue;
    EXPECT_GE(fitting->grpc, 8) << files;
    EXPECT_GE(fitting->http, 8) << files;
    EXPECT_LE(fitting->grpc + fitting->http, files - 48) << files;
  }
}

TEST(ProcessLimitsTest, TooFewFilesAreAnErrorWithTheNumbers) {
  const absl::Status status = FitConnections({.grpc = 4096, .http = 4096}, 8).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(),
              HasSubstr("may open 8 files (ulimit -n, LimitNOFILE=), and needs at least 64"));
}

}  // namespace
}  // namespace mneme
