#include "kernels/cuda/common/device.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace mneme::cuda {
namespace {

// What cuBLAS recommends for Hopper; given up front so that captured graphs name fixed memory.
constexpr int64_t kBlasWorkspaceBytes = int64_t{32} << 20;
constexpr int64_t kCounterBytes = 256;

// After cudaMemset or cudaMemcpy: those return before the device has done them, and work of our
// streams, which do not wait for the default stream, would overtake them on a busy GPU.
cudaError_t WaitForDefaultStream() { return cudaStreamSynchronize(cudaStreamLegacy); }

}  // namespace

Device::Device(int ordinal, DType compute_dtype) : compute_dtype_(compute_dtype) {
  Check(cudaSetDevice(ordinal), "cudaSetDevice");
  Check(cudaGetDeviceProperties(&properties_, ordinal), "cudaGetDeviceProperties");
  if (!ok()) return;
  int least = 0, greatest = 0;
  Check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities of streams");
  Check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
        "cudaStreamCreate");
  Check(cudaStreamCreateWithPriority(&second_stream_, cudaStreamNonBlocking, least),
        "cudaStreamCreate");
  Check(cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming), "cudaEventCreate");
  Check(cudaEventCreateWithFlags(&rejoined_, cudaEventDisableTiming), "cudaEventCreate");
  Check(cublasCreate(&blas_), "cublasCreate");
  Check(cublasLtCreate(&blas_lt_), "cublasLtCreate");
  if (!ok()) return;
  Check(cudaMalloc(&blas_workspace_, kBlasWorkspaceBytes), "cudaMalloc of the cuBLAS workspace");
  Check(cudaMalloc(&counters_, kCounterBytes), "cudaMalloc of counters");
  Check(cudaMemset(counters_, 0, kCounterBytes), "cudaMemset of counters");
  Check(WaitForDefaultStream(), "cudaMemset of counters");
  Check(cublasSetStream(blas_, stream_), "cublasSetStream");
  Check(cublasSetWorkspace(blas_, blas_workspace_, kBlasWorkspaceBytes), "cublasSetWorkspace");
  // fp32 products are fp32: no TF32.
  Check(cublasSetMathMode(blas_, CUBLAS_PEDANTIC_MATH), "cublasSetMathMode");
}

Device::~Device() {
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  for (const auto& [bytes, copy] : constants_) cudaFree(copy);
  if (counters_ != nullptr) cudaFree(counters_);
  if (blas_workspace_ != nullptr) cudaFree(blas_workspace_);
  if (blas_lt_ != nullptr) cublasLtDestroy(blas_lt_);
  if (blas_ != nullptr) cublasDestroy(blas_);
  if (forked_ != nullptr) cudaEventDestroy(forked_);
  if (rejoined_ != nullptr) cudaEventDestroy(rejoined_);
  if (second_stream_ != nullptr) cudaStreamDestroy(second_stream_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void Device::MarkFork() { Check(cudaEventRecord(forked_, stream_), "cudaEventRecord"); }

void Device::Fork() {
  Check(cudaStreamWaitEvent(second_stream_, forked_), "cudaStreamWaitEvent");
  std::swap(stream_, second_stream_);
}

void Device::Rejoin() {
  Check(cudaEventRecord(rejoined_, stream_), "cudaEventRecord");
  std::swap(stream_, second_stream_);
}

void Device::Join() { Check(cudaStreamWaitEvent(stream_, rejoined_), "cudaStreamWaitEvent"); }

Device::Growing::~Growing() {
  for (void* block : blocks_) cudaFree(block);
}

void* Device::Growing::Reserve(Device& device, int64_t bytes) {
  if (bytes > bytes_) {
    const int64_t grown = std::max(bytes, 2 * bytes_);
    void* block = nullptr;
    device.Check(cudaMalloc(&block, grown), "cudaMalloc of scratch memory");
    if (block == nullptr) return nullptr;
    device.Check(cudaMemset(block, 0, grown), "cudaMemset of scratch memory");
    device.Check(WaitForDefaultStream(), "cudaMemset of scratch memory");
    blocks_.push_back(block);
    bytes_ = grown;
  }
  return blocks_.empty() ? nullptr : blocks_.back();
}

const void* Device::Constant(const void* data, int64_t bytes) {
  const auto* const first = static_cast<const std::byte*>(data);
  for (const auto& [known, copy] : constants_) {
    if (known.size() == static_cast<size_t>(bytes) && std::memcmp(known.data(), data, bytes) == 0) {
      return copy;
    }
  }
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  Check(cudaStreamIsCapturing(stream_, &capturing), "cudaStreamIsCapturing");
  if (capturing != cudaStreamCaptureStatusNone) return nullptr;
  void* copy = nullptr;
  Check(cudaMalloc(&copy, bytes), "cudaMalloc of constants");
  if (copy == nullptr) return nullptr;
  Check(cudaMemcpy(copy, data, bytes, cudaMemcpyHostToDevice), "cudaMemcpy of constants");
  Check(WaitForDefaultStream(), "cudaMemcpy of constants");
  constants_.emplace_back(std::vector<std::byte>(first, first + bytes), copy);
  return copy;
}

void Device::Check(cudaError_t status, const char* what) {
  if (status == cudaSuccess || !error_.empty()) return;
  error_ = std::string(what) + ": " + cudaGetErrorString(status);
}

void Device::Check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS || !error_.empty()) return;
  error_ = std::string(what) + ": " + cublasGetStatusString(status);
}

std::string Device::TakeError() {
  std::string error;
  error.swap(error_);
  return error;
}

}  // namespace mneme::cuda
