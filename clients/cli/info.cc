// mneme info, health, tokenize, detokenize: questions that generate nothing.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/human_bytes.h"
#include "base/number_text.h"
#include "clients/cli/command.h"

namespace mneme::cli {
namespace {

constexpr absl::Duration kHealthPoll = absl::Milliseconds(100);
constexpr size_t kAnyNumber = std::numeric_limits<size_t>::max();

// The flags that all of these commands have: the connection's and --json.
struct Question {
  Connection connection;
  FlagSet flags;
  bool json = false;

  Question() {
    connection.AddFlags(flags);
    flags.Bool("json", "Print JSON.", [this](bool value) { json = value; });
  }
  Question(const Question&) = delete;

  // The words that are no flags, `max_words` at most; false if help or an error was printed, and
  // `code` is set.
  bool Parse(absl::string_view command, absl::string_view usage, size_t max_words,
             const Arguments& arguments, std::vector<std::string>& words, int& code) {
    const std::string whole_usage = absl::StrCat("usage: mneme ", command, " ", usage, "\n\n");
    auto parsed = ParseWords(command, whole_usage, flags, arguments, code);
    if (!parsed.has_value()) return false;
    if (parsed->size() > max_words) {
      code =
          ReportUsage(command, absl::StrCat("unexpected argument \"", (*parsed)[max_words], "\""));
      return false;
    }
    words = *std::move(parsed);
    return true;
  }
};

double Mean(const v1::Histogram& histogram) {
  return histogram.count() == 0 ? 0 : histogram.sum() / static_cast<double>(histogram.count());
}

std::string StateName(v1::ServerState state) {
  const std::string name = v1::ServerState_Name(state);
  return absl::AsciiStrToLower(name.substr(std::string("SERVER_STATE_").size()));
}

// "temperature 0.7, top_k 40": the numbers among the fields that are set.
std::string NumbersText(const v1::SamplingOptions& options) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection* reflection = options.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(options, &fields);
  std::vector<std::string> parts;
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_FLOAT) {
      parts.push_back(
          absl::StrCat(field->name(), " ", NumberText(reflection->GetFloat(options, field))));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
      parts.push_back(absl::StrCat(field->name(), " ", reflection->GetInt32(options, field)));
    }
  }
  return absl::StrJoin(parts, ", ");
}

void PrintWork(const v1::GetInfoResponse& info) {
  const v1::Statistics& now = info.statistics();
  absl::PrintF("capacity   %d sessions of %s; %d in use, %d named\n", now.slabs_total(),
               HumanBytes(info.capacity().slab_bytes()), now.slabs_used(), now.sessions());
  if (const int64_t most = info.limits().max_context(); most > 0) {
    absl::PrintF("context    %d tokens of a session at most\n", most);
  }
  if (now.sessions_stored() > 0) {
    absl::PrintF("store      %d sessions, %s\n", now.sessions_stored(),
                 HumanBytes(now.stored_bytes()));
  }
  if (!now.session_store_error().empty()) {
    absl::PrintF("store      %s\n", now.session_store_error());
  }
  absl::PrintF(
      "requests   %d running, %d waiting; %d finished, %d cancelled, %d expired, %d failed, "
      "%d rejected\n",
      now.requests_running(), now.requests_waiting(), now.requests_finished(),
      now.requests_cancelled(), now.requests_expired(), now.requests_failed(),
      now.requests_rejected());
  absl::PrintF("tokens     %d read, %d generated in %d steps\n", now.prompt_tokens(),
               now.generated_tokens(), now.steps());
  absl::PrintF(
      "means      %.1f rows per decode step, %.2f ms per step, %.1f ms to the first token, "
      "%.2f ms between tokens\n",
      Mean(now.decode_rows()), Mean(now.step_ms()), Mean(now.first_token_ms()),
      Mean(now.inter_token_ms()));
}

void PrintInfo(const v1::GetInfoResponse& info) {
  const v1::ServerInfo& server = info.server();
  absl::PrintF("server     mneme %s, %s", server.version(), StateName(server.state()));
  if (server.state() == v1::SERVER_STATE_LOADING) {
    absl::PrintF(", %s of %s loaded\n", HumanBytes(server.loaded_bytes()),
                 HumanBytes(server.total_bytes()));
    return;
  }
  const v1::ModelDescription& model = info.model();
  absl::PrintF(", on %s\n", server.device());
  absl::PrintF("model      %s: %s, %d layers, %d parameters, %s of %s weights\n", model.name(),
               model.architecture(), model.layers(), model.parameters(),
               HumanBytes(model.weight_bytes()), model.weight_dtype());
  absl::PrintF("tokenizer  %s, %d tokens\n",
               model.tokenizer().empty() ? "none (token ids only)" : model.tokenizer(),
               model.vocab_size());
  if (const std::string defaults = NumbersText(model.sampling_defaults()); !defaults.empty()) {
    absl::PrintF("sampling   %s, unless a request says otherwise\n", defaults);
  }
  if (model.classes_size() > 0) {
    absl::PrintF("classes    %s (%s), of documents of up to %d tokens%s\n",
                 absl::StrJoin(model.classes(), ", "), model.class_scores(), model.segment_tokens(),
                 model.takes_long_documents() ? " and, segment by segment, more" : "");
    return PrintWork(info);
  }
  absl::PrintF("chats      %s\n", model.has_chat_template() ? "with the model's chat template"
                                                            : "no chat template: prompts only");
  PrintWork(info);
}

std::string TextOrInput(const std::vector<std::string>& words) {
  if (!words.empty() && words[0] != "-") return absl::StrJoin(words, " ");
  return std::string(std::istreambuf_iterator<char>(std::cin), {});
}

// Until the service serves or `wait` is over; a server that is not there yet is waited for, too.
absl::StatusOr<bool> AwaitServing(Client& client, const std::string& service, absl::Duration wait) {
  const absl::Time end = absl::Now() + wait;
  while (true) {
    const absl::StatusOr<bool> serving = client.IsServing(service);
    const bool may_change = serving.ok() ? !*serving : absl::IsUnavailable(serving.status());
    if (!may_change || absl::Now() >= end) return serving;
    absl::SleepFor(kHealthPoll);
  }
}

}  // namespace

int RunInfo(const Arguments& arguments) {
  Question question;
  std::vector<std::string> words;
  int code = kOk;
  if (!question.Parse("info", "[FLAGS]: model, capacity and work of the server", 0, arguments,
                      words, code)) {
    return code;
  }
  Client client = question.connection.Connect();
  const absl::StatusOr<v1::GetInfoResponse> info = client.GetInfo();
  if (!info.ok()) return ReportError(info.status());
  if (question.json) {
    WriteOut(absl::StrCat(ToJson(*info), "\n"));
  } else {
    PrintInfo(*info);
  }
  return kOk;
}

int RunHealth(const Arguments& arguments) {
  Question question;
  absl::Duration wait;
  question.flags.Time("wait", "How long to wait for a server that does not serve yet; default 0.",
                      [&](absl::Duration value) { wait = value; });
  std::vector<std::string> words;
  int code = kOk;
  if (!question.Parse("health", "[SERVICE] [FLAGS]: exit code 0 if the server serves, else 3", 1,
                      arguments, words, code)) {
    return code;
  }
  Client client = question.connection.Connect();
  const absl::StatusOr<bool> serving = AwaitServing(client, words.empty() ? "" : words[0], wait);
  if (!serving.ok()) return ReportError(serving.status());
  WriteOut(*serving ? "SERVING\n" : "NOT_SERVING\n");
  return *serving ? kOk : kUnavailable;
}

int RunTokenize(const Arguments& arguments) {
  Question question;
  v1::TokenizeRequest request;
  question.flags.Bool("pieces", "Print what each token stands for.",
                      [&](bool value) { request.set_with_pieces(value); });
  question.flags.Bool("continuation", "Read the text as one that continues a session.",
                      [&](bool value) { request.set_continuation(value); });
  question.flags.Bool("add-special-tokens",
                      "Put BOS in front, and what else the tokenizer puts around texts; default as "
                      "the model says.",
                      [&](bool value) { request.set_add_special_tokens(value); });
  question.flags.Bool("parse-special",
                      "Take special tokens that TEXT spells, such as </s>, for these tokens; on by "
                      "default.",
                      [&](bool value) { request.set_parse_special(value); });
  question.flags.String(
      "pair", "TEXT",
      "A second text, put together with the first as the model's tokenizer does it.",
      [&](std::string value) { request.set_text_pair(std::move(value)); });
  std::vector<std::string> words;
  int code = kOk;
  if (!question.Parse("tokenize", "[FLAGS] [TEXT]: token ids of TEXT or standard input", kAnyNumber,
                      arguments, words, code)) {
    return code;
  }
  request.set_text(TextOrInput(words));
  Client client = question.connection.Connect();
  const absl::StatusOr<v1::TokenizeResponse> response = client.Tokenize(request);
  if (!response.ok()) return ReportError(response.status());
  if (question.json) {
    WriteOut(absl::StrCat(ToJson(*response), "\n"));
    return kOk;
  }
  if (!request.with_pieces()) {
    WriteOut(absl::StrCat(absl::StrJoin(response->token_ids(), " "), "\n"));
    return kOk;
  }
  for (int i = 0; i < response->token_ids_size(); ++i) {
    absl::PrintF("%d\t%s\n", response->token_ids(i), response->pieces(i));
  }
  return kOk;
}

int RunDetokenize(const Arguments& arguments) {
  Question question;
  v1::DetokenizeRequest request;
  question.flags.Bool("skip-special-tokens", "Leave control tokens out; on by default.",
                      [&](bool value) { request.set_skip_special_tokens(value); });
  question.flags.Bool("continuation", "Read the tokens as a continuation.",
                      [&](bool value) { request.set_continuation(value); });
  std::vector<std::string> words;
  int code = kOk;
  if (!question.Parse("detokenize", "[FLAGS] [ID...]: text of the ids, or of standard input",
                      kAnyNumber, arguments, words, code)) {
    return code;
  }
  for (const absl::string_view word :
       absl::StrSplit(TextOrInput(words), absl::ByAnyChar(", \t\r\n"), absl::SkipEmpty())) {
    int32_t id;
    if (!absl::SimpleAtoi(word, &id)) {
      return ReportUsage("detokenize", absl::StrCat("\"", word, "\" is not a token id"));
    }
    request.add_token_ids(id);
  }
  Client client = question.connection.Connect();
  const absl::StatusOr<v1::DetokenizeResponse> response = client.Detokenize(request);
  if (!response.ok()) return ReportError(response.status());
  WriteOut(absl::StrCat(question.json ? ToJson(*response) : response->text(), "\n"));
  return kOk;
}

}  // namespace mneme::cli
