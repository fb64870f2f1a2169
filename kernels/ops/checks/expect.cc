#include "kernels/ops/checks/expect.h"

#include "base/log.h"
#include "kernels/tensor.h"

namespace mneme {

void ExpectShape(const TensorView& tensor, const Shape& shape, const char* name) {
  CHECK(tensor.shape == shape) << name << " has shape " << ShapeToString(tensor.shape)
                               << ", expected " << ShapeToString(shape);
  CHECK(!tensor.empty() || shape.elements() == 0) << name << " is missing";
}

void Expect(const TensorView& tensor, DType dtype, const Shape& shape, const char* name) {
  CHECK(tensor.dtype == dtype) << name << " is " << Name(tensor.dtype) << ", expected "
                               << Name(dtype);
  ExpectShape(tensor, shape, name);
}

void Expect(const TensorView& tensor, ActivationTypes types, const Shape& shape, const char* name) {
  if (!types.Take(tensor.dtype)) Expect(tensor, types.act, shape, name);
  ExpectShape(tensor, shape, name);
}

void ExpectEntryRows(const TensorView& entry_rows, int64_t entries, int64_t rows) {
  if (entry_rows.empty()) {
    CHECK_GE(rows, entries) << "rows of as many entries";
  } else {
    Expect(entry_rows, DType::kI32, {entries}, "entry_rows");
  }
}

void Check(const Segments& segments) {
  Expect(segments.offsets, DType::kI32, {segments.count + 1}, "segments.offsets");
  Expect(segments.slots, DType::kI32, {segments.count}, "segments.slots");
  Expect(segments.memories, DType::kI32, {segments.count}, "segments.memories");
  Expect(segments.fresh, DType::kI32, {segments.count}, "segments.fresh");
}

void ExpectRank(const TensorView& tensor, int rank, const char* name) {
  CHECK_EQ(tensor.shape.rank, rank) << name << " has shape " << ShapeToString(tensor.shape);
}

}  // namespace mneme
