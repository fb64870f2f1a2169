#include "models/state_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/float16.h"
#include "kernels/state_row.h"
#include "kernels/tensor.h"
#include "models/state_layout.h"

namespace mneme {
namespace {

constexpr float kLargestF16 = 65504.0f;
constexpr int kLargestI8 = 127;

bool IsSaved(const StateField& field) {
  return field.role != StateRole::kHeldBack && field.role != StateRole::kDerived;
}

// Rows that are stored as numbers other than their elements.
bool IsScaled(const StateField& field) { return field.row_values > 0 && field.dtype == DType::kI8; }

DType CanonicalDType(const StateField& field) {
  switch (field.dtype) {
    case DType::kF16:
    case DType::kBF16:
      return DType::kF32;
    case DType::kI8:
      return IsScaled(field) ? DType::kF32 : DType::kI8;
    default:
      return field.dtype;
  }
}

Shape CanonicalShape(const StateField& field, int64_t tokens) {
  Shape shape = field.values();
  if (field.grows()) shape.dims[1] = field.held(tokens).count();
  return shape;
}

StateTensorSpec SpecOf(const StateField& field, int64_t tokens) {
  return {
      .name = field.name, .dtype = CanonicalDType(field), .shape = CanonicalShape(field, tokens)};
}

template <typename T>
T LoadAs(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}
template <typename T>
void StoreAs(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(value));
}

// `count` values of the innermost dimension, from the form in which a slab has them.
void DecodeValues(const StateField& field, const std::byte* stored, int64_t count,
                  std::byte* values) {
  if (IsScaled(field)) {
    const auto scale =
        LoadAs<float>(stored + StateRowPitch(field.dtype, count) - int64_t{sizeof(float)});
    for (int64_t i = 0; i < count; ++i) {
      StoreAs(values + i * 4, scale * static_cast<float>(LoadAs<int8_t>(stored + i)));
    }
  } else if (field.dtype == DType::kF16 || field.dtype == DType::kBF16) {
    for (int64_t i = 0; i < count; ++i) {
      const auto bits = LoadAs<uint16_t>(stored + i * 2);
      StoreAs(values + i * 4, field.dtype == DType::kF16 ? F32FromF16(bits) : F32FromBF16(bits));
    }
  } else {
    std::memcpy(values, stored, static_cast<size_t>(count) * SizeOf(field.dtype));
  }
}

// That of a row of int8 whose largest magnitude is `largest`. Numbers that were such a row are its
// multiples again: the quotient may be the number next to the scale that they had.
float ScaleOf(const float* values, int64_t count, float largest) {
  const float quotient = largest / kLargestI8;
  for (const float scale :
       {quotient, std::nextafter(quotient, 0.0f), std::nextafter(quotient, largest)}) {
    const bool fits = scale > 0 && std::all_of(values, values + count, [scale](float value) {
                        return scale * std::nearbyint(value / scale) == value;
                      });
    if (fits) return scale;
  }
  return quotient;
}

// The same the other way. A number that f16 cannot hold becomes its largest, as kernels store it.
void EncodeValues(const StateField& field, const float* values, int64_t count, std::byte* stored) {
  if (IsScaled(field)) {
    float largest = 0;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(values[i]));
    const float scale = ScaleOf(values, count, largest);
    const int64_t bytes = StateRowPitch(field.dtype, count);
    std::memset(stored, 0, static_cast<size_t>(bytes));
    for (int64_t i = 0; i < count && scale > 0; ++i) {
      StoreAs(stored + i, static_cast<int8_t>(std::nearbyint(values[i] / scale)));
    }
    StoreAs(stored + bytes - int64_t{sizeof(float)}, scale);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    switch (field.dtype) {
      case DType::kF16:
        StoreAs(stored + i * 2, F16FromF32(std::clamp(values[i], -kLargestF16, kLargestF16)));
        break;
      case DType::kBF16:
        StoreAs(stored + i * 2, BF16FromF32(values[i]));
        break;
      case DType::kF64:
        StoreAs(stored + i * 8, static_cast<double>(values[i]));
        break;
      default:
        StoreAs(stored + i * 4, values[i]);
    }
  }
}

// Calls visit(stored, row of the canonical tensor) for every run of values of the innermost
// dimension that was written. `slab` holds the flags.
template <typename Visit>
void ForEachWrittenRow(const StateLayout& layout, const StateField& field, const std::byte* slab,
                       int64_t tokens, const Visit& visit) {
  const Shape stored = field.shape;
  const int64_t run_bytes = stored[stored.rank - 1] * SizeOf(field.dtype);
  int64_t inner = 1;  // runs in a row of a field that grows, or in a memory
  for (int i = field.grows() ? 2 : 1; i < stored.rank - 1; ++i) inner *= stored[i];
  const PositionRange held = field.grows() ? field.held(tokens) : PositionRange{0, 1};
  const int64_t rows = held.count();
  if (field.guard == StateGuard::kFed && tokens == 0) return;
  for (int64_t m = 0; m < field.memories(); ++m) {
    if (field.guard == StateGuard::kFlags &&
        slab[layout.fields()[field.flags].offset + m] == std::byte{0}) {
      continue;
    }
    for (int64_t n = 0; n < rows; ++n) {
      const int64_t begin = field.grows() ? layout.RowOffset(field, m, held.begin + n)
                                          : field.offset + m * field.memory_bytes();
      for (int64_t i = 0; i < inner; ++i) visit(begin + i * run_bytes, (m * rows + n) * inner + i);
    }
  }
}

// Values of the innermost dimension; a field of rank 1 is one value a memory.
int64_t ValuesOfRow(const StateField& field) {
  const Shape values = field.values();
  return values.rank <= 1 ? 1 : values[values.rank - 1];
}

// The blocks of each context group that a session has filled, in its slab.
std::vector<ByteRange> FilledBlocks(const StateLayout& layout, int64_t tokens) {
  std::vector<ByteRange> ranges;
  for (size_t g = 0; g < layout.groups().size(); ++g) {
    const ContextGroup& group = layout.groups()[g];
    const int64_t begin = layout.BlockOffset(static_cast<int>(g), 0);
    ranges.push_back({begin, begin + group.filled_blocks(tokens) * group.block_bytes});
  }
  return ranges;
}

absl::Status Wrong(absl::string_view name, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("state tensor \"", name, "\" ", what));
}

// A tensor's numbers as f32; only of those that IsNumber.
std::vector<float> AsF32(const StateTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = tensor.dtype == DType::kF64
                    ? static_cast<float>(LoadAs<double>(tensor.bytes.data() + 8 * i))
                    : LoadAs<float>(tensor.bytes.data() + 4 * i);
  }
  return values;
}

bool IsNumber(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF64; }

absl::Status CheckTensor(const StateField& field, const StateTensor& tensor, int64_t tokens) {
  const DType expected = CanonicalDType(field);
  if (tensor.dtype != expected && !(IsNumber(tensor.dtype) && IsNumber(expected))) {
    return Wrong(field.name,
                 absl::StrCat("is ", Name(tensor.dtype), ", expected ", Name(expected)));
  }
  const Shape shape = CanonicalShape(field, tokens);
  if (!(tensor.shape == shape)) {
    return Wrong(field.name, absl::StrCat("has shape ", ShapeToString(tensor.shape), ", expected ",
                                          ShapeToString(shape)));
  }
  if (static_cast<int64_t>(tensor.bytes.size()) != shape.elements() * SizeOf(tensor.dtype)) {
    return Wrong(field.name, absl::StrCat("has ", tensor.bytes.size(), " bytes, expected ",
                                          shape.elements() * SizeOf(tensor.dtype)));
  }
  return absl::OkStatus();
}

// `host`: a slab's bytes, those of the field and of its flags at least.
StateTensor DecodeField(const StateLayout& layout, const StateField& field, const std::byte* host,
                        int64_t tokens) {
  StateTensor tensor{
      .name = field.name, .dtype = CanonicalDType(field), .shape = CanonicalShape(field, tokens)};
  const int64_t values = ValuesOfRow(field);
  const int64_t row_bytes = values * SizeOf(tensor.dtype);
  tensor.bytes.resize(static_cast<size_t>(tensor.shape.elements() * SizeOf(tensor.dtype)));
  ForEachWrittenRow(layout, field, host, tokens, [&](int64_t offset, int64_t row) {
    DecodeValues(field, host + offset, values, tensor.bytes.data() + row * row_bytes);
  });
  return tensor;
}

}  // namespace

std::vector<double> StateTensor::Numbers() const {
  if (dtype == DType::kF64) return Elements<double>();
  CHECK(dtype == DType::kF32) << name << " is " << Name(dtype);
  const std::vector<float> values = Elements<float>();
  return {values.begin(), values.end()};
}

const StateTensor* CanonicalState::Find(absl::string_view name) const {
  const auto it = std::find_if(tensors.begin(), tensors.end(),
                               [&](const StateTensor& tensor) { return tensor.name == name; });
  return it == tensors.end() ? nullptr : &*it;
}

const StateTensor& CanonicalState::Get(absl::string_view name) const {
  const StateTensor* tensor = Find(name);
  CHECK(tensor != nullptr) << "no tensor " << name;
  return *tensor;
}

StateImage::StateImage(const StateLayout& layout, const std::vector<std::string>& fields)
    : layout_(layout), slab_(new std::byte[static_cast<size_t>(layout.fixed_bytes())]) {
  std::vector<bool> needed(layout.fields().size());
  for (size_t i = 0; i < layout.fields().size(); ++i) {
    const StateField& field = layout.fields()[i];
    CHECK(field.role != StateRole::kHeldBack) << field.name << " holds writes back";
    if (std::find(fields.begin(), fields.end(), field.name) == fields.end()) continue;
    CHECK(!field.grows()) << field.name << " grows";
    fields_.push_back(&field);
    needed[i] = true;
    if (field.guard == StateGuard::kFlags) needed[static_cast<size_t>(field.flags)] = true;
  }
  CHECK_EQ(fields_.size(), fields.size()) << "a field is not of this layout";
  for (size_t i = 0; i < needed.size(); ++i) {
    const StateField& field = layout.fields()[i];
    if (!needed[i]) continue;
    copied_.push_back(&field);
    std::memset(slab_.get() + field.offset, 0, static_cast<size_t>(field.bytes()));
  }
}

absl::Status StateImage::Copy(Backend& backend, const std::byte* slab, int64_t tokens) {
  tokens_ = tokens;
  for (const StateField* field : copied_) {
    backend.CopyToHost(slab_.get() + field->offset, slab + field->offset, field->bytes());
  }
  return backend.Synchronize();
}

CanonicalState StateImage::Decode() const {
  CanonicalState state{.tokens = tokens_};
  for (const StateField* field : fields_) {
    state.tensors.push_back(DecodeField(layout_, *field, slab_.get(), tokens_));
  }
  return state;
}

int64_t StateImage::bytes() const {
  int64_t bytes = 0;
  for (const StateField* field : copied_) bytes += field->bytes();
  return bytes;
}

std::vector<StateTensorSpec> CanonicalTensors(const StateLayout& layout, int64_t tokens) {
  std::vector<StateTensorSpec> specs;
  for (const StateField& field : layout.fields()) {
    if (IsSaved(field)) specs.push_back(SpecOf(field, tokens));
  }
  return specs;
}

StateCopy::StateCopy(const Model& model)
    : model_(model),
      layout_(model.state_layout()),
      slab_(new std::byte[static_cast<size_t>(layout_.slab_bytes())]) {
  for (const StateField& field : layout_.fields()) {
    if (IsSaved(field)) saved_.push_back(&field);
  }
  Clear(/*tokens=*/0);
}

// The state is then of a session that was fed so many tokens, and whose bytes are all zero.
void StateCopy::Clear(int64_t tokens) {
  tokens_ = tokens;
  std::memset(slab_.get(), 0, static_cast<size_t>(layout_.fixed_bytes()));
  for (const ByteRange& blocks : FilledBlocks(layout_, tokens)) {
    std::memset(slab_.get() + blocks.begin, 0, static_cast<size_t>(blocks.end - blocks.begin));
  }
}

absl::Status StateCopy::Read(Backend& backend, const std::byte* slab, int64_t tokens) {
  constexpr int64_t kScratchBytes = 1 << 12;
  tokens_ = tokens;
  // Rows are only ever appended, so that they are read where they are.
  const int64_t bytes = std::max<int64_t>(layout_.fixed_bytes(), 1);
  MNEME_ASSIGN_OR_RETURN(const Buffer copy, Buffer::Allocate(backend, bytes));
  MNEME_ASSIGN_OR_RETURN(const Tensor slots, Tensor::Allocate(backend, DType::kI32, {1}));
  MNEME_ASSIGN_OR_RETURN(Workspace workspace, Workspace::Create(backend, kScratchBytes));
  backend.Copy(copy.data(), slab, layout_.fixed_bytes());
  backend.Zero(slots.view().data, sizeof(int32_t));  // the copy is slab 0 of a pool of one
  const StepBatch no_batch;
  ForwardContext ctx{
      .backend = backend, .workspace = workspace, .batch = no_batch, .slabs = {copy.data(), bytes}};
  if (tokens > 0) model_.Settle(ctx, slots.view());
  backend.CopyToHost(slab_.get(), copy.data(), layout_.fixed_bytes());
  for (const ByteRange& blocks : FilledBlocks(layout_, tokens)) {
    backend.CopyToHost(slab_.get() + blocks.begin, slab + blocks.begin, blocks.end - blocks.begin);
  }
  return backend.Synchronize();
}

std::vector<const StateField*> StateCopy::Shown() const {
  std::vector<const StateField*> shown;
  for (const StateField* field : saved_) {
    const std::byte* const bytes = slab_.get() + field->offset;
    const bool is_absent =
        field->is_late &&
        std::all_of(bytes, bytes + field->bytes(), [](std::byte b) { return b == std::byte{0}; });
    if (!is_absent) shown.push_back(field);
  }
  return shown;
}

std::vector<StateTensorSpec> StateCopy::tensors() const {
  std::vector<StateTensorSpec> specs;
  for (const StateField* field : Shown()) specs.push_back(SpecOf(*field, tokens_));
  return specs;
}

StateTensor StateCopy::Decode(size_t index) const {
  return DecodeField(layout_, *Shown().at(index), slab_.get(), tokens_);
}

CanonicalState StateCopy::Decode() const {
  CanonicalState state{.tokens = tokens_};
  for (const StateField* field : Shown()) {
    state.tensors.push_back(DecodeField(layout_, *field, slab_.get(), tokens_));
  }
  return state;
}

// Whether the field holds all of the tensor's numbers as they are.
bool StateCopy::EncodeField(const StateField& field, const StateTensor& tensor) {
  const int64_t values = ValuesOfRow(field);
  const int64_t row_bytes = values * SizeOf(tensor.dtype);
  if (!IsNumber(CanonicalDType(field)) || tensor.dtype == field.dtype) {
    ForEachWrittenRow(layout_, field, slab_.get(), tokens_, [&](int64_t offset, int64_t row) {
      std::memcpy(slab_.get() + offset, tensor.bytes.data() + row * row_bytes,
                  static_cast<size_t>(row_bytes));
    });
    return true;
  }
  const std::vector<float> numbers = AsF32(tensor);
  StateTensor given{.dtype = tensor.dtype};
  StateTensor stored{.dtype = CanonicalDType(field)};
  stored.bytes.resize(static_cast<size_t>(values * SizeOf(stored.dtype)));
  bool exact = true;
  ForEachWrittenRow(layout_, field, slab_.get(), tokens_, [&](int64_t offset, int64_t row) {
    EncodeValues(field, numbers.data() + row * values, values, slab_.get() + offset);
    if (!exact) return;
    DecodeValues(field, slab_.get() + offset, values, stored.bytes.data());
    const auto begin = tensor.bytes.begin() + row * row_bytes;
    given.bytes.assign(begin, begin + row_bytes);
    exact = stored.Numbers() == given.Numbers();
  });
  return exact;
}

absl::Status StateCopy::Encode(const CanonicalState& state) {
  std::map<absl::string_view, const StateTensor*> tensors;
  for (const StateTensor& tensor : state.tensors) {
    if (!tensors.emplace(tensor.name, &tensor).second) return Wrong(tensor.name, "is there twice");
  }
  size_t absent = 0;
  for (const StateField* field : saved_) {
    const auto it = tensors.find(field->name);
    if (it == tensors.end() && field->is_late) {
      ++absent;
      continue;
    }
    if (it == tensors.end()) return Wrong(field->name, "is missing");
    MNEME_RETURN_IF_ERROR(CheckTensor(*field, *it->second, state.tokens));
  }
  if (saved_.size() != tensors.size() + absent) {
    for (const auto& [name, tensor] : tensors) {
      const auto is_field = [name = name](const StateField* field) { return field->name == name; };
      if (std::none_of(saved_.begin(), saved_.end(), is_field)) {
        return Wrong(name, "is none of this model's");
      }
    }
  }
  MNEME_RETURN_IF_ERROR(model_.CheckState(state));
  Clear(state.tokens);  // nothing is held back
  rounded_tensors_ = 0;
  for (const StateField* field : saved_) {  // flags before what they guard
    if (!tensors.contains(field->name)) continue;
    if (!EncodeField(*field, *tensors.at(field->name))) ++rounded_tensors_;
  }
  return absl::OkStatus();
}

absl::Status StateCopy::Write(Backend& backend, std::byte* slab) {
  for (const StateField& field : layout_.fields()) {
    if (field.initial != StateInitial::kPhase) continue;
    int32_t phase = 0;
    backend.CopyToHost(&phase, slab + field.offset, sizeof(phase));
    if (phase < 0 || phase >= field.phases) phase = 0;  // no session was born there
    StoreAs(slab_.get() + field.offset, phase);
  }
  backend.CopyFromHost(slab, slab_.get(), layout_.fixed_bytes());
  for (const ByteRange& blocks : FilledBlocks(layout_, tokens_)) {
    backend.CopyFromHost(slab + blocks.begin, slab_.get() + blocks.begin,
                         blocks.end - blocks.begin);
  }
  return backend.Synchronize();
}

absl::StatusOr<CanonicalState> DecodeState(Backend& backend, const Model& model,
                                           const std::byte* slab, int64_t tokens) {
  StateCopy copy(model);
  MNEME_RETURN_IF_ERROR(copy.Read(backend, slab, tokens));
  return copy.Decode();
}

absl::Status EncodeState(Backend& backend, const Model& model, const CanonicalState& state,
                         std::byte* slab) {
  StateCopy copy(model);
  MNEME_RETURN_IF_ERROR(copy.Encode(state));
  return copy.Write(backend, slab);
}

}  // namespace mneme
