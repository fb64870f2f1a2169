#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/human_bytes.h"
#include "base/log.h"
#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/guarded_copy.h"
#include "kernels/cuda/common/transfers.h"
#include "kernels/cuda/common/upload.h"
#include "kernels/cuda/cuda_kernels.h"

namespace mneme {
namespace {

using cuda::Device;

constexpr int kOrdinal = 0;
// Writes held back per memory; bench/README.md says what other numbers cost.
constexpr int kPendingWrites = 16;
// Uploads up to a quarter of this go through pinned memory, and so return without waiting.
constexpr int64_t kStagingBytes = int64_t{8} << 20;

absl::Status ToStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": ", cudaGetErrorString(error)));
}

// A ring of pinned memory that uploads leave from. Before it is used again, the stream is waited
// for.
class Staging {
 public:
  ~Staging() {
    if (data_ != nullptr) cudaFreeHost(data_);
  }
  cudaError_t Create() { return cudaMallocHost(reinterpret_cast<void**>(&data_), kStagingBytes); }
  // A copy of `bytes` at `src`, pinned, until the ring comes round.
  const void* Stage(const void* src, int64_t bytes, cudaStream_t stream) {
    if (used_ + bytes > kStagingBytes) {
      cudaStreamSynchronize(stream);
      used_ = 0;
    }
    std::byte* place = data_ + used_;
    std::memcpy(place, src, static_cast<size_t>(bytes));
    used_ += (bytes + 63) / 64 * 64;
    return place;
  }

 private:
  std::byte* data_ = nullptr;
  int64_t used_ = 0;
};

class CudaGraph final : public Backend::Graph {
 public:
  CudaGraph(Device& device, cudaGraphExec_t exec, int64_t nodes)
      : device_(device), exec_(exec), nodes_(nodes) {}
  ~CudaGraph() override { cudaGraphExecDestroy(exec_); }
  void Replay() override { device_.Check(cudaGraphLaunch(exec_, device_.stream()), "graph"); }
  int64_t nodes() const override { return nodes_; }

 private:
  Device& device_;
  const cudaGraphExec_t exec_;
  const int64_t nodes_;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const BackendOptions& options)
      : device_(kOrdinal, *options.compute_dtype),
        state_dtype_(options.state_dtype),
        kernels_(device_) {}

  absl::Status Init() {
    device_.Check(staging_.Create(), "cudaMallocHost");
    return TakeStatus();
  }

  absl::string_view name() const override { return "cuda"; }
  std::string description() const override {
    const cudaDeviceProp& properties = device_.properties();
    return absl::StrCat("cuda ", properties.name, ", ", properties.multiProcessorCount,
                        " multiprocessors, ", HumanBytes(properties.totalGlobalMem));
  }
  DType activation_dtype() const override { return DType::kF32; }
  DType compute_dtype() const override { return device_.compute_dtype(); }
  DType product_dtype(const PackedMatrix& weights, int64_t rows) const override {
    return cuda::linear::RoundsActivations(device_, weights, rows) ? DType::kBF16 : DType::kF32;
  }
  DType output_dtype(std::span<const PackedMatrix> weights, int64_t rows) const override {
    const bool rounds = product_dtype(weights[0], rows) == DType::kBF16;
    return rounds && cuda::linear::RoundsOutputs(device_, weights, rows) ? DType::kBF16
                                                                         : DType::kF32;
  }
  DType step_output_dtype(const PackedMatrix& weights, int64_t rows) const override {
    return cuda::linear::RoundsStepOutputs(device_, weights, rows) ? DType::kBF16 : DType::kF32;
  }
  StateFormat state_format() const override {
    return {.memory_dtype = state_dtype_,
            .bf16_window_dtype = compute_dtype(),
            .pending_writes = kPendingWrites,
            .context_dtype = compute_dtype()};
  }

  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    CHECK_GE(bytes, 0);
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
    if (error == cudaSuccess) return data;
    cudaGetLastError();  // of this call; the device is sound
    if (error != cudaErrorMemoryAllocation) return ToStatus(error, "cudaMalloc");
    const absl::StatusOr<int64_t> available = AvailableBytes();
    return absl::ResourceExhaustedError(
        absl::StrCat("asked for ", bytes, " bytes of GPU memory, ",
                     available.ok() ? absl::StrCat(*available) : "fewer", " are available"));
  }
  absl::StatusOr<void*> AllocatePinned(int64_t bytes) override {
    void* data = nullptr;
    const cudaError_t error = cudaMallocHost(&data, static_cast<size_t>(bytes));
    if (error == cudaSuccess) return data;
    cudaGetLastError();  // of this call; the device is sound
    return absl::ResourceExhaustedError(
        absl::StrCat("asked for ", bytes, " bytes of pinned memory: ", cudaGetErrorString(error)));
  }
  void Free(void* data) override {
    cudaPointerAttributes attributes = {};
    cudaPointerGetAttributes(&attributes, data);
    if (attributes.type == cudaMemoryTypeHost) {
      cudaFreeHost(data);
    } else {
      cudaFree(data);
    }
  }
  absl::StatusOr<int64_t> AvailableBytes() const override {
    size_t free = 0, total = 0;
    const absl::Status status = ToStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    if (!status.ok()) return status;
    return static_cast<int64_t>(free);
  }

  // Scratch memory of kernels, graphs and library workspaces, which are taken as they are needed.
  int64_t ReserveBytes(int64_t available) const override {
    return std::clamp(available / 16, int64_t{256} << 20, int64_t{4} << 30);
  }
  int preferred_step_tokens() const override { return 8192; }
  double preferred_decode_slowdown() const override { return 2.9; }

  void CopyFromHost(void* dst, const void* src, int64_t bytes) override {
    if (bytes <= 0) return;
    if (bytes <= kStagingBytes / 4) src = staging_.Stage(src, bytes, device_.stream());
    CopyAsync(dst, src, bytes, cudaMemcpyHostToDevice);
  }
  void CopyFromPinned(void* dst, const void* src, int64_t bytes) override {
    cuda::Upload(device_, dst, src, bytes);
  }
  void CopyToHost(void* dst, const void* src, int64_t bytes) override {
    CopyAsync(dst, src, bytes, cudaMemcpyDeviceToHost);
    device_.Check(cudaStreamSynchronize(device_.stream()), "copy to the host");
  }
  void CopyToPinned(void* dst, const void* src, int64_t bytes) override {
    CopyAsync(dst, src, bytes, cudaMemcpyDeviceToHost);
  }
  void Copy(void* dst, const void* src, int64_t bytes) override {
    CopyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice);
  }
  void CopyPieces(void* dst, int64_t dst_stride, const void* src, int64_t src_stride, int64_t bytes,
                  int64_t count) override {
    constexpr int64_t kMostStride = int64_t{1} << 30;
    if (bytes <= 0 || count <= 0) return;
    if (bytes > std::min(dst_stride, src_stride) ||
        std::max(dst_stride, src_stride) > kMostStride) {
      return Backend::CopyPieces(dst, dst_stride, src, src_stride, bytes, count);
    }
    device_.Check(cudaMemcpy2DAsync(dst, dst_stride, src, src_stride, bytes, count,
                                    cudaMemcpyDeviceToDevice, device_.stream()),
                  "cudaMemcpy2DAsync");
  }
  std::optional<int64_t> CopyGuarded(void* dst, const void* src, const GuardedPiece* pieces,
                                     int64_t count) override {
    cuda::CopyGuarded(device_, dst, src, pieces, count);
    return std::nullopt;  // the flags are still being written
  }
  std::unique_ptr<Transfer> BeginTransfer(std::span<const TransferPiece> pieces,
                                          TransferDirection direction,
                                          std::function<void()> on_done) override {
    return transfers_.Begin(pieces, direction, std::move(on_done));
  }
  void Zero(void* dst, int64_t bytes) override {
    if (bytes <= 0) return;
    device_.Check(cudaMemsetAsync(dst, 0, static_cast<size_t>(bytes), device_.stream()), "memset");
  }
  absl::Status TakeStatus() override {
    const std::string error = device_.TakeError();
    return error.empty() ? absl::OkStatus() : absl::InternalError(absl::StrCat("CUDA: ", error));
  }
  absl::Status Synchronize() override {
    device_.Check(cudaStreamSynchronize(device_.stream()), "cudaStreamSynchronize");
    return TakeStatus();
  }

  int64_t PackedBytes(DType dtype, int out_features, int in_features) const override {
    return int64_t{out_features} * in_features * SizeOf(dtype);
  }
  PackedMatrix PackMatrix(const TensorView& matrix, void* dst) override {
    CHECK(matrix.shape.rank == 2);
    CopyFromHost(dst, matrix.data, matrix.bytes());
    return {dst, matrix.dtype, static_cast<int>(matrix.shape[0]),
            static_cast<int>(matrix.shape[1])};
  }

  Kernels& kernels() override { return kernels_; }

  bool asynchronous() const override { return true; }
  bool can_capture() const override { return true; }
  absl::StatusOr<std::unique_ptr<Graph>> Capture(std::function<void()> work) override {
    device_.Check(cudaStreamBeginCapture(device_.stream(), cudaStreamCaptureModeRelaxed),
                  "cudaStreamBeginCapture");
    work();
    cudaGraph_t graph = nullptr;
    device_.Check(cudaStreamEndCapture(device_.stream(), &graph), "cudaStreamEndCapture");
    cudaGraphExec_t exec = nullptr;
    size_t nodes = 0;
    if (graph != nullptr) {
      device_.Check(cudaGraphGetNodes(graph, nullptr, &nodes), "cudaGraphGetNodes");
      device_.Check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
      cudaGraphDestroy(graph);
    }
    absl::Status status = TakeStatus();
    if (!status.ok()) {
      if (exec != nullptr) cudaGraphExecDestroy(exec);
      return status;
    }
    return std::make_unique<CudaGraph>(device_, exec, static_cast<int64_t>(nodes));
  }

 private:
  void CopyAsync(void* dst, const void* src, int64_t bytes, cudaMemcpyKind kind) {
    if (bytes <= 0) return;
    device_.Check(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), kind, device_.stream()),
                  "cudaMemcpyAsync");
  }

  Device device_;
  const DType state_dtype_;
  Staging staging_;
  cuda::Transfers transfers_{device_};
  cuda::CudaKernels kernels_;
};

}  // namespace

bool HasCudaDevice() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(BackendOptions options) {
  if (!options.compute_dtype.has_value()) options.compute_dtype = DType::kBF16;
  if (options.compute_dtype != DType::kF32 && options.compute_dtype != DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("compute dtype ", Name(*options.compute_dtype), ", expected f32 or bf16"));
  }
  if (options.state_dtype != DType::kF32 && options.state_dtype != DType::kF16 &&
      options.state_dtype != DType::kI8) {
    return absl::InvalidArgumentError(
        absl::StrCat("state dtype ", Name(options.state_dtype), ", expected f32, f16 or i8"));
  }
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device \"cuda\": no GPU was found",
        error == cudaSuccess ? "" : absl::StrCat(" (", cudaGetErrorString(error), ")")));
  }
  auto backend = std::make_unique<CudaBackend>(options);
  const absl::Status status = backend->Init();
  if (!status.ok()) return status;
  return backend;
}

}  // namespace mneme
