#include "clients/cpp/utf8_check.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace mneme {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

absl::Status CheckText(const std::string& text, absl::string_view path) {
  const size_t at = FirstInvalidUtf8(text);
  if (at == text.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      path, " is not valid UTF-8: byte 0x",
      absl::Hex(static_cast<unsigned char>(text[at]), absl::kZeroPad2), " at offset ", at));
}

absl::Status Check(const Message& message, absl::string_view prefix) {
  const Reflection* reflection = message.GetReflection();
  std::vector<const FieldDescriptor*> fields;  // those that are set
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (!is_message && field->type() != FieldDescriptor::TYPE_STRING) continue;
    const std::string path = absl::StrCat(prefix, field->name());
    const int count = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const std::string at = field->is_repeated() ? absl::StrCat(path, "[", i, "]") : path;
      if (is_message) {
        const Message& inner = field->is_repeated()
                                   ? reflection->GetRepeatedMessage(message, field, i)
                                   : reflection->GetMessage(message, field);
        MNEME_RETURN_IF_ERROR(Check(inner, absl::StrCat(at, ".")));
        continue;
      }
      std::string scratch;
      MNEME_RETURN_IF_ERROR(CheckText(
          field->is_repeated() ? reflection->GetRepeatedStringReference(message, field, i, &scratch)
                               : reflection->GetStringReference(message, field, &scratch),
          at));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckUtf8(const Message& message) { return Check(message, ""); }

}  // namespace mneme
