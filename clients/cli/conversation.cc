#include "clients/cli/conversation.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "clients/cli/session_rewind.h"
#include "clients/cli/usage_text.h"

namespace mneme::cli {

const absl::string_view kChatCommands =
    R"(  /fork [NAME]   go on in a copy of the session, leaving this one as it is
  /reset         forget everything and start anew
  /checkpoint [NAME]
                 name the place where the conversation stands, of servers that store sessions
  /rewind PLACE  go back to a checkpoint, by its name, or to a number of tokens; what came later is
                 gone
  /session       show name, length and size of the session
  /help          show this
  /quit          leave (also Ctrl-D); Ctrl-C stops the current answer only
A line that ends with a backslash goes on in the next one; """ alone begins and ends several lines.
)";

namespace {

// Reads what one turn says: a line, lines that end with a backslash, or lines between """.
std::optional<std::string> ReadTurn(bool is_terminal) {
  if (is_terminal) WriteOut("> ");
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  std::string text;
  if (absl::StripAsciiWhitespace(line) == R"(""")") {
    while (std::getline(std::cin, line) && absl::StripAsciiWhitespace(line) != R"(""")") {
      absl::StrAppend(&text, text.empty() ? "" : "\n", line);
    }
    return text;
  }
  while (absl::EndsWith(line, "\\")) {
    line.pop_back();
    absl::StrAppend(&text, line, "\n");
    line.clear();
    if (is_terminal) WriteOut(". ");
    if (!std::getline(std::cin, line)) break;
  }
  return absl::StrCat(text, line);
}

}  // namespace

Conversation::Conversation(ChatOptions& options, Client& client)
    : options_(options), client_(client), is_terminal_(isatty(STDIN_FILENO) != 0) {
  if (session().empty()) {
    absl::BitGen random;
    set_session(absl::StrFormat("chat-%08x", absl::Uniform<uint32_t>(random)));
    is_own_ = true;
  }
}

void Conversation::Interrupt() {
  if (answering_) {
    cancel_.Cancel();
  } else if (is_terminal_) {
    WriteOut("\n(Ctrl-D or /quit leaves)\n> ");
  } else {
    _exit(kInterrupted);
  }
}

int Conversation::Run() {
  // A name that no turn could use is told before anything is typed. Without --must-exist there
  // may be no such session yet: the first turn creates it.
  if (const absl::Status status = LookUpSession(); !status.ok()) return ReportError(status);
  is_cut_ = false;  // what somebody else left is taken for whole
  Greet();
  if (const absl::Status status = ChooseTemplate(); !status.ok()) return ReportError(status);
  int code = kOk;
  while (const std::optional<std::string> turn = ReadTurn(is_terminal_)) {
    const absl::string_view text = absl::StripAsciiWhitespace(*turn);
    if (text == "/quit" || text == "/exit") break;
    if (absl::StartsWith(text, "/")) {
      RunCommand(text);
    } else if (!text.empty()) {
      code = Answer(text);
      if (code == kUnavailable) break;
    }
  }
  if (is_own_ && !options_.keep) (void)client_.DeleteSession(session());
  return code;
}

void Conversation::Greet() const {
  const std::string where =
      exists_ ? absl::StrCat("session ", session(), ", going on after ", position_, " tokens")
              : absl::StrCat("new session ", session());
  if (is_terminal_) {
    WriteOut(absl::StrCat(where, "; /help lists the commands\n"));
  } else if (!is_own_) {
    fprintf(stderr, "[%s]\n", where.c_str());
  }
}

absl::Status Conversation::ChooseTemplate() {
  if (!options_.uses_template.has_value()) {
    const bool is_wrapped = options_.prefix.has_value() || options_.suffix.has_value();
    const absl::StatusOr<v1::GetInfoResponse> info = client_.GetInfo();
    if (!info.ok()) return info.status();
    options_.uses_template = !is_wrapped && info->model().has_chat_template();
    if (!is_wrapped && !*options_.uses_template) {
      fprintf(stderr,
              "[the model has no chat template: turns are sent as \"%s...%s\" (--prefix, "
              "--suffix)]\n",
              absl::CEscape(options_.Prefix()).c_str(), absl::CEscape(options_.Suffix()).c_str());
    }
  }
  const std::string prefix = options_.Prefix();
  const absl::string_view marker = absl::StripAsciiWhitespace(prefix);
  if (!*options_.uses_template && options_.default_stop && !marker.empty()) {
    options_.request.mutable_stopping()->add_stop_strings(absl::StrCat("\n", marker));
  }
  return absl::OkStatus();
}

absl::Status Conversation::LookUpSession() {
  const absl::StatusOr<v1::Session> info = client_.GetSession(session());
  const v1::SessionOptions& session_options = options_.request.session();
  const bool begins =
      (absl::IsNotFound(info.status()) && !session_options.must_exist()) ||
      (absl::IsDataLoss(info.status()) && session_options.replace_lost());  // it was lost
  if (!info.ok() && !begins) return info.status();
  is_unsure_ = false;
  SetExists(info.ok());
  const int64_t position = info.ok() ? info->position() : 0;
  if (position == position_) return absl::OkStatus();
  position_ = position;
  is_cut_ = position > 0;
  ending_.clear();
  return absl::OkStatus();
}

void Conversation::SetPrompt(absl::string_view turn) {
  std::string text =
      absl::StrCat(position_ > 0 ? "\n" : "", options_.Prefix(), turn, options_.Suffix());
  if (absl::StartsWith(text, ending_)) text.erase(0, ending_.size());
  if (is_cut_ && options_.close && SetClosingPrompt(text)) return;
  options_.request.set_text(std::move(text));
  options_.request.set_parse_special(false);  // what a user says is text
}

bool Conversation::SetClosingPrompt(const std::string& text) {
  const absl::StatusOr<v1::GetInfoResponse> info = client_.GetInfo();
  if (!info.ok() || !info->model().has_eos_token_id()) return false;
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_continuation(true);
  request.set_parse_special(false);
  const absl::StatusOr<v1::TokenizeResponse> tokens = client_.Tokenize(request);
  if (!tokens.ok()) return false;
  v1::TokenIds& prompt = *options_.request.mutable_token_ids();
  prompt.Clear();
  prompt.add_ids(info->model().eos_token_id());
  prompt.mutable_ids()->MergeFrom(tokens->token_ids());
  return true;
}

void Conversation::SetExists(bool exists) {
  exists_ = exists;
  options_.request.mutable_session()->set_must_exist(exists);
  if (exists) {
    options_.request.mutable_session()->clear_create_if_missing();
    options_.request.mutable_session()->clear_replace_lost();
  }
}

absl::Status Conversation::Send(absl::string_view turn, Outcome& outcome) {
  std::string& answer = outcome.answer;
  const auto show = [&answer](absl::string_view text) {
    WriteOut(text);
    absl::StrAppend(&answer, text);
  };
  if (*options_.uses_template) {
    ClientSession messages(client_, session());
    *messages.request().mutable_session() = options_.request.session();
    *messages.request().mutable_sampling() = options_.request.sampling();
    *messages.request().mutable_stopping() = options_.request.stopping();
    *messages.request().mutable_response() = options_.request.response();
    const absl::StatusOr<mneme::Answer> answered = messages.Chat(turn, show, &cancel_);
    if (answered.ok()) {
      outcome.usage = answered->finished.usage();
      outcome.context_full = answered->context_full;
    }
    if (answered.ok() && options_.Remembers()) {
      position_ = answered->finished.session().position();
    }
    return answered.status();
  }
  SetPrompt(turn);
  return client_.Generate(
      options_.request,
      [&](const v1::GenerateResponse& response) {
        for (const v1::Output& output : response.outputs()) {
          absl::string_view text = output.text();
          show(answer.empty() ? absl::StripLeadingAsciiWhitespace(text) : text);
          outcome.context_full = output.context_full();
          if (!options_.Remembers()) continue;
          is_cut_ = output.finish_reason() == v1::FINISH_REASON_LENGTH;
          ending_ = output.stop_matched();
        }
        if (response.has_finished()) outcome.usage = response.finished().usage();
        if (response.has_finished() && options_.Remembers()) {
          position_ = response.finished().session().position();
        }
      },
      &cancel_);
}

int Conversation::Answer(absl::string_view turn) {
  if (is_unsure_) (void)LookUpSession();
  cancel_.Reset();
  answering_ = true;
  Outcome outcome;
  const absl::Status status = Send(turn, outcome);
  answering_ = false;
  if (status.ok() && options_.Remembers()) {
    SetExists(true);
    ends_[position_] = {.is_cut = is_cut_, .ending = ending_};
  }
  is_unsure_ = !status.ok();
  const bool stopped = cancel_.cancelled();
  if (!status.ok() && !stopped && outcome.answer.empty()) {  // refused
    const int code = ReportError(status);
    if (absl::IsNotFound(status) && exists_) {
      fputs("mneme: the session and what it remembered are gone; /reset begins a new one\n",
            stderr);
    }
    return code;
  }
  if (!absl::EndsWith(outcome.answer, "\n")) WriteOut("\n");
  if (status.ok()) {
    if (outcome.usage.has_surprise()) {
      fprintf(stderr, "[%s]\n", SurpriseText(outcome.usage).c_str());
    }
    if (outcome.usage.has_memory_use()) ShowMemoryUse(outcome.usage);
    if (outcome.context_full) {
      fprintf(stderr, "[%s; /reset begins a new one]\n", kContextFullNote);
    }
    return kOk;
  }
  if (stopped) {
    fputs("[stopped]\n", stderr);
    return kOk;
  }
  return ReportError(status);
}

void Conversation::ShowMemoryUse(const v1::Usage& usage) {
  constexpr int kMost = 8;
  const std::vector<std::string> texts = MemoryUseTexts(usage.memory_use(), kMost);
  fprintf(stderr, "[drew on %s%s]\n",
          texts.empty() ? "no engrams of earlier segments" : absl::StrJoin(texts, ", ").c_str(),
          usage.memory_evicted() ? "; its memory was full" : "");
}

void Conversation::RunCommand(absl::string_view line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  if (words[0] == "/help") {
    WriteOut(kChatCommands);
  } else if (words[0] == "/fork" && words.size() <= 2) {
    Fork(words.size() > 1 ? words[1] : "");
  } else if (words[0] == "/checkpoint" && words.size() <= 2) {
    Checkpoint(words.size() > 1 ? words[1] : "");
  } else if (words[0] == "/rewind" && words.size() == 2) {
    GoBack(words[1]);
  } else if (words[0] == "/reset") {
    const absl::Status status = client_.DeleteSession(session());
    if (!status.ok() && !absl::IsNotFound(status)) {
      (void)ReportError(status);
      return;
    }
    position_ = 0;
    ends_.clear();
    SetExists(false);
    is_cut_ = is_unsure_ = false;
    WriteOut("[a new conversation]\n");
  } else if (words[0] == "/session") {
    const absl::StatusOr<v1::Session> info = client_.GetSession(session());
    if (!Succeeded(info.status())) return;
    WriteOut(absl::StrCat("[", info->name(), ": ", info->position(), " tokens in ",
                          info->state_bytes(), " bytes",
                          info->context_full() ? ", as many as it has room for" : "", "]\n"));
  } else {
    WriteOut(absl::StrCat("unknown command ", line, "\n", kChatCommands));
  }
}

bool Conversation::Succeeded(const absl::Status& status) {
  if (absl::IsNotFound(status) && !exists_) {
    WriteOut(absl::StrCat("[", session(), " begins with the next turn]\n"));
  } else if (!status.ok()) {
    (void)ReportError(status);
  }
  return status.ok();
}

void Conversation::Checkpoint(const std::string& name) {
  v1::CreateCheckpointRequest request;
  request.set_session(session());
  request.set_name(name);
  const absl::StatusOr<v1::Checkpoint> made = client_.CreateCheckpoint(request);
  if (!Succeeded(made.status())) return;
  WriteOut(absl::StrCat("[checkpoint ", made->name(), " after ", made->position(), " tokens]\n"));
}

void Conversation::GoBack(const std::string& place) {
  const absl::StatusOr<Place> to = ParsePlace(place);
  if (!to.ok()) {
    WriteOut(absl::StrCat("[", to.status().message(), "]\n"));
    return;
  }
  const absl::StatusOr<v1::Session> rewound = Rewind(client_, session(), *to);
  if (!Succeeded(rewound.status())) return;
  position_ = rewound->position();
  ends_.erase(ends_.upper_bound(position_), ends_.end());
  // A checkpoint of somebody else's is taken for whole; a position may lie within an answer.
  const auto end = ends_.find(position_);
  is_cut_ = end != ends_.end() ? end->second.is_cut : to->position.has_value() && position_ > 0;
  ending_ = end != ends_.end() ? end->second.ending : "";
  is_unsure_ = false;
  WriteOut(absl::StrCat("[back after ", position_, " tokens]\n"));
}

void Conversation::Fork(const std::string& target) {
  v1::ForkSessionRequest request;
  request.set_source_name(session());
  request.set_target_name(target);
  const absl::StatusOr<v1::Session> fork = client_.ForkSession(request);
  if (!Succeeded(fork.status())) return;
  WriteOut(absl::StrCat("[", session(), " stays; going on in ", fork->name(), "]\n"));
  is_own_ = false;  // both were asked for by name or are meant to be compared
  set_session(fork->name());
}

}  // namespace mneme::cli
