// What the checks of all families are made of. Each names the argument that is not as expected.
#pragma once

#include <cstdint>

#include "kernels/ops/checks.h"
#include "kernels/tensor_view.h"

namespace mneme {

void ExpectRank(const TensorView& tensor, int rank, const char* name);
void ExpectShape(const TensorView& tensor, const Shape& shape, const char* name);
void Expect(const TensorView& tensor, DType dtype, const Shape& shape, const char* name);

// An activation.
void Expect(const TensorView& tensor, ActivationTypes types, const Shape& shape, const char* name);

// An optional list: entry e reads row [e]; without it row e, of which there have to be as many.
void ExpectEntryRows(const TensorView& entry_rows, int64_t entries, int64_t rows);

void Check(const Segments& segments);

}  // namespace mneme
