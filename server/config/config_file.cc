#include "server/config/config_file.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/spelling.h"
#include "server/config/flags.h"
#include "server/config/units.h"

namespace mneme {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::TextFormat;

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr size_t kMaxShownBytes = 60;  // of a value in a message

// The first error of protobuf's text parser, which would print it to standard error.
class ErrorCollector final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (!message_.empty()) return;  // the first one explains the others
    line_ = line;
    column_ = column;
    message_ = message;
  }
  void AddWarning(int line, google::protobuf::io::ColumnNumber column,
                  const std::string& message) override {
    AddError(line, column, message);
  }

  int line() const { return line_; }  // from 0 on, as `column`
  int column() const { return column_; }
  const std::string& message() const { return message_; }

 private:
  int line_ = 0, column_ = 0;
  std::string message_;
};

bool IsNameChar(char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.'; }

// How a name ends that begins at `at`.
size_t NameEnd(absl::string_view text, size_t at) {
  while (at < text.size() && IsNameChar(text[at])) ++at;
  return at;
}

// How a text in quotes ends that begins at `at`: behind its last quote, or with its line.
size_t QuotedEnd(absl::string_view text, size_t at) {
  const char quote = text[at++];
  while (at < text.size() && text[at] != quote && text[at] != '\n') {
    at += text[at] == '\\' && at + 1 < text.size() ? 2 : 1;
  }
  return std::min(at + 1, text.size());
}

// The offset of a line and column of protobuf's tokenizer, which sees a tab every eight columns.
size_t OffsetOf(absl::string_view text, int line, int column) {
  size_t at = 0;
  for (; line > 0 && at < text.size(); ++at) line -= text[at] == '\n' ? 1 : 0;
  for (int seen = 0; seen < column && at < text.size() && text[at] != '\n'; ++at) {
    seen += text[at] == '\t' ? 8 - seen % 8 : 1;
  }
  return at;
}

// Where in the text an error lies: what protobuf's messages do not tell.
struct Place {
  std::string section;  // whose braces are open; empty outside of all
  std::string name;     // the last one in front of the error that begins a field
  std::string value;    // what stands behind the name and a colon
  bool is_in_value = false;
};

// The value of a field whose name ends at `at`: empty without a colon.
absl::string_view ValueAt(absl::string_view text, size_t at) {
  const auto skip_blanks = [&] {
    while (at < text.size() && absl::ascii_isspace(text[at])) ++at;
  };
  skip_blanks();
  if (at >= text.size() || text[at] != ':') return "";
  ++at;
  skip_blanks();
  if (at >= text.size()) return "";
  size_t end = at;
  if (text[at] == '"' || text[at] == '\'') {
    end = QuotedEnd(text, at);
  } else {
    while (end < text.size() && !absl::ascii_isspace(text[end]) &&
           !absl::StrContains(",;}#", text.substr(end, 1))) {
      ++end;
    }
  }
  return text.substr(at, end - at);
}

std::string Shortened(absl::string_view value) {
  if (value.size() <= kMaxShownBytes) return std::string(value);
  return absl::StrCat(value.substr(0, kMaxShownBytes), "...");
}

Place PlaceOf(absl::string_view text, size_t error) {
  std::vector<std::string> open;
  Place place;
  size_t name_end = 0;
  bool is_value = false;  // of a field, and not the next one's name
  for (size_t at = 0; at < error;) {
    const char c = text[at];
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
    } else if (c == '"' || c == '\'') {
      at = QuotedEnd(text, at);
      is_value = false;
    } else if (c == '{' || c == '<') {
      open.push_back(place.name);
      is_value = false;
      ++at;
    } else if (c == '}' || c == '>') {
      if (!open.empty()) open.pop_back();
      is_value = false;
      ++at;
    } else if (c == ':') {
      is_value = true;
      ++at;
    } else if (IsNameChar(c)) {
      const size_t end = NameEnd(text, at);
      if (!is_value) {
        place.name = std::string(text.substr(at, end - at));
        name_end = end;
      }
      is_value = false;
      at = end;
    } else {
      ++at;
    }
  }
  place.section = open.empty() ? "" : open.front();
  if (name_end == 0) return place;
  const absl::string_view value = ValueAt(text, name_end);
  place.value = Shortened(value);
  if (!value.empty()) {
    const size_t begin = value.data() - text.data();
    place.is_in_value = error >= begin && error < begin + value.size();
  }
  return place;
}

std::vector<std::string> SectionNames() {
  std::vector<std::string> names;
  const google::protobuf::Descriptor* root = v1::ServerConfig::descriptor();
  for (int i = 0; i < root->field_count(); ++i) names.push_back(root->field(i)->name());
  return names;
}

bool IsSection(absl::string_view name) {
  const std::vector<std::string> names = SectionNames();
  return std::count(names.begin(), names.end(), name) > 0;
}

const FlagSpec* FindField(const FlagTable& table, absl::string_view section,
                          absl::string_view field) {
  for (const FlagSpec& flag : table.flags()) {
    if (flag.section->name() == section && flag.field->name() == field) return &flag;
  }
  return nullptr;
}

// The names by which people may have meant a field: its own, and those of its flag.
std::vector<std::string> NamesOf(const FlagSpec& flag) {
  std::vector<std::string> names = {flag.field->name(),
                                    absl::StrReplaceAll(flag.name, {{"-", "_"}})};
  for (const std::string& alias : flag.aliases) {
    if (!absl::StartsWith(alias, "-")) names.push_back(absl::StrReplaceAll(alias, {{"-", "_"}}));
  }
  return names;
}

// The question whether `name`, which its section does not have, was meant to be another field: one
// of this section with a similar name, or one of another section with the same name. "" if there is
// none.
std::string DidYouMean(const FlagTable& table, absl::string_view section, absl::string_view name) {
  const std::string typed = absl::StrReplaceAll(name, {{"-", "_"}});
  std::vector<std::string> names, meant;
  if (section.empty()) names = meant = SectionNames();
  for (const FlagSpec& flag : table.flags()) {
    if (flag.section->name() != section) continue;
    for (std::string& spelling : NamesOf(flag)) {
      names.push_back(std::move(spelling));
      meant.push_back(flag.field->name());
    }
  }
  const std::string nearest = NearestSpelling(typed, names);
  const auto found = std::find(names.begin(), names.end(), nearest);
  if (!nearest.empty()) return meant[found - names.begin()];

  std::vector<std::string> elsewhere;
  for (const FlagSpec& flag : table.flags()) {
    const std::vector<std::string> spellings = NamesOf(flag);
    if (std::count(spellings.begin(), spellings.end(), typed) == 0) continue;
    elsewhere.push_back(absl::StrCat(flag.section->name(), " { ", flag.field->name(), " }"));
  }
  return Alternatives(elsewhere);
}

std::string AllFields(const FlagTable& table, absl::string_view section) {
  std::vector<std::string> names;
  for (const FlagSpec& flag : table.flags()) {
    if (flag.section->name() == section) names.push_back(flag.field->name());
  }
  return absl::StrJoin(names, ", ");
}

std::string UnknownField(const FlagTable& table, const Place& place) {
  const std::string meant = DidYouMean(table, place.section, place.name);
  const std::string advice = !meant.empty() ? absl::StrCat("; did you mean ", meant, "?")
                             : place.section.empty()
                                 ? absl::StrCat(", expected ", Alternatives(SectionNames()))
                                 : absl::StrCat("; it has ", AllFields(table, place.section));
  return absl::StrCat(place.section.empty() ? "there is no section" : place.section,
                      place.section.empty() ? "" : " has no field", " \"", place.name, "\"",
                      advice);
}

// The message about a mistake at `place`, of which protobuf says `message`.
std::string Explain(const Place& place, const std::string& message) {
  const FlagTable table;
  const bool is_unknown = absl::StrContains(message, "has no field named");
  if (place.section.empty()) {
    if (IsSection(place.name)) {
      return absl::StrCat(place.name, ": expected its fields in braces, ", place.name,
                          " { ... }: ", message);
    }
    if (is_unknown) return UnknownField(table, place);
    return absl::StrCat(message, ", expected a section: ", Alternatives(SectionNames()));
  }
  if (!IsSection(place.section)) return message;
  const FlagSpec* flag = FindField(table, place.section, place.name);
  if (flag == nullptr) return is_unknown ? UnknownField(table, place) : message;
  const std::string path = absl::StrCat(flag->path, ": ");
  if (absl::StrContains(message, "specified multiple times")) {
    return absl::StrCat(path, "is there twice, expected once");
  }
  const std::string expected = absl::StrCat("expected ", ExpectedInFile(*flag));
  if (flag->options.secret()) return absl::StrCat(path, expected);
  // Protobuf complains of a word that is neither true nor false when it has passed the word.
  const bool is_of_value = place.is_in_value || absl::StartsWith(message, "Invalid value");
  if (!is_of_value || absl::StrContains(message, "end of string")) {
    return absl::StrCat(path, message);
  }
  return absl::StrCat(path, place.value, ", ", expected);
}

std::string At(absl::string_view source, int line, int column) {
  return absl::StrCat(source, ":", line + 1, ":", column + 1, ": ");
}

void NoteOrigins(const TextFormat::ParseInfoTree& tree, const v1::ServerConfig& parsed,
                 absl::string_view source, FieldOrigins& origins) {
  const FlagTable table;
  for (const FlagSpec& flag : table.flags()) {
    const TextFormat::ParseInfoTree* section = tree.GetTreeForNested(flag.section, -1);
    if (section == nullptr) continue;
    const google::protobuf::Message& message =
        parsed.GetReflection()->GetMessage(parsed, flag.section);
    if (!message.GetReflection()->HasField(message, flag.field)) continue;
    const TextFormat::ParseLocation place = section->GetLocation(flag.field, -1);
    origins[flag.path] = absl::StrCat(At(source, place.line, place.column), flag.path);
  }
}

}  // namespace

absl::Status MergeConfigText(const std::string& text, absl::string_view source,
                             v1::ServerConfig& config, FieldOrigins& origins) {
  ErrorCollector errors;
  TextFormat::ParseInfoTree places;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.WriteLocationsTo(&places);
  v1::ServerConfig parsed;
  if (!parser.ParseFromString(text, &parsed)) {
    const Place place = PlaceOf(text, OffsetOf(text, errors.line(), errors.column()));
    return absl::InvalidArgumentError(
        absl::StrCat(At(source, errors.line(), errors.column()), Explain(place, errors.message())));
  }
  NoteOrigins(places, parsed, source, origins);
  config.MergeFrom(parsed);
  return absl::OkStatus();
}

absl::Status MergeConfigFile(const std::string& path, v1::ServerConfig& config,
                             FieldOrigins& origins) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxConfigBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file && !file.eof()) {
    return absl::NotFoundError(absl::StrCat("--config: cannot read \"", path, "\"",
                                            errno != 0 ? ": " : "",
                                            errno != 0 ? std::strerror(errno) : ""));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--config: \"", path, "\" has more than ", FormatBytes(kMaxConfigBytes)));
  }
  return MergeConfigText(text, path, config, origins);
}

}  // namespace mneme
