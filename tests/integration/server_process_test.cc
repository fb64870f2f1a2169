// The program mneme-server as a user starts it: arguments, exit codes, signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/programs.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// No label of a name is as long as this one, so no name server is asked, which could take its time.
constexpr char kNoHost[] = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

std::vector<std::string> LinesThatAreNoObjects(const std::string& log) {
  std::vector<std::string> others;
  for (const absl::string_view line : absl::StrSplit(log, '\n', absl::SkipEmpty())) {
    const bool is_object = absl::StartsWith(line, "{\"time\":\"") && absl::EndsWith(line, "}");
    if (!is_object) others.emplace_back(line);
  }
  return others;
}

TEST(ServerProcessTest, QuestionsAreAnsweredOnStandardOutput) {
  const Result help = RunServer({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, AllOf(HasSubstr("--max-num-seqs"), HasSubstr("MNEME_STATE_MEMORY")));
  EXPECT_THAT(help.err, IsEmpty());
  EXPECT_THAT(RunServer({"--version"}).out, ContainsRegex("^mneme-server [0-9]+\\.[0-9]+"));
  const Result config = RunServer({"--print-config", "--max-num-seqs=17"});
  EXPECT_EQ(config.code, 0);
  EXPECT_THAT(config.out, HasSubstr("max_rows: 17"));
}

TEST(ServerProcessTest, ThePlanCountsSessionsWithoutLoading) {
  const Result plan = RunServer({"--model", kModel, "--plan", "--state-memory=64MiB"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.out, ContainsRegex("capacity  [0-9]+ sessions fit in 64.0 MiB"));
  Server server({"--state-memory=64MiB"});
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
  const size_t begin = plan.out.find("capacity") + 10;
  const std::string sessions = plan.out.substr(begin, plan.out.find(" in ", begin) - begin);
  EXPECT_THAT(server.out(), HasSubstr(sessions));
}

TEST(ServerProcessTest, ThePlanHasThePriceOfTheContext) {
  const auto plan = [](const std::string& model, const std::string& context,
                       const std::string& state_memory = "64MiB") {
    return RunServer({"--model", model, "--plan", "--state-memory", state_memory, "--threads=2",
                      "--max-context", context});
  };
  const auto make_tiny = [](const std::string& shape, const TemporaryFolder& folder) {
    return RunProgram({kMakeModel, "--shape", shape, "--dtype", "f32", "--out", folder.path()});
  };
  const TemporaryFolder transformer, hybrid, gpt2;
  ASSERT_EQ(make_tiny("transformer-tiny", transformer).code, 0);
  ASSERT_EQ(make_tiny("gdn-hybrid-tiny", hybrid).code, 0);
  ASSERT_EQ(make_tiny("gpt2-tiny", gpt2).code, 0);
  const Result small = plan(transformer.path(), "1024");
  EXPECT_EQ(small.code, 0) << small.err;
  EXPECT_THAT(small.out, HasSubstr("for conversations of up to 1024 tokens (--max-context): "));
  const Result large = plan(transformer.path(), "4096");
  EXPECT_EQ(large.code, 0) << large.err;
  const auto number = [](const std::string& text, const std::string& before) {
    const size_t at = text.find(before) + before.size();
    return std::stoll(text.substr(at));
  };
  const int64_t bytes = number(small.out, "session   ");
  // As many bytes are enough for one, and one less is not.
  EXPECT_THAT(plan(transformer.path(), "1024", absl::StrCat(bytes)).out,
              HasSubstr("1 session fits in"));
  const Result short_of_one = plan(transformer.path(), "1024", absl::StrCat(bytes - 1));
  EXPECT_EQ(short_of_one.code, 4);
  EXPECT_THAT(short_of_one.err,
              HasSubstr(absl::StrCat("the state of one takes ", bytes, " bytes, and there are ",
                                     bytes - 1, " bytes for states")));
  const int64_t tables = number(small.out, "tables: ");
  EXPECT_EQ(bytes, number(small.out, "slab: ") + tables);
  EXPECT_EQ(tables, 8 * 1024 / 64);
  EXPECT_EQ(number(large.out, "session   "), 4 * bytes);
  const int64_t few = number(large.out, "capacity  "), many = number(small.out, "capacity  ");
  EXPECT_NEAR(static_cast<double>(many), 4.0 * few, 4) << "four times the context, a quarter fits";

  // What does not grow is beside it, and a model's own positions bound it.
  const Result mixed = plan(hybrid.path(), "1024");
  EXPECT_EQ(mixed.code, 0) << mixed.err;
  // One layer with two heads of 16: 1024 positions, keys and values, f32.
  EXPECT_THAT(mixed.out,
              HasSubstr("(--max-context): 256.0 KiB for what grows with them, used or not "
                        "(256 bytes a token, in 16 blocks of 64 tokens), and "));
  EXPECT_THAT(mixed.out, ContainsRegex(" bytes  a row a token: 128 bytes a token\n"));
  // Rows come in blocks, and a context of one more token takes one more of them.
  const Result rounded = plan(hybrid.path(), "1025");
  EXPECT_THAT(rounded.out, HasSubstr("(256 bytes a token, in 17 blocks of 64 tokens), and "));
  EXPECT_THAT(rounded.out, HasSubstr("128 bytes a token, room for 1088 as blocks have 64 rows\n"));
  const int64_t whole = number(mixed.out, "session   ");
  EXPECT_EQ(number(plan(hybrid.path(), "2048").out, "session   "), whole + 256 * 1024 + tables);
  const Result learned = plan(gpt2.path(), "1024");
  EXPECT_EQ(learned.code, 0) << learned.err;
  EXPECT_THAT(learned.out, HasSubstr("up to 256 tokens (the positions that the model has): "));

  const Result none = plan(transformer.path(), "16777216");
  EXPECT_EQ(none.code, 4);
  EXPECT_THAT(none.err, AllOf(HasSubstr("no session fits: the state of one takes"),
                              HasSubstr("are room for the tokens of --max-context")));
}

TEST(ServerProcessTest, ThePlanHasTheRoomForEngrams) {
  const TemporaryFolder folder;
  ASSERT_EQ(RunProgram({kMakeModel, "--shape", "gpt2-with-memoria-tiny", "--dtype", "f32", "--out",
                        folder.path()})
                .code,
            0);
  const auto plan = [&](const std::string& capacity) {
    return RunServer({"--model", folder.path(), "--plan", "--state-memory=64MiB", "--threads=2",
                      "--engram-capacity", capacity});
  };
  const Result derived = plan("0");
  EXPECT_EQ(derived.code, 0) << derived.err;
  EXPECT_THAT(derived.out, AllOf(HasSubstr("whatever the length of the conversation"),
                                 HasSubstr("room for 64 in a session (--engram-capacity)")));
  const Result given = plan("12");
  EXPECT_EQ(given.code, 0) << given.err;
  EXPECT_THAT(given.out, HasSubstr("room for 12 in a session (--engram-capacity)"));
  const Result large = plan("3000");
  EXPECT_EQ(large.code, 0) << large.err;
  EXPECT_THAT(large.out, HasSubstr("a history of 4096 segments"));
  const Result small = plan("11");
  EXPECT_NE(small.code, 0);
  EXPECT_THAT(small.err, HasSubstr("room for 11 engrams in a session (--engram-capacity): "
                                   "expected at least 12"));
}

TEST(ServerProcessTest, BadArgumentsEndWithTwo) {
  const Result unknown = RunServer({"--modle", kModel});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean --model"));
  EXPECT_EQ(RunServer({"--model", kModel, "--grpc-port=99999"}).code, 2);
  EXPECT_EQ(RunServer({"--model", kModel, "--host=0.0.0.0"}).code, 2);
  EXPECT_EQ(RunServer({"--model", kModel, "--config=/no/such/file"}).code, 2);
  EXPECT_EQ(
      RunServer({"--model", kModel, "--grpc-port=0", "--http-port=0", "--host", kNoHost}).code, 2);
}

// The server as `cmake --install` lays it out, with or without the model that comes with it.
class InstalledServer {
 public:
  InstalledServer() {
    std::filesystem::create_directory(folder_.path() + "/bin");
    std::filesystem::copy_file(kServer, program_);
  }
  const std::string& program() const { return program_; }

  std::string AddDemoModel(const std::vector<std::string>& files) const {
    std::string model = std::filesystem::canonical(folder_.path()) / "share/mneme/models/demo";
    std::filesystem::create_directories(model);
    for (const std::string& file : files) {
      std::filesystem::copy_file(absl::StrCat(kModel, "/", file), absl::StrCat(model, "/", file));
    }
    return model;
  }

 private:
  const TemporaryFolder folder_;
  const std::string program_ = folder_.path() + "/bin/mneme-server";
};

const std::vector<std::string> kAnyPorts = {"MNEME_GRPC_PORT=0", "MNEME_HTTP_PORT=0",
                                            "MNEME_STATE_MEMORY=16MiB"};

TEST(ServerProcessTest, WithoutArgumentsTheDemoModelIsServed) {
  const InstalledServer installed;
  const std::string model = installed.AddDemoModel({"config.json", "model.safetensors"});
  ChildProcess server({installed.program()}, "", kAnyPorts);
  std::string address;
  ASSERT_TRUE(server.WaitForText("listening on ", &address));
  ASSERT_TRUE(server.WaitForText("ready"));
  const Result info = RunProgram({kClient, "info"}, "", {"MNEME_SERVER=" + address});
  EXPECT_THAT(info.out, HasSubstr("mneme-demo: mom"));
  server.Signal(SIGHUP);  // reads the same arguments again
  ASSERT_TRUE(server.WaitForText("log_settings"));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
  EXPECT_THAT(server.err(), HasSubstr("I demo_model: no model was named: the demo model is served; "
                                      "--model DIR serves another path=" +
                                      model + "\n"));
  EXPECT_THAT(server.err(),
              AllOf(Not(HasSubstr("reload_failed")), Not(HasSubstr("restart_needed"))));

  const Result plan = RunProgram({installed.program(), "--plan"}, "", kAnyPorts);
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("sessions fit"));
}

TEST(ServerProcessTest, TheDemoModelStandsInForNoOther) {
  const InstalledServer installed;
  installed.AddDemoModel({"config.json", "model.safetensors"});
  // A script's variable that is not set.
  for (const Result& empty : {RunProgram({installed.program()}, "", {"MNEME_MODEL="}),
                              RunProgram({installed.program(), "--model", ""}, "",
                                         {"MNEME_MODEL=" + std::string(kModel)})}) {
    EXPECT_EQ(empty.code, 2);
    EXPECT_THAT(empty.err, HasSubstr("--model is missing"));
  }
  const Result config = RunProgram({installed.program(), "--print-config"});
  EXPECT_EQ(config.code, 0);
  EXPECT_THAT(config.out, HasSubstr("path: \"\""));
}

TEST(ServerProcessTest, WithoutAModelAndTheDemoModelTheErrorSaysWhereThatWouldBe) {
  const InstalledServer installed;
  const Result none = RunProgram({installed.program()});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, AllOf(HasSubstr("--model is missing"), HasSubstr("MNEME_MODEL"),
                              HasSubstr("../share/mneme/models/demo")));

  installed.AddDemoModel({"config.json"});
  const Result half = RunProgram({installed.program()}, "", kAnyPorts);
  EXPECT_EQ(half.code, 3);
  EXPECT_THAT(half.err, HasSubstr("share/mneme/models/demo\" has neither model.safetensors"));
}

TEST(ServerProcessTest, ModelsThatDoNotLoadEndWithThree) {
  const Result missing = RunServer({"--model=no/such/folder", "--grpc-port=0", "--http-port=0"});
  EXPECT_EQ(missing.code, 3);
  EXPECT_THAT(missing.err, HasSubstr("no/such/folder"));

  const TemporaryFolder folder;
  folder.Write("config.json", R"({"model_type": "unheard_of"})");
  const Result unknown = RunServer({"--model", folder.path(), "--grpc-port=0", "--http-port=0"});
  EXPECT_EQ(unknown.code, 3);
  EXPECT_THAT(unknown.err, HasSubstr("unheard_of"));
  EXPECT_EQ(RunServer({"--model", folder.path(), "--plan"}).code, 3);

  std::filesystem::copy_file("tests/golden/mom/config.json", folder.path() + "/config.json",
                             std::filesystem::copy_options::overwrite_existing);
  folder.Write("model.safetensors", std::string(100, 'x'));
  const Result corrupt = RunServer({"--model", folder.path(), "--grpc-port=0", "--http-port=0"});
  EXPECT_EQ(corrupt.code, 3);
  EXPECT_THAT(corrupt.err, HasSubstr("model.safetensors"));
}

// A last value of a weight that is no number; the file is as long as before.
std::string WithNaN(std::string weights) {
  weights.replace(weights.size() - 4, 4, "\xff\xff\xff\x7f");
  return weights;
}

TEST(ServerProcessTest, ThePlanRefusesWhatTheServerRefuses) {
  const auto read = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const TemporaryFolder files;
  const std::string no_key = files.Write("no_key", "# nobody\n");
  struct Case {
    std::string file, text;  // of the model folder; none: it is in order
    std::vector<std::string> flags;
    int code;
  };
  const std::string weights = std::string(kModel) + "/model.safetensors";
  for (const Case& c : std::vector<Case>{
           {"tokenizer.model", "no tokenizer", {}, 3},
           {"tokenizer_config.json", "{", {}, 3},
           {"generation_config.json", R"({"top_p": 2})", {}, 3},
           {"model.safetensors", WithNaN(read(weights)), {}, 3},
           {"", "", {"--api-key-file=" + no_key}, 2},
           {"", "", {"--ssl-certfile=/no/such/file", "--ssl-keyfile=/no/such/file"}, 5},
           {"", "", {"--host", kNoHost, "--grpc-port=50051"}, 2},
           {"", "", {"--state-memory=1KiB"}, 4}}) {
    SCOPED_TRACE(c.file + (c.flags.empty() ? "" : c.flags[0]));
    const TemporaryFolder folder;
    for (const char* file : {"config.json", "model.safetensors"}) {
      std::filesystem::copy_file(absl::StrCat(kModel, "/", file), folder.path() + "/" + file);
    }
    if (c.file == "tokenizer_config.json") {
      std::filesystem::copy_file("demo/model/tokenizer.model", folder.path() + "/tokenizer.model");
    }
    if (!c.file.empty()) folder.Write(c.file, c.text);
    std::vector<std::string> arguments = {"--model", folder.path(), "--grpc-port=0",
                                          "--http-port=0", "--log-level=error"};
    arguments.insert(arguments.end(), c.flags.begin(), c.flags.end());
    const Result served = RunServer(arguments);
    arguments.push_back("--plan");
    const Result planned = RunServer(arguments);
    EXPECT_EQ(served.code, c.code) << served.err;
    EXPECT_EQ(planned.code, c.code) << planned.err;
    EXPECT_THAT(planned.out, IsEmpty());
    const std::string reason = served.err.substr(served.err.rfind("mneme-server: "));
    EXPECT_THAT(planned.err, HasSubstr(reason));
  }
}

TEST(ServerProcessTest, TooLittleMemoryEndsWithFourAndTheNumbers) {
  const Result result =
      RunServer({"--model", kModel, "--grpc-port=0", "--http-port=0", "--state-memory=1KiB"});
  EXPECT_EQ(result.code, 4);
  EXPECT_THAT(result.err, AllOf(HasSubstr("1.0 KiB"), HasSubstr("no session fits")));
  EXPECT_EQ(RunServer({"--model", kModel, "--grpc-port=0", "--http-port=0", "--device=cuda"}).code,
            4);
}

TEST(ServerProcessTest, APortInUseEndsWithFive) {
  Server server;
  const std::string port = server.address.substr(server.address.rfind(':') + 1);
  const Result second = RunServer({"--model", kModel, "--http-port=0", "--grpc-port", port});
  EXPECT_EQ(second.code, 5);
  EXPECT_THAT(second.err, AllOf(HasSubstr(port), HasSubstr("in use")));
  EXPECT_THAT(second.err, Not(HasSubstr("grpc:"))) << "our line says it";
}

TEST(ServerProcessTest, SignalsDrainUnderLoad) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Server server({"--shutdown-timeout=1h"});
    ChildProcess client({kClient, "--server", server.address, "generate", "--max-tokens=1000",
                         "--ignore-eos", "--temperature=0", "--json", "hello"});
    ASSERT_TRUE(client.WaitForText("token_ids"));
    server.Signal(signal);
    EXPECT_EQ(client.Wait(), 0) << client.err();
    EXPECT_THAT(client.out(), HasSubstr("\"completion_tokens\":\"1000\""));
    EXPECT_EQ(server.Wait(), 0) << server.err();
  }
}

TEST(ServerProcessTest, ADrainEndsWhenItsTimeIsUp) {
  Server server({"--shutdown-timeout=100ms"});
  ChildProcess client({kClient, "--server", server.address, "generate", "--max-tokens=1000000000",
                       "--ignore-eos", "--json", "hello"});
  ASSERT_TRUE(client.WaitForText("token_ids"));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.err();
  EXPECT_EQ(client.Wait(), 3) << "UNAVAILABLE: " << client.err();
}

TEST(ServerProcessTest, ASecondSignalEndsAtOnce) {
  for (const auto& [first, second] :
       {std::pair(SIGTERM, SIGTERM), std::pair(SIGINT, SIGINT), std::pair(SIGTERM, SIGINT)}) {
    Server server({"--shutdown-timeout=1h"});
    ChildProcess client({kClient, "--server", server.address, "generate", "--max-tokens=1000000000",
                         "--ignore-eos", "--json", "hello"});
    ASSERT_TRUE(client.WaitForText("token_ids"));
    server.Signal(first);
    ASSERT_TRUE(server.WaitForText("draining"));
    server.Signal(second);
    EXPECT_EQ(server.Wait(), second == SIGINT ? 130 : 143) << server.err();
    EXPECT_NE(client.Wait(), 0);
  }
}

// One step that takes seconds, on one thread and with the slowest instructions.
TEST(ServerProcessTest, AStuckStepEndsWithSix) {
  Server server({"--watchdog-timeout=1s", "--max-num-batched-tokens=200000", "--threads=1",
                 "--isa=baseline"});
  ChildProcess client({kClient, "--server", server.address, "generate", "--max-tokens=1"},
                      std::string(200000, 'a'));
  ASSERT_NE(client.Wait(), 0) << "the step was over in time";
  EXPECT_EQ(server.Wait(), 6) << server.err();
  const std::string where = "step [0-9]+ of 1 rows and [0-9]+ tokens is in phase forward for ";
  EXPECT_THAT(server.err(), ContainsRegex("watchdog: " + where)) << "at half of the time";
  EXPECT_THAT(server.err(), ContainsRegex("fatal: stuck: " + where));
}

TEST(ServerProcessTest, JsonLogsAreObjects) {
  Server server({"--log-format=json"});
  server.Signal(SIGTERM);
  server.Wait();
  EXPECT_THAT(LinesThatAreNoObjects(server.err()), IsEmpty());
  EXPECT_THAT(server.err(),
              AllOf(HasSubstr("\"event\":\"ready\",\"model\":\"mom\",\"address\":\"127.0.0.1:"),
                    HasSubstr("\"event\":\"signal\",\"name\":\"SIGTERM\""),
                    HasSubstr("\"event\":\"draining\",\"timeout\":\"30s\",\"running\":0,")));
}

TEST(ServerProcessTest, FailuresToStartAreObjectsInJsonLogs) {
  const Server server;
  const std::string port = server.address.substr(server.address.rfind(':') + 1);
  const struct {
    std::vector<std::string> flags;
    int code;
    const char* word;
  } cases[] = {
      {{"--grpc-port=99999"}, 2, "--grpc-port"},
      {{"--modle=x"}, 2, "unknown flag --modle"},
      {{"--config=/no/such/file"}, 2, "/no/such/file"},
      {{"--set", "engine { rows: 1 }"}, 2, "--set:1:"},
      {{"--model="}, 2, "--model is missing"},
      {{"--model=no/such/folder"}, 3, "no/such/folder"},
      {{"--api-key-file=/no/such/file"}, 2, "/no/such/file"},
      {{"--state-memory=1KiB"}, 4, "no session fits"},
      {{"--grpc-port=" + port}, 5, "in use"},
  };
  for (const auto& [flags, code, word] : cases) {
    std::vector<std::string> all = {"--log-format=json", "--model", kModel, "--grpc-port=0",
                                    "--http-port=0"};
    all.insert(all.end(), flags.begin(), flags.end());
    const Result result = RunServer(all);
    EXPECT_EQ(result.code, code) << word;
    EXPECT_THAT(LinesThatAreNoObjects(result.err), IsEmpty());
    EXPECT_THAT(result.err,
                ContainsRegex(absl::StrCat(
                    "\"severity\":\"ERROR\",\"event\":\"start_failed\",\"message\":\".*", word,
                    ".*\",\"exit_code\":", code, "\\}\n$")));
  }
}

TEST(ServerProcessTest, AVariableThatNobodyReadsIsWarnedOf) {
  ChildProcess server(
      With({kServer}, ServerFlags()), "",
      {"MNEME_STATE_MEMROY=1GiB", "MNEME_SERVER=127.0.0.1:1", "MNEME_PORT=tcp://10.0.0.1:50051"});
  ASSERT_TRUE(server.WaitForText("ready"));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
  EXPECT_THAT(server.err(),
              HasSubstr(" W unknown_variable: the environment variable MNEME_STATE_MEMROY is no "
                        "setting; did you mean MNEME_STATE_MEMORY? name=MNEME_STATE_MEMROY "
                        "nearest=MNEME_STATE_MEMORY\n"));
  EXPECT_THAT(server.err(),
              AllOf(Not(HasSubstr("name=MNEME_SERVER")), Not(HasSubstr("name=MNEME_PORT"))));
}

}  // namespace
}  // namespace mneme
