// SIGHUP changes some settings of the log, and leaves others.
#include "server/process/log_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/log.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class LogSettingsTest : public ::testing::Test {
 protected:
  LogSettingsTest() {
    config_.mutable_log()->set_level("info");
    config_.mutable_log()->set_format("text");
    config_.mutable_log()->set_requests("all");
    ApplyLogSettings(config_.log());
    last_ = config_.log();
  }
  ~LogSettingsTest() override { SetMinLogSeverity(LogSeverity::kInfo); }

  // Returns what was logged meanwhile.
  std::string Reload() {
    ::testing::internal::CaptureStderr();
    ReloadLogSettings(config_, config_, last_, requests_, http_calls_);
    return ::testing::internal::GetCapturedStderr();
  }

  ServerStats stats_;
  RequestLog requests_{RequestLog::Which::kAll, stats_};
  HttpAccessLog http_calls_{HttpAccessLog::Which::kNoProbes};
  v1::ServerConfig config_;
  v1::LogSection last_;
};

TEST_F(LogSettingsTest, ALevelThatTheFileChangesIsTaken) {
  config_.mutable_log()->set_level("warning");
  EXPECT_THAT(Reload(), HasSubstr("log_settings level=warning format=text"));
  EXPECT_EQ(MinLogSeverity(), LogSeverity::kWarning);
}

TEST_F(LogSettingsTest, ALevelThatAnAdminSetStaysUntilTheFileChangesIts) {
  SetMinLogSeverity(LogSeverity::kWarning);
  config_.mutable_log()->set_requests("failed");
  EXPECT_THAT(Reload(), HasSubstr("log_settings: the level stays as an admin has set it "
                                  "level=warning format=text requests=failed"));
  EXPECT_EQ(MinLogSeverity(), LogSeverity::kWarning);
  config_.mutable_log()->set_level("error");
  (void)Reload();
  EXPECT_EQ(MinLogSeverity(), LogSeverity::kError);
  config_.mutable_log()->set_level("info");
  EXPECT_THAT(Reload(), Not(HasSubstr("admin")));
  EXPECT_EQ(MinLogSeverity(), LogSeverity::kInfo);
}

}  // namespace
}  // namespace mneme
