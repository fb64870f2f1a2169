// A wrong shape ends the process with the argument's name, whichever backend is asked.
#include "kernels/ops/checks.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/backends.h"

namespace mneme {
namespace {

// Memory that any view may point to; nothing is read before the check fails.
float memory[4096];

TensorView View(Shape shape, DType dtype = DType::kF32) { return {memory, dtype, shape}; }

class ChecksDeathTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override {
    backend_ = GetParam().device == "reference" ? MakeReference() : GetParam().Make();
  }
  Kernels& kernels() { return backend_->kernels(); }
  TensorView Act(Shape shape) const { return View(shape, backend_->activation_dtype()); }

  std::unique_ptr<Backend> backend_;
};

TEST_P(ChecksDeathTest, DenseOperations) {
  EXPECT_DEATH(kernels().RmsNorm({.x = Act({2, 8}), .weight = View({7}), .y = Act({2, 8})}),
               "weight has shape \\[7\\], expected \\[8\\]");
  EXPECT_DEATH(kernels().RmsNorm({.x = Act({2, 8}), .weight = View({8}), .y = Act({3, 8})}),
               "y has shape \\[3, 8\\], expected \\[2, 8\\]");
  EXPECT_DEATH(kernels().RmsNorm({.x = Act({2, 8}), .weight = View({8}), .y = {}}), "y ");
  EXPECT_DEATH(kernels().SwiGlu({.gate = Act({2, 8}), .up = Act({2, 9}), .y = Act({2, 8})}),
               "up has shape");
  EXPECT_DEATH(kernels().GatherRows({.x = Act({4, 8}), .indices = View({2}), .y = Act({2, 8})}),
               "indices is f32, expected i32");
  const PackedMatrix weights[] = {{memory, DType::kF32, 4, 8}, {memory, DType::kF32, 4, 7}};
  const LinearArgs narrow[] = {{.x = Act({2, 7}), .weights = {weights, 1}, .y = Act({2, 4})}};
  EXPECT_DEATH(kernels().Linear(narrow), "x has shape");
  const LinearArgs unequal[] = {{.x = Act({2, 8}), .weights = weights, .y = Act({2, 4})}};
  EXPECT_DEATH(kernels().Linear(unequal), "weights of one product are 4 x 8 and 4 x 7");
}

TEST_P(ChecksDeathTest, MemoryOperations) {
  const Segments segments = {.count = 1,
                             .offsets = View({2}, DType::kI32),
                             .slots = View({1}, DType::kI32),
                             .memories = View({1}, DType::kI32),
                             .fresh = View({2}, DType::kI32)};
  const ShortConvArgs convolution[] = {{.x = Act({2, 8}),
                                        .weight = View({8, kMaxConvWidth + 1}),
                                        .segments = segments,
                                        .y = Act({2, 8})}};
  EXPECT_DEATH(kernels().ShortConv(convolution), "a convolution 17 wide");
  EXPECT_DEATH(
      kernels().MatrixMemory(
          {.q = Act({2, 2, 4}), .k = Act({2, 2, 4}), .v = Act({2, 3, 4}), .segments = segments}),
      "log_decay");
  EXPECT_DEATH(kernels().MatrixMemory({.q = Act({2, 2, 4}),
                                       .k = Act({2, 2, 4}),
                                       .v = Act({2, 2, 4}),
                                       .log_decay = Act({2, 2}),
                                       .beta = Act({2, 2}),
                                       .segments = segments,
                                       .out = Act({2, 2, 4})}),
               "segments.fresh has shape");
  EXPECT_DEATH(
      kernels().RouteTopK(
          {.logits = Act({2, 4}), .indices = View({2, 5}, DType::kI32), .weights = Act({2, 5})}),
      "top_k 5 of 4");
}

INSTANTIATE_TEST_SUITE_P(Backends, ChecksDeathTest, testing::ValuesIn(AllBackends()), BackendName);

}  // namespace
}  // namespace mneme
