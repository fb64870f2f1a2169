// mneme classify: documents to classes.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/mapped_file.h"
#include "clients/cli/command.h"

namespace mneme::cli {
namespace {

constexpr char kUsageText[] =
    "usage: mneme classify [FLAGS] [TEXT ...]: the class of each TEXT, or of standard input\n\n"
    "Prints a line for each document: label, its probability, and those of all classes.\n\n";

// "5,6,7"
bool ReadIds(absl::string_view text, v1::Document& document) {
  for (const absl::string_view id : absl::StrSplit(text, ',')) {
    int32_t number = 0;
    if (!absl::SimpleAtoi(id, &number)) return false;
    document.mutable_token_ids()->add_ids(number);
  }
  return true;
}

void Print(const v1::ClassifyResponse& response, const std::vector<std::string>& names) {
  for (const v1::Classification& result : response.results()) {
    absl::PrintF("%s\t%.6g\t", result.label(), result.probabilities(result.label_id()));
    for (int i = 0; i < result.probabilities_size(); ++i) {
      const std::string name =
          static_cast<size_t>(i) < names.size() ? names[static_cast<size_t>(i)] : absl::StrCat(i);
      absl::PrintF("%s%s %.6g", i == 0 ? "" : ", ", name, result.probabilities(i));
    }
    absl::PrintF("%s\n", result.memory_evicted() ? "\tits memory was full" : "");
  }
}

}  // namespace

int RunClassify(const Arguments& arguments) {
  Connection connection;
  FlagSet flags;
  connection.AddFlags(flags);
  v1::ClassifyRequest request;
  std::string pair, ids;
  std::vector<std::string> files;
  bool json = false, has_pair = false, has_ids = false;
  flags.Bool("json", "Print JSON.", [&](bool value) { json = value; });
  flags.String("pair", "TEXT",
               "A second text, put together with the only TEXT as the model's tokenizer does it.",
               [&](std::string value) {
                 pair = std::move(value);
                 has_pair = true;
               });
  flags.String("file", "FILE", "A file that is a document; before each TEXT, and again for more.",
               [&](std::string value) { files.push_back(std::move(value)); });
  flags.String("token-ids", "IDS", "A document as token ids, such as 5,6,7, in place of TEXT.",
               [&](std::string value) {
                 ids = std::move(value);
                 has_ids = true;
               });
  flags.Bool("add-special-tokens",
             "Put around texts what the tokenizer puts there, such as [CLS] and [SEP]; on by "
             "default.",
             [&](bool value) { request.set_add_special_tokens(value); });
  flags.Bool("parse-special",
             "Take special tokens that TEXT spells, such as [SEP], for these tokens; on by "
             "default.",
             [&](bool value) { request.set_parse_special(value); });
  int code = kOk;
  const auto words = ParseWords("classify", kUsageText, flags, arguments, code);
  if (!words.has_value()) return code;
  for (const std::string& file : files) {
    const absl::StatusOr<MappedFile> opened = MappedFile::Open(file);
    if (!opened.ok()) return ReportUsage("classify", opened.status().message());
    request.add_documents()->set_text(std::string(opened->text()));
  }
  for (const std::string& word : *words) request.add_documents()->set_text(word);
  if (has_ids && !ReadIds(ids, *request.add_documents())) {
    return ReportUsage("classify", "--token-ids takes numbers with commas between them: 5,6,7");
  }
  if (request.documents_size() == 0) {
    request.add_documents()->set_text(std::string(std::istreambuf_iterator<char>(std::cin), {}));
  }
  if (has_pair) {
    if (request.documents_size() != 1 || has_ids) {
      return ReportUsage("classify", "--pair goes with one TEXT");
    }
    request.mutable_documents(0)->set_text_pair(pair);
  }
  Client client = connection.Connect();
  const absl::StatusOr<v1::ClassifyResponse> response = client.Classify(request);
  if (!response.ok()) return ReportError(response.status());
  if (json) {
    WriteOut(absl::StrCat(ToJson(*response), "\n"));
    return kOk;
  }
  // Names are the model's; without them, numbers do.
  const absl::StatusOr<v1::GetInfoResponse> info = client.GetInfo();
  std::vector<std::string> names;
  if (info.ok()) names.assign(info->model().classes().begin(), info->model().classes().end());
  Print(*response, names);
  return kOk;
}

}  // namespace mneme::cli
