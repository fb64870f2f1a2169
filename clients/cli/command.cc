#include "clients/cli/command.h"

#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "clients/cpp/error_details.h"

namespace mneme::cli {
namespace {

constexpr absl::Duration kKeepalive = absl::Seconds(10);
// A load that takes longer is shown even where standard error is no terminal.
constexpr absl::Duration kQuietLoad = absl::Seconds(2);

}  // namespace

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kOk;
    case absl::StatusCode::kUnavailable:
      return kUnavailable;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kDataLoss:
      return kRefused;
    case absl::StatusCode::kResourceExhausted:
      return kExhausted;
    case absl::StatusCode::kDeadlineExceeded:
      return kDeadline;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return kNotAllowed;
    case absl::StatusCode::kCancelled:
      return kInterrupted;
    default:
      return kFailed;
  }
}

void Connection::AddFlags(FlagSet& flags) {
  flags.String(
      "server", "HOST:PORT", "Where the server is; default 127.0.0.1:50051.",
      [this](std::string value) {
        server = std::move(value);
        server_given = true;
      },
      "MNEME_SERVER");
  flags.String(
      "api-key", "KEY", "The key that the server asks for; the variable hides it from other users.",
      [this](std::string value) { api_key = std::move(value); }, "MNEME_API_KEY");
  flags.Bool("tls", "Encrypt, and check the server's certificate; each flag below says so, too.",
             [this](bool value) { value ? (void)Tls() : tls.reset(); });
  AddPemFlag(flags, "tls-ca",
             "Authorities that the server's certificate may come from, PEM; "
             "default those of the system.",
             &ClientTls::authorities, "MNEME_TLS_CA");
  AddPemFlag(flags, "tls-cert", "Certificate of this client, PEM, for servers that ask for one.",
             &ClientTls::certificate, "MNEME_TLS_CERT");
  AddPemFlag(flags, "tls-key", "Private key of that certificate, PEM.", &ClientTls::private_key,
             "MNEME_TLS_KEY");
  flags.String(
      "tls-server-name", "NAME",
      "Name in the server's certificate, where it is not that of --server.",
      [this](std::string value) { Tls().server_name = std::move(value); }, "MNEME_TLS_SERVER_NAME");
  flags.Time(
      "timeout", "Deadline of a call; default none.",
      [this](absl::Duration value) { timeout = value; }, "MNEME_TIMEOUT");
}

void Connection::AddWaitFlag(FlagSet& flags) {
  flags.Time("wait", "How long to wait for a server that loads its model; default 10m.",
             [this](absl::Duration value) { wait = value; });
}

void Connection::AddPemFlag(FlagSet& flags, absl::string_view name, absl::string_view help,
                            std::string ClientTls::*text, absl::string_view environment) {
  flags.Add(
      name, "FILE", help,
      [this, text](absl::string_view path) {
        std::ifstream file(std::string(path), std::ios::binary);
        std::ostringstream content;
        if (!file || !(content << file.rdbuf())) {
          return absl::InvalidArgumentError(absl::StrCat("cannot read \"", path, "\""));
        }
        Tls().*text = content.str();
        return absl::OkStatus();
      },
      environment);
}

ClientTls& Connection::Tls() {
  if (!tls.has_value()) tls.emplace();
  return *tls;
}

Client Connection::Connect() const {
  return Client({.target = server,
                 .tls = tls,
                 .api_key = api_key,
                 .timeout = timeout,
                 .keepalive = kKeepalive});
}

absl::Status WaitWhileLoading(Client& client, absl::Duration timeout) {
  const absl::StatusOr<v1::GetInfoResponse> info = client.GetInfo();
  if (!info.ok()) return info.status();
  if (info->server().state() != v1::SERVER_STATE_LOADING) return absl::OkStatus();
  const absl::Time start = absl::Now();
  const bool is_terminal = isatty(STDERR_FILENO) != 0;
  int last_percent = -1;
  bool shown = false;
  const absl::Status status =
      client.WaitUntilServing(timeout, [&](int64_t loaded_bytes, int64_t total_bytes) {
        if (!is_terminal && absl::Now() - start < kQuietLoad) return;
        const int percent =
            total_bytes > 0 ? static_cast<int>(100 * loaded_bytes / total_bytes) : 0;
        // In a log, a line each tenth; on a terminal, one line that changes.
        if (percent == last_percent || (!is_terminal && percent / 10 == last_percent / 10)) return;
        last_percent = percent;
        shown = true;
        absl::FPrintF(stderr, "%sthe server is loading its model: %d %%%s", is_terminal ? "\r" : "",
                      percent, is_terminal ? "" : "\n");
      });
  if (shown && is_terminal) fputs("\r\033[K", stderr);
  return status;
}

int ReportError(const absl::Status& status) {
  fprintf(stderr, "mneme: %s\n", ReadableError(status).c_str());
  if (DetailsOf(status).reason == "SESSION_LOST") {
    fputs(
        "mneme: --replace-lost, of generate, chat and session create, begins it anew, or goes on "
        "with what is left of it\n",
        stderr);
  }
  return ExitCodeOf(status);
}

int ReportUsage(absl::string_view command, absl::string_view message) {
  absl::FPrintF(stderr, "mneme %s: %s\n(mneme %s --help tells more)\n", command, message, command);
  return kUsage;
}

std::optional<std::vector<std::string>> ParseWords(absl::string_view command,
                                                   absl::string_view usage, FlagSet& flags,
                                                   const Arguments& arguments, int& code) {
  bool help = false;
  flags.Bool("help", "Print this.", [&help](bool value) { help = value; });
  flags.Alias("-h");
  absl::StatusOr<std::vector<std::string>> words = flags.Parse(arguments);
  if (help) {
    WriteOut(absl::StrCat(usage, flags.Help()));
    code = kOk;
    return std::nullopt;
  }
  if (!words.ok()) {
    code = ReportUsage(command, words.status().message());
    return std::nullopt;
  }
  return *std::move(words);
}

class InterruptHandler::Thread {
 public:
  explicit Thread(std::function<void()> on_interrupt) : on_interrupt_(std::move(on_interrupt)) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    thread_ = std::thread([this, set] {
      constexpr timespec kPoll = {.tv_sec = 0, .tv_nsec = 50'000'000};
      while (!stop_) {
        if (sigtimedwait(&set, nullptr, &kPoll) == SIGINT && !stop_) on_interrupt_();
      }
    });
  }
  ~Thread() {
    stop_ = true;
    thread_.join();
  }

 private:
  const std::function<void()> on_interrupt_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

InterruptHandler::InterruptHandler(std::function<void()> on_interrupt)
    : thread_(std::make_unique<Thread>(std::move(on_interrupt))) {}
InterruptHandler::~InterruptHandler() = default;

void WriteOut(absl::string_view text) {
  if (fwrite(text.data(), 1, text.size(), stdout) == text.size() && fflush(stdout) == 0) return;
  fprintf(stderr, "mneme: cannot write to standard output: %s\n", strerror(errno));
  _exit(1);  // other threads may still be receiving
}

int CheckOutput(int code) {
  if (fflush(stdout) == 0 && ferror(stdout) == 0) return code;
  fputs("mneme: standard output could not be written\n", stderr);
  return code == kOk ? kFailed : code;
}

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(message, &json, options).ok()) return "{}";
  return json;
}

}  // namespace mneme::cli
