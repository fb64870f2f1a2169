// Ways in which warps hand shared memory over to each other, each as small as it can be and right
// by the rules of PTX, for compute-sanitizer's racecheck, which reports some of them (2026.4: a
// race as soon as a stage of the ring is filled again), so that gpu_test.sh knows what to make of
// such reports. Exit code 0 means that the sums were right.
//
// usage: racecheck_probe [ring | warps | named]   one of them; without: all
#include <cstdio>
#include <cstring>
#include <cuda/barrier>
#include <vector>

namespace {

constexpr int kStages = 2, kFloats = 1024, kItems = 3 * kStages;
constexpr int kReaders = 128, kThreads = kReaders + 32;

// A ring of bulk copies as libcu++ has it: one thread fills stages, warps read them, and barriers
// in shared memory hand stages over. Each reader arrives for itself, or one lane for its warp.
template <bool kWarpsArrive>
__global__ void SumOfRing(const float* items, float* sums) {
#if __CUDA_ARCH__ >= 900
  using Barrier = cuda::barrier<cuda::thread_scope_block>;
  __shared__ alignas(128) float ring[kStages][kFloats];
  __shared__ alignas(Barrier) unsigned char barriers[2 * kStages][sizeof(Barrier)];
  Barrier* const full = reinterpret_cast<Barrier*>(barriers);
  Barrier* const empty = full + kStages;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init(full + i, 1);
      init(empty + i, kWarpsArrive ? kReaders / 32 : kReaders);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == kReaders) {
    for (int i = 0; i < kItems; ++i) {
      const int stage = i % kStages, round = i / kStages;
      if (round > 0) empty[stage].wait_parity((round - 1) % 2 != 0);
      cuda::device::memcpy_async_tx(ring[stage], items + i * kFloats,
                                    cuda::aligned_size_t<16>(kFloats * sizeof(float)), full[stage]);
      (void)cuda::device::barrier_arrive_tx(full[stage], 1, kFloats * sizeof(float));
    }
  } else if (threadIdx.x < kReaders) {
    float sum = 0;
    for (int i = 0; i < kItems; ++i) {
      const int stage = i % kStages;
      full[stage].wait_parity(i / kStages % 2 != 0);
      for (int k = threadIdx.x; k < kFloats; k += kReaders) sum += ring[stage][k];
      if constexpr (kWarpsArrive) __syncwarp();
      if (!kWarpsArrive || threadIdx.x % 32 == 0) (void)empty[stage].arrive();
    }
    sums[threadIdx.x] = sum;
  }
#endif
}

// One warp stores an item and arrives at a named barrier, behind which the others read; at a second
// one they say that it may be stored over.
__global__ void SumBehindNamedBarriers(const float* items, float* sums) {
  __shared__ float item[kFloats];
  if (threadIdx.x >= kReaders) {
    for (int i = 0; i < kItems; ++i) {
      if (i > 0) asm volatile("bar.sync 2, %0;" ::"n"(kThreads) : "memory");
      for (int k = threadIdx.x - kReaders; k < kFloats; k += kThreads - kReaders) {
        item[k] = items[i * kFloats + k];
      }
      asm volatile("bar.arrive 1, %0;" ::"n"(kThreads) : "memory");
    }
  } else {
    float sum = 0;
    for (int i = 0; i < kItems; ++i) {
      asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
      for (int k = threadIdx.x; k < kFloats; k += kReaders) sum += item[k];
      if (i + 1 < kItems) asm volatile("bar.arrive 2, %0;" ::"n"(kThreads) : "memory");
    }
    sums[threadIdx.x] = sum;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const char* const only = argc > 1 ? argv[1] : nullptr;
  const auto wants = [&](const char* name) {
    return only == nullptr || std::strcmp(only, name) == 0;
  };
  int major = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  if (major < 9) return 0;
  std::vector<float> items(kItems * kFloats), want(kReaders);
  for (size_t i = 0; i < items.size(); ++i) {
    items[i] = static_cast<float>(i % 61 + 1);  // sums of these are exact
    want[i % kReaders] += items[i];
  }
  float *device_items = nullptr, *device_sums = nullptr;
  cudaMalloc(&device_items, items.size() * sizeof(float));
  cudaMalloc(&device_sums, want.size() * sizeof(float));
  cudaMemcpy(device_items, items.data(), items.size() * sizeof(float), cudaMemcpyHostToDevice);
  bool right = true;
  const auto run = [&](const char* name, auto kernel) {
    if (!wants(name)) return;
    std::vector<float> sums(kReaders);
    kernel<<<1, kThreads>>>(device_items, device_sums);
    const cudaError_t error =
        cudaMemcpy(sums.data(), device_sums, sums.size() * sizeof(float), cudaMemcpyDeviceToHost);
    if (error != cudaSuccess) std::fprintf(stderr, "%s: %s\n", name, cudaGetErrorString(error));
    right = right && error == cudaSuccess && sums == want;
  };
  run("ring", SumOfRing<false>);
  run("warps", SumOfRing<true>);
  run("named", SumBehindNamedBarriers);
  cudaFree(device_items);
  cudaFree(device_sums);
  return right ? 0 : 1;
}
