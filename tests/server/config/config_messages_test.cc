// Messages about a configuration: they name the place, what stands there and what may.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/config/config.h"
#include "server/config/flags.h"
#include "tests/server/config/config_input.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::Not;
using ::testing::StartsWith;

TEST(ConfigMessageTest, ErrorsNameFlagValueAndExpectation) {
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
              HasSubstr("--device: \"tpu\", expected \"auto\", \"cpu\" or \"cuda\""));
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
TEST(ConfigMessageTest, EveryEnumerationNamesItsValues) {
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

TEST(ConfigMessageTest, EveryRangeIsNamedWhateverIsOutsideOfIt) {
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

TEST(ConfigMessageTest, ErrorsInTheFileNameTheirPlace) {
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

TEST(ConfigMessageTest, MistakesInTheFileNameFieldsAndWhatTheyTake) {
  const auto error_of = [](const std::string& text) {
    const std::string error = ErrorOf({"--model=m", "--set", text.c_str()});
    EXPECT_THAT(error, StartsWith("--set:"));
    return error.substr(std::min(error.size(), size_t{6}));
  };
  // A field of another name: the message has the nearest one, the flag's, another section's, or all
  // that there are.
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

  // A value of another type.
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

  // A text of another form.
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

}  // namespace
}  // namespace mneme
