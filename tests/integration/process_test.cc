// The programs mneme-server and mneme as a user starts them: arguments, exit codes, signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/child_process.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kServer[] = MNEME_SERVER_BINARY;
constexpr char kClient[] = MNEME_CLIENT_BINARY;
constexpr char kModel[] = "tests/golden/mom";
// No label of a name is as long as this one, so no name server is asked, which could take its time.
constexpr char kNoHost[] = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

std::vector<std::string> ServerCommand(const std::vector<std::string>& flags) {
  std::vector<std::string> command = {kServer,
                                      "--model",
                                      kModel,
                                      "--grpc-port=0",
                                      "--http-port=0",
                                      "--threads=2",
                                      "--state-memory=16MiB"};
  command.insert(command.end(), flags.begin(), flags.end());
  return command;
}

// A server that listens; `address` is where.
class Server : public ChildProcess {
 public:
  explicit Server(const std::vector<std::string>& flags = {}) : ChildProcess(ServerCommand(flags)) {
    EXPECT_TRUE(WaitForText("listening on ", &address));
    EXPECT_TRUE(WaitForText("ready"));
  }
  std::string address;
};

struct Result {
  int code;
  std::string out;
  std::string err;
};

Result RunProgram(const std::vector<std::string>& command, const std::string& input = "",
                  const std::vector<std::string>& environment = {}) {
  ChildProcess process(command, input, environment);
  const int code = process.Wait();
  return {code, process.out(), process.err()};
}

Result RunServer(const std::vector<std::string>& flags) {
  std::vector<std::string> command = {kServer};
  command.insert(command.end(), flags.begin(), flags.end());
  return RunProgram(command);
}

Result RunClient(const Server& server, const std::vector<std::string>& words,
                 const std::string& input = "") {
  std::vector<std::string> command = {kClient};
  command.insert(command.end(), words.begin(), words.end());
  return RunProgram(command, input, {"MNEME_SERVER=" + server.address});
}

std::vector<std::string> LinesThatAreNoObjects(const std::string& log) {
  std::vector<std::string> others;
  for (const absl::string_view line : absl::StrSplit(log, '\n', absl::SkipEmpty())) {
    const bool is_object = absl::StartsWith(line, "{\"time\":\"") && absl::EndsWith(line, "}");
    if (!is_object) others.emplace_back(line);
  }
  return others;
}

// A port of the loopback interface that nobody listens on. Nobody else is given it, but a server
// that asks for it by number may have it.
class HeldPort {
 public:
  HeldPort() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const int on = 1;
    EXPECT_EQ(setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    number_ = std::to_string(ntohs(address.sin_port));
  }
  ~HeldPort() { close(fd_); }
  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;

  const std::string& number() const { return number_; }

 private:
  const int fd_;
  std::string number_;
};

class TemporaryFolder {
 public:
  TemporaryFolder() : path_(testing::TempDir() + "mneme_process_XXXXXX") {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

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
           {"", "", {"--host", kNoHost}, 2},
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
      ServerCommand({}), "",
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

TEST(ClientProcessTest, AdminsSeeAndEndSessionsOfOthers) {
  const TemporaryFolder folder;
  const std::string keys = folder.Write("keys", "");
  std::string lines;
  std::map<std::string, std::string> key_of;
  for (const auto& [name, options] :
       {std::pair("alice", ""), std::pair("bob", ""), std::pair("ops", ":admin")}) {
    const std::string made = RunServer({"--new-api-key", name}).out;
    const size_t end = made.find('\n');
    key_of[name] = made.substr(0, end);
    absl::StrAppend(&lines, made.substr(end + 1, made.size() - end - 2), options, "\n");
  }
  folder.Write("keys", lines);
  Server server({"--api-key-file", keys});
  const auto run = [&](const std::string& who, std::vector<std::string> words) {
    words.insert(words.begin(), kClient);
    return RunProgram(words, "",
                      {"MNEME_SERVER=" + server.address, "MNEME_API_KEY=" + key_of[who]});
  };
  EXPECT_EQ(run("alice", {"session", "create", "a"}).code, 0);
  EXPECT_EQ(run("bob", {"session", "create", "b"}).code, 0);
  const Result all = run("ops", {"admin", "sessions"});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_THAT(all.out, ContainsRegex("OWNER +NAME .*\nalice +a .*\nbob +b "));
  EXPECT_THAT(run("ops", {"admin", "sessions", "--owner=bob", "--json"}).out,
              AllOf(HasSubstr("\"owner\":\"bob\""), Not(HasSubstr("alice"))));
  const Result denied = run("bob", {"admin", "sessions"});
  EXPECT_EQ(denied.code, 7);
  EXPECT_THAT(denied.err, AllOf(HasSubstr("PERMISSION_DENIED"), HasSubstr("marked admin")));
  EXPECT_NE(run("bob", {"admin", "delete-session", "alice", "a"}).code, 0);
  EXPECT_EQ(run("ops", {"admin", "delete-session", "alice", "a"}).code, 0);
  EXPECT_NE(run("alice", {"session", "get", "a"}).code, 0);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
  EXPECT_THAT(server.err(), HasSubstr("session_ended_by_admin owner=alice session=a by=ops\n"));
}

TEST(ClientProcessTest, CommandsDoWhatTheirNamesSay) {
  Server server;
  const Result first = RunClient(
      server, {"generate", "-s", "anna", "--max-tokens=5", "--temperature=0", "hello", "--stats"});
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("5 generated"));
  EXPECT_EQ(RunClient(server, {"generate", "-s", "anna", "--max-tokens=5"}, " from stdin").code, 0);
  const Result list = RunClient(server, {"session", "list"});
  EXPECT_THAT(list.out, ContainsRegex("anna +26 "));
  EXPECT_EQ(RunClient(server, {"session", "fork", "anna", "bert"}).code, 0);
  EXPECT_THAT(RunClient(server, {"session", "get", "bert", "--json"}).out, HasSubstr("bert"));
  EXPECT_EQ(RunClient(server, {"session", "delete", "anna", "bert"}).code, 0);
  EXPECT_EQ(RunClient(server, {"session", "get", "anna"}).code, 4);
  EXPECT_EQ(RunClient(server, {"tokenize", "hi"}).out, "104 105\n");
  EXPECT_EQ(RunClient(server, {"detokenize", "104", "105"}).out, "hi\n");
  EXPECT_EQ(RunClient(server, {"health"}).out, "SERVING\n");
  EXPECT_THAT(RunClient(server, {"info"}).out, HasSubstr("mom"));
  EXPECT_THAT(RunClient(server, {"info", "--json"}).out, HasSubstr("\"vocab_size\":256"));
}

TEST(ClientProcessTest, HealthWaitsForAServerIfAsked) {
  const HeldPort port;
  const std::string address = "127.0.0.1:" + port.number();
  const Result gone = RunProgram({kClient, "health", "--server", address});
  EXPECT_EQ(gone.code, 3);
  EXPECT_THAT(gone.err, HasSubstr("UNAVAILABLE"));
  ChildProcess waiting({kClient, "health", "--server", address, "--wait=1m"});
  const Server server({"--grpc-port=" + port.number()});
  EXPECT_EQ(waiting.Wait(), 0) << waiting.err();
  EXPECT_EQ(waiting.out(), "SERVING\n");
}

TEST(ClientProcessTest, AChatKeepsASession) {
  Server server;
  const Result chat = RunClient(server, {"chat", "--max-tokens=4", "-s", "talk"},
                                "hello\n/session\n/fork other\nmore \\\nlines\n/reset\n/quit\n");
  EXPECT_EQ(chat.code, 0) << chat.err;
  EXPECT_THAT(chat.err, HasSubstr("[new session talk]\n"));
  EXPECT_THAT(chat.err, HasSubstr("the model has no chat template: turns are sent as "
                                  "\"User: ...\\nAssistant:\""));
  EXPECT_THAT(chat.out, ContainsRegex("\\[talk: [0-9]+ tokens"));
  EXPECT_THAT(chat.out, HasSubstr("going on in other"));
  EXPECT_EQ(RunClient(server, {"session", "get", "talk"}).code, 0);
  EXPECT_EQ(RunClient(server, {"session", "get", "other"}).code, 4) << "it was reset";
  const Result again = RunClient(server, {"chat", "-s", "talk", "--max-tokens=1"}, "/session\n");
  EXPECT_THAT(again.err, ContainsRegex("\\[session talk, going on after [0-9]+ tokens\\]"));
}

TEST(ClientProcessTest, WhatMustExistIsNotBegunAnew) {
  Server server;
  const Result chat =
      RunClient(server, {"chat", "-s", "gone", "--must-exist"}, "What is my code?\n");
  EXPECT_EQ(chat.code, 4);
  EXPECT_EQ(chat.out, "");
  EXPECT_THAT(chat.err, AllOf(HasSubstr("NOT_FOUND"), HasSubstr("\"gone\"")));
  const Result generate = RunClient(server, {"generate", "-s", "gone", "--must-exist", "hello"});
  EXPECT_EQ(generate.code, 4);
  EXPECT_THAT(generate.err, HasSubstr("NOT_FOUND"));
  EXPECT_EQ(RunClient(server, {"session", "get", "gone"}).code, 4) << "nothing was made";
  EXPECT_EQ(RunClient(server, {"session", "create", "there"}).code, 0);
  EXPECT_EQ(
      RunClient(server, {"generate", "-s", "there", "--must-exist", "--max-tokens=1", "hello"})
          .code,
      0);
  const Result nameless = RunClient(server, {"chat", "--must-exist"}, "hello\n");
  EXPECT_EQ(nameless.code, 2);
  EXPECT_THAT(nameless.err, HasSubstr("--session"));
}

TEST(ClientProcessTest, AChatTemplateIsNotWrapped) {
  Server server;
  const Result both = RunClient(server, {"chat", "--template", "--prefix=Me: "}, "hello\n");
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("--template has neither --prefix nor --suffix"));
  const Result none = RunClient(server, {"chat", "--template", "-s", "s"}, "hello\n");
  EXPECT_EQ(none.code, 4) << "this model has none";
  EXPECT_THAT(none.err, AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("NO_CHAT_TEMPLATE")));
  EXPECT_EQ(RunClient(server, {"session", "get", "s"}).code, 4);
}

TEST(ClientProcessTest, TheBenchmarkPrintsTheUsualBlock) {
  Server server;
  const TemporaryFolder folder;
  const Result bench =
      RunClient(server, {"bench", "--num-prompts=12", "--random-input-len=20",
                         "--random-output-len=10", "--max-concurrency=4", "--request-rate=500",
                         "--goodput=ttft:5000", "--save-detailed", "--result-dir", folder.path()});
  EXPECT_EQ(bench.code, 0) << bench.err;
  EXPECT_THAT(bench.out, HasSubstr("============ Serving Benchmark Result ============\n"
                                   "Successful requests:                     12        \n"));
  EXPECT_THAT(bench.out, HasSubstr("Total input tokens:                      240 "));
  EXPECT_THAT(bench.out, HasSubstr("Total generated tokens:                  120 "));
  EXPECT_THAT(bench.out, HasSubstr("Mean rows per decode step:"));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    files += 1;
    EXPECT_THAT(entry.path().filename().string(), HasSubstr("mneme-500qps-concurrency4-mom-"));
  }
  EXPECT_EQ(files, 1);
}

TEST(ClientProcessTest, TheBenchmarkOfTurnsContinuesSessions) {
  Server server;
  const TemporaryFolder folder;
  const Result bench =
      RunClient(server, {"bench", "--num-prompts=3", "--turns=4", "--random-input-len=20",
                         "--random-output-len=10", "--max-concurrency=2", "--save-result",
                         "--result-filename=turns.json", "--result-dir", folder.path()});
  EXPECT_EQ(bench.code, 0) << bench.err;
  EXPECT_THAT(bench.out, HasSubstr("Successful requests:                     12 "));
  // 20 tokens of the prompt and 9 of the answer are fed in a turn; the tenth is pending.
  EXPECT_THAT(bench.out, ContainsRegex("\n   1 +0 +[0-9.]+ +[0-9.]+\n   2 +29 +[0-9.]+ "));
  EXPECT_THAT(bench.out, ContainsRegex("\n   4 +89 +[0-9.]+ "));
  EXPECT_THAT(bench.out, ContainsRegex("Mean resume TTFT \\(ms\\): +[0-9.]+"));
  EXPECT_THAT(bench.out, ContainsRegex("P99 fork latency \\(ms\\): +[0-9.]+"));
  std::ifstream file(folder.path() + "/turns.json");
  const std::string json((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(json, ContainsRegex("\"mean_resume_ttft_ms\": [0-9.]+"));
  EXPECT_THAT(json, ContainsRegex("\"median_fork_latency_ms\": [0-9.]+"));
  EXPECT_THAT(RunClient(server, {"session", "list", "bench-"}).out, Not(HasSubstr("bench-")))
      << "they are deleted";
}

TEST(ClientProcessTest, ErrorsHaveTheirExitCodes) {
  Server server;
  const Result field = RunClient(server, {"generate", "x", "--top-p=7"});
  EXPECT_EQ(field.code, 4);
  EXPECT_THAT(field.err, AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("top_p")));
  const Result flag = RunClient(server, {"generate", "x", "--top-q=7"});
  EXPECT_EQ(flag.code, 2);
  EXPECT_THAT(flag.err, HasSubstr("did you mean --top-"));
  EXPECT_EQ(RunClient(server, {"genrate"}).code, 2);
  EXPECT_EQ(RunClient(server,
                      {"generate", "x", "--timeout=50ms", "--max-tokens=100000000", "--ignore-eos"})
                .code,
            6);
  EXPECT_EQ(RunProgram({kClient, "--server=127.0.0.1:1", "info"}).code, 3);
}

TEST(ClientProcessTest, TextThatCannotBeWrittenIsAnError) {
  Server server;
  const Result full = RunProgram({"/bin/sh", "-c",
                                  absl::StrCat(kClient, " --server ", server.address,
                                               " generate x --max-tokens=4 > /dev/full")});
  EXPECT_EQ(full.code, 1);
  EXPECT_THAT(full.err, HasSubstr("standard output"));
}

TEST(ClientProcessTest, TextThatIsNotUtf8IsRefusedWithItsOffset) {
  Server server;
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"generate"}, {"tokenize"}, {"chat", "--prefix="}}) {
    const Result result = RunClient(server, command, "h\xc3\xa9llo \xff\n");
    EXPECT_EQ(result.code, 4) << command[0];
    EXPECT_THAT(result.err, AllOf(HasSubstr("text is not valid UTF-8: byte 0xff at offset 7"),
                                  Not(HasSubstr("libprotobuf"))))
        << command[0];
  }
  const Result name = RunClient(server, {"session", "get", "a\xc3"});
  EXPECT_EQ(name.code, 4);
  EXPECT_THAT(name.err, AllOf(HasSubstr("name is not valid UTF-8: byte 0xc3 at offset 1"),
                              Not(HasSubstr("libprotobuf"))));
}

TEST(ClientProcessTest, CtrlCCancelsTheStream) {
  Server server;
  ChildProcess client({kClient, "--server", server.address, "generate", "--max-tokens=1000000000",
                       "--ignore-eos", "--json", "-s", "left", "hello"});
  ASSERT_TRUE(client.WaitForText("token_ids"));
  client.Signal(SIGINT);
  EXPECT_EQ(client.Wait(), 130) << client.err();
  while (RunClient(server, {"session", "get", "left", "--json"}).out.find("\"busy\":true") !=
         std::string::npos) {
  }
  EXPECT_EQ(RunClient(server, {"generate", "-s", "left", "--max-tokens=1", "on"}).code, 0);
}

}  // namespace
}  // namespace mneme
