// mneme chat: a conversation with a session, line by line. Only what is new is ever sent.
#include <unistd.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/conversation.h"
#include "clients/cli/request_flags.h"

namespace mneme::cli {
namespace {

constexpr absl::string_view kUsageText =
    R"(usage: mneme chat [FLAGS]

Talks to a session. The model remembers the conversation; each turn sends only what you say, which the
server writes as the model's chat template has it, and shows the answer up to the model's end token or
--stop. At the start it says whether the session is new or how many tokens it goes on after, on
standard error if turns do not come from a terminal. Once a session is in use it has to exist: if it
expires or the server is started anew, the next turn is an error and no invented answer. With
--no-remember each turn is answered in a copy of the session, which stays as it is.

A model without a chat template, and --no-template, get turns as text, wrapped in --prefix and --suffix.
With the defaults a conversation reads, tokens and all,

  <s>User: Hello\nAssistant: Hi.</s>\nUser: ...

)";

}  // namespace

int RunChat(const Arguments& arguments) {
  ChatOptions options;
  FlagSet flags;
  bool help = false;
  options.connection.AddFlags(flags);
  options.connection.AddWaitFlag(flags);
  AddSamplingFlags(flags, options.request);
  flags.String(
      "session", "NAME", "Session to go on with; default a new one, deleted at the end.",
      [&](std::string value) { options.request.mutable_session()->set_name(std::move(value)); });
  flags.Alias("-s");
  flags.Bool("keep", "Do not delete the session at the end.",
             [&](bool value) { options.keep = value; });
  flags.Bool("must-exist", "Go on with a session that is there, or refuse.",
             [&](bool value) { options.request.mutable_session()->set_must_exist(value); });
  AddSessionFlags(flags, options.request);
  flags.Bool("surprise",
             "Tell below each answer how surprising the memory found the turn and the answer, on "
             "standard error; of models whose memories are trained while they read.",
             [&](bool value) { options.request.mutable_response()->set_surprise(value); });
  flags.Bool("memory-use",
             "Tell below each answer which segments of the conversation it drew on, and which kind "
             "of memory, on standard error; of models that make engrams.",
             [&](bool value) { options.request.mutable_response()->set_memory_use(value); });
  flags.Bool("template",
             "Send turns as messages for the model's chat template; default if it has one, and "
             "neither --prefix nor --suffix is given. The flags below are for turns without.",
             [&](bool value) { options.uses_template = value; });
  flags.String("prefix", "TEXT", "Comes before what you say; default \"User: \".",
               [&](std::string value) { options.prefix = std::move(value); });
  flags.String("suffix", "TEXT", "Comes after it; default a line break and \"Assistant:\".",
               [&](std::string value) { options.suffix = std::move(value); });
  flags.Bool(
      "close",
      "Close an answer that was cut off, by --max-tokens or Ctrl-C, with the model's end token "
      "before the next turn; on by default, and the chat template's business where there is one.",
      [&](bool value) { options.close = value; });
  flags.Bool("default-stop", "Stop where the model begins a turn of yours; on by default.",
             [&](bool value) { options.default_stop = value; });
  flags.Bool("help", "Print this.", [&](bool value) { help = value; });
  flags.Alias("-h");
  const absl::StatusOr<std::vector<std::string>> positional = flags.Parse(arguments);
  if (help) {
    WriteOut(absl::StrCat(kUsageText, flags.Help(), "\n", kChatCommands));
    return kOk;
  }
  if (!positional.ok()) return ReportUsage("chat", positional.status().message());
  if (!positional->empty()) {
    return ReportUsage("chat", absl::StrCat("unexpected argument \"", (*positional)[0], "\""));
  }
  if (options.uses_template.value_or(false) && (options.prefix || options.suffix)) {
    return ReportUsage("chat", "--template has neither --prefix nor --suffix");
  }
  if (options.request.session().must_exist() && options.request.session().name().empty()) {
    return ReportUsage("chat", "--must-exist needs a --session");
  }

  if (!options.Remembers() && options.request.session().name().empty()) {
    return ReportUsage("chat", "--no-remember needs a --session");
  }

  std::atomic<Conversation*> chat_for_interrupt{nullptr};
  const InterruptHandler interrupt([&] {
    if (Conversation* chat = chat_for_interrupt.load()) {
      chat->Interrupt();
    } else {
      _exit(kInterrupted);
    }
  });
  Client client = options.connection.Connect();
  if (const absl::Status ready = WaitWhileLoading(client, options.connection.wait); !ready.ok()) {
    return ReportError(ready);
  }
  Conversation chat(options, client);
  chat_for_interrupt = &chat;
  const int code = chat.Run();
  chat_for_interrupt = nullptr;
  return code;
}

}  // namespace mneme::cli
