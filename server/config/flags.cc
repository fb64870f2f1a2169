#include "server/config/flags.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/number_text.h"
#include "base/spelling.h"
#include "server/config/units.h"

namespace mneme {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

Message& MutableSection(const FlagSpec& flag, v1::ServerConfig& config) {
  return *config.GetReflection()->MutableMessage(&config, flag.section);
}

const Message& Section(const FlagSpec& flag, const v1::ServerConfig& config) {
  return config.GetReflection()->GetMessage(config, flag.section);
}

std::optional<int64_t> ParseWhole(const v1::Flag& options, absl::string_view text) {
  if (options.unit() == v1::Flag::BYTES) return ParseBytes(text);
  if (options.unit() == v1::Flag::MILLISECONDS) return ParseMilliseconds(text);
  int64_t value;
  if (!absl::SimpleAtoi(text, &value)) return std::nullopt;
  return value;
}

// As a flag spells it.
std::string WholeText(const v1::Flag& options, int64_t value) {
  if (value != 0 && options.unit() == v1::Flag::BYTES) return FormatBytes(value);
  if (value != 0 && options.unit() == v1::Flag::MILLISECONDS) return FormatMilliseconds(value);
  return absl::StrCat(value);
}

int64_t GetInteger(const FlagSpec& flag, const v1::ServerConfig& config) {
  const Message& section = Section(flag, config);
  const Reflection* reflection = section.GetReflection();
  return flag.field->cpp_type() == FieldDescriptor::CPPTYPE_INT64
             ? reflection->GetInt64(section, flag.field)
             : reflection->GetInt32(section, flag.field);
}

double GetDouble(const FlagSpec& flag, const v1::ServerConfig& config) {
  const Message& section = Section(flag, config);
  return section.GetReflection()->GetDouble(section, flag.field);
}

bool IsDouble(const FlagSpec& flag) {
  return flag.field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE;
}

bool IsText(const FlagSpec& flag) {
  return flag.field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
}

// " from 1 to 4096", " from 1 on", or nothing.
template <typename ToText>
std::string RangeText(const v1::Flag& options, ToText to_text) {
  // That sizes and times are not negative goes without saying.
  const bool is_bounded = options.min() > 0 || options.unit() == v1::Flag::NONE;
  if (!options.has_min() || (!is_bounded && !options.has_max())) {
    return options.has_max() ? absl::StrCat(" up to ", to_text(options.max())) : "";
  }
  return absl::StrCat(
      " from ", to_text(options.min()),
      options.has_max() ? absl::StrCat(" to ", to_text(options.max())) : std::string(" on"));
}

absl::Status Unexpected(absl::string_view found, const FlagSpec& flag) {
  return absl::InvalidArgumentError(absl::StrCat(found, ", expected ", ExpectedText(flag)));
}

std::string Quoted(absl::string_view text) { return absl::StrCat("\"", text, "\""); }

// "\"text\" or \"json\"": in quotes as what was found is shown, and as a file needs them.
std::string ChoicesText(const v1::Flag& options) {
  std::vector<std::string> choices;
  for (const std::string& choice : options.choice()) choices.push_back(Quoted(choice));
  return Alternatives(choices);
}

}  // namespace

bool FlagSpec::is_bool() const { return field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL; }

std::string VariableOf(absl::string_view flag) {
  return absl::StrCat("MNEME_", absl::AsciiStrToUpper(absl::StrReplaceAll(flag, {{"-", "_"}})));
}

FlagTable::FlagTable() {
  const google::protobuf::Descriptor* root = v1::ServerConfig::descriptor();
  for (int i = 0; i < root->field_count(); ++i) {
    const FieldDescriptor* section = root->field(i);
    for (int j = 0; j < section->message_type()->field_count(); ++j) {
      const FieldDescriptor* field = section->message_type()->field(j);
      FlagSpec flag;
      flag.section = section;
      flag.field = field;
      flag.path = absl::StrCat(section->name(), ".", field->name());
      flag.options = field->options().GetExtension(v1::flag);
      flag.name = flag.options.name();
      CHECK(!flag.name.empty()) << flag.path << " has no flag";
      flag.aliases.assign(flag.options.alias().begin(), flag.options.alias().end());
      flag.env = VariableOf(flag.name);
      flags_.push_back(std::move(flag));
    }
  }
}

const FlagSpec* FlagTable::Find(absl::string_view spelled) const {
  const bool is_long = absl::StartsWith(spelled, "--");
  std::string name(spelled);
  if (is_long) name = absl::StrReplaceAll(spelled.substr(2), {{"_", "-"}});
  for (const FlagSpec& flag : flags_) {
    if (is_long && flag.name == name) return &flag;
    for (const std::string& alias : flag.aliases) {
      if (alias == name && is_long == !absl::StartsWith(alias, "-")) return &flag;
    }
  }
  return nullptr;
}

std::vector<std::string> FlagTable::Spellings() const {
  std::vector<std::string> spellings;
  for (const FlagSpec& flag : flags_) {
    spellings.push_back(absl::StrCat("--", flag.name));
    for (const std::string& alias : flag.aliases) {
      spellings.push_back(absl::StartsWith(alias, "-") ? alias : absl::StrCat("--", alias));
    }
  }
  return spellings;
}

std::string ExpectedText(const FlagSpec& flag) {
  const v1::Flag& options = flag.options;
  if (flag.is_bool()) return "true or false";
  if (IsText(flag)) {
    return options.choice_size() == 0 ? "a text" : ChoicesText(options);
  }
  const absl::string_view kind =
      options.unit() == v1::Flag::BYTES          ? "a size (8GiB, 512MiB or a number of bytes)"
      : options.unit() == v1::Flag::MILLISECONDS ? "a time (250ms, 30s, 5m or a number of seconds)"
      : IsDouble(flag)                           ? "a number"
                                                 : "a whole number";
  return absl::StrCat(kind,
                      RangeText(options, [&](int64_t value) { return WholeText(options, value); }));
}

std::string ExpectedInFile(const FlagSpec& flag) {
  const v1::Flag& options = flag.options;
  if (flag.is_bool()) return "true or false";
  if (IsText(flag)) {
    return options.choice_size() == 0 ? "a text in quotes" : ChoicesText(options);
  }
  const absl::string_view kind = options.unit() == v1::Flag::BYTES ? "a whole number of bytes"
                                 : options.unit() == v1::Flag::MILLISECONDS
                                     ? "a whole number of milliseconds"
                                 : IsDouble(flag) ? "a number"
                                                  : "a whole number";
  return absl::StrCat(kind, RangeText(options, [](int64_t value) { return absl::StrCat(value); }));
}

absl::Status SetField(const FlagSpec& flag, absl::string_view text, v1::ServerConfig& config) {
  Message& section = MutableSection(flag, config);
  const Reflection* reflection = section.GetReflection();
  switch (flag.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      reflection->SetString(&section, flag.field, std::string(text));
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_BOOL: {
      bool value;
      if (!absl::SimpleAtob(text, &value)) return Unexpected(Quoted(text), flag);
      reflection->SetBool(&section, flag.field, value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      const std::optional<int64_t> value = ParseWhole(flag.options, text);
      if (!value.has_value()) return Unexpected(Quoted(text), flag);
      reflection->SetInt64(&section, flag.field, *value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double value;
      if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) {
        return Unexpected(Quoted(text), flag);
      }
      reflection->SetDouble(&section, flag.field, value);
      return absl::OkStatus();
    }
    default: {
      const std::optional<int64_t> value = ParseWhole(flag.options, text);
      if (!value.has_value() || *value < std::numeric_limits<int32_t>::min() ||
          *value > std::numeric_limits<int32_t>::max()) {
        return Unexpected(Quoted(text), flag);
      }
      reflection->SetInt32(&section, flag.field, static_cast<int32_t>(*value));
      return absl::OkStatus();
    }
  }
}

std::string FieldText(const FlagSpec& flag, const v1::ServerConfig& config) {
  const Message& section = Section(flag, config);
  switch (flag.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return section.GetReflection()->GetString(section, flag.field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return section.GetReflection()->GetBool(section, flag.field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return NumberText(GetDouble(flag, config));
    default:
      return WholeText(flag.options, GetInteger(flag, config));
  }
}

std::string DefaultText(const FlagSpec& flag) {
  if (flag.options.has_default_text()) return flag.options.default_text();
  return FieldText(flag, v1::ServerConfig::default_instance());
}

absl::Status CheckField(const FlagSpec& flag, const v1::ServerConfig& config) {
  const v1::Flag& options = flag.options;
  const std::string text = FieldText(flag, config);
  if (IsText(flag)) {
    const bool is_known = options.choice_size() == 0 ||
                          std::count(options.choice().begin(), options.choice().end(), text) > 0;
    return is_known ? absl::OkStatus() : Unexpected(Quoted(text), flag);
  }
  if (!options.has_min() && !options.has_max()) return absl::OkStatus();
  // Large integers lose digits as doubles, but no limit is so close to another.
  const double value =
      IsDouble(flag) ? GetDouble(flag, config) : static_cast<double>(GetInteger(flag, config));
  // Written so that NaN, which a file can have, fails them.
  const bool is_within = (!options.has_min() || value >= static_cast<double>(options.min())) &&
                         (!options.has_max() || value <= static_cast<double>(options.max()));
  return is_within ? absl::OkStatus() : Unexpected(text, flag);
}

}  // namespace mneme
