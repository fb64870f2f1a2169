#include "server/config/flags.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/status_macros.h"
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

absl::StatusOr<int64_t> ParseNumber(const v1::Flag& options, absl::string_view text) {
  if (options.unit() == v1::Flag::BYTES) return ParseBytes(text);
  if (options.unit() == v1::Flag::MILLISECONDS) return ParseMilliseconds(text);
  int64_t value;
  if (absl::SimpleAtoi(text, &value)) return value;
  // It leaves the nearest number that fits where there was one that does not.
  const bool is_too_large =
      value == std::numeric_limits<int64_t>::max() || value == std::numeric_limits<int64_t>::min();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is ", is_too_large ? "too large" : "not", " a whole number"));
}

std::string NumberText(const v1::Flag& options, int64_t value) {
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

absl::Status SetField(const FlagSpec& flag, absl::string_view text, v1::ServerConfig& config) {
  Message& section = MutableSection(flag, config);
  const Reflection* reflection = section.GetReflection();
  switch (flag.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      reflection->SetString(&section, flag.field, std::string(text));
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_BOOL: {
      bool value;
      if (!absl::SimpleAtob(text, &value)) {
        return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is neither true nor false"));
      }
      reflection->SetBool(&section, flag.field, value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      MNEME_ASSIGN_OR_RETURN(const int64_t value, ParseNumber(flag.options, text));
      reflection->SetInt64(&section, flag.field, value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double value;
      if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) {
        return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a number"));
      }
      reflection->SetDouble(&section, flag.field, value);
      return absl::OkStatus();
    }
    default: {
      MNEME_ASSIGN_OR_RETURN(const int64_t value, ParseNumber(flag.options, text));
      if (value < std::numeric_limits<int32_t>::min() ||
          value > std::numeric_limits<int32_t>::max()) {
        return absl::InvalidArgumentError(absl::StrCat(value, " is too large"));
      }
      reflection->SetInt32(&section, flag.field, static_cast<int32_t>(value));
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
      return absl::StrCat(GetDouble(flag, config));
    default:
      return NumberText(flag.options, GetInteger(flag, config));
  }
}

std::string DefaultText(const FlagSpec& flag) {
  if (flag.options.has_default_text()) return flag.options.default_text();
  return FieldText(flag, v1::ServerConfig::default_instance());
}

absl::Status CheckField(const FlagSpec& flag, const v1::ServerConfig& config) {
  const std::string text = FieldText(flag, config);
  if (flag.options.choice_size() > 0) {
    for (const std::string& choice : flag.options.choice()) {
      if (choice == text) return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("--", flag.name, ": \"", text, "\" is none of ",
                                                   absl::StrJoin(flag.options.choice(), ", ")));
  }
  if (!flag.options.has_min() && !flag.options.has_max()) return absl::OkStatus();
  // Large integers lose digits as doubles, but no limit is so close to another.
  const double value =
      IsDouble(flag) ? GetDouble(flag, config) : static_cast<double>(GetInteger(flag, config));
  const bool too_small = flag.options.has_min() && value < static_cast<double>(flag.options.min());
  const bool too_large = flag.options.has_max() && value > static_cast<double>(flag.options.max());
  if (!too_small && !too_large) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag.name, " (", flag.path, "): ", text, " is ",
                   too_small ? "less than " : "more than ",
                   NumberText(flag.options, too_small ? flag.options.min() : flag.options.max())));
}

}  // namespace mneme
