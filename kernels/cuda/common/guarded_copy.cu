// Copies what flags on the device say is there. The host, which would have to wait to read them,
// never does.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/guarded_copy.h"

namespace mneme::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kVector = sizeof(uint4);

__global__ void __launch_bounds__(kThreads)
    GuardedCopyKernel(char* dst, const char* src, const GuardedPiece* pieces) {
  const GuardedPiece piece = pieces[blockIdx.x];
  if (piece.flag != GuardedPiece::kAlways && src[piece.flag] == 0) return;
  const int64_t end = piece.offset + piece.bytes;
  // [first, last) are whole vectors; the few bytes around them go one by one.
  const int64_t first = min(end, (piece.offset + kVector - 1) / kVector * kVector);
  const int64_t last = max(first, end / kVector * kVector);
  for (int64_t i = first + threadIdx.x * kVector; i < last; i += kThreads * kVector) {
    *reinterpret_cast<uint4*>(dst + i) = *reinterpret_cast<const uint4*>(src + i);
  }
  for (int64_t i = piece.offset + threadIdx.x; i < first; i += kThreads) dst[i] = src[i];
  for (int64_t i = last + threadIdx.x; i < end; i += kThreads) dst[i] = src[i];
}

}  // namespace

void CopyGuarded(Device& device, void* dst, const void* src, const GuardedPiece* pieces,
                 int64_t count) {
  if (count == 0) return;
  CHECK(reinterpret_cast<uintptr_t>(dst) % kVector == 0);
  CHECK(reinterpret_cast<uintptr_t>(src) % kVector == 0);
  GuardedCopyKernel<<<static_cast<unsigned>(count), kThreads, 0, device.stream()>>>(
      static_cast<char*>(dst), static_cast<const char*>(src), pieces);
  device.Check(cudaGetLastError(), "CopyGuarded");
}

}  // namespace mneme::cuda
