// Where settings come from, in which units, and how they are printed.
#include "server/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/config/demo_model.h"
#include "server/config/flags.h"
#include "tests/server/config/config_input.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(ConfigTest, GrpcsMemoryHoldsSomeMessages) {
  const auto memory = [](const std::vector<const char*>& arguments) {
    return GrpcMemoryBytes(ParseConfig(arguments).server());
  };
  EXPECT_EQ(memory({"--model", "m"}), int64_t{1} << 30);
  EXPECT_EQ(memory({"--model", "m", "--max-message-size", "512MiB"}), int64_t{2} << 30);
  EXPECT_EQ(memory({"--model", "m", "--grpc-memory", "64MiB"}), int64_t{64} << 20);
  EXPECT_THAT(ErrorOf({"--model", "m", "--grpc-memory", "63MiB"}),
              AllOf(HasSubstr("--grpc-memory: 63MiB"), HasSubstr("at least 64MiB")));
}

TEST(ConfigTest, DefaultsAreThoseOfTheProtoFile) {
  const v1::ServerConfig config = ParseConfig({"--model", "m"});
  EXPECT_EQ(config.model().path(), "m");
  EXPECT_EQ(config.server().host(), "127.0.0.1");
  EXPECT_EQ(config.server().grpc_port(), 50051);
  EXPECT_EQ(config.engine().session_ttl_ms(), 30 * 60 * 1000);
}

TEST(ConfigTest, TheDemoModelIsServedWhereNobodyNamesAModel) {
  const std::string root = testing::TempDir() + "mneme_config_demo";
  const std::string demo = root + "/share/mneme/models/demo";
  std::filesystem::create_directories(demo);
  const auto read = [&](const std::vector<const char*>& arguments,
                        const Environment& environment = {}) {
    CommandLine line = *ReadCommandLine(arguments, Getter(environment));
    UseDemoModel(root + "/bin", line);
    return line;
  };
  std::filesystem::remove(demo + "/config.json");
  EXPECT_FALSE(read({}).serves_demo);
  EXPECT_THAT(CheckCommandLine(read({})).message(), HasSubstr("demo model"));
  std::ofstream(demo + "/config.json") << "{}";
  EXPECT_TRUE(read({}).serves_demo);
  EXPECT_EQ(read({}).config.model().path(), demo);
  EXPECT_EQ(read({}).config.model().served_name(), "mneme-demo");
  EXPECT_EQ(read({"--served-model-name=other"}).config.model().served_name(), "other");
  EXPECT_TRUE(read({"--plan"}).serves_demo);
  EXPECT_TRUE(CheckCommandLine(read({})).ok());

  const ConfigFile defaults("model { path: '' }");  // as --print-config writes it
  EXPECT_TRUE(read({"--config", defaults.path()}).serves_demo);
  EXPECT_FALSE(read({"--model=m"}).serves_demo);
  EXPECT_FALSE(read({"--model="}).serves_demo);
  EXPECT_FALSE(read({}, {{"MNEME_MODEL", ""}}).serves_demo);
  EXPECT_FALSE(read({"--print-config"}).serves_demo);
  EXPECT_THAT(CheckCommandLine(read({"--model="})).message(), Not(HasSubstr("demo model")));
}

TEST(ConfigTest, FlagGoesBeforeEnvironmentBeforeFileBeforeDefault) {
  const ConfigFile file(
      "model { path: 'file' }\n"
      "engine { max_rows: 11 max_sessions: 12 max_queued_requests: 13 }");
  const Environment environment = {{"MNEME_MAX_NUM_SEQS", "21"}, {"MNEME_MAX_SESSIONS", "22"}};
  const v1::ServerConfig config =
      ParseConfig({"--config", file.path(), "--max-num-seqs=31"}, environment);
  EXPECT_EQ(config.engine().max_rows(), 31);
  EXPECT_EQ(config.engine().max_sessions(), 22);
  EXPECT_EQ(config.engine().max_queued_requests(), 13);
  EXPECT_EQ(config.engine().stream_capacity_events(), 256);
  EXPECT_EQ(config.model().path(), "file");
}

TEST(ConfigTest, EveryFlagCanComeFromItsVariable) {
  const FlagTable table;
  for (const FlagSpec& flag : table.flags()) {
    const std::string value =
        flag.is_bool()                   ? "true"
        : flag.options.choice_size() > 0 ? flag.options.choice(1)
        : flag.field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_STRING ? "some.text"
                                                                                      : "1000";
    Environment environment = {{"MNEME_MODEL", "m"}};
    environment[flag.env] = value;
    const absl::StatusOr<CommandLine> line = Parse({}, environment);
    if (!line.ok()) {
      // Out of range, or not alone: but understood.
      EXPECT_THAT(line.status().message(), AnyOf(HasSubstr(flag.env), HasSubstr(flag.name)));
      continue;
    }
    const std::string want = flag.options.unit() == v1::Flag::MILLISECONDS ? "1000s"
                             : flag.options.unit() == v1::Flag::BYTES      ? "1000B"
                                                                           : value;
    EXPECT_EQ(FieldText(flag, line->config), want) << flag.env;
  }
}

TEST(ConfigTest, SpellingsOfOtherServersMeanTheSame) {
  for (const char* spelling : {"--max-num-seqs", "--max-batch", "--max-batch-size", "-np",
                               "--max_num_seqs", "--max-running-requests"}) {
    EXPECT_EQ(ParseConfig({"-m", "m", spelling, "7"}).engine().max_rows(), 7) << spelling;
  }
  EXPECT_EQ(ParseConfig({"-m", "m", "--chunked-prefill-size", "99"}).engine().max_tokens_per_step(),
            99);
  EXPECT_EQ(ParseConfig({"-m", "m", "-t", "3"}).device().threads(), 3);
}

TEST(ConfigTest, SizesAndTimesTakeUnits) {
  const v1::ServerConfig config =
      ParseConfig({"--model=m", "--state-memory=1.5GiB", "--session-ttl", "1h30m",
                   "--shutdown-timeout=2.5", "--max-message-size", "64k"});
  EXPECT_EQ(config.engine().state_memory_bytes(), int64_t{3} << 29);
  EXPECT_EQ(config.engine().session_ttl_ms(), 90 * 60 * 1000);
  EXPECT_EQ(config.server().shutdown_timeout_ms(), 2500);
  EXPECT_EQ(config.server().max_message_bytes(), 65536);
}

TEST(ConfigTest, NumbersMayHaveFractionsWhereTheyMakeSense) {
  EXPECT_EQ(ParseConfig({"--model=m", "--max-decode-slowdown=1.5"}).engine().max_decode_slowdown(),
            1.5);
  EXPECT_EQ(ParseConfig({"--model=m", "--max-decode-slowdown=0"}).engine().max_decode_slowdown(),
            0);
  EXPECT_THAT(ErrorOf({"--model=m", "--max-decode-slowdown=0.5"}),
              HasSubstr("0.5, expected 0 (the device's own) or 1 (no limit) to 1000"));
  EXPECT_THAT(ErrorOf({"--model=m", "--max-decode-slowdown=-1"}),
              HasSubstr("-1, expected a number from 0 to 1000"));
  EXPECT_THAT(ErrorOf({"--model=m", "--max-decode-slowdown=nan"}),
              HasSubstr("\"nan\", expected a number"));
}

TEST(ConfigTest, BooleansNeedNoValue) {
  EXPECT_TRUE(ParseConfig({"--model=m", "--insecure"}).server().insecure());
  EXPECT_FALSE(ParseConfig({"--model=m", "--insecure=false"}).server().insecure());
  EXPECT_FALSE(
      ParseConfig({"--model=m", "--no-insecure"}, {{"MNEME_INSECURE", "1"}}).server().insecure());
}

TEST(ConfigTest, SetTakesTheSyntaxOfTheFile) {
  const v1::ServerConfig config =
      ParseConfig({"--model=m", "--max-batch", "3", "--set", "engine { max_rows: 5 }"});
  EXPECT_EQ(config.engine().max_rows(), 5);
  EXPECT_THAT(ErrorOf({"--model=m", "--set", "engine { max_row: 5 }"}),
              AllOf(HasSubstr("--set:1:"), HasSubstr("max_row")));
}

TEST(ConfigTest, NumbersArePrintedAsTheyWereWritten) {
  const FlagTable table;
  const FlagSpec* flag = table.Find("--max-decode-slowdown");
  for (const char* number : {"1.7", "2.0000001", "123.456789", "1000"}) {
    const v1::ServerConfig config = ParseConfig({"--model=m", "--max-decode-slowdown", number});
    EXPECT_EQ(FieldText(*flag, config), number);
    EXPECT_THAT(ConfigSummary(config), HasSubstr(absl::StrCat("slowdown=", number)));
    EXPECT_THAT(PrintConfig(config), HasSubstr(absl::StrCat("slowdown: ", number, "\n")));
  }
}

TEST(ConfigTest, APipeIsReadOnce) {
  const ConfigFile file("engine { max_rows: 3 }");
  EXPECT_EQ(Parse({"--model=m", "--config", file.path()})->file, file.path());
  EXPECT_EQ(CheckReadAgain(file.path()), absl::OkStatus());
  EXPECT_EQ(CheckReadAgain(""), absl::OkStatus());
  const std::string pipe = absl::StrCat(testing::TempDir(), "/pipe_", getpid());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(std::string(CheckReadAgain(pipe).message()), HasSubstr("cannot be read again"));
  // Nobody writes into it: whoever opened it would wait for ever.
  const std::vector<const char*> arguments = {"--bogus", "--config", pipe.c_str()};
  EXPECT_FALSE(WantsJsonLog(arguments, [](const char*) -> const char* { return nullptr; }));
  unlink(pipe.c_str());
}

TEST(ConfigTest, ActionsWithNamesNeedNoModel) {
  EXPECT_EQ(Parse({"--new-api-key", "alice"})->action, ServerAction::kNewApiKey);
  EXPECT_EQ(Parse({"--hash-api-key=alice"})->action, ServerAction::kHashApiKey);
  EXPECT_EQ(Parse({"--hash-api-key=alice"})->key_name, "alice");
  EXPECT_THAT(ErrorOf({"--new-api-key"}), HasSubstr("needs a value"));
}

TEST(ConfigTest, PrintedConfigurationReadsBackEqual) {
  const v1::ServerConfig config =
      ParseConfig({"--model", "a \"b\"", "--state-memory=3GiB", "--session-ttl=77s", "--insecure"});
  const ConfigFile file(PrintConfig(config));
  EXPECT_EQ(ParseConfig({"--config", file.path()}).SerializeAsString(), config.SerializeAsString());
}

TEST(ConfigTest, TheExampleInDeployHasEveryDefault) {
  std::ifstream file("deploy/mneme.textproto");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const absl::StatusOr<CommandLine> line = Parse({"--print-config"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(text, PrintConfig(line->config));
}

TEST(ConfigTest, TheSummaryHasWhatDiffersFromTheDefaults) {
  const auto summary = [](std::vector<const char*> arguments) {
    const auto line = Parse(arguments);
    EXPECT_TRUE(line.ok()) << line.status();
    return ConfigSummary(line->config);
  };
  EXPECT_EQ(summary({"--model=m"}), "model.path=m");
  EXPECT_EQ(summary({"--model=m", "--max-num-seqs=17", "--grpc-port=50051"}),
            "model.path=m engine.max_rows=17");
}

TEST(ConfigTest, TheFormatOfTheLogIsFoundWhereTheRestCannotBeRead) {
  const auto wants = [](std::vector<const char*> arguments, const char* variable = nullptr) {
    return WantsJsonLog(arguments, [variable](const char* name) {
      return absl::string_view(name) == "MNEME_LOG_FORMAT" ? variable : nullptr;
    });
  };
  EXPECT_TRUE(wants({"--nonsense", "--log-format=json"}));
  EXPECT_TRUE(wants({"--log_format", "json", "--nonsense"}));
  EXPECT_TRUE(wants({"--nonsense"}, "json"));
  EXPECT_FALSE(wants({"--log-format", "text", "--nonsense"}, "json"));
  EXPECT_FALSE(wants({"--nonsense", "--log-format"}));
  EXPECT_FALSE(wants({"--plan", "--log-format=json", "--nonsense"})) << "nobody's log";
  const ConfigFile file("log { format: \"json\" }");
  EXPECT_TRUE(wants({"--config", file.path(), "--nonsense"}));
  const ConfigFile broken("log { format: \"json\" ");
  EXPECT_FALSE(wants({"--config", broken.path()}));
}

TEST(ConfigTest, HelpNamesEveryFlagAndVariable) {
  const std::string help = HelpText();
  const FlagTable table;
  for (const std::string& spelling : table.Spellings()) EXPECT_THAT(help, HasSubstr(spelling));
  for (const FlagSpec& flag : table.flags()) EXPECT_THAT(help, HasSubstr(flag.env));
  std::string too_long;
  size_t start = 0;
  while (start < help.size()) {
    const size_t end = help.find('\n', start);
    if (end - start > 100) too_long = help.substr(start, end - start);
    start = end + 1;
  }
  EXPECT_THAT(too_long, IsEmpty());
}

TEST(ConfigTest, HelpAndVersionNeedNothingElse) {
  EXPECT_EQ(Parse({"--help"})->action, ServerAction::kHelp);
  EXPECT_EQ(Parse({"-h"})->action, ServerAction::kHelp);
  EXPECT_EQ(Parse({"--version"})->action, ServerAction::kVersion);
  EXPECT_EQ(Parse({"--model=m", "--plan"})->action, ServerAction::kPlan);
}

TEST(ConfigTest, WhatWasReadSaysHowToLogWhatIsWrongWithIt) {
  const auto line = ReadCommandLine(
      std::vector<const char*>{"--log-format=json", "--model=m", "--grpc-port=99999"},
      [](const char*) -> const char* { return nullptr; });
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->config.log().format(), "json");
  EXPECT_THAT(std::string(CheckCommandLine(*line).message()), HasSubstr("--grpc-port"));
}

}  // namespace
}  // namespace mneme
