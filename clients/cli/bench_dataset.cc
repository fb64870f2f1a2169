// ReadDataset of bench_plan.h.
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "clients/cli/bench_plan.h"
#include "nlohmann/json.hpp"

namespace mneme::cli {
namespace {

using Json = nlohmann::json;

std::string TextOf(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Messages of two speakers to turns: what a user says before an answer is its prompt.
std::vector<DatasetTurn> ToTurns(const Json& messages, const char* speaker, const char* words) {
  std::vector<DatasetTurn> turns;
  bool is_answered = true;
  for (const Json& message : messages) {
    const std::string who = TextOf(message, speaker);
    const std::string text = TextOf(message, words);
    if (who == "human" || who == "user") {
      if (is_answered) turns.emplace_back();
      absl::StrAppend(&turns.back().prompt, text);
      is_answered = false;
    } else if ((who == "gpt" || who == "chatgpt" || who == "assistant") && !turns.empty()) {
      turns.back().answer = text;
      is_answered = true;
    }
  }
  std::erase_if(turns, [](const DatasetTurn& turn) { return turn.prompt.empty(); });
  return turns;
}

std::vector<DatasetTurn> ToConversation(const Json& entry) {
  if (!entry.is_object()) return {};
  if (entry.contains("conversations")) return ToTurns(entry["conversations"], "from", "value");
  if (entry.contains("messages")) return ToTurns(entry["messages"], "role", "content");
  const std::string prompt = TextOf(entry, "prompt");
  if (prompt.empty()) return {};
  return {{.prompt = prompt, .answer = TextOf(entry, "completion")}};
}

absl::Status Bad(const std::string& where, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
}

}  // namespace

absl::StatusOr<Dataset> ReadDataset(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) return Bad(path, "cannot be read, or is empty");
  const std::string text = content.str();
  Dataset dataset;
  const auto add = [&dataset](const Json& entry) {
    if (auto turns = ToConversation(entry); !turns.empty()) dataset.push_back(std::move(turns));
  };
  const absl::string_view begin = absl::StripLeadingAsciiWhitespace(text);
  if (!begin.empty() && begin[0] == '[') {
    const Json list = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (list.is_discarded()) return Bad(path, "not JSON");
    for (const Json& entry : list) add(entry);
  } else {
    std::istringstream lines(text);
    std::string line;
    for (int number = 1; std::getline(lines, line); ++number) {
      if (absl::StripAsciiWhitespace(line).empty()) continue;
      const Json entry = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!entry.is_object()) return Bad(absl::StrCat(path, ":", number), "not a JSON object");
      add(entry);
    }
  }
  if (dataset.empty()) {
    return Bad(path,
               "no prompts: expected \"conversations\", \"messages\" or \"prompt\" in entries");
  }
  return dataset;
}

}  // namespace mneme::cli
