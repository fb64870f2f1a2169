// The text of GET /metrics, line by line.
#include "server/metrics/metrics.h"

#include <ctime>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/metrics/process_facts.h"
#include "tests/server/fake_engine.h"
#include "tests/server/security/test_certificates.h"

namespace mneme {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class MetricsTest : public ::testing::Test {
 protected:
  void Publish() { access_.Publish(engine_, {.model_name = "m"}); }
  std::vector<std::string> Lines(bool vllm = false) const {
    return absl::StrSplit(Metrics(access_, *security_, vllm).Text(), '\n');
  }
  std::unique_ptr<Security> Guard(const v1::SecuritySection& config) {
    SecurityFailure failure;
    absl::StatusOr<std::unique_ptr<Security>> guard = Security::Create(config, clock_, failure);
    EXPECT_TRUE(guard.ok()) << guard.status();
    return *std::move(guard);
  }

  RealClock clock_;
  std::unique_ptr<Security> security_ = Guard({});
  FakeEngine engine_;
  EngineAccess access_{clock_};
};

TEST_F(MetricsTest, WhileTheModelLoadsThereIsTheServersStateAndNoEngine) {
  access_.SetProgress(25, 100);
  const std::vector<std::string> lines = Lines();
  EXPECT_THAT(lines, Contains("mneme_ready 0"));
  EXPECT_THAT(lines, Contains("mneme_server_state{state=\"loading\"} 1"));
  EXPECT_THAT(lines, Contains("mneme_server_state{state=\"serving\"} 0"));
  EXPECT_THAT(lines, Contains("mneme_model_loaded_ratio 0.25"));
  EXPECT_THAT(lines, Not(Contains(HasSubstr("num_requests_running"))));
}

TEST_F(MetricsTest, AServingEngineIsReadyUntilItDrains) {
  Publish();
  EXPECT_THAT(Lines(), Contains("mneme_ready 1"));
  access_.SetDraining();
  EXPECT_THAT(Lines(), Contains("mneme_ready 0"));
  EXPECT_THAT(Lines(), Contains("mneme_server_state{state=\"draining\"} 1"));
}

TEST_F(MetricsTest, OutcomesAddUpToAllRequestsThatEnded) {
  Publish();
  EngineStats& stats = engine_.stats_;
  stats.finished_by(FinishReason::kStop).Add(3);
  stats.finished_by(FinishReason::kLength).Add(4);
  stats.finished_by(FinishReason::kCancelled).Add(2);
  stats.contexts_filled.Add(3);
  stats.Reject(absl::NotFoundError("x"));
  access_.stats().Refuse(absl::NotFoundError("y"));
  const std::vector<std::string> lines = Lines();
  EXPECT_THAT(lines, Contains("mneme_requests_total{model_name=\"m\",outcome=\"completed\"} 7"));
  EXPECT_THAT(lines, Contains("mneme_requests_context_full_total{model_name=\"m\"} 3"));
  EXPECT_THAT(lines, Contains("mneme_requests_total{model_name=\"m\",outcome=\"cancelled\"} 2"));
  EXPECT_THAT(lines, Contains("mneme_requests_total{model_name=\"m\",outcome=\"rejected\"} 2"));
  EXPECT_THAT(lines,
              Contains("mneme_requests_rejected_total{model_name=\"m\",code=\"NOT_FOUND\"} 2"));
  EXPECT_THAT(lines,
              Contains("mneme_admission_rejections_total{model_name=\"m\",reason=\"OTHER\"} 2"));
}

TEST_F(MetricsTest, WhoeverRefusedARequestItsReasonIsCounted) {
  Publish();
  engine_.stats_.Reject(QueueFullError("3 requests are waiting"));
  access_.stats().Refuse(QueueFullError("3 requests are waiting"));
  access_.stats().Refuse(WithReason(absl::UnavailableError("x"), "LOADING"));
  access_.stats().Refuse(absl::CancelledError("the client has left"));
  const std::vector<std::string> lines = Lines();
  const std::string name = "mneme_admission_rejections_total{model_name=\"m\",reason=";
  EXPECT_THAT(lines, Contains(name + "\"QUEUE_FULL\"} 2"));
  EXPECT_THAT(lines, Contains(name + "\"LOADING\"} 1"));
  EXPECT_THAT(lines, Contains(name + "\"KEY_TOKEN_LIMIT\"} 0"));
  EXPECT_THAT(lines, Contains(name + "\"CONTEXT_FULL\"} 0"));
  EXPECT_THAT(lines, Contains(name + "\"OTHER\"} 0"));
}

TEST_F(MetricsTest, HistogramsAreCumulativeAndEndAtInfinity) {
  Publish();
  for (const double seconds : {0.0005, 0.003, 0.003, 5000.0}) {
    engine_.stats_.first_token_seconds.Observe(seconds);
  }
  const std::string name = "mneme_time_to_first_token_seconds";
  const std::vector<std::string> lines = Lines();
  EXPECT_THAT(lines, Contains(name + "_bucket{model_name=\"m\",le=\"0.001\"} 1"));
  EXPECT_THAT(lines, Contains(name + "_bucket{model_name=\"m\",le=\"0.005\"} 3"));
  EXPECT_THAT(lines, Contains(name + "_bucket{model_name=\"m\",le=\"2560\"} 3"));
  EXPECT_THAT(lines, Contains(name + "_bucket{model_name=\"m\",le=\"+Inf\"} 4"));
  EXPECT_THAT(lines, Contains(name + "_count{model_name=\"m\"} 4"));
  EXPECT_THAT(lines, Contains(StartsWith(name + "_sum{model_name=\"m\"} 5000.0065")));
}

TEST_F(MetricsTest, SlotsUsedAndFreeAddUpToTheCapacity) {
  Publish();
  engine_.stats_.slabs_total.Set(10);
  engine_.stats_.slabs_used.Set(3);
  const std::vector<std::string> lines = Lines();
  EXPECT_THAT(lines, Contains("mneme_slabs_used{model_name=\"m\"} 3"));
  EXPECT_THAT(lines, Contains("mneme_slabs_free{model_name=\"m\"} 7"));
  EXPECT_THAT(lines, Contains("mneme_slabs_capacity{model_name=\"m\"} 10"));
  EXPECT_THAT(lines, Contains("mneme_state_bytes{model_name=\"m\"} 12288"));
}

TEST_F(MetricsTest, RoutingIsThereForModelsThatRoute) {
  Publish();
  EXPECT_THAT(Lines(), Not(Contains(HasSubstr("routed_tokens"))));
  engine_.stats_.routing.Resize(/*layers=*/6, /*memories=*/2);
  engine_.stats_.routing.Add(/*layer=*/5, /*memory=*/1, 8);
  const std::vector<std::string> lines = Lines();
  const std::string name = "mneme_routed_tokens_total{model_name=\"m\",layers=";
  EXPECT_THAT(lines, Contains(name + "\"0-1\",memory=\"0\"} 0"));
  EXPECT_THAT(lines, Contains(name + "\"5-5\",memory=\"1\"} 8"));
}

TEST_F(MetricsTest, TrainingIsThereForMemoriesThatAreTrained) {
  Publish();
  EXPECT_THAT(Lines(), Not(Contains(HasSubstr("mneme_memory_"))));
  TrainingStats& training = engine_.stats_.training;
  const TrainedLayer trained[] = {{.layer = 0}, {.layer = 1}, {.layer = 5}};
  training.Resize(/*layers=*/6, trained);
  training.at[0].surprise.Observe(0.3);
  training.at[3].steps.Add(7);
  training.divergences.Add();
  const std::vector<std::string> lines = Lines();
  const std::string labels = "{model_name=\"m\",layers=";
  EXPECT_THAT(lines, Contains("mneme_memory_surprise_sum" + labels + "\"0-1\"} 0.3"));
  EXPECT_THAT(lines, Contains("mneme_memory_surprise_count" + labels + "\"5-5\"} 0"));
  EXPECT_THAT(lines, Contains("mneme_memory_surprise_bucket" + labels + "\"0-1\",le=\"0.5\"} 1"));
  EXPECT_THAT(lines, Contains("mneme_memory_steps_total" + labels + "\"5-5\"} 7"));
  EXPECT_THAT(lines, Not(Contains(HasSubstr(labels + "\"2-2\"")))) << "no such memory there";
  EXPECT_THAT(lines, Contains("mneme_memory_divergences_total{model_name=\"m\"} 1"));
}

TEST_F(MetricsTest, EngramsAreThereForModelsThatMakeSome) {
  Publish();
  EXPECT_THAT(Lines(), Not(Contains(HasSubstr("mneme_memory_"))));
  EngramStats& engrams = engine_.stats_.engrams;
  engrams.exist = true;
  engrams.long_term.Observe(700);
  engrams.found.Observe(500);
  engrams.recalled_age.Observe(36.5);
  engrams.lifespans.Observe(4000);
  engrams.evictions.Add(3);
  engrams.wraps.Add();
  engrams.step_seconds.Observe(0.002);
  engrams.boundary_seconds.Observe(0.0003);
  const std::vector<std::string> lines = Lines();
  const std::string labels = "{model_name=\"m\"";
  EXPECT_THAT(lines, Contains("mneme_memory_long_term_engrams_sum" + labels + "} 700"));
  EXPECT_THAT(lines, Contains("mneme_memory_long_term_engrams_bucket" + labels + ",le=\"800\"} 1"));
  EXPECT_THAT(lines, Contains("mneme_memory_found_engrams_sum" + labels + "} 500"));
  EXPECT_THAT(lines, Contains("mneme_memory_recalled_age_segments_sum" + labels + "} 36.5"));
  EXPECT_THAT(lines, Contains("mneme_memory_lifespan_sum_sum" + labels + "} 4000"));
  EXPECT_THAT(lines, Contains("mneme_memory_evictions_total" + labels + "} 3"));
  EXPECT_THAT(lines, Contains("mneme_memory_history_wraps_total" + labels + "} 1"));
  EXPECT_THAT(lines, Contains("mneme_memory_boundary_step_seconds_count" + labels + "} 1"));
  EXPECT_THAT(lines, Contains("mneme_memory_boundary_seconds_sum" + labels + "} 0.0003"));
  EXPECT_THAT(lines,
              Contains("mneme_memory_boundary_seconds_bucket" + labels + ",le=\"0.0005\"} 1"));
}

TEST_F(MetricsTest, CallsAreCountedByNameAndResult) {
  access_.stats().rpcs.Add("Generate", "OK");
  access_.stats().rpcs.Add("Generate", "OK");
  access_.stats().http.Add("/v1/models", "200");
  EXPECT_THAT(Lines(), Contains("mneme_rpcs_total{method=\"Generate\",code=\"OK\"} 2"));
  EXPECT_THAT(Lines(),
              Contains("mneme_http_requests_total{route=\"/v1/models\",status=\"200\"} 1"));
}

TEST_F(MetricsTest, ConnectionsAreThereForPortsThatAreOpen) {
  access_.stats().http_connections.limit.Set(7);
  access_.stats().http_connections.open.Set(3);
  access_.stats().http_connections.refused.Add(2);
  const std::vector<std::string> lines = Lines();
  EXPECT_THAT(lines, Contains("mneme_connections{api=\"http\"} 3"));
  EXPECT_THAT(lines, Contains("mneme_max_connections{api=\"http\"} 7"));
  EXPECT_THAT(lines, Contains("mneme_connections_refused_total{api=\"http\"} 2"));
  EXPECT_THAT(lines, Contains("mneme_connections_evicted_total{api=\"http\"} 0"));
  EXPECT_THAT(lines, Not(Contains(HasSubstr("api=\"metrics\""))));
}

TEST_F(MetricsTest, NamesInAPathOfTheModelCannotBreakTheText) {
  access_.Publish(engine_, {.model_name = "a\"b\\c\nd"});
  EXPECT_THAT(Lines(), Contains("mneme_slabs_used{model_name=\"a\\\"b\\\\c\\nd\"} 0"));
}

TEST_F(MetricsTest, VllmsNamesAreThereOnlyWhenAskedFor) {
  Publish();
  engine_.stats_.slabs_total.Set(10);
  engine_.stats_.slabs_used.Set(4);
  engine_.stats_.resumed_tokens.Add(30);
  engine_.stats_.prompt_tokens.Add(10);
  EXPECT_THAT(Lines(), Not(Contains(HasSubstr("vllm:"))));
  const std::vector<std::string> lines = Lines(/*vllm=*/true);
  const std::string labels = "{model_name=\"m\",engine=\"0\"} ";
  EXPECT_THAT(lines, Contains("vllm:kv_cache_usage_perc" + labels + "0.4"));
  EXPECT_THAT(lines, Contains("vllm:num_requests_waiting" + labels + "0"));
  EXPECT_THAT(lines, Contains("vllm:prefix_cache_queries_total" + labels + "40"));
  EXPECT_THAT(lines, Contains("vllm:prefix_cache_hits_total" + labels + "30"));
  EXPECT_THAT(lines, Contains("# TYPE vllm:time_to_first_token_seconds histogram"));
}

TEST_F(MetricsTest, WhatRequestsAskForHasVllmsNamesToo) {
  Publish();
  engine_.stats_.request_n.Observe(3);
  engine_.stats_.request_max_tokens.Observe(200);
  engine_.stats_.output_token_seconds.Observe(0.02);
  engine_.stats_.queue_seconds.Observe(0.0002);
  const std::vector<std::string> lines = Lines(/*vllm=*/true);
  for (const std::string prefix : {"mneme_", "vllm:"}) {
    const std::string labels =
        prefix == "vllm:" ? "{model_name=\"m\",engine=\"0\"" : "{model_name=\"m\"";
    EXPECT_THAT(lines, Contains(prefix + "request_params_n_sum" + labels + "} 3"));
    EXPECT_THAT(lines,
                Contains(prefix + "request_params_max_tokens_bucket" + labels + ",le=\"200\"} 1"));
    EXPECT_THAT(lines,
                Contains(prefix + "request_params_max_tokens_bucket" + labels + ",le=\"100\"} 0"));
    EXPECT_THAT(lines, Contains(prefix + "request_time_per_output_token_seconds_bucket" + labels +
                                ",le=\"0.025\"} 1"));
    EXPECT_THAT(lines, Contains(prefix + "request_queue_time_seconds_bucket" + labels +
                                ",le=\"0.0001\"} 0"));
    EXPECT_THAT(lines, Contains(prefix + "request_queue_time_seconds_bucket" + labels +
                                ",le=\"0.00025\"} 1"));
  }
}

TEST_F(MetricsTest, RefusedCallsAreCountedByCode) {
  v1::SecuritySection config;
  config.set_api_key("the-only-key");
  security_ = Guard(config);
  const Authenticator& guard = security_->authenticator();
  EXPECT_FALSE(guard.Authenticate({}, Access::kUse).ok());
  EXPECT_FALSE(
      guard.Authenticate({.authorizations = 1, .authorization = "Bearer x"}, Access::kUse).ok());
  const Credentials key = {.authorizations = 1, .authorization = "Bearer the-only-key"};
  EXPECT_FALSE(guard.Authenticate(key, Access::kAdmin).ok());
  EXPECT_TRUE(guard.Authenticate(key, Access::kUse).ok());
  const std::vector<std::string> lines = Lines();
  EXPECT_THAT(lines, Contains("mneme_auth_refusals_total{code=\"UNAUTHENTICATED\"} 2"));
  EXPECT_THAT(lines, Contains("mneme_auth_refusals_total{code=\"PERMISSION_DENIED\"} 1"));
}

TEST_F(MetricsTest, WithoutTlsNoCertificateExpires) {
  EXPECT_TRUE(security_->Reload().ok());
  const std::vector<std::string> lines = Lines();
  EXPECT_THAT(lines, Not(Contains(HasSubstr("certificate"))));
  EXPECT_THAT(lines, Contains("mneme_reloads_total{file=\"tls\",outcome=\"ok\"} 0"));
  EXPECT_THAT(lines, Contains("mneme_last_reload_successful{file=\"tls\"} 1"));
}

TEST_F(MetricsTest, ReloadsAreCountedByFileAndOutcome) {
  TestCertificates& files = TestCertificates::Usual();
  v1::SecuritySection config = files.Live(/*mutual=*/false);
  config.set_api_key_file(files.Path("keys"));
  files.Replace("keys", ApiKeyLine("alice", NewApiKey()) + "\n");
  security_ = Guard(config);
  const std::string expiry =
      absl::StrCat("mneme_tls_certificate_expiry_timestamp_seconds ",
                   absl::ToUnixSeconds(security_->tls()->current()->expires));
  EXPECT_THAT(Lines(), Contains(expiry));

  files.Replace("live.pem", "no certificate");
  EXPECT_FALSE(security_->Reload().ok());
  std::vector<std::string> lines = Lines();
  EXPECT_THAT(lines, Contains("mneme_reloads_total{file=\"keys\",outcome=\"ok\"} 1"));
  EXPECT_THAT(lines, Contains("mneme_reloads_total{file=\"tls\",outcome=\"failed\"} 1"));
  EXPECT_THAT(lines, Contains("mneme_last_reload_successful{file=\"keys\"} 1"));
  EXPECT_THAT(lines, Contains("mneme_last_reload_successful{file=\"tls\"} 0"));
  EXPECT_THAT(lines, Contains(expiry)) << "the old one is still in use";

  files.Replace("live.pem", files.Read("server.pem"));
  EXPECT_TRUE(security_->Reload().ok());
  lines = Lines();
  EXPECT_THAT(lines, Contains("mneme_reloads_total{file=\"tls\",outcome=\"ok\"} 1"));
  EXPECT_THAT(lines, Contains("mneme_last_reload_successful{file=\"tls\"} 1"));
}

TEST_F(MetricsTest, AConfigurationThatIsNotInOrderShows) {
  const double start = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  const auto read_at = [this] {
    for (const std::string& line : Lines()) {
      double seconds = 0;
      absl::string_view rest = line;
      if (absl::ConsumePrefix(&rest, "mneme_config_last_reload_success_timestamp_seconds ") &&
          absl::SimpleAtod(rest, &seconds)) {
        return seconds;
      }
    }
    return 0.0;
  };
  EXPECT_THAT(Lines(), Contains("mneme_config_last_reload_successful 1"));
  EXPECT_NEAR(read_at(), start, 3600) << "the reading at the start counts";
  ReloadCounts& reloads = access_.stats().config_reloads;
  reloads.last_success_nanos.store(1'500'000'000);
  reloads.Add(false);
  EXPECT_THAT(Lines(), Contains("mneme_config_last_reload_successful 0"));
  EXPECT_THAT(Lines(), Contains("mneme_last_reload_successful{file=\"config\"} 0"));
  EXPECT_THAT(Lines(), Contains("mneme_reloads_total{file=\"config\",outcome=\"failed\"} 1"));
  EXPECT_EQ(read_at(), 1.5);
  reloads.Add(true);
  EXPECT_THAT(Lines(), Contains("mneme_config_last_reload_successful 1"));
  EXPECT_NEAR(read_at(), start, 3600);
}

TEST_F(MetricsTest, EveryFamilyHasHelpAndAppearsOnce) {
  Publish();
  std::set<std::string> names;
  for (const prometheus::MetricFamily& family : Metrics(access_, *security_, true).Collect()) {
    EXPECT_FALSE(family.help.empty()) << family.name;
    EXPECT_TRUE(names.insert(family.name).second) << family.name << " appears twice";
  }
  EXPECT_GT(names.size(), 80u);
}

TEST(ProcessFactsTest, TheSystemTellsAboutThisProcess) {
  // More than a tick, so that not having looked shows.
  const auto cpu_seconds = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  while (cpu_seconds() < 0.2) {
  }
  const ProcessFacts facts = ReadProcessFacts();
  EXPECT_NEAR(facts.cpu_seconds, cpu_seconds(), 0.1);
  EXPECT_GT(facts.resident_bytes, 1 << 20);
  EXPECT_GT(facts.virtual_bytes, facts.resident_bytes);
  EXPECT_GE(facts.open_fds, 3);
  EXPECT_GT(facts.max_fds, facts.open_fds);
  EXPECT_GE(facts.threads, 1);
  EXPECT_NEAR(facts.start_time, absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()), 3600);
}

}  // namespace
}  // namespace mneme
