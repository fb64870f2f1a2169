#include "server/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/config/demo_model.h"
#include "server/config/environment.h"
#include "server/config/flags.h"
#include "server/config/origins.h"
#include "server/host_address.h"

namespace mneme {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Lt;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

using Environment = std::map<std::string, std::string>;

GetEnvironment Getter(const Environment& environment) {
  return [&environment](const char* name) -> const char* {
    const auto it = environment.find(name);
    return it == environment.end() ? nullptr : it->second.c_str();
  };
}

absl::StatusOr<CommandLine> Parse(const std::vector<const char*>& arguments,
                                  const Environment& environment = {}) {
  return ParseCommandLine(arguments, Getter(environment));
}

v1::ServerConfig ParseConfig(const std::vector<const char*>& arguments,
                             const Environment& environment = {}) {
  absl::StatusOr<CommandLine> line = Parse(arguments, environment);
  EXPECT_TRUE(line.ok()) << line.status();
  return line.ok() ? line->config : v1::ServerConfig();
}

std::string ErrorOf(const std::vector<const char*>& arguments,
                    const Environment& environment = {}) {
  return std::string(Parse(arguments, environment).status().message());
}

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text) : path_(testing::TempDir() + "mneme_config_XXXXXX") {
    const int fd = mkstemp(path_.data());
    EXPECT_GE(fd, 0);
    std::ofstream(path_) << text;
  }
  ~ConfigFile() { std::remove(path_.c_str()); }
  const char* path() const { return path_.c_str(); }

 private:
  std::string path_;
};

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

TEST(ConfigTest, ErrorsNameFlagValueAndExpectation) {
  EXPECT_THAT(ErrorOf({"--model=m", "--max-nun-seqs=3"}), HasSubstr("did you mean --max-num-seqs"));
  EXPECT_THAT(ErrorOf({"--model=m", "--ports=3"}), HasSubstr("did you mean --port"));
  EXPECT_THAT(ErrorOf({"--model=m", "--pirt=3"}), HasSubstr("unknown flag --pirt"));
  // Far from all that there is: a guess would mislead.
  for (const char* other : {"--tensor-parallel-size=2", "--gpu-memory-utilization=1", "--seed=1",
                            "--quiet", "--m1=2"}) {
    EXPECT_THAT(ErrorOf({"--model=m", other}),
                AllOf(HasSubstr("unknown flag --"), Not(HasSubstr("did you mean"))));
  }
  EXPECT_THAT(ErrorOf({"--model=m", "--grpc-port", "70000"}),
              HasSubstr("--grpc-port: 70000, expected a whole number from 0 to 65535"));
  EXPECT_THAT(ErrorOf({"--model=m", "--grpc-port", "abc"}),
              HasSubstr("--grpc-port: \"abc\", expected a whole number from 0 to 65535"));
  EXPECT_THAT(ErrorOf({"--model=m", "--grpc-port=8000"}),
              HasSubstr("--http-port: 8000 is the port of --grpc-port, too"));
  EXPECT_TRUE(Parse({"--model=m", "--grpc-port=0", "--http-port=0"}).ok());
  EXPECT_THAT(ErrorOf({"--model=m", "--device", "tpu"}),
              HasSubstr("--device: \"tpu\", expected auto, cpu or cuda"));
  EXPECT_THAT(ErrorOf({"--model=m", "--state-memory", "-1GiB"}),
              HasSubstr("expected a size (8GiB, 512MiB"));
  EXPECT_THAT(ErrorOf({"--model=m", "--state-memory", "99999999999TiB"}),
              HasSubstr("expected a size"));
  EXPECT_THAT(ErrorOf({"--model=m", "--session-ttl", "soon"}),
              HasSubstr("expected a time (250ms, 30s"));
  EXPECT_THAT(ErrorOf({"--model=m", "--max-session-ttl=10m"}),
              AllOf(HasSubstr("--session-ttl: 30m"), HasSubstr("--max-session-ttl, 10m")));
  EXPECT_THAT(ErrorOf({"--model=m", "--max-session-ttl=1h", "--session-ttl=0"}),
              HasSubstr("never"));
  EXPECT_TRUE(Parse({"--model=m", "--max-session-ttl=1h"}).ok());
  EXPECT_THAT(ErrorOf({"--model"}), HasSubstr("--model needs a value"));
  EXPECT_THAT(ErrorOf({}), HasSubstr("--model is missing"));
  EXPECT_THAT(ErrorOf({"folder"}), HasSubstr("given with --model"));
  EXPECT_THAT(ErrorOf({"--plan=yes"}), HasSubstr("takes no value"));
  EXPECT_THAT(ErrorOf({"--model=m", "--insecure=perhaps"}),
              HasSubstr("--insecure: \"perhaps\", expected true or false"));
  EXPECT_THAT(ErrorOf({"--model=m"}, {{"MNEME_THREADS", "many"}}), HasSubstr("MNEME_THREADS"));
}

// Wherever a value comes from: its message says so, and what may stand there.
TEST(ConfigTest, EveryEnumerationNamesItsValues) {
  const FlagTable table;
  int enumerations = 0;
  for (const FlagSpec& flag : table.flags()) {
    if (flag.options.choice_size() == 0) continue;
    ++enumerations;
    const std::string spelled = absl::StrCat("--", flag.name);
    const std::string text =
        absl::StrCat("\n", flag.section->name(), " {\n  ", flag.field->name(), ": \"gpu\"\n}");
    const ConfigFile file(text);
    const std::string of_flag = ErrorOf({"--model=m", spelled.c_str(), "gpu"});
    const std::string of_variable = ErrorOf({"--model=m"}, {{flag.env, "gpu"}});
    const std::string of_file = ErrorOf({"--model=m", "--config", file.path()});
    const std::string of_set = ErrorOf({"--model=m", "--set", text.c_str()});
    EXPECT_THAT(of_flag, StartsWith(absl::StrCat(spelled, ": \"gpu\", expected ")));
    EXPECT_THAT(of_variable, StartsWith(absl::StrCat(flag.env, ": \"gpu\", expected ")));
    EXPECT_THAT(of_file, StartsWith(absl::StrCat(file.path(), ":3:3: ", flag.path, ": \"gpu\"")));
    EXPECT_THAT(of_set, StartsWith(absl::StrCat("--set:3:3: ", flag.path, ": \"gpu\"")));
    for (const std::string& choice : flag.options.choice()) {
      for (const std::string& error : {of_flag, of_variable, of_file, of_set}) {
        EXPECT_THAT(error, HasSubstr(choice));
      }
    }
  }
  EXPECT_GT(enumerations, 7);
}

TEST(ConfigTest, EveryRangeIsNamedWhateverIsOutsideOfIt) {
  const FlagTable table;
  for (const FlagSpec& flag : table.flags()) {
    if (!flag.options.has_max() || flag.options.unit() != v1::Flag::NONE) continue;
    const std::string most = absl::StrCat(" to ", flag.options.max());
    for (const std::string& text : {absl::StrCat(flag.options.max(), "0"), std::string("none")}) {
      EXPECT_THAT(ErrorOf({"--model=m", absl::StrCat("--", flag.name, "=", text).c_str()}),
                  AllOf(StartsWith(absl::StrCat("--", flag.name, ": ")), HasSubstr(text),
                        HasSubstr("expected a "), HasSubstr(most)));
    }
  }
}

TEST(ConfigTest, ErrorsInTheFileNameTheirPlace) {
  const ConfigFile file("engine {\n  max_rows: 3\n  sessions: 4\n}\n");
  EXPECT_THAT(ErrorOf({"--model=m", "--config", file.path()}),
              AllOf(HasSubstr(file.path()), HasSubstr(":3:"), HasSubstr("sessions")));
  EXPECT_THAT(ErrorOf({"--model=m", "--config", "no/such/file"}),
              HasSubstr("no/such/file\": No such file or directory"));
  const ConfigFile range("engine { max_rows: 0 }");
  EXPECT_THAT(ErrorOf({"--model=m", "--config", range.path()}),
              HasSubstr(":1:10: engine.max_rows: 0, expected a whole number from 1 to 4096"));
  EXPECT_THAT(ErrorOf({"--model=m", "--config", "/dev/zero"}), HasSubstr("more than 1MiB"));
  EXPECT_THAT(ErrorOf({"--model=m", "--config", testing::TempDir().c_str()}),
              HasSubstr("cannot read"));
}

TEST(ConfigTest, MistakesInTheFileNameFieldsAndWhatTheyTake) {
  const auto error_of = [](const std::string& text) {
    const std::string error = ErrorOf({"--model=m", "--set", text.c_str()});
    EXPECT_THAT(error, StartsWith("--set:"));
    return error.substr(std::min(error.size(), size_t{6}));
  };
  // Of another name: the nearest, the flag's, another section's, or all that there are.
  EXPECT_EQ(error_of("engine {\n  sessions: 4\n}"),
            "2:11: engine has no field \"sessions\"; did you mean max_sessions?");
  EXPECT_THAT(error_of("engine { max-rows: 4 }"),
              HasSubstr("\"max-rows\"; did you mean max_rows?"));
  EXPECT_THAT(error_of("engine { max_num_seqs: 4 }"), HasSubstr("did you mean max_rows?"));
  EXPECT_THAT(error_of("engine { max_batch: 4 }"), HasSubstr("did you mean max_rows?"));
  EXPECT_THAT(error_of("engine { grpc_port: 4 }"), HasSubstr("did you mean server { grpc_port }?"));
  EXPECT_THAT(error_of("log { host: 'a' }"),
              HasSubstr("did you mean server { host } or metrics { host }?"));
  EXPECT_THAT(error_of("log { colour: true }"),
              HasSubstr("log has no field \"colour\"; it has level, format, requests"));
  EXPECT_THAT(error_of("modle { path: 'a' }"),
              HasSubstr("there is no section \"modle\"; did you mean model?"));
  EXPECT_THAT(error_of("max_num_seqs: 3"), HasSubstr("did you mean engine { max_rows }?"));
  EXPECT_THAT(
      error_of("gpu { id: 3 }"),
      HasSubstr("no section \"gpu\", expected model, device, engine, server, log, metrics or "
                "security"));

  // Of another type.
  EXPECT_EQ(error_of("device { kind: gpu }"),
            "1:16: device.kind: gpu, expected \"auto\", \"cpu\" or \"cuda\"");
  EXPECT_EQ(error_of("# { it's\nmodel {\n\tpath: /a/b\n}"),
            "3:15: model.path: /a/b, expected a text in quotes");
  EXPECT_EQ(error_of("engine { max_rows: '3' }"),
            "1:20: engine.max_rows: '3', expected a whole number from 1 to 4096");
  EXPECT_THAT(error_of("engine { max_rows: 3.5 }"), HasSubstr("engine.max_rows: 3.5, expected"));
  EXPECT_THAT(error_of("engine { max_rows: 70000000000 }"), HasSubstr(": 70000000000, expected"));
  EXPECT_THAT(error_of("engine { state_memory_bytes: 8GiB }"),
              HasSubstr("engine.state_memory_bytes: 8GiB, expected a whole number of bytes"));
  EXPECT_THAT(error_of("engine { session_ttl_ms: 30m }"),
              HasSubstr("engine.session_ttl_ms: 30m, expected a whole number of milliseconds"));
  EXPECT_THAT(error_of("engine { enforce_eager: perhaps }"),
              HasSubstr("engine.enforce_eager: perhaps, expected true or false"));
  EXPECT_THAT(error_of("engine { enforce_eager: \"yes\" }"), HasSubstr("expected true or false"));
  EXPECT_THAT(error_of("engine { max_decode_slowdown: x }"),
              HasSubstr("engine.max_decode_slowdown: x, expected a number from 0 to 1000"));
  EXPECT_THAT(error_of("engine { max_decode_slowdown: nan }"),
              HasSubstr("engine.max_decode_slowdown: nan, expected a number from 0 to 1000"));
  EXPECT_THAT(
      error_of("security { api_key: hush }"),
      AllOf(HasSubstr("security.api_key: expected a text in quotes"), Not(HasSubstr("hush"))));
  EXPECT_THAT(error_of(absl::StrCat("model { path: ", std::string(5000, 'x'), " }")).size(),
              Lt(200u));

  // Of another form.
  EXPECT_THAT(error_of("device: \"cuda\""), HasSubstr("device: expected its fields in braces"));
  EXPECT_THAT(error_of("engine { max_rows: 1 max_rows: 2 }"),
              HasSubstr("engine.max_rows: is there twice"));
  EXPECT_THAT(error_of("engine { max_rows: 1"),
              AllOf(HasSubstr("1:21: engine.max_rows: Expected"), Not(HasSubstr("whole number"))));
  EXPECT_THAT(error_of("engine { max_rows = 3 }"), HasSubstr("engine.max_rows: Expected \":\""));
  EXPECT_THAT(error_of("model { path: 'a }"), HasSubstr("end of string"));
  EXPECT_THAT(error_of("{\"engine\": 1}"), HasSubstr("expected a section: model, device"));
  for (const char* broken :
       {"}", ":", "engine { log {", "'", "engine { '", "a:b:c", "\\", "engine<"}) {
    error_of(broken);
  }
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

TEST(ConfigTest, AllInterfacesNeedAWayToKnowCallers) {
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

TEST(ConfigTest, OriginsAreSpelledAsBrowsersDo) {
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

TEST(ConfigTest, WhatGuardsIsNotEmptyByAccident) {
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

TEST(ConfigTest, TlsFilesComeTogether) {
  EXPECT_THAT(ErrorOf({"--model=m", "--ssl-certfile=c"}), HasSubstr("--ssl-keyfile"));
  EXPECT_THAT(ErrorOf({"--model=m", "--ssl-keyfile=k"}), HasSubstr("--ssl-certfile"));
  EXPECT_THAT(ErrorOf({"--model=m", "--ssl-ca-certs=a"}), HasSubstr("--ssl-certfile"));
}

TEST(ConfigTest, SecretsAreNotPrinted) {
  const absl::StatusOr<CommandLine> from_variable =
      Parse({"--model=m"}, {{"MNEME_API_KEY", "hush-hush"}});
  ASSERT_TRUE(from_variable.ok());
  EXPECT_FALSE(from_variable->has_secret);
  EXPECT_EQ(from_variable->config.security().api_key(), "hush-hush");
  for (const std::string& text :
       {PrintConfig(from_variable->config), ConfigSummary(from_variable->config)}) {
    EXPECT_THAT(text, AllOf(Not(HasSubstr("hush")), HasSubstr("set")));
  }
  // What is printed is still a configuration.
  const ConfigFile file(PrintConfig(from_variable->config));
  EXPECT_EQ(ParseConfig({"--config", file.path()}).security().api_key(), "");
  EXPECT_TRUE(Parse({"--model=m", "--api-key=hush-hush"})->has_secret);
  const std::string error = ErrorOf({"--model=m", "--api-key", "hush hush"});
  EXPECT_THAT(error, AllOf(HasSubstr("--api-key"), Not(HasSubstr("hush"))));
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

TEST(EnvironmentTest, VariablesThatNobodyReadsAreFoundWithTheirNearest) {
  const std::vector<const char*> environment = {"MNEME_STATE_MEMROY=8GiB",
                                                "MNEME_STATE_MEMORY=8GiB",
                                                "MNEME_MAX_BATCH=3",
                                                "MNEME_PORT=8000",
                                                "MNEME_=",
                                                "MNEME_CONFIG=file",
                                                "mneme_model=x",
                                                "PATH=/bin",
                                                "MNEME_QUUX=MNEME_HOST=1",
                                                "MNEME_MODEL"};
  std::map<std::string, std::string> found;
  for (const UnknownVariable& variable : UnknownVariables(environment)) {
    found[variable.name] = variable.nearest;
  }
  EXPECT_THAT(found, UnorderedElementsAre(Pair("MNEME_STATE_MEMROY", "MNEME_STATE_MEMORY"),
                                          Pair("MNEME_MAX_BATCH", "MNEME_MAX_NUM_SEQS"),
                                          Pair("MNEME_PORT", "MNEME_HTTP_PORT"), Pair("MNEME_", _),
                                          Pair("MNEME_QUUX", _)));
}

TEST(EnvironmentTest, VariablesOfClientsAndOfKubernetesAreNoMistakes) {
  const std::vector<const char*> environment = {
      "MNEME_SERVER=h:1",
      "MNEME_API_KEY=k",
      "MNEME_TIMEOUT=3s",
      "MNEME_TLS_CA=f",
      "MNEME_TLS_CERT=f",
      "MNEME_TLS_KEY=f",
      "MNEME_TLS_SERVER_NAME=n",
      "MNEME_SERVICE_HOST=10.0.0.1",
      "MNEME_SERVICE_PORT=50051",
      "MNEME_SERVICE_PORT_GRPC=50051",
      "MNEME_PORT=tcp://10.0.0.1:50051",
      "MNEME_PORT_50051_TCP=tcp://10.0.0.1:50051",
      "MNEME_PORT_50051_TCP_PROTO=tcp",
      "MNEME_PORT_50051_TCP_PORT=50051",
      "MNEME_PORT_50051_TCP_ADDR=10.0.0.1",
      "MNEME_BLUE_SERVICE_HOST=10.0.0.2",
      "MNEME_BLUE_PORT=tcp://10.0.0.2:8000",
  };
  EXPECT_THAT(UnknownVariables(environment), IsEmpty());
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
