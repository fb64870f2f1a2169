// A ring of bulk copies as libcu++ has it: one thread fills stages, warps read them, and barriers
// in shared memory hand stages over. For compute-sanitizer's racecheck, which (in 2026.4) reports a
// race as soon as a stage is filled again, so that gpu_test.sh knows what to make of such reports.
// Exit code 0 means that the ring gave the right sums.
#include <cuda/barrier>
#include <vector>

namespace {

constexpr int kStages = 2, kFloats = 1024, kItems = 3 * kStages;
constexpr int kReaders = 128, kThreads = kReaders + 32;

__global__ void SumItems(const float* items, float* sums) {
#if __CUDA_ARCH__ >= 900
  using Barrier = cuda::barrier<cuda::thread_scope_block>;
  __shared__ alignas(128) float ring[kStages][kFloats];
  __shared__ alignas(Barrier) unsigned char barriers[2 * kStages][sizeof(Barrier)];
  Barrier* const full = reinterpret_cast<Barrier*>(barriers);
  Barrier* const empty = full + kStages;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * kStages; ++i) init(full + i, kReaders + 1);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == kReaders) {
    for (int i = 0; i < kItems; ++i) {
      const int stage = i % kStages;
      empty[stage].arrive_and_wait();
      cuda::device::memcpy_async_tx(ring[stage], items + i * kFloats,
                                    cuda::aligned_size_t<16>(kFloats * sizeof(float)), full[stage]);
      (void)cuda::device::barrier_arrive_tx(full[stage], 1, kFloats * sizeof(float));
    }
  } else if (threadIdx.x < kReaders) {
    float sum = 0;
    for (int i = 0; i < kStages; ++i) (void)empty[i].arrive();
    for (int i = 0; i < kItems; ++i) {
      const int stage = i % kStages;
      full[stage].arrive_and_wait();
      for (int k = threadIdx.x; k < kFloats; k += kReaders) sum += ring[stage][k];
      (void)empty[stage].arrive();
    }
    sums[threadIdx.x] = sum;
  }
#endif
}

}  // namespace

int main() {
  int major = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  if (major < 9) return 0;
  std::vector<float> items(kItems * kFloats), sums(kReaders), want(kReaders);
  for (size_t i = 0; i < items.size(); ++i) {
    items[i] = static_cast<float>(i % 61 + 1);  // sums of these are exact
    want[i % kReaders] += items[i];
  }
  float *device_items = nullptr, *device_sums = nullptr;
  cudaMalloc(&device_items, items.size() * sizeof(float));
  cudaMalloc(&device_sums, sums.size() * sizeof(float));
  cudaMemcpy(device_items, items.data(), items.size() * sizeof(float), cudaMemcpyHostToDevice);
  SumItems<<<1, kThreads>>>(device_items, device_sums);
  cudaMemcpy(sums.data(), device_sums, sums.size() * sizeof(float), cudaMemcpyDeviceToHost);
  const cudaError_t error = cudaDeviceSynchronize();
  cudaFree(device_items);
  cudaFree(device_sums);
  if (error != cudaSuccess) std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  return error == cudaSuccess && sums == want ? 0 : 1;
}
