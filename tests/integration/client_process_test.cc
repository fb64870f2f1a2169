// The program mneme as a user runs it, beside a server: commands, what they print, exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/programs.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

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
  EXPECT_THAT(RunClient(server, {"session", "usage"}).out, ContainsRegex("sessions +1 of any\n"));
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

TEST(ClientProcessTest, DocumentsAreClassified) {
  const TemporaryFolder folder;
  const std::string model = folder.path() + "/model";
  ASSERT_EQ(RunProgram({kMakeModel, "--shape", "memoria-bert-tiny", "--out", model}).code, 0);
  const Server server({"--model", model});
  const Result two = RunClient(server, {"classify", "a text", "one of more than a segment"});
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_THAT(two.out, ContainsRegex("^(NEGATIVE|POSITIVE)\t0\\.[0-9]+\tNEGATIVE 0\\.[0-9]+, "
                                     "POSITIVE 0\\.[0-9]+\n(NEGATIVE|POSITIVE)\t"));
  const Result input = RunClient(server, {"classify"}, "a text");
  EXPECT_THAT(two.out, HasSubstr(input.out));
  const std::string file = folder.Write("document", "a text");
  EXPECT_EQ(RunClient(server, {"classify", "--file", file}).out, input.out);
  const Result ids = RunClient(server, {"classify", "--token-ids", "97,32,98", "--json"});
  EXPECT_THAT(ids.out, HasSubstr("\"prompt_tokens\":\"3\""));
  const Result pair = RunClient(server, {"classify", "--pair", "b", "a", "--json"});
  EXPECT_THAT(pair.out, HasSubstr("\"probabilities\":["));
  EXPECT_EQ(RunClient(server, {"classify", "--pair", "b", "a", "c"}).code, 2);
  EXPECT_EQ(RunClient(server, {"classify", "--token-ids", "a"}).code, 2);
  const Result beyond = RunClient(server, {"classify", "--token-ids", "999"});
  EXPECT_EQ(beyond.code, 4);
  EXPECT_THAT(beyond.err, HasSubstr("documents[0].token_ids.ids[0] is 999, expected 0 to 258"));
  EXPECT_THAT(RunClient(server, {"generate", "a"}).err, HasSubstr("WRONG_KIND_OF_MODEL"));
  EXPECT_THAT(RunClient(server, {"info"}).out,
              HasSubstr("classes    NEGATIVE, POSITIVE (softmax)"));
}

TEST(ClientProcessTest, MemoryIsShownAndDrawn) {
  const TemporaryFolder folder;
  const std::string model = folder.path() + "/model";
  ASSERT_EQ(RunProgram({kMakeModel, "--shape", "gpt2-with-memoria-tiny", "--out", model}).code, 0);
  const Server server({"--model", model});
  const std::string text(200, 'a');  // 28 segments of 7
  ASSERT_EQ(RunClient(server, {"generate", "-s", "anna", "--max-tokens=1", text}).code, 0);
  const Result all = RunClient(server, {"memory", "show", "anna", "--order", "lifespan"});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_THAT(all.out, ContainsRegex("anna: 20[0-9] tokens; segment 28 is open, of 7 tokens\n"
                                     "engrams    3 working, 6 short-term, [0-9]+ long-term; "));
  EXPECT_THAT(all.out, ContainsRegex("BIRTH KIND .*TOKENS\n +[0-9]+ (working|short|long).* "
                                     "(yes|no) +[0-9]+-[0-9]+\n"));
  const Result one =
      RunClient(server, {"memory", "show", "anna", "--kind=working", "--limit=1", "--json"});
  EXPECT_THAT(one.out,
              AllOf(HasSubstr("\"engrams\":[{\"birth\":81,\"kind\":\"ENGRAM_KIND_WORKING\""),
                    HasSubstr("\"segment\":\"27\",\"first_token\":\"189\"")));
  EXPECT_THAT(RunClient(server, {"memory", "show", "anna", "--histogram=age", "--log"}).out,
              ContainsRegex("engrams by age\n +0 +1 +3  #+\n"));
  EXPECT_THAT(RunClient(server, {"memory", "show", "anna", "--contiguity"}).out,
              ContainsRegex("SEGMENTS .*\n +0 +[0-9]+ +[01]\\.[0-9]+  #+\n"));
  EXPECT_THAT(RunClient(server, {"memory", "graph", "anna", "--limit=1"}).out,
              ContainsRegex("^ +FROM .*BACK\n +[0-9]+ +[0-9]+ +[0-9]+ +[01]\\.[0-9]+ .*\n$"));
  const std::string picture = folder.path() + "/graph.png";
  const Result drawn = RunClient(server, {"memory", "graph", "anna", "--png", picture});
  EXPECT_THAT(drawn.out, ContainsRegex("^[0-9]+ engrams and [0-9]+ edges in "));
  std::ifstream file(picture, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(bytes.substr(1, 3), "PNG");
  EXPECT_EQ(RunClient(server, {"memory", "graph", "anna", "--png", folder.path()}).code, 1);

  EXPECT_EQ(RunClient(server, {"memory", "show", "bert"}).code, 4);
  EXPECT_THAT(RunClient(server, {"memory", "show", "anna", "--limit=10001"}).err,
              HasSubstr("engrams.limit is 10001, expected 0 to 10000"));
  EXPECT_EQ(RunClient(server, {"memory", "graph", "anna", "--birth=9999"}).code, 4);
  EXPECT_EQ(RunClient(server, {"memory", "graph", "anna", "--order=gain"}).code, 2);
  EXPECT_EQ(RunClient(server, {"memory", "show", "anna", "--bins=3"}).code, 2);
  const std::vector<std::vector<std::string>> contradictions = {{"--histogram=age", "--limit=3"},
                                                                {"--histogram=age", "--contiguity"},
                                                                {"--contiguity", "--order=gain"},
                                                                {"--contiguity", "--kind=working"},
                                                                {"--max-distance=3"},
                                                                {"--min-count=2"}};
  for (const std::vector<std::string>& flags : contradictions) {
    std::vector<std::string> command = {"memory", "show", "anna"};
    command.insert(command.end(), flags.begin(), flags.end());
    EXPECT_EQ(RunClient(server, command).code, 2) << flags.back();
  }
  EXPECT_EQ(RunClient(server, {"memory", "show", "anna", "--contiguity", "--max-distance=1"}).code,
            0);
  EXPECT_EQ(RunClient(server, {"memory", "graph", "anna", "--min-count=60000"}).out,
            "no edges to show\n");
  EXPECT_EQ(RunClient(server, {"memory", "show"}).code, 2);
  EXPECT_EQ(RunClient(server, {"memory", "forget", "anna", "--segments=3"}).code, 2);
}

TEST(ClientProcessTest, MemoryOfOnePieceIsNotShown) {
  Server server;
  ASSERT_EQ(RunClient(server, {"session", "create", "anna"}).code, 0);
  const Result none = RunClient(server, {"memory", "show", "anna"});
  EXPECT_EQ(none.code, 4);
  EXPECT_THAT(none.err, AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr("type mom is of one piece")));
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

TEST(ClientProcessTest, SurpriseIsToldBelowEachAnswerOfAChat) {
  const TemporaryFolder model;
  const std::vector<std::string> make = {kMakeModel, "--shape", "titans-lmm-tiny", "--out",
                                         model.path()};
  ASSERT_EQ(RunProgram(make).code, 0);
  Server server({"--model", model.path()});
  const std::vector<std::string> chat = {"chat", "--max-tokens=2"};
  const Result told = RunClient(server, With(chat, {"--surprise"}), "hello\nagain\n");
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_THAT(told.err, ContainsRegex("\\[surprise [0-9.e+-]+\\]\n\\[surprise [0-9.e+-]+\\]\n"));
  EXPECT_THAT(told.out, Not(HasSubstr("surprise")));
  EXPECT_THAT(RunClient(server, chat, "hello\n").err, Not(HasSubstr("surprise")));
  Server other;
  const Result refused = RunClient(other, With(chat, {"--surprise"}), "hello\n");
  EXPECT_EQ(refused.code, 4);
  EXPECT_THAT(refused.err, HasSubstr("response.surprise"));
}

TEST(ClientProcessTest, AnAnswerThatFillsItsSessionSaysSo) {
  const TemporaryFolder model;
  ASSERT_EQ(RunProgram({kMakeModel, "--shape", "llama-tiny", "--out", model.path()}).code, 0);
  Server server({"--model", model.path(), "--max-context=32"});
  const std::string note = "[the answer ends as its session has no room for more tokens";
  const auto generate = [&](const std::vector<std::string>& flags) {
    return RunClient(server, With({"generate", "hello there all", "--ignore-eos"}, flags));
  };
  const Result some = generate({"--max-tokens=4", "-s", "some", "--stats"});
  EXPECT_EQ(some.code, 0) << some.err;
  EXPECT_THAT(some.err, Not(HasSubstr("no room")));
  const Result full = generate({"--max-tokens=100", "-s", "full", "--stats"});
  EXPECT_EQ(full.code, 0) << full.err;
  EXPECT_THAT(full.err, AllOf(HasSubstr(note + "]\n"), HasSubstr("18 generated")));
  EXPECT_THAT(full.out, Not(HasSubstr("no room")));
  EXPECT_THAT(generate({"--max-tokens=100", "--choices=2"}).err, HasSubstr(note + "]\n"));
  const Result last_wins = generate({"--max-tokens=100", "-n", "2", "--stats"});
  EXPECT_THAT(last_wins.err, AllOf(HasSubstr(" 2 generated"), Not(HasSubstr("no room"))))
      << "-n is --max-tokens";
  const Result json = generate({"--max-tokens=100", "--json"});
  EXPECT_THAT(json.out, HasSubstr("\"context_full\":true"));
  EXPECT_EQ(json.err, "");
  const Result refused = generate({"-s", "full"});
  EXPECT_EQ(refused.code, 4);
  EXPECT_THAT(refused.err, HasSubstr("would feed 16 tokens to a session that was fed 32, expected "
                                     "at most 32 together (--max-context); the last token of its "
                                     "answer before is one of them"));

  const std::vector<std::string> chat = {"chat", "--ignore-eos", "--no-default-stop", "-s"};
  const Result talk = RunClient(server, With(chat, {"talk", "--max-tokens=100"}), "hi\n");
  EXPECT_THAT(talk.err, HasSubstr(note + "; /reset begins a new one]\n"));
  const Result less = RunClient(server, With(chat, {"less", "--max-tokens=2"}), "hi\n");
  EXPECT_THAT(less.err, Not(HasSubstr("no room")));
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
