#include "kernels/reference/reference_backend.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/tensor.h"

namespace mneme {
namespace {

constexpr int64_t kAlignment = 64;

class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(DType compute_dtype)
      : compute_dtype_(compute_dtype), kernels_(compute_dtype) {}

  absl::string_view name() const override { return "reference"; }
  std::string description() const override {
    return absl::StrCat("reference, float64",
                        compute_dtype_ == DType::kBF16 ? ", activations rounded to bf16" : "");
  }
  DType activation_dtype() const override { return DType::kF64; }
  StateFormat state_format() const override {
    return {.memory_dtype = DType::kF64,
            .window_dtype = DType::kF64,
            .bf16_window_dtype = DType::kF64,
            .context_dtype = DType::kF64};
  }
  DType compute_dtype() const override { return compute_dtype_; }

  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    CHECK_GE(bytes, 0);
    // At least one unit, so that a tensor without elements is still told from a missing one.
    const int64_t padded = (bytes / kAlignment + 1) * kAlignment;
    void* data = std::aligned_alloc(kAlignment, static_cast<size_t>(padded));
    if (data == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes"));
    }
    return data;
  }
  void Free(void* data) override { std::free(data); }
  absl::StatusOr<int64_t> AvailableBytes() const override {
    const int64_t pages = sysconf(_SC_AVPHYS_PAGES);
    const int64_t page_bytes = sysconf(_SC_PAGESIZE);
    if (pages < 0 || page_bytes < 0) return absl::UnavailableError("free memory is not known");
    return pages * page_bytes;
  }

  void CopyFromHost(void* dst, const void* src, int64_t bytes) override { Copy(dst, src, bytes); }
  void CopyToHost(void* dst, const void* src, int64_t bytes) override { Copy(dst, src, bytes); }
  void Copy(void* dst, const void* src, int64_t bytes) override {
    if (bytes > 0) std::memmove(dst, src, static_cast<size_t>(bytes));
  }
  void Zero(void* dst, int64_t bytes) override {
    if (bytes > 0) std::memset(dst, 0, static_cast<size_t>(bytes));
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }

  int64_t PackedBytes(DType dtype, int out_features, int in_features) const override {
    return static_cast<int64_t>(out_features) * in_features * SizeOf(dtype);
  }
  PackedMatrix PackMatrix(const TensorView& matrix, void* dst) override {
    CHECK_EQ(matrix.shape.rank, 2);
    Copy(dst, matrix.data, matrix.bytes());
    return {dst, matrix.dtype, static_cast<int>(matrix.shape[0]),
            static_cast<int>(matrix.shape[1])};
  }

  Kernels& kernels() override { return kernels_; }

 private:
  const DType compute_dtype_;
  ReferenceKernels kernels_;
};

}  // namespace

std::unique_ptr<Backend> MakeReferenceBackend(const BackendOptions& options) {
  return std::make_unique<ReferenceBackend>(options.compute_dtype.value_or(DType::kF32));
}

}  // namespace mneme
