// The arrays of a step go up by a kernel that reads them from pinned memory. A copy engine would be
// slower for so few bytes: its turn has to be waited for, and then the kernels' turn again.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/upload.h"

namespace mneme::cuda {
namespace {

constexpr int kThreads = 256;

// Each thread takes a word, so that all of them are on their way at once.
__global__ void UploadKernel(uint32_t* to, const uint32_t* from, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) to[i] = from[i];
}

}  // namespace

void Upload(Device& device, void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  CHECK(bytes % sizeof(uint32_t) == 0);
  const int64_t count = bytes / static_cast<int64_t>(sizeof(uint32_t));
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  UploadKernel<<<blocks, kThreads, 0, device.stream()>>>(static_cast<uint32_t*>(to),
                                                         static_cast<const uint32_t*>(from), count);
  device.Check(cudaGetLastError(), "Upload");
}

}  // namespace mneme::cuda
