#include "server/grpc/parse_error.h"

#include <google/protobuf/io/coded_stream.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::io::CodedInputStream;

constexpr char kReasonMalformed[] = "MALFORMED_REQUEST";
constexpr int kMaxNesting = 16;  // more than messages of our own are nested

struct Field {
  int number = 0;
  bool has_bytes = false;
  absl::string_view bytes;
};

// Takes the next field off `rest`. False: these bytes are none. Groups, which proto3 has not, count
// as such.
bool TakeField(absl::string_view& rest, Field& field) {
  CodedInputStream in(reinterpret_cast<const uint8_t*>(rest.data()), static_cast<int>(rest.size()));
  const uint32_t tag = in.ReadTag();
  field = {.number = static_cast<int>(tag >> 3)};
  if (field.number == 0) return false;
  bool ok = false;
  uint64_t ignored = 0;
  uint32_t length = 0;
  switch (tag & 7) {
    case 0:
      ok = in.ReadVarint64(&ignored);
      break;
    case 1:
      ok = in.ReadLittleEndian64(&ignored);
      break;
    case 2: {
      if (!in.ReadVarint32(&length)) return false;
      const auto at = static_cast<size_t>(in.CurrentPosition());
      if (length > rest.size() - at) return false;
      field.has_bytes = true;
      field.bytes = rest.substr(at, length);
      rest.remove_prefix(at + length);
      return true;
    }
    case 5:
      ok = in.ReadLittleEndian32(&length);
      break;
    default:
      break;
  }
  if (ok) rest.remove_prefix(static_cast<size_t>(in.CurrentPosition()));
  return ok;
}

// The error of the first text, or nested message, that is at fault; OK if none is.
absl::Status FaultIn(absl::string_view bytes, const Descriptor& type, const std::string& path,
                     int depth) {
  const std::string prefix = path.empty() ? "" : absl::StrCat(path, ".");
  Field field;
  while (!bytes.empty()) {
    if (!TakeField(bytes, field)) {
      return absl::InvalidArgumentError(absl::StrCat(path.empty() ? "the request" : path,
                                                     " is not a protobuf message, expected a ",
                                                     absl::string_view(type.full_name())));
    }
    const FieldDescriptor* descriptor = type.FindFieldByNumber(field.number);
    if (descriptor == nullptr || !field.has_bytes) continue;
    if (descriptor->type() == FieldDescriptor::TYPE_STRING && !IsValidUtf8(field.bytes)) {
      const std::string name = absl::StrCat(prefix, absl::string_view(descriptor->name()));
      return FieldError(name,
                        absl::StrCat("is not valid UTF-8 at byte ", FirstInvalidUtf8(field.bytes)));
    }
    if (descriptor->type() == FieldDescriptor::TYPE_MESSAGE && depth < kMaxNesting) {
      const std::string name = absl::StrCat(prefix, absl::string_view(descriptor->name()));
      const absl::Status fault = FaultIn(field.bytes, *descriptor->message_type(), name, depth + 1);
      if (!fault.ok()) return fault;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseError(absl::string_view bytes, const Descriptor& type) {
  absl::Status fault = FaultIn(bytes, type, "", 0);
  if (fault.ok()) {  // a packed list that breaks off, for example
    fault = absl::InvalidArgumentError(absl::StrCat(
        "the request is not a valid ", absl::string_view(type.full_name()), " message"));
  }
  return WithReason(std::move(fault), kReasonMalformed);
}

}  // namespace mneme
