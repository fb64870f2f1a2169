// Settings that decide who may reach and read what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/config/config.h"
#include "server/config/origins.h"
#include "server/net/host_address.h"
#include "tests/server/config/config_input.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(ConfigSecurityTest, AllInterfacesNeedAWayToKnowCallers) {
  for (const char* host : {"--host=0.0.0.0", "--host=::", "--host=[::]", "--host=", "--host=0.0",
                           "--host=0x0", "--host=000.0.0.0", "--host=::ffff:0.0.0.0"}) {
    EXPECT_THAT(ErrorOf({"--model=m", host}),
                AllOf(HasSubstr("--insecure"), HasSubstr("--api-key-file")))
        << host;
    EXPECT_TRUE(Parse({"--model=m", host, "--insecure"}).ok()) << host;
    EXPECT_TRUE(Parse({"--model=m", host, "--api-key-file=f"}).ok()) << host;
    EXPECT_TRUE(Parse({"--model=m", host}, {{"MNEME_API_KEY", "k"}}).ok()) << host;
    // Encryption alone lets anybody in.
    EXPECT_FALSE(Parse({"--model=m", host, "--ssl-certfile=c", "--ssl-keyfile=k"}).ok()) << host;
    EXPECT_TRUE(
        Parse({"--model=m", host, "--ssl-certfile=c", "--ssl-keyfile=k", "--ssl-ca-certs=a"}).ok())
        << host;
  }
  for (const char* host : {"localhost", "127.0.0.1", "127.8.9.1", "::1", "[::1]"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const char* host : {"", "0.0.0.0", "10.0.0.1", "::", "no.such.host.invalid"}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
  EXPECT_FALSE(IsAllInterfaces("10.0.0.1"));
  EXPECT_THAT(Weaknesses(*Parse({"--model=m", "--host=10.0.0.1"})),
              ElementsAre(HasSubstr("may use every session")));
  EXPECT_THAT(Weaknesses(*Parse({"--model=m"})), IsEmpty());
}

TEST(ConfigSecurityTest, OriginsAreSpelledAsBrowsersDo) {
  EXPECT_THAT(*ParseOrigins(""), IsEmpty());
  EXPECT_THAT(*ParseOrigins("*"), ElementsAre("*"));
  EXPECT_THAT(*ParseOrigins("https://A.example:443, http://localhost:3000,http://[::1]:80,app://x"),
              ElementsAre("https://a.example", "http://localhost:3000", "http://[::1]", "app://x"));
  for (const char* origin :
       {"a.example", "null", "https://", "https://a.example/", "https://a.example/path", "//a",
        "https://me@a.example", "https://*.example", "https://a.example:0", "https://a:65536",
        "https://a:", "https://a:+1", "https://[::1", "1a://b", "https://a b", ",", "*,https://a",
        "https://a,,https://b", "https://\xc3\xa4.example"}) {
    EXPECT_THAT(ErrorOf({"--model=m", "--http-allowed-origins", origin}),
                AllOf(HasSubstr("--http-allowed-origins: \""), HasSubstr("is no origin")))
        << origin;
  }
  EXPECT_THAT(Weaknesses(*Parse({"--model=m", "--http-allowed-origins=*"})),
              ElementsAre(HasSubstr("whatever page")));
  EXPECT_THAT(Weaknesses(*Parse({"--model=m", "--http-allowed-origins=https://a"})), IsEmpty());
}

TEST(ConfigSecurityTest, WhatGuardsIsNotEmptyByAccident) {
  for (const char* name : {"api-key", "api-key-file", "ssl-certfile", "ssl-keyfile"}) {
    EXPECT_THAT(ErrorOf({"--model=m", ("--" + std::string(name) + "=").c_str()}),
                AllOf(HasSubstr(name), HasSubstr("is empty")));
  }
  EXPECT_THAT(Parse({"--model=m"}, {{"MNEME_API_KEY", ""}}).status().message(),
              HasSubstr("MNEME_API_KEY: is empty"));
  EXPECT_THAT(Parse({"--model=m", "--api-key-file=f"}, {{"MNEME_API_KEY", "k"}}).status().message(),
              AllOf(HasSubstr("MNEME_API_KEY"), HasSubstr("--api-key-file")));
  EXPECT_THAT(ErrorOf({"--model=m", "--metrics-port=9090", "--metrics-host="}),
              HasSubstr("--metrics-host: is empty"));
}

TEST(ConfigSecurityTest, SessionsAreNotLeftUnstoredByAccident) {
  EXPECT_THAT(ErrorOf({"--model=m", "--session-dir="}),
              HasSubstr("--session-dir: is empty, which would let sessions end with the server"));
  EXPECT_THAT(Parse({"--model=m"}, {{"MNEME_SESSION_DIR", ""}}).status().message(),
              HasSubstr("MNEME_SESSION_DIR: is empty"));
  for (const char* flag : {"--session-retention=1h", "--durability=none", "--snapshot-tokens=7",
                           "--session-bytes-per-key=1GiB", "--trust-session-names"}) {
    EXPECT_THAT(ErrorOf({"--model=m", flag}), HasSubstr("does nothing without --session-dir"));
    EXPECT_TRUE(Parse({"--model=m", flag, "--session-dir=d"}).ok()) << flag;
  }
  EXPECT_TRUE(Parse({"--model=m", "--durability=turn"}).ok()) << "as without it";
}

TEST(ConfigSecurityTest, TlsFilesComeTogether) {
  EXPECT_THAT(ErrorOf({"--model=m", "--ssl-certfile=c"}), HasSubstr("--ssl-keyfile"));
  EXPECT_THAT(ErrorOf({"--model=m", "--ssl-keyfile=k"}), HasSubstr("--ssl-certfile"));
  EXPECT_THAT(ErrorOf({"--model=m", "--ssl-ca-certs=a"}), HasSubstr("--ssl-certfile"));
}

TEST(ConfigSecurityTest, SecretsAreNotPrinted) {
  const absl::StatusOr<CommandLine> from_variable =
      Parse({"--model=m"}, {{"MNEME_API_KEY", "hush-hush"}});
  ASSERT_TRUE(from_variable.ok());
  EXPECT_FALSE(from_variable->has_secret);
  EXPECT_EQ(from_variable->config.security().api_key(), "hush-hush");
  for (const std::string& text :
       {PrintConfig(from_variable->config), ConfigSummary(from_variable->config)}) {
    EXPECT_THAT(text, AllOf(Not(HasSubstr("hush")), HasSubstr("set")));
  }
  // The printed text is still a configuration.
  const ConfigFile file(PrintConfig(from_variable->config));
  EXPECT_EQ(ParseConfig({"--config", file.path()}).security().api_key(), "");
  EXPECT_TRUE(Parse({"--model=m", "--api-key=hush-hush"})->has_secret);
  const std::string error = ErrorOf({"--model=m", "--api-key", "hush hush"});
  EXPECT_THAT(error, AllOf(HasSubstr("--api-key"), Not(HasSubstr("hush"))));
}

}  // namespace
}  // namespace mneme
