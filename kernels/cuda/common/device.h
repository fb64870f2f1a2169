// What host code of the CUDA kernels shares: stream, library handles, scratch memory, errors. Free
// of Abseil, for .cu files.
#pragma once

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/tensor_view.h"

namespace mneme::cuda {

// One per backend; driven by one thread. All work goes to one stream, in order, so an operation may
// use the scratch memory of the one before it. Only within an operation may a second one be in use.
class Device {
 public:
  // Check ok() before anything else.
  Device(int ordinal, DType compute_dtype);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // kF32: products of 16-bit weights take exact fp32 activations. kBF16: activations may be rounded
  // to the weights' 16-bit dtype before a product; sums stay fp32.
  DType compute_dtype() const { return compute_dtype_; }
  const cudaDeviceProp& properties() const { return properties_; }
  int multiprocessors() const { return properties_.multiProcessorCount; }
  cudaStream_t stream() const { return stream_; }
  cublasHandle_t blas() const { return blas_; }
  cublasLtHandle_t blas_lt() const { return blas_lt_; }

  // Launches between Fork and Rejoin go to a second stream, which begins with all that was launched
  // before MarkFork and runs beside what is launched after it, as far as that leaves room; Join
  // waits for it. Once each, in this order; without Scratch in between.
  void MarkFork();
  void Fork();
  void Rejoin();
  void Join();

  // Uninitialised device memory, 256-byte aligned, until the next call. Growing keeps the old block
  // alive, because captured graphs may name it.
  void* Scratch(int64_t bytes) { return scratch_.Reserve(*this, bytes); }
  // The same for operations made of others, which use Scratch themselves.
  void* StepMemory(int64_t bytes) { return step_memory_.Reserve(*this, bytes); }
  // A copy of host memory on the device, for good; of equal bytes there is one. Null where it would
  // have to be made while the stream is captured.
  const void* Constant(const void* data, int64_t bytes);
  // Memory that only words with a mark of their time are written to (decode/stack/stack.h): zeros
  // at first. The same from call to call, unless it has to grow.
  void* Words(int64_t bytes) { return words_.Reserve(*this, bytes); }
  // Some zeros for kernels that count, which know what they left: the first two for
  // decode/stack/stack.cu, two from kQueueCounter on for matrix_memory/persistent/stream.cu.
  static constexpr int kQueueCounter = 32;
  unsigned* counters() const { return counters_; }

  // The first error seen by Check since the last TakeError; empty if none. Launches check
  // themselves by `device.Check(cudaGetLastError(), "name of the kernel")`.
  void Check(cudaError_t status, const char* what);
  void Check(cublasStatus_t status, const char* what);
  bool ok() const { return error_.empty(); }
  std::string TakeError();

 private:
  const DType compute_dtype_;
  cudaDeviceProp properties_ = {};
  cudaStream_t stream_ = nullptr;
  cudaStream_t second_stream_ = nullptr;
  cudaEvent_t forked_ = nullptr, rejoined_ = nullptr;
  cublasHandle_t blas_ = nullptr;
  cublasLtHandle_t blas_lt_ = nullptr;
  void* blas_workspace_ = nullptr;
  // Blocks that were outgrown stay; the last one is in use.
  class Growing {
   public:
    ~Growing();
    void* Reserve(Device& device, int64_t bytes);

   private:
    std::vector<void*> blocks_;
    int64_t bytes_ = 0;  // of the last
  };
  Growing scratch_, step_memory_, words_;
  std::vector<std::pair<std::vector<std::byte>, void*>> constants_;
  unsigned* counters_ = nullptr;
  std::string error_;
};

// Whether the code under __CUDA_ARCH__ >= 900 is what runs: not so if this GPU runs plain PTX, be
// it because it is another or because CUDA_FORCE_PTX_JIT asks for it.
bool HasHopperCode(const Device& device);

}  // namespace mneme::cuda
