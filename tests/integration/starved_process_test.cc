// A server that lacks something: somebody who reads what it says, standard streams, time, files,
// threads or address space.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/integration/programs.h"
#include "tests/support/stuck_pipe.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// The server, after the shell has prepared for it: "ulimit -n 64;", or redirections behind "2>&-".
std::vector<std::string> Command(const std::string& before, const std::string& behind,
                                 const std::vector<std::string>& flags = {}) {
  return With({"/bin/sh", "-c", absl::StrCat(before, " exec \"$0\" \"$@\" ", behind), kServer},
              ServerFlags(flags));
}

// Lets a process inherit the pipe's writing end.
std::string Inherited(const StuckPipe& pipe) {
  EXPECT_EQ(fcntl(pipe.write_end(), F_SETFD, 0), 0);
  return absl::StrCat(pipe.write_end());
}

int PortOf(const std::string& address) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) << address;
  return port;
}

// A connection that sends nothing, or what it is given.
class Connection {
 public:
  explicit Connection(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Connection() { close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // All that comes until the server closes.
  std::string Ask(const std::string& text) const {
    EXPECT_EQ(send(fd_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
    std::string answer;
    char buffer[4096];
    for (ssize_t count; (count = recv(fd_, buffer, sizeof(buffer), 0)) > 0;) {
      answer.append(buffer, static_cast<size_t>(count));
    }
    return answer;
  }

 private:
  const int fd_;
};

std::string Health(int port) {
  return Connection(port).Ask("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
}

int Generate(const std::string& address, const std::vector<std::string>& more = {}) {
  return RunProgram(With({kClient, "--server", address, "generate", "--max-tokens=3", "x"}, more))
      .code;
}

// --- Standard streams ---

bool IsNull(pid_t pid, int fd) {
  char target[64] = {};
  const std::string link = absl::StrCat("/proc/", pid, "/fd/", fd);
  return readlink(link.c_str(), target, sizeof(target) - 1) > 0 &&
         absl::string_view(target) == "/dev/null";
}

bool StandardStreamsAreNull(pid_t pid) {
  return IsNull(pid, STDIN_FILENO) && IsNull(pid, STDOUT_FILENO) && IsNull(pid, STDERR_FILENO);
}

TEST(StarvedProcessTest, ALogThatNobodyReadsHoldsNothingUp) {
  const StuckPipe pipe;
  ChildProcess server(Command("", "2>&" + Inherited(pipe)));
  std::string grpc, http;
  ASSERT_TRUE(server.WaitForText("listening on ", &grpc));
  ASSERT_TRUE(server.WaitForText("http on ", &http));
  ASSERT_TRUE(server.WaitForText("ready"));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Generate(grpc), 0);
  EXPECT_THAT(Health(PortOf(http)), StartsWith("HTTP/1.1 200"));
  const absl::Time signalled = absl::Now();
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
  EXPECT_LT(absl::Now() - signalled, absl::Seconds(20));
}

TEST(StarvedProcessTest, AStuckStepEndsWithSixThoughNobodyReads) {
  const StuckPipe pipe;
  ChildProcess server(Command("", "2>&" + Inherited(pipe),
                              {"--watchdog-timeout=1s", "--max-num-batched-tokens=200000",
                               "--threads=1", "--isa=baseline"}));
  std::string grpc, http;
  ASSERT_TRUE(server.WaitForText("listening on ", &grpc));
  ASSERT_TRUE(server.WaitForText("http on ", &http));
  ASSERT_TRUE(server.WaitForText("ready"));
  ChildProcess client({kClient, "--server", grpc, "generate", "--max-tokens=1"},
                      std::string(200000, 'a'));
  std::string health;
  do {
    health = Health(PortOf(http));
  } while (health.starts_with("HTTP/1.1 200"));
  EXPECT_THAT(health, AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("late with a step")));
  EXPECT_EQ(server.Wait(), 6);
  EXPECT_NE(client.Wait(), 0);
}

TEST(StarvedProcessTest, StandardOutputThatNobodyReadsHoldsNothingUp) {
  const StuckPipe pipe;
  ChildProcess server(Command("", "1>&" + Inherited(pipe)));
  ASSERT_TRUE(server.WaitForText(" I ready "));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
  EXPECT_THAT(server.err(), HasSubstr(" I drained"));
}

TEST(StarvedProcessTest, AFailureToStartThatNobodyReadsHasItsExitCode) {
  const StuckPipe pipe;
  ChildProcess server(Command("", "2>&" + Inherited(pipe), {"--modle=x"}));
  EXPECT_EQ(server.Wait(), 2);
}

TEST(StarvedProcessTest, StandardStreamsThatAreClosedTakeNoConnectionsPlace) {
  // Standard error is whatever gets its number; what is printed must not reach a client.
  ChildProcess server(Command("", "0>&- 2>&-"));
  std::string grpc, http;
  ASSERT_TRUE(server.WaitForText("listening on ", &grpc));
  ASSERT_TRUE(server.WaitForText("http on ", &http));
  ASSERT_TRUE(server.WaitForText("ready"));
  EXPECT_TRUE(IsNull(server.pid(), STDIN_FILENO));
  EXPECT_TRUE(IsNull(server.pid(), STDERR_FILENO));
  EXPECT_EQ(Generate(grpc), 0);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
}

// Each is given work for minutes, looked at, and ended.
TEST(StarvedProcessTest, EveryToolOpensStandardStreamsThatAreClosed) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 1'000'000; ++i) text += "1 ";
  const std::string ids = folder.Write("ids", text);
  for (const std::vector<std::string>& tool : std::vector<std::vector<std::string>>{
           {kLogits, "--model", kModel, "--tokens", ids, "--out", folder.path() + "/logits"},
           {kInspect, "routing", kModel, "--tokens", ids},
           {kMakeModel, "--shape=mom-1.3b", "--out", folder.path() + "/model"}}) {
    const ChildProcess process(With({"/bin/sh", "-c", "exec \"$0\" \"$@\" <&- >&- 2>&-"}, tool));
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (!StandardStreamsAreNull(process.pid()) && absl::Now() < deadline) {
    }
    EXPECT_TRUE(StandardStreamsAreNull(process.pid())) << tool[0];
  }
}

TEST(StarvedProcessTest, APathWithALineBreakIsOneLine) {
  ChildProcess server(Command("", "", {"--model", "no\nsuch\x1b[2Jfolder"}));
  EXPECT_EQ(server.Wait(), 3);
  EXPECT_THAT(server.err(), HasSubstr("no\\nsuch\\x1b[2Jfolder"));
  EXPECT_THAT(server.err(), ContainsRegex("\nmneme-server: [^\n]*\n$"));
  ChildProcess plan({kServer, "--plan", "--model", "no\nsuch"});
  EXPECT_EQ(plan.Wait(), 3);
  EXPECT_THAT(plan.err(), ContainsRegex("^[^\n]*no\\\\nsuch[^\n]*\n$"));
}

// --- Time ---

TEST(StarvedProcessTest, AProcessThatWasStoppedGoesOn) {
  ChildProcess server(Command("", "", {"--watchdog-timeout=1s"}));
  std::string grpc;
  ASSERT_TRUE(server.WaitForText("listening on ", &grpc));
  ASSERT_TRUE(server.WaitForText("ready"));
  ChildProcess client({kClient, "--server", grpc, "generate", "--max-tokens=1000000000",
                       "--ignore-eos", "--json", "x"});
  ASSERT_TRUE(client.WaitForText("token_ids"));
  server.Signal(SIGSTOP);
  absl::SleepFor(absl::Seconds(3));  // what is tested is that time passes
  server.Signal(SIGCONT);
  ASSERT_TRUE(server.WaitForText(" W pause: the process did not run for "));
  EXPECT_EQ(Generate(grpc), 0);
  client.Signal(SIGINT);
  client.Wait();
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.err();
}

// --- Files, threads, address space ---

bool IsOpen(pid_t pid, rlim_t file) {
  struct stat status;
  return lstat(absl::StrCat("/proc/", pid, "/fd/", file).c_str(), &status) == 0;
}

// The number of the next file that `pid` opens.
rlim_t LowestFreeFile(pid_t pid) {
  rlim_t file = 0;
  while (IsOpen(pid, file)) ++file;
  return file;
}

// Lets `pid` open no further file until one of those below the limit is closed.
void LeaveNoFile(pid_t pid, rlimit limits) {
  // A file that was open for an instant leaves its number free: again, until all are taken.
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  do {
    ASSERT_LT(absl::Now(), deadline) << "files are opened and closed all the time";
    limits.rlim_cur = LowestFreeFile(pid);
    ASSERT_EQ(prlimit(pid, RLIMIT_NOFILE, &limits, nullptr), 0);
    absl::SleepFor(absl::Milliseconds(50));
  } while (LowestFreeFile(pid) < limits.rlim_cur);
}

TEST(StarvedProcessTest, WithFewFilesThereAreFewerConnectionsAndHealthAnswers) {
  ChildProcess server(Command("ulimit -n 64;", ""));
  std::string grpc, http;
  ASSERT_TRUE(server.WaitForText("listening on ", &grpc));
  ASSERT_TRUE(server.WaitForText("http on ", &http));
  ASSERT_TRUE(server.WaitForText("ready")) << server.err();
  EXPECT_THAT(server.err(),
              HasSubstr("W fewer_connections: the process may open 64 files (ulimit -n, "
                        "LimitNOFILE=): connections are limited to 8 of gRPC instead of 4096 and "
                        "8 of HTTP instead of 4096 files=64 grpc=8 http=8\n"));
  std::vector<std::unique_ptr<Connection>> strangers;
  for (int i = 0; i < 100; ++i) {
    strangers.push_back(std::make_unique<Connection>(PortOf(i % 2 == 0 ? grpc : http)));
  }
  EXPECT_THAT(Health(PortOf(http)), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(Generate(grpc), 0);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
}

// More than was foreseen: something else took the files. Strangers at one port hold up clients of
// neither.
TEST(StarvedProcessTest, WhereNoFileIsLeftIdleStrangersMakeRoom) {
  for (const bool strangers_use_http : {true, false}) {
    SCOPED_TRACE(strangers_use_http ? "strangers at HTTP" : "strangers at gRPC");
    ChildProcess server(Command("", ""));
    std::string grpc, http;
    ASSERT_TRUE(server.WaitForText("listening on ", &grpc));
    ASSERT_TRUE(server.WaitForText("http on ", &http));
    ASSERT_TRUE(server.WaitForText("ready"));
    // Whatever is opened at the first call is open from here on.
    EXPECT_THAT(Health(PortOf(http)), StartsWith("HTTP/1.1 200"));
    EXPECT_EQ(Generate(grpc), 0);
    rlimit before{};
    ASSERT_EQ(prlimit(server.pid(), RLIMIT_NOFILE, nullptr, &before), 0);
    const rlim_t first = LowestFreeFile(server.pid());
    std::vector<std::unique_ptr<Connection>> strangers(40);
    for (std::unique_ptr<Connection>& stranger : strangers) {
      stranger = std::make_unique<Connection>(PortOf(strangers_use_http ? http : grpc));
    }
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (LowestFreeFile(server.pid()) < first + strangers.size() && absl::Now() < deadline) {
    }
    ASSERT_NO_FATAL_FAILURE(LeaveNoFile(server.pid(), before));
    // The other port first: what it frees, the strangers' own would find free.
    if (strangers_use_http) {
      EXPECT_EQ(Generate(grpc), 0);
    }
    EXPECT_THAT(Health(PortOf(http)), StartsWith("HTTP/1.1 200"));
    EXPECT_EQ(Generate(grpc), 0);
    ASSERT_EQ(prlimit(server.pid(), RLIMIT_NOFILE, &before, nullptr), 0);
    server.Signal(SIGTERM);
    EXPECT_EQ(server.Wait(), 0) << server.err();
    EXPECT_THAT(server.err(),
                ContainsRegex("W too_many_connections: an idle one was closed to make room \\(the "
                              "process may open no further file: ulimit -n, LimitNOFILE="));
  }
}

// Either the server is there, and serves, or it says what it could not have.
TEST(StarvedProcessTest, LimitsOfTheSystemEndTheStartWithFourAndTheNumbers) {
  const struct {
    std::string limit;
    bool may_serve;
    const char* says;  // where it does not
  } cases[] = {
      {"-n 8", false, "may open 8 files \\(ulimit -n, LimitNOFILE=\\), and needs at least [0-9]+"},
      {"-n 16", false, "may open 16 files"},
      {"-n 24", false, "may open 24 files"},
      {"-n 63", false, "may open 63 files"},
      {"-n 64", true, ""},
      {"-v 150000", false, "ulimit -v 150000\\), and needs at least [0-9.]+ .iB"},
      {"-v 250000", false, "ulimit -v"},
      {"-v 400000", true, "ulimit -v"},
      {"-v 600000", true, "ulimit -v"},
      {"-v 1000000", true, "ulimit -v"},
      {"-v 8000000", true, "ulimit -v"},
  };
  for (const auto& [limit, may_serve, says] : cases) {
    ChildProcess server(Command(absl::StrCat("ulimit ", limit, ";"), ""));
    std::string grpc;
    if (server.WaitForText("listening on ", &grpc) && server.WaitForText("\nready")) {
      EXPECT_TRUE(may_serve) << limit;
      EXPECT_EQ(Generate(grpc), 0) << limit;
      server.Signal(SIGTERM);
      EXPECT_EQ(server.Wait(), 0) << limit << "\n" << server.err();
    } else {
      EXPECT_EQ(server.Wait(), 4) << limit << "\n" << server.err();
      EXPECT_THAT(server.err(), ContainsRegex(says)) << limit;
    }
    EXPECT_THAT(server.err(), Not(HasSubstr("terminate called"))) << limit;
  }
}

TEST(StarvedProcessTest, ThePlanRefusesTheLimitsThatTheServerRefuses) {
  const auto exit_code = [](const std::string& limit, const char* flag) {
    ChildProcess server(Command(absl::StrCat("ulimit ", limit, ";"), "", {flag}));
    if (std::string(flag) == "--plan") return server.Wait();
    if (!server.WaitForText("\nready")) return server.Wait();
    server.Signal(SIGTERM);
    return server.Wait();
  };
  for (const char* limit :
       {"-n 20", "-n 64", "-v 150000", "-v 250000", "-v 400000", "-v 3000000"}) {
    EXPECT_EQ(exit_code(limit, "--plan"), exit_code(limit, "--threads=2")) << limit;
  }
  ChildProcess plan(Command("ulimit -n 20;", "", {"--plan"}));
  EXPECT_EQ(plan.Wait(), 4);
  EXPECT_THAT(plan.err(), HasSubstr("may open 20 files (ulimit -n"));
}

TEST(StarvedProcessTest, TheStatesOfSessionsFitIntoTheAddressSpace) {
  for (const int kilobytes : {600'000, 1'000'000, 2'000'000, 3'000'000}) {
    ChildProcess server({"/bin/sh", "-c",
                         absl::StrCat("ulimit -v ", kilobytes, "; exec \"$0\" \"$@\""), kServer,
                         "--model", "tests/golden/mom", "--grpc-port=0", "--threads=2"});
    std::string grpc;
    if (server.WaitForText("listening on ", &grpc) && server.WaitForText("\nready")) {
      EXPECT_EQ(Generate(grpc), 0) << kilobytes;
      server.Signal(SIGTERM);
      EXPECT_EQ(server.Wait(), 0) << kilobytes << "\n" << server.err();
    } else {
      EXPECT_LT(kilobytes, 3'000'000) << server.err();
      EXPECT_EQ(server.Wait(), 4) << kilobytes;
      EXPECT_THAT(server.err(), HasSubstr("(ulimit -v")) << kilobytes;
    }
  }
}

// Four bodies at once, each of which takes a hundred times its size while it is read.
TEST(StarvedProcessTest, WhoAsksForMoreMemoryThanThereIsIsToldAndTheOthersGoOn) {
  std::string ids = "1";
  for (int i = 1; i < 4'000'000; ++i) ids += ",1";
  const std::string body = absl::StrCat("{\"prompt\":[", ids, "],\"max_tokens\":1}");
  const std::string request = absl::StrCat(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
      "x-request-timeout-ms: 3000\r\nContent-Length: ",
      body.size(), "\r\n\r\n", body);
  // The least with which a server starts, which has threads for each processor, and some more.
  int served = 0;
  for (int megabytes = 620; served < 2 && megabytes < 5000; megabytes += 90) {
    SCOPED_TRACE(megabytes);
    ChildProcess server(Command(absl::StrCat("ulimit -v ", megabytes * 1024, ";"), ""));
    std::string grpc, http;
    if (!server.WaitForText("listening on ", &grpc) || !server.WaitForText("http on ", &http) ||
        !server.WaitForText("\nready")) {
      EXPECT_EQ(server.Wait(), 4) << server.err();
      continue;
    }
    ++served;
    EXPECT_EQ(Generate(grpc, {"--session=kept"}), 0);
    std::vector<std::thread> strangers;
    for (int i = 0; i < 4; ++i) {
      strangers.emplace_back([&] {
        EXPECT_THAT(Connection(PortOf(http)).Ask(request),
                    AnyOf(StartsWith("HTTP/1.1 503"), StartsWith("HTTP/1.1 408"),
                          StartsWith("HTTP/1.1 200"), StartsWith("HTTP/1.1 400")));
      });
    }
    for (std::thread& stranger : strangers) stranger.join();
    EXPECT_THAT(Health(PortOf(http)), StartsWith("HTTP/1.1 200"));
    EXPECT_EQ(Generate(grpc, {"--session=kept", "--must-exist"}), 0) << "no session was lost";
    server.Signal(SIGTERM);
    EXPECT_EQ(server.Wait(), 0) << server.err();
  }
  EXPECT_EQ(served, 2);
}

// The limit is one of a user, counts all of his processes, and does not hold for root: the server
// runs as a user that nobody else is.
TEST(StarvedProcessTest, WithoutThreadsTheStartEndsWithFourAndTheNumbers) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become a user who runs nothing else";
  const std::string user = absl::StrCat(100000 + getpid() % 400000);
  const std::string become =
      absl::StrCat("setpriv --reuid=", user, " --regid=", user, " --clear-groups");
  if (ChildProcess({"/bin/sh", "-c", absl::StrCat(become, " ", kServer, " --version")}).Wait() !=
      0) {
    GTEST_SKIP() << "another user cannot run " << kServer;
  }
  // Some sandboxes know the limit and do not hold to it.
  if (ChildProcess({"/bin/sh", "-c",
                    absl::StrCat(become, " /bin/sh -c 'ulimit -u 1; /bin/true; /bin/true'")})
          .Wait() == 0) {
    GTEST_SKIP() << "this system does not hold to ulimit -u";
  }
  // From some number on it starts, and below it nothing is begun that cannot be ended.
  for (const int threads : {1, 2, 3, 5, 10, 20, 25, 28, 30, 31, 32, 34, 36, 38, 40}) {
    ChildProcess server(With({"/bin/sh", "-c",
                              absl::StrCat("exec ", become, " /bin/sh -c 'ulimit -u ", threads,
                                           "; exec \"$0\" \"$@\"' \"$0\" \"$@\""),
                              kServer},
                             ServerFlags()));
    if (threads > 20 && server.WaitForText("\nready")) {
      server.Signal(SIGTERM);
      EXPECT_EQ(server.Wait(), 0) << threads << "\n" << server.err();
      continue;
    }
    EXPECT_EQ(server.Wait(), 4) << threads << "\n" << server.err();
    EXPECT_THAT(server.err(), Not(HasSubstr("fatal"))) << threads;
    EXPECT_THAT(server.err(),
                ContainsRegex(absl::StrCat("thread.*Resource temporarily unavailable.* of ",
                                           threads, " \\(ulimit -u\\)")))
        << threads;
    EXPECT_THAT(server.err(), Not(HasSubstr("terminate called")));
  }
}

}  // namespace
}  // namespace mneme
