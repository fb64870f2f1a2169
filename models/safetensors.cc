#include "models/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/status_macros.h"
#include "kernels/tensor.h"

namespace mneme {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are read in place");

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxRank = 8;
constexpr size_t kMaxNameBytes = 1024;

struct ElementType {
  const char* name;
  int bits;
  std::optional<DType> dtype;
};
constexpr ElementType kElementTypes[] = {
    {"F64", 64, DType::kF64},     {"F32", 32, DType::kF32},     {"BF16", 16, DType::kBF16},
    {"F16", 16, DType::kF16},     {"I64", 64, DType::kI64},     {"I32", 32, DType::kI32},
    {"U8", 8, DType::kU8},        {"I16", 16, std::nullopt},    {"I8", 8, std::nullopt},
    {"U16", 16, std::nullopt},    {"U32", 32, std::nullopt},    {"U64", 64, std::nullopt},
    {"BOOL", 8, std::nullopt},    {"F8_E4M3", 8, std::nullopt}, {"F8_E5M2", 8, std::nullopt},
    {"F8_E8M0", 8, std::nullopt}, {"C64", 64, std::nullopt},
};

const ElementType* FindElementType(absl::string_view name) {
  for (const ElementType& type : kElementTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

// Names come from the file: cut and escaped before they reach a message or a log.
std::string Quoted(absl::string_view name) {
  constexpr size_t kShown = 120;
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kShown)),
                      name.size() > kShown ? "..." : "", "\"");
}

// Receives the header's JSON as events, so that a key that occurs twice is seen and no document
// tree is built from outside bytes. Offsets are still relative to the data section here.
class HeaderHandler {
 public:
  using json = nlohmann::json;

  SafetensorsHeader header;
  std::string error;

  explicit HeaderHandler(absl::string_view text) : text_(text) {}

  bool null() { return Unexpected("null"); }
  bool boolean(bool) { return Unexpected("a boolean"); }
  bool number_integer(json::number_integer_t) { return Unexpected("a negative number"); }
  bool number_float(json::number_float_t, const json::string_t&) {
    return Unexpected("a number with a fraction or beyond 64 bits");
  }
  bool binary(json::binary_t&) { return Unexpected("binary data"); }

  bool number_unsigned(json::number_unsigned_t value) {
    if (state_ != State::kInArray) return Unexpected("a number");
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      return Fail(absl::StrCat("field \"", field_, "\" holds ", value, ", beyond 63 bits"));
    }
    std::vector<int64_t>& list = field_ == "shape" ? tensor_.shape : offsets_;
    const size_t limit = field_ == "shape" ? kMaxRank : 2;
    if (list.size() == limit) {
      return Fail(absl::StrCat("field \"", field_, "\" has more than ", limit, " numbers"));
    }
    list.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(json::string_t& value) {
    if (state_ == State::kInMetadata) {
      if (!header.metadata.emplace(key_, value).second) {
        return Fail(absl::StrCat("metadata key ", Quoted(key_), " occurs twice"));
      }
      return true;
    }
    if (state_ != State::kInTensor || field_ != "dtype") return Unexpected("a string");
    tensor_.dtype_name = value;
    return true;
  }

  bool start_object(size_t) {
    switch (state_) {
      case State::kStart:
        state_ = State::kInHeader;
        return true;
      case State::kInHeader:
        if (key_ == "__metadata__") {
          if (std::exchange(seen_metadata_, true)) return Fail("key \"__metadata__\" occurs twice");
          state_ = State::kInMetadata;
        } else {
          tensor_ = {.name = key_};
          offsets_.clear();
          seen_fields_.clear();
          state_ = State::kInTensor;
        }
        return true;
      default:
        return Unexpected("an object");
    }
  }

  bool key(json::string_t& value) {
    if (state_ == State::kInTensor) {
      field_ = value;
      if (field_ != "dtype" && field_ != "shape" && field_ != "data_offsets") {
        return Fail(absl::StrCat("unknown field ", Quoted(field_)));
      }
      if (std::find(seen_fields_.begin(), seen_fields_.end(), field_) != seen_fields_.end()) {
        return Fail(absl::StrCat("field \"", field_, "\" occurs twice"));
      }
      seen_fields_.push_back(field_);
      return true;
    }
    if (value.size() > kMaxNameBytes) {
      return Fail(
          absl::StrCat("a name of ", value.size(), " bytes, expected at most ", kMaxNameBytes));
    }
    key_ = value;
    return true;
  }

  bool end_object() {
    switch (state_) {
      case State::kInTensor:
        state_ = State::kInHeader;
        return AddTensor();
      case State::kInMetadata:
        state_ = State::kInHeader;
        return true;
      default:
        state_ = State::kDone;
        return true;
    }
  }

  bool start_array(size_t) {
    if (state_ != State::kInTensor || field_ == "dtype") return Unexpected("an array");
    state_ = State::kInArray;
    return true;
  }
  bool end_array() {
    state_ = State::kInTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception&) {
    const JsonError wrong = ExplainJsonError(text_, position);
    error = absl::StrCat("header is not valid JSON at its byte ", wrong.begin, ": ", wrong.what);
    return false;
  }

 private:
  enum class State { kStart, kInHeader, kInMetadata, kInTensor, kInArray, kDone };

  bool Fail(std::string message) {
    error = state_ == State::kInTensor || state_ == State::kInArray
                ? absl::StrCat("tensor ", Quoted(tensor_.name), ": ", message)
                : absl::StrCat("header: ", message);
    return false;
  }

  bool Unexpected(absl::string_view what) {
    switch (state_) {
      case State::kInHeader:
        return Fail(absl::StrCat(Quoted(key_), " is ", what, ", expected an object"));
      case State::kInMetadata:
        return Fail(
            absl::StrCat("metadata key ", Quoted(key_), " is ", what, ", expected a string"));
      case State::kInTensor:
        return Fail(absl::StrCat("field \"", field_, "\" is ", what, ", expected ",
                                 field_ == "dtype" ? "a string" : "an array"));
      case State::kInArray:
        return Fail(absl::StrCat("field \"", field_, "\" holds ", what,
                                 ", expected non-negative integers"));
      default:
        return Fail(absl::StrCat("is ", what, ", expected an object"));
    }
  }

  bool AddTensor() {
    // Fail() names the tensor while inside one.
    state_ = State::kInTensor;
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (std::find(seen_fields_.begin(), seen_fields_.end(), field) == seen_fields_.end()) {
        return Fail(absl::StrCat("field \"", field, "\" is missing"));
      }
    }
    const ElementType* type = FindElementType(tensor_.dtype_name);
    if (type == nullptr) {
      return Fail(absl::StrCat("dtype ", Quoted(tensor_.dtype_name),
                               " is unknown, expected F32, BF16, F16 or another of the format's"));
    }
    tensor_.dtype = type->dtype;
    if (offsets_.size() != 2) {
      return Fail(absl::StrCat("data_offsets has ", offsets_.size(), " numbers, expected 2"));
    }
    tensor_.begin = offsets_[0];
    tensor_.end = offsets_[1];
    if (tensor_.begin > tensor_.end) {
      return Fail(absl::StrCat("data_offsets [", tensor_.begin, ", ", tensor_.end,
                               "] end before they begin"));
    }
    int64_t bytes = type->bits / 8;
    for (const int64_t dim : tensor_.shape) {
      if (__builtin_mul_overflow(bytes, dim, &bytes)) {
        return Fail(absl::StrCat("shape ", ShapeToString(tensor_.shape), " overflows 63 bits"));
      }
    }
    if (bytes != tensor_.bytes()) {
      return Fail(absl::StrCat("data_offsets [", tensor_.begin, ", ", tensor_.end, "] hold ",
                               tensor_.bytes(), " bytes, expected ", bytes, " for ",
                               tensor_.dtype_name, " ", ShapeToString(tensor_.shape)));
    }
    header.tensors.push_back(std::move(tensor_));
    state_ = State::kInHeader;
    return true;
  }

  const absl::string_view text_;
  State state_ = State::kStart;
  std::string key_;    // of the header or its metadata
  std::string field_;  // of the tensor
  SafetensorsTensor tensor_;
  std::vector<int64_t> offsets_;
  std::vector<std::string> seen_fields_;
  bool seen_metadata_ = false;
};

// Sorts by place to find tensors that share bytes, lie outside, or leave bytes over: those go to
// `hole`.
std::string CheckPlaces(std::vector<SafetensorsTensor>& tensors, int64_t data_bytes,
                        std::string& hole) {
  std::sort(tensors.begin(), tensors.end(),
            [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  int64_t used = 0;
  const SafetensorsTensor* previous = nullptr;
  const auto check_hole = [&](int64_t next, absl::string_view next_name) {
    if (next == used || !hole.empty()) return;
    hole = absl::StrCat(
        "bytes ", used, " to ", next, " of the data belong to no tensor (",
        previous == nullptr ? "at its beginning" : absl::StrCat("after ", Quoted(previous->name)),
        next_name.empty() ? ", at its end" : absl::StrCat(", before ", Quoted(next_name)),
        "), expected tensors without holes between them");
  };
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.end > data_bytes) {
      return absl::StrCat("tensor ", Quoted(tensor.name), ": data_offsets [", tensor.begin, ", ",
                          tensor.end, "] reach beyond the ", data_bytes,
                          " bytes of data that the file has; is it truncated?");
    }
    if (tensor.begin < used) {
      return absl::StrCat("tensor ", Quoted(tensor.name), ": data_offsets [", tensor.begin, ", ",
                          tensor.end, "] overlap tensor ", Quoted(previous->name),
                          ", which ends at ", used);
    }
    check_hole(tensor.begin, tensor.name);
    used = tensor.end;
    previous = &tensor;
  }
  check_hole(data_bytes, "");
  return "";
}

}  // namespace

int64_t SafetensorsTensor::elements() const {
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  return n;
}

const SafetensorsTensor* SafetensorsHeader::Find(absl::string_view name) const {
  const auto it = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const SafetensorsTensor& tensor, absl::string_view key) { return tensor.name < key; });
  return it != tensors.end() && it->name == name ? &*it : nullptr;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensors(std::span<const std::byte> file,
                                                   absl::string_view path, Holes holes) {
  const auto error = [path](absl::string_view message) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", message));
  };
  const int64_t size = static_cast<int64_t>(file.size());
  if (size < kLengthBytes) {
    return error(
        absl::StrCat("not a safetensors file: ", size, " bytes, expected at least ", kLengthBytes));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  if (header_bytes > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return error(absl::StrCat("not a safetensors file: header of ", header_bytes,
                              " bytes, expected at most ", kMaxHeaderBytes));
  }
  if (static_cast<int64_t>(header_bytes) > size - kLengthBytes) {
    return error(absl::StrCat("truncated: header of ", header_bytes, " bytes in a file of ", size));
  }

  const char* text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  HeaderHandler handler({text, static_cast<size_t>(header_bytes)});
  if (!nlohmann::json::sax_parse(text, text + header_bytes, &handler)) return error(handler.error);
  SafetensorsHeader header = std::move(handler.header);

  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(header_bytes);
  if (const std::string wrong = CheckPlaces(header.tensors, size - data_begin, header.hole);
      !wrong.empty()) {
    return error(wrong);
  }
  if (!header.hole.empty() && holes == Holes::kRefused) return error(header.hole);
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    SafetensorsTensor& tensor = header.tensors[i];
    if (i > 0 && header.tensors[i - 1].name == tensor.name) {
      return error(absl::StrCat("tensor ", Quoted(tensor.name), " occurs twice"));
    }
    tensor.begin += data_begin;
    tensor.end += data_begin;
  }
  return header;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(absl::string_view path, Holes holes) {
  MNEME_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  MNEME_ASSIGN_OR_RETURN(SafetensorsHeader header,
                         ParseSafetensors(file.bytes(), file.path(), holes));
  return SafetensorsFile(std::move(file), std::move(header));
}

std::span<const std::byte> SafetensorsFile::Bytes(const SafetensorsTensor& tensor) const {
  return file_.bytes().subspan(static_cast<size_t>(tensor.begin),
                               static_cast<size_t>(tensor.bytes()));
}

}  // namespace mneme
