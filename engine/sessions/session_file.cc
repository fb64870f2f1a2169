#include "engine/sessions/session_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "engine/status_payload.h"
#include "models/engrams.h"
#include "models/state_layout.h"
#include "models/weight_scan.h"

namespace mneme {
namespace {

constexpr absl::string_view kFormat = "mneme-session";
constexpr int kVersion = 1;
constexpr absl::string_view kHistoryTensor = "mneme.history";
constexpr absl::string_view kSum = "mneme.sha256";
constexpr int64_t kSumBytes = sizeof(Sha256::Digest);
// The longest history that a server keeps (--penalty-history).
constexpr int64_t kMaxHistory = 1 << 20;

constexpr DType kDTypes[] = {DType::kF64, DType::kF32, DType::kI64, DType::kI32,
                             DType::kU16, DType::kU8,  DType::kI8};

std::string Hex(uint64_t hash) { return absl::StrFormat("%016x", hash); }

std::vector<int64_t> Dims(const Shape& shape) { return {shape.dims, shape.dims + shape.rank}; }

std::map<std::string, std::string> Metadata(const SessionFacts& facts) {
  std::map<std::string, std::string> values = {
      {"format", std::string(kFormat)},
      {"format_version", absl::StrCat(kVersion)},
      {"model_type", facts.model.model_type},
      {"model", SanitizeUtf8(facts.model.name)},
      {"fingerprint", Hex(facts.model.fingerprint)},
      {"vocabulary", Hex(facts.model.vocabulary)},
      {"state_dtype", facts.model.state_dtype},
      {"position", absl::StrCat(facts.position())},
      {"fed_tokens", absl::StrCat(facts.fed_tokens)},
      {"conversation_bytes", absl::StrCat(facts.fed.bytes)},
      {"conversation_hash", Hex(facts.fed.hash)},
      {"has_text", facts.has_text ? "true" : "false"},
      {"evictions", absl::StrCat(facts.evictions)},
      {"created_at", absl::FormatTime(absl::RFC3339_sec, facts.created, absl::UTCTimeZone())},
      {"exported_at", absl::FormatTime(absl::RFC3339_sec, facts.exported, absl::UTCTimeZone())}};
  if (facts.opening.bytes > 0) {
    values["opening_bytes"] = absl::StrCat(facts.opening.bytes);
    values["opening_hash"] = Hex(facts.opening.hash);
  }
  if (facts.pending_token.has_value()) {
    values["pending_token"] = absl::StrCat(*facts.pending_token);
  }
  return values;
}

std::vector<SafetensorsSpec> Specs(const SessionFacts& facts,
                                   const std::vector<StateTensorSpec>& tensors) {
  std::vector<SafetensorsSpec> specs = {{.name = std::string(kHistoryTensor),
                                         .dtype = DType::kI32,
                                         .shape = {static_cast<int64_t>(facts.history.size())}}};
  for (const StateTensorSpec& tensor : tensors) {
    specs.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = Dims(tensor.shape)});
  }
  specs.push_back({.name = std::string(kSum), .dtype = DType::kU8, .shape = {kSumBytes}});
  return specs;
}

void AppendBytes(std::span<const std::byte> bytes, std::string& out) {
  out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// Metadata, value by value; the first fault is kept.
class MetadataReader {
 public:
  explicit MetadataReader(const std::map<std::string, std::string>& values) : values_(values) {}

  const std::string* Find(const char* key) const {
    const auto it = values_.find(key);
    return it == values_.end() ? nullptr : &it->second;
  }
  std::string Text(const char* key) {
    const std::string* text = Find(key);
    if (text == nullptr) Fail(key, "is missing");
    return text == nullptr ? "" : *text;
  }
  // One that error messages may quote.
  std::string ShortText(const char* key) {
    constexpr size_t kMost = 256;
    std::string text = Text(key);
    if (text.size() > kMost) {
      Fail(key, absl::StrCat("has ", text.size(), " bytes, expected at most ", kMost));
    }
    return text;
  }
  template <typename T>
  T Number(const char* key, int64_t low, int64_t high) {
    const std::string text = Text(key);
    int64_t number = 0;
    if (!absl::SimpleAtoi(text, &number) || number < low || number > high) {
      Expected(key, text, absl::StrCat("a number from ", low, " to ", high));
      return static_cast<T>(low);
    }
    return static_cast<T>(number);
  }
  uint64_t Hash(const char* key) {
    const std::string text = Text(key);
    uint64_t hash = 0;
    if (text.size() != 16 || !absl::SimpleHexAtoi(text, &hash)) {
      Expected(key, text, "16 hexadecimal digits");
    }
    return hash;
  }
  bool Bool(const char* key) {
    const std::string text = Text(key);
    if (text != "true" && text != "false") Expected(key, text, "true or false");
    return text == "true";
  }
  // For people: what is no time is none.
  absl::Time Time(const char* key) const {
    absl::Time time = absl::UnixEpoch();
    const std::string* text = Find(key);
    if (text != nullptr) (void)absl::ParseTime(absl::RFC3339_full, *text, &time, nullptr);
    return time;
  }

  // Empty: everything was as it should be.
  const std::string& fault() const { return fault_; }

 private:
  void Expected(const char* key, absl::string_view text, absl::string_view expected) {
    constexpr size_t kShown = 60;
    Fail(key, absl::StrCat("is \"", absl::CHexEscape(text.substr(0, kShown)), "\", expected ",
                           expected));
  }
  void Fail(const char* key, absl::string_view what) {
    if (fault_.empty()) fault_ = absl::StrCat("metadata \"", key, "\" ", what);
  }

  const std::map<std::string, std::string>& values_;
  std::string fault_;
};

// Of a tensor of the layout's, wherever the file comes from: there may be room for more engrams.
int64_t MostBytes(const StateLayout& layout, const StateTensorSpec& tensor) {
  const auto field = std::ranges::find(layout.fields(), tensor.name, &StateField::name);
  const StateRoom room = field == layout.fields().end() ? StateRoom::kModels : field->room;
  switch (room) {
    case StateRoom::kModels:
      break;
    case StateRoom::kChosen:
      return tensor.bytes() / tensor.shape[0] * kLargestEngramCapacity;
    case StateRoom::kOfChosen:  // counts, or bits of a history
      return std::max(int64_t{sizeof(uint16_t)} * kMostCountedEngrams * kMostCountedEngrams,
                      int64_t{kLargestEngramCapacity} * kEngramHistorySegments / 8);
  }
  return tensor.bytes();
}

std::optional<DType> DTypeOf(absl::string_view name) {
  for (const DType dtype : kDTypes) {
    if (SafetensorsName(dtype) == name) return dtype;
  }
  return std::nullopt;
}

template <typename T>
bool AllFinite(std::span<const std::byte> bytes) {
  for (size_t i = 0; i < bytes.size(); i += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + i, sizeof(value));
    if (!std::isfinite(value)) return false;
  }
  return true;
}

}  // namespace

uint64_t VocabularyHash(const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return 0;
  uint64_t hash = 1;
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    const TokenEntry& entry = tokenizer->entry(id);
    hash =
        CombineHashes(hash, CombineHashes(static_cast<uint64_t>(entry.kind), HashText(entry.text)));
  }
  return hash;
}

SessionModel SessionModel::Of(const ModelInfo& info, DType state_dtype,
                              const Tokenizer* tokenizer) {
  return {.model_type = info.architecture,
          .name = info.name,
          .fingerprint = info.fingerprint,
          .vocabulary = VocabularyHash(tokenizer),
          .state_dtype = state_dtype == DType::kI8 ? "int8" : Name(state_dtype)};
}

SessionFileSource::SessionFileSource(SessionFacts facts, std::unique_ptr<const StateCopy> state)
    : facts_(std::move(facts)), state_(std::move(state)), tensors_(state_->tensors()) {
  const std::vector<SafetensorsSpec> specs = Specs(facts_, tensors_);
  ready_ = SafetensorsHeaderBytes(specs, Metadata(facts_));
  bytes_ = static_cast<int64_t>(ready_.size());
  for (const SafetensorsSpec& spec : specs) bytes_ += spec.bytes();
  AppendBytes(std::as_bytes(std::span(facts_.history)), ready_);
  sum_.Add(std::as_bytes(std::span(ready_)));
}

void SessionFileSource::Refill() {
  ready_.clear();
  taken_ = 0;
  while (ready_.size() < kPieceBytes && next_tensor_ < tensors_.size()) {
    const StateTensor tensor = state_->Decode(next_tensor_++);
    sum_.Add(tensor.bytes);
    AppendBytes(tensor.bytes, ready_);
  }
  if (next_tensor_ < tensors_.size() || complete_) return;
  complete_ = true;
  AppendBytes(sum_.Finish(), ready_);
}

std::string SessionFileSource::Next() {
  if (taken_ == ready_.size()) Refill();
  std::string piece = ready_.substr(taken_, kPieceBytes);
  taken_ += piece.size();
  return piece;
}

absl::StatusOr<SessionFile> SessionFile::Parse(std::span<const std::byte> bytes,
                                               absl::string_view path) {
  SessionFile file;
  file.bytes_ = bytes;
  file.path_ = std::string(path);
  MNEME_ASSIGN_OR_RETURN(file.header_, ParseSafetensors(bytes, path));
  MNEME_RETURN_IF_ERROR(file.ReadFacts());
  MNEME_RETURN_IF_ERROR(file.ReadTensors());
  return file;
}

absl::Status SessionFile::Wrong(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", what));
}

std::span<const std::byte> SessionFile::BytesOf(const SafetensorsTensor& tensor) const {
  return bytes_.subspan(static_cast<size_t>(tensor.begin), static_cast<size_t>(tensor.bytes()));
}

absl::Status SessionFile::ReadFacts() {
  MetadataReader reader(header_.metadata);
  if (const std::string* format = reader.Find("format"); format == nullptr || *format != kFormat) {
    return Wrong(
        absl::StrCat("not a session: expected a safetensors file whose metadata say that "
                     "its format is ",
                     kFormat));
  }
  version_ = reader.Number<int>("format_version", 1, INT32_MAX);
  if (reader.fault().empty() && version_ > kVersion) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          path_, ": a session's file of version ", version_, ", expected at most ",
                          kVersion, ": a newer server wrote it")),
                      kReasonNewerFile);
  }
  facts_.model = {.model_type = reader.ShortText("model_type"),
                  .name = reader.ShortText("model"),
                  .fingerprint = reader.Hash("fingerprint"),
                  .vocabulary = reader.Hash("vocabulary"),
                  .state_dtype = reader.ShortText("state_dtype")};
  constexpr int64_t kMost = INT64_MAX / 2;  // so that sums of two do not overflow
  facts_.fed_tokens = reader.Number<int64_t>("fed_tokens", 0, kMost);
  if (reader.Find("pending_token") != nullptr) {
    facts_.pending_token = reader.Number<int32_t>("pending_token", 0, INT32_MAX);
  }
  facts_.fed = {.bytes = reader.Number<int64_t>("conversation_bytes", 0, kMost),
                .hash = reader.Hash("conversation_hash")};
  if (reader.Find("opening_bytes") != nullptr) {
    facts_.opening = {.bytes = reader.Number<int64_t>("opening_bytes", 0, facts_.fed.bytes),
                      .hash = reader.Hash("opening_hash")};
  }
  facts_.has_text = reader.Bool("has_text");
  facts_.evictions = reader.Number<int32_t>("evictions", 0, INT32_MAX);
  facts_.created = reader.Time("created_at");
  facts_.exported = reader.Time("exported_at");
  reader.Number<int64_t>("position", facts_.position(), facts_.position());
  return reader.fault().empty() ? absl::OkStatus() : Wrong(reader.fault());
}

absl::Status SessionFile::ReadTensors() {
  tensors_ = header_.tensors;
  std::sort(tensors_.begin(), tensors_.end(),
            [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  const auto take = [this](absl::string_view name) -> absl::StatusOr<SafetensorsTensor> {
    const auto it = std::find_if(tensors_.begin(), tensors_.end(),
                                 [&](const auto& tensor) { return tensor.name == name; });
    if (it == tensors_.end()) return Wrong(absl::StrCat("tensor \"", name, "\" is missing"));
    SafetensorsTensor tensor = *it;
    tensors_.erase(it);
    return tensor;
  };
  MNEME_ASSIGN_OR_RETURN(const SafetensorsTensor history, take(kHistoryTensor));
  MNEME_ASSIGN_OR_RETURN(sum_, take(kSum));
  if (sum_.dtype_name != SafetensorsName(DType::kU8) ||
      sum_.shape != std::vector<int64_t>{kSumBytes} || sum_.end != bytes()) {
    return Wrong(absl::StrCat("tensor \"", kSum, "\" is ", sum_.dtype_name, " ",
                              ShapeToString(sum_.shape), " up to byte ", sum_.end,
                              ", expected U8 [", kSumBytes, "] up to the end, byte ", bytes()));
  }
  for (const SafetensorsTensor& tensor : tensors_) {
    const std::string name = absl::CHexEscape(tensor.name);
    if (!DTypeOf(tensor.dtype_name).has_value()) {
      return Wrong(
          absl::StrCat("tensor \"", name, "\" is ", tensor.dtype_name, ", which no state has"));
    }
    if (tensor.shape.size() > static_cast<size_t>(Shape::kMaxRank)) {
      return Wrong(absl::StrCat("tensor \"", name, "\" has ", tensor.shape.size(),
                                " dimensions, expected at most ", int{Shape::kMaxRank}));
    }
  }
  return ReadHistory(history);
}

absl::Status SessionFile::ReadHistory(const SafetensorsTensor& tensor) {
  if (tensor.dtype != DType::kI32 || tensor.shape.size() != 1 ||
      tensor.elements() > std::min(kMaxHistory, facts_.position())) {
    return Wrong(absl::StrCat("tensor \"", kHistoryTensor, "\" is ", tensor.dtype_name, " ",
                              ShapeToString(tensor.shape), ", expected I32 [n], n at most the ",
                              facts_.position(), " tokens of the conversation and ", kMaxHistory));
  }
  facts_.history.resize(static_cast<size_t>(tensor.elements()));
  const std::span<const std::byte> bytes = BytesOf(tensor);
  if (!bytes.empty()) std::memcpy(facts_.history.data(), bytes.data(), bytes.size());
  return absl::OkStatus();
}

std::string SessionFile::Sha256Text() const {
  const std::span<const std::byte> sum = BytesOf(sum_);
  return absl::BytesToHexString({reinterpret_cast<const char*>(sum.data()), sum.size()});
}

absl::Status SessionFile::CheckSum() const {
  Sha256 sum;
  sum.Add(bytes_.first(static_cast<size_t>(sum_.begin)));
  const Sha256::Digest digest = sum.Finish();
  const std::span<const std::byte> stored = BytesOf(sum_);
  if (std::equal(digest.begin(), digest.end(), stored.begin())) return absl::OkStatus();
  return WithReason(absl::DataLossError(absl::StrCat(
                        path_, ": the bytes do not have the SHA-256 that stands at their end, ",
                        Sha256Text(), ": the file was damaged or changed")),
                    kReasonChecksum);
}

absl::Status SessionFile::CheckModel(const SessionModel& model) const {
  const auto differs = [&](absl::string_view what) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(path_, ": a session of ", what)),
                      kReasonOtherModel);
  };
  const SessionModel& own = facts_.model;
  if (own.model_type != model.model_type) {
    return differs(absl::StrCat("a model of type ", absl::CHexEscape(own.model_type),
                                ", but this server's is of type ", model.model_type));
  }
  if (own.fingerprint != model.fingerprint) {
    return differs(absl::StrCat("model \"", absl::CHexEscape(own.name), "\" with fingerprint ",
                                Hex(own.fingerprint), ", but this server's, \"", model.name,
                                "\", has ", Hex(model.fingerprint),
                                ": weights or configuration differ"));
  }
  if (own.vocabulary != model.vocabulary) {
    return differs(absl::StrCat("a vocabulary with hash ", Hex(own.vocabulary),
                                ", but this server's has ", Hex(model.vocabulary),
                                ": token ids stand for other texts"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CanonicalState> SessionFile::State() const {
  CanonicalState state{.tokens = facts_.fed_tokens};
  for (const SafetensorsTensor& tensor : tensors_) {
    StateTensor& copy = state.tensors.emplace_back();
    copy.name = tensor.name;
    copy.dtype = *DTypeOf(tensor.dtype_name);
    copy.shape.rank = static_cast<int>(tensor.shape.size());
    std::copy(tensor.shape.begin(), tensor.shape.end(), copy.shape.dims);
    const std::span<const std::byte> bytes = BytesOf(tensor);
    const bool finite = copy.dtype == DType::kF32   ? AllFinite<float>(bytes)
                        : copy.dtype == DType::kF64 ? AllFinite<double>(bytes)
                                                    : true;
    if (!finite) {
      return Wrong(absl::StrCat("tensor \"", absl::CHexEscape(tensor.name),
                                "\" holds a number that is not finite"));
    }
    copy.bytes.assign(bytes.begin(), bytes.end());
  }
  return state;
}

int64_t LargestSessionFile(const StateLayout& layout, int64_t max_tokens) {
  // What JSON has beside a tensor's name, and the metadata, whose texts are short.
  constexpr int64_t kEntryBytes = 256, kMetadataBytes = 16384;
  int64_t bytes = kMetadataBytes + kMaxHistory * int64_t{sizeof(int32_t)} + kSumBytes;
  for (const StateTensorSpec& tensor : CanonicalTensors(layout, max_tokens)) {
    bytes += MostBytes(layout, tensor) + kEntryBytes + static_cast<int64_t>(tensor.name.size());
  }
  return bytes;
}

}  // namespace mneme
