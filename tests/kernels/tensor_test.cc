#include "kernels/tensor.h"

#include <utility>

#include "gtest/gtest.h"
#include "kernels/reference/reference_backend.h"

namespace mneme {
namespace {

// Counts what is allocated and refuses on demand; everything else is the reference's.
class CountingBackend final : public Backend {
 public:
  absl::string_view name() const override { return "counting"; }
  std::string description() const override { return "counting"; }
  DType activation_dtype() const override { return inner_->activation_dtype(); }
  StateFormat state_format() const override { return inner_->state_format(); }
  DType compute_dtype() const override { return inner_->compute_dtype(); }
  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    if (refuse) return absl::ResourceExhaustedError("no memory today");
    ++live;
    return inner_->Allocate(bytes);
  }
  void Free(void* data) override {
    --live;
    inner_->Free(data);
  }
  absl::StatusOr<int64_t> AvailableBytes() const override { return inner_->AvailableBytes(); }
  void CopyFromHost(void* dst, const void* src, int64_t bytes) override {
    inner_->CopyFromHost(dst, src, bytes);
  }
  void CopyToHost(void* dst, const void* src, int64_t bytes) override {
    inner_->CopyToHost(dst, src, bytes);
  }
  void Copy(void* dst, const void* src, int64_t bytes) override { inner_->Copy(dst, src, bytes); }
  void Zero(void* dst, int64_t bytes) override { inner_->Zero(dst, bytes); }
  absl::Status Synchronize() override { return inner_->Synchronize(); }
  int64_t PackedBytes(DType dtype, int out_features, int in_features) const override {
    return inner_->PackedBytes(dtype, out_features, in_features);
  }
  PackedMatrix PackMatrix(const TensorView& matrix, void* dst) override {
    return inner_->PackMatrix(matrix, dst);
  }
  Kernels& kernels() override { return inner_->kernels(); }

  int live = 0;
  bool refuse = false;

 private:
  std::unique_ptr<Backend> inner_ = MakeReferenceBackend({});
};

TEST(BufferTest, FreesWhatItOwnsExactlyOnce) {
  CountingBackend backend;
  {
    absl::StatusOr<Buffer> first = Buffer::Allocate(backend, 100);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(first->bytes(), 100);
    Buffer second = *std::move(first);
    Buffer third;
    third = std::move(second);
    EXPECT_EQ(backend.live, 1);
    ASSERT_NE(third.data(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(third.data()) % 64, 0u);
  }
  EXPECT_EQ(backend.live, 0);
}

TEST(BufferTest, AssignmentReleasesTheOldMemory) {
  CountingBackend backend;
  {
    Buffer kept = *Buffer::Allocate(backend, 8);
    kept = *Buffer::Allocate(backend, 16);
    EXPECT_EQ(kept.bytes(), 16);
    EXPECT_EQ(backend.live, 1);
  }
  EXPECT_EQ(backend.live, 0);
}

TEST(TensorTest, KnowsItsShape) {
  CountingBackend backend;
  const Tensor tensor = *Tensor::Allocate(backend, DType::kBF16, {3, 5});
  EXPECT_EQ(tensor.view().shape, (Shape{3, 5}));
  EXPECT_EQ(tensor.view().bytes(), 30);
  EXPECT_FALSE(tensor.view().empty());
  EXPECT_TRUE(Tensor().view().empty());
}

TEST(TensorTest, ATensorWithoutElementsIsNotAMissingOne) {
  CountingBackend backend;
  const Tensor tensor = *Tensor::Allocate(backend, DType::kF32, {0, 5});
  EXPECT_EQ(tensor.view().bytes(), 0);
  EXPECT_FALSE(tensor.view().empty());
}

TEST(TensorTest, PassesOnThatMemoryIsExhausted) {
  CountingBackend backend;
  backend.refuse = true;
  const absl::StatusOr<Tensor> tensor = Tensor::Allocate(backend, DType::kF32, {4});
  EXPECT_EQ(tensor.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(tensor.status().message(), "no memory today");
  EXPECT_EQ(backend.live, 0);
}

}  // namespace
}  // namespace mneme
