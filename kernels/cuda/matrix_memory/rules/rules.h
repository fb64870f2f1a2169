// Kernels for any MatrixRule, as matrix_memory/matrix_memory.cu launches them.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/matrix_memory/rules/problem.cuh"

namespace mneme::cuda::matrix_memory::rules {

// matrix_memory/matrix_memory.cu: the arguments of an operation, for segments of any length.
Problem MakeProblem(const MatrixMemoryArgs& args);

// matrix_memory/rules/any_shape.cu: any rule, any shape; a row at a time.
void LaunchAnyShape(Device& device, Problem problem, DType state_dtype);

}  // namespace mneme::cuda::matrix_memory::rules
