#include "kernels/cpu/cpu_backend.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/packed_layout.h"

namespace mneme {
namespace {

// Blocks beyond this are copied, cleared and packed by all workers.
constexpr int64_t kLargeBytes = int64_t{1} << 20;

class CpuBackend final : public Backend {
 public:
  CpuBackend(const Isa& isa, const BackendOptions& options)
      : isa_(isa),
        compute_dtype_(*options.compute_dtype),
        pool_({.threads = options.threads, .init = [](int) { FlushDenormals::Enable(); }}),
        kernels_(isa, *options.compute_dtype, pool_) {}

  absl::string_view name() const override { return "cpu"; }
  std::string description() const override {
    return absl::StrCat("cpu ", isa_.name, ", ", pool_.threads(),
                        pool_.threads() == 1 ? " thread" : " threads");
  }
  DType activation_dtype() const override { return DType::kF32; }
  StateFormat state_format() const override { return {}; }
  DType compute_dtype() const override { return compute_dtype_; }

  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    CHECK_GE(bytes, 0);
    // Linux promises more memory than it has, so a large block is compared with what is left.
    if (bytes > 64 * kLargeBytes) {
      const absl::StatusOr<int64_t> available = AvailableHostBytes();
      if (available.ok() && bytes > *available) {
        return absl::ResourceExhaustedError(
            absl::StrCat("asked for ", bytes, " bytes of memory, ", *available, " are available"));
      }
    }
    void* data = AllocateHost(bytes);
    if (data == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
    }
    return data;
  }
  void Free(void* data) override { std::free(data); }
  absl::StatusOr<int64_t> AvailableBytes() const override { return AvailableHostBytes(); }

  void CopyFromHost(void* dst, const void* src, int64_t bytes) override { Copy(dst, src, bytes); }
  void CopyToHost(void* dst, const void* src, int64_t bytes) override { Copy(dst, src, bytes); }
  void Copy(void* dst, const void* src, int64_t bytes) override {
    InParts(bytes, [&](int64_t begin, int64_t end) {
      std::memcpy(static_cast<char*>(dst) + begin, static_cast<const char*>(src) + begin,
                  static_cast<size_t>(end - begin));
    });
  }
  void Zero(void* dst, int64_t bytes) override {
    InParts(bytes, [&](int64_t begin, int64_t end) {
      std::memset(static_cast<char*>(dst) + begin, 0, static_cast<size_t>(end - begin));
    });
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }

  int64_t PackedBytes(DType dtype, int out_features, int in_features) const override {
    return PackedMatrixBytes(dtype, out_features, in_features);
  }

  PackedMatrix PackMatrix(const TensorView& matrix, void* dst) override {
    CHECK(matrix.shape.rank == 2);
    CHECK(matrix.dtype == DType::kF32 || matrix.dtype == DType::kBF16 ||
          matrix.dtype == DType::kF16)
        << Name(matrix.dtype);
    const int out_features = static_cast<int>(matrix.shape[0]);
    const int in_features = static_cast<int>(matrix.shape[1]);
    const int panels = Panels(out_features);
    if (matrix.bytes() < kLargeBytes) {
      isa_.ops->pack(matrix, dst, 0, panels);
    } else {
      pool_.ParallelForDynamic(panels, 8, [&](int64_t begin, int64_t end, int) {
        isa_.ops->pack(matrix, dst, static_cast<int>(begin), static_cast<int>(end));
      });
    }
    return {dst, matrix.dtype, out_features, in_features};
  }

  Kernels& kernels() override { return kernels_; }

 private:
  template <typename Task>
  void InParts(int64_t bytes, Task task) {
    if (bytes < kLargeBytes) {
      if (bytes > 0) task(0, bytes);
      return;
    }
    pool_.ParallelFor(bytes, 4096, [&](int64_t begin, int64_t end, int) { task(begin, end); });
  }

  const Isa isa_;
  const DType compute_dtype_;
  ThreadPool pool_;
  CpuKernels kernels_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(BackendOptions options) {
  if (!options.compute_dtype.has_value()) options.compute_dtype = DType::kF32;
  if (options.compute_dtype != DType::kF32 && options.compute_dtype != DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("compute dtype ", Name(*options.compute_dtype), ", expected f32 or bf16"));
  }
  if (options.state_dtype != DType::kF32) {
    // The flag has a name of its own for it.
    const char* dtype = options.state_dtype == DType::kI8 ? "int8" : Name(options.state_dtype);
    return absl::InvalidArgumentError(absl::StrCat(
        "state dtype ", dtype, " (--state-dtype): the CPU keeps matrix memories in f32 only"));
  }
  if (options.threads < 0 || options.threads > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads ", options.threads, ", expected 0 (all) to 1024"));
  }
  const absl::StatusOr<Isa> isa = ChooseIsa(options.isa);
  if (!isa.ok()) return isa.status();
  return std::make_unique<CpuBackend>(*isa, options);
}

}  // namespace mneme
