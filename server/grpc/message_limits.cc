#include "server/grpc/message_limits.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr int kMaxDepth = 100;  // protobuf parses no message that is nested deeper

// Goes over the bytes of one message, and on behind what cannot be parsed, so that nothing hides
// there.
class ValueCounter {
 public:
  ValueCounter(CodedInputStream& in, const MessageLimits& limits) : in_(in), limits_(limits) {}

  // Until the end of `type`, the stream's or a limit's. False once there is too much.
  bool Count(const Descriptor* type, int depth) {
    int groups = 0;  // which we have none of, so that what is inside of one is of unknown type
    while (const uint32_t tag = in_.ReadTagNoLastTag()) {
      const FieldDescriptor* const field =
          type == nullptr || groups > 0 ? nullptr : type->FindFieldByNumber(tag >> 3);
      if (depth == 0) field_ = field;
      switch (WireFormatLite::GetTagWireType(tag)) {
        case WireFormatLite::WIRETYPE_VARINT: {
          uint64_t ignored = 0;
          if (!in_.ReadVarint64(&ignored)) return true;
          ++values_;
          break;
        }
        case WireFormatLite::WIRETYPE_FIXED64:
          if (!in_.Skip(8)) return true;
          ++values_;
          break;
        case WireFormatLite::WIRETYPE_FIXED32:
          if (!in_.Skip(4)) return true;
          ++values_;
          break;
        case WireFormatLite::WIRETYPE_START_GROUP:
          ++groups;
          ++messages_;
          break;
        case WireFormatLite::WIRETYPE_END_GROUP:
          --groups;
          break;
        case WireFormatLite::WIRETYPE_LENGTH_DELIMITED: {
          int length = 0;
          if (!in_.ReadVarintSizeAsInt(&length)) return true;
          if (!CountDelimited(field, length, depth)) return false;
          break;
        }
        default:
          return true;
      }
      if (!IsWithin()) return false;
    }
    return true;
  }

  absl::Status Error() const {
    const std::string what =
        messages_ > limits_.messages
            ? absl::StrCat(limits_.messages, " messages inside of it (lists and objects)")
            : absl::StrCat(limits_.values, " values");
    absl::Status status = absl::InvalidArgumentError(absl::StrCat(
        "the request", field_ == nullptr ? "" : absl::StrCat(", at ", field_->name(), ","),
        " has more than ", what));
    if (field_ != nullptr) status = WithField(std::move(status), std::string(field_->name()));
    return WithReason(std::move(status), "TOO_MANY_VALUES");
  }

 private:
  bool IsWithin() const { return messages_ <= limits_.messages && values_ <= limits_.values; }

  bool CountDelimited(const FieldDescriptor* field, int length, int depth) {
    ++values_;
    const CodedInputStream::Limit limit = in_.PushLimit(length);
    bool is_within = true;
    if (field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE && depth < kMaxDepth) {
      ++messages_;
      is_within = IsWithin() && Count(field->message_type(), depth + 1);
    } else if (field != nullptr && field->is_packable()) {
      is_within = CountPacked(*field, length);
    }
    if (!is_within) return false;
    in_.Skip(in_.BytesUntilLimit());  // a text, or what is behind something that cannot be parsed
    in_.PopLimit(limit);
    return true;
  }

  bool CountPacked(const FieldDescriptor& field, int length) {
    switch (WireFormatLite::WireTypeForFieldType(
        static_cast<WireFormatLite::FieldType>(field.type()))) {
      case WireFormatLite::WIRETYPE_FIXED64:
        values_ += length / 8;
        break;
      case WireFormatLite::WIRETYPE_FIXED32:
        values_ += length / 4;
        break;
      default:
        for (uint64_t ignored = 0; IsWithin() && in_.BytesUntilLimit() > 0; ++values_) {
          if (!in_.ReadVarint64(&ignored)) break;
        }
    }
    return IsWithin();
  }

  CodedInputStream& in_;
  const MessageLimits limits_;
  const FieldDescriptor* field_ = nullptr;  // of the outermost message
  int64_t messages_ = 0;
  int64_t values_ = 0;
};

}  // namespace

absl::Status CheckMessageLimits(google::protobuf::io::ZeroCopyInputStream& bytes,
                                const Descriptor& type, const MessageLimits& limits) {
  CodedInputStream in(&bytes);
  ValueCounter counter(in, limits);
  return counter.Count(&type, 0) ? absl::OkStatus() : counter.Error();
}

}  // namespace mneme
