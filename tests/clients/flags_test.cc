#include "clients/cli/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "clients/cli/request_flags.h"

namespace mneme::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FlagsTest : public ::testing::Test {
 protected:
  FlagsTest() {
    AddSamplingFlags(flags_, request_);
    AddRequestFlags(flags_, request_);
  }
  std::string ErrorOf(const std::vector<std::string>& arguments) {
    return std::string(flags_.Parse(arguments).status().message());
  }

  FlagSet flags_;
  v1::GenerateRequest request_;
};

TEST_F(FlagsTest, FlagsFillTheRequestAndTheRestIsLeft) {
  const auto rest = flags_.Parse(std::vector<std::string>{
      "a prompt", "--temperature=0", "-n", "5", "--top_k", "3", "--stop", "x", "--stop=y",
      "--logit-bias", "7:-100,8:2.5", "--seed=18446744073709551615", "--ignore-eos",
      "--no-skip-special-tokens", "-s", "name", "--", "--not-a-flag"});
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_THAT(*rest, ElementsAre("a prompt", "--not-a-flag"));
  EXPECT_TRUE(request_.sampling().has_temperature());
  EXPECT_FALSE(request_.sampling().has_top_p());
  EXPECT_EQ(request_.stopping().max_tokens(), 5);
  EXPECT_EQ(request_.sampling().top_k(), 3);
  EXPECT_THAT(request_.stopping().stop_strings(), ElementsAre("x", "y"));
  EXPECT_EQ(request_.sampling().logit_bias().at(7), -100);
  EXPECT_EQ(request_.sampling().seed(), 18446744073709551615u);
  EXPECT_TRUE(request_.stopping().ignore_eos());
  EXPECT_FALSE(request_.response().skip_special_tokens());
  EXPECT_EQ(request_.session().name(), "name");
}

TEST_F(FlagsTest, ErrorsNameFlagAndValue) {
  EXPECT_THAT(ErrorOf({"--temprature=1"}), HasSubstr("did you mean --temperature"));
  EXPECT_THAT(ErrorOf({"--max-tokens", "many"}), HasSubstr("--max-tokens: \"many\""));
  EXPECT_THAT(ErrorOf({"--max-tokens"}), HasSubstr("needs a value"));
  EXPECT_THAT(ErrorOf({"--max-tokens=99999999999"}), HasSubstr("99999999999"));
  EXPECT_THAT(ErrorOf({"--seed=-1"}), HasSubstr("--seed"));
  EXPECT_THAT(ErrorOf({"--logit-bias=7"}), HasSubstr("TOKEN:BIAS"));
  EXPECT_THAT(ErrorOf({"--ttl=soon"}), HasSubstr("--ttl: \"soon\", expected a time (250ms, 30s"));
  EXPECT_THAT(ErrorOf({"--ignore-eos=perhaps"}), HasSubstr("\"perhaps\", expected true or false"));
  EXPECT_THAT(ErrorOf({"--durability=no"}),
              HasSubstr("--durability: \"no\", expected turn or none"));
}

TEST_F(FlagsTest, ANegativeNumberIsNoFlag) {
  const auto rest = flags_.Parse(std::vector<std::string>{"-1", "-n", "-2", "-.5"});
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_THAT(*rest, ElementsAre("-1", "-.5"));
  EXPECT_EQ(request_.stopping().max_tokens(), -2);
  EXPECT_THAT(ErrorOf({"-1x"}), HasSubstr("unknown flag -1x"));
}

TEST_F(FlagsTest, WhatIsSaidOfASessionIsInItsOptions) {
  ASSERT_TRUE(flags_
                  .Parse(std::vector<std::string>{"--no-remember", "--replace-lost", "--durability",
                                                  "none", "--memory-seed", "18446744073709551615"})
                  .ok());
  EXPECT_FALSE(request_.session().remember());
  EXPECT_TRUE(request_.session().replace_lost());
  EXPECT_EQ(request_.session().durability(), v1::DURABILITY_NONE);
  EXPECT_EQ(request_.session().memory_seed(), ~uint64_t{0});
  EXPECT_THAT(ErrorOf({"--memory-seed=-1"}), HasSubstr("expected an integer from 0 to 2^64 - 1"));
}

TEST_F(FlagsTest, AChoiceListsWhatItTakes) {
  std::string chosen;
  flags_.Choice("backend", {"grpc", "openai", "openai-chat"}, "Protocol.",
                [&](std::string value) { chosen = std::move(value); });
  EXPECT_THAT(ErrorOf({"--backend=http"}),
              HasSubstr("--backend: \"http\", expected grpc, openai or openai-chat"));
  EXPECT_EQ(chosen, "");
  EXPECT_EQ(ErrorOf({"--backend", "openai"}), "");
  EXPECT_EQ(chosen, "openai");
  EXPECT_THAT(flags_.Help(), HasSubstr("--backend grpc|openai|openai-chat"));
}

TEST_F(FlagsTest, TimesTakeUnitsOrSeconds) {
  EXPECT_EQ(*ParseTime("250ms"), absl::Milliseconds(250));
  EXPECT_EQ(*ParseTime("1.5"), absl::Milliseconds(1500));
  EXPECT_EQ(*ParseTime("1h30m"), absl::Minutes(90));
  EXPECT_FALSE(ParseTime("-1s").ok());
  EXPECT_FALSE(ParseTime("nan").ok());
}

}  // namespace
}  // namespace mneme::cli
