// mneme generate: one request, streamed to standard output.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "clients/cli/command.h"
#include "clients/cli/request_flags.h"
#include "clients/cli/usage_text.h"

namespace mneme::cli {
namespace {

constexpr absl::string_view kUsageText =
    R"(usage: mneme generate [FLAGS] [PROMPT]

Streams the model's continuation of PROMPT to standard output. Without PROMPT the text of --file or
of standard input is taken. With --session the model remembers: send only what is new, with the
space that separates it from what was said before. A model without a tokenizer takes --token-ids,
and --json shows the ids of its answer.

  mneme generate "Once upon a time" --max-tokens 50
  mneme generate --session anna "My name is Anna."
  mneme generate --session anna " What is my name?"
  mneme generate --token-ids 5,6,7 --max-tokens 8 --json

Exit codes: 0 done, 1 failed otherwise, 2 arguments, 3 no server, 4 request refused or session lost,
5 server full, 6 timeout, 7 key refused, 130 Ctrl-C.

)";

struct Options {
  Connection connection;
  v1::GenerateRequest request;
  std::string file;
  bool json = false;
  bool stats = false;
};

// Prints what comes; several choices one after the other.
class Printer {
 public:
  explicit Printer(const Options& options)
      : json_(options.json), choices_(std::max(1, options.request.response().n())) {}

  void Print(const v1::GenerateResponse& response) {
    if (json_) return WriteOut(absl::StrCat(ToJson(response), "\n"));
    received_ |= response.outputs_size() > 0;
    for (const v1::Output& output : response.outputs()) {
      context_full_ |= output.context_full();
      if (choices_.size() == 1) {
        WriteOut(output.text());
        if (!output.text().empty()) ends_with_newline_ = output.text().back() == '\n';
      } else if (output.is_prompt()) {
        prompt_ += output.text();
      } else if (output.choice() >= 0 && output.choice() < static_cast<int>(choices_.size())) {
        choices_[output.choice()] += output.text();
      }
    }
  }

  // A request that failed before its first output leaves standard output empty.
  void End(bool ok) {
    if (json_ || (!ok && !received_)) return;
    if (choices_.size() == 1) {
      if (!ends_with_newline_) WriteOut("\n");
      return;
    }
    for (size_t i = 0; i < choices_.size(); ++i) {
      WriteOut(absl::StrCat("--- choice ", i, "\n", prompt_, choices_[i], "\n"));
    }
  }

  // Whether an answer ended because its session is full; JSON says so itself.
  bool context_full() const { return context_full_; }

 private:
  const bool json_;
  std::vector<std::string> choices_;
  std::string prompt_;
  bool received_ = false, context_full_ = false;
  bool ends_with_newline_ = false;
};

void PrintStats(const v1::Finished& finished, absl::Duration first_token) {
  const v1::Usage& usage = finished.usage();
  const v1::Timings& timings = finished.timings();
  std::vector<std::string> facts = {
      absl::StrCat(usage.prompt_tokens(), " prompt tokens"),
      absl::StrCat(usage.completion_tokens(), " generated"),
      absl::StrCat(usage.resumed_tokens(), " resumed"),
      absl::StrCat(usage.cached_tokens(), " cached"),
      absl::StrFormat("first after %.1f ms", absl::ToDoubleMilliseconds(first_token))};
  if (usage.has_surprise()) facts.push_back(SurpriseText(usage));
  if (usage.completion_tokens() > 1 && timings.decode_ms() > 0) {
    facts.push_back(absl::StrFormat(
        "%.1f tokens/s",
        1e3 * static_cast<double>(usage.completion_tokens() - 1) / timings.decode_ms()));
  }
  if (finished.has_session()) {
    facts.push_back(absl::StrCat(finished.session().name(), " at ", finished.session().position()));
  }
  facts.push_back(absl::StrCat("seed ", finished.seed()));
  if (finished.replayed()) facts.push_back("replayed");
  if (finished.session_gone()) facts.push_back("its session has ended since");
  if (usage.memory_evicted()) facts.push_back("its memory was full");
  const v1::MemoryUse& use = usage.memory_use();
  for (std::string& text : MemoryUseTexts(use, use.sources_size())) {
    facts.push_back(std::move(text));
  }
  fprintf(stderr, "[%s]\n", absl::StrJoin(facts, ", ").c_str());
}

// From the argument, --file or standard input. Fails where there is nothing to read.
absl::Status FillPrompt(const std::vector<std::string>& positional, Options& options) {
  v1::GenerateRequest& request = options.request;
  const int sources = (positional.empty() ? 0 : 1) + (options.file.empty() ? 0 : 1) +
                      (request.has_token_ids() ? 1 : 0);
  if (positional.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected argument \"", positional[1], "\"; is the prompt in quotes?"));
  }
  if (sources > 1) {
    return absl::InvalidArgumentError("PROMPT, --file and --token-ids exclude each other");
  }
  if (request.has_token_ids()) return absl::OkStatus();
  if (!positional.empty() && positional[0] != "-") {
    request.set_text(positional[0]);
  } else if (!options.file.empty() && options.file != "-") {
    std::ifstream file(options.file, std::ios::binary);
    if (!file) return absl::InvalidArgumentError(absl::StrCat("cannot read ", options.file));
    request.set_text(std::string(std::istreambuf_iterator<char>(file), {}));
  } else if (!positional.empty() || !options.file.empty() || isatty(STDIN_FILENO) == 0) {
    request.set_text(std::string(std::istreambuf_iterator<char>(std::cin), {}));
  } else if (request.session().name().empty()) {
    return absl::InvalidArgumentError("a PROMPT is missing");
  }
  return absl::OkStatus();
}

}  // namespace

int RunGenerate(const Arguments& arguments) {
  Options options;
  FlagSet flags;
  options.connection.AddFlags(flags);
  options.connection.AddWaitFlag(flags);
  AddSamplingFlags(flags, options.request);
  AddRequestFlags(flags, options.request);
  flags.String("file", "FILE", "Read the prompt from FILE; - is standard input.",
               [&](std::string value) { options.file = std::move(value); });
  flags.Alias("-f");
  flags.Bool("json", "Print each message of the stream as a line of JSON.",
             [&](bool value) { options.json = value; });
  flags.Bool("stats", "Print counts and times to standard error at the end.",
             [&](bool value) { options.stats = value; });
  int code = kOk;
  const auto positional = ParseWords("generate", kUsageText, flags, arguments, code);
  if (!positional.has_value()) return code;
  if (const absl::Status prompt = FillPrompt(*positional, options); !prompt.ok()) {
    return ReportUsage("generate", prompt.message());
  }

  CancelToken cancel;
  const InterruptHandler interrupt([&cancel] { cancel.Cancel(); });
  Client client = options.connection.Connect();
  if (const absl::Status ready = WaitWhileLoading(client, options.connection.wait); !ready.ok()) {
    return ReportError(ready);
  }
  Printer printer(options);
  v1::Finished finished;
  const absl::Time start = absl::Now();
  absl::Time first = absl::InfiniteFuture();
  const absl::Status status = client.Generate(
      options.request,
      [&](const v1::GenerateResponse& response) {
        if (response.outputs_size() > 0) first = std::min(first, absl::Now());
        if (response.has_finished()) finished = response.finished();
        printer.Print(response);
      },
      &cancel);
  printer.End(status.ok());
  if (!status.ok()) return cancel.cancelled() ? kInterrupted : ReportError(status);
  if (printer.context_full()) fprintf(stderr, "[%s]\n", kContextFullNote);
  if (options.stats) PrintStats(finished, std::min(first, absl::Now()) - start);
  return kOk;
}

}  // namespace mneme::cli
