#include "bench/memory_bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/log.h"
#include "base/thread_pool.h"
#include "kernels/cpu/host_memory.h"

#if defined(__x86_64__)
#define MNEME_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define MNEME_CLONES
#endif

namespace mneme {
namespace {

constexpr int kLineFloats = 16;

// Sums of 32 columns, so that additions never hold up the reads.
template <int kAheadBytes>
MNEME_CLONES float ReadAll(const float* data, int64_t n) {
  constexpr int kColumns = 4 * kLineFloats;
  float sums[kColumns] = {};
  for (int64_t i = 0; i + kColumns <= n; i += kColumns) {
    if (kAheadBytes > 0) {
      for (int line = 0; line < 4; ++line) {
        __builtin_prefetch(data + i + line * kLineFloats + kAheadBytes / 4);
      }
    }
    for (int j = 0; j < kColumns; ++j) sums[j] += data[i + j];
  }
  float sum = 0;
  for (const float value : sums) sum += value;
  return sum;
}

template <int kAheadBytes>
MNEME_CLONES void UpdateAll(float* data, int64_t n) {
  for (int64_t i = 0; i + kLineFloats <= n; i += kLineFloats) {
    if (kAheadBytes > 0) __builtin_prefetch(data + i + kAheadBytes / 4, 1);
    for (int j = 0; j < kLineFloats; ++j) data[i + j] = data[i + j] * 0.999f + 0.001f;
  }
}

}  // namespace

MemoryBandwidth MeasureMemoryBandwidth(int threads) {
  using Clock = std::chrono::steady_clock;
  ThreadPool pool(threads);
  const int64_t bytes = (int64_t{512} << 20) / pool.threads();
  const int64_t n = bytes / static_cast<int64_t>(sizeof(float));
  std::vector<float*> blocks(static_cast<size_t>(pool.threads()));
  pool.Run([&](int worker) {
    void* block = AllocateHost(bytes);
    CHECK(block != nullptr);
    std::memset(block, 0, static_cast<size_t>(bytes));
    blocks[static_cast<size_t>(worker)] = static_cast<float*>(block);
  });
  std::vector<float> sinks(static_cast<size_t>(pool.threads()) * kLineFloats);
  const auto best_of = [&](const auto& pass) {
    double best = 1e9;
    for (int repeat = 0; repeat < 4; ++repeat) {
      const Clock::time_point start = Clock::now();
      pool.Run([&](int worker) { pass(blocks[static_cast<size_t>(worker)], worker); });
      best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
    }
    return static_cast<double>(bytes) * pool.threads() / best;
  };
  const auto read = [&](auto function) {
    return best_of([&](const float* data, int worker) {
      sinks[static_cast<size_t>(worker) * kLineFloats] += function(data, n);
    });
  };
  const auto update = [&](auto function) {
    return 2 * best_of([&](float* data, int) { function(data, n); });
  };
  MemoryBandwidth result;
  result.read = std::max({read(ReadAll<0>), read(ReadAll<512>), read(ReadAll<2048>)});
  result.read_modify_write =
      std::max({update(UpdateAll<0>), update(UpdateAll<512>), update(UpdateAll<2048>)});
  CHECK(sinks[0] >= 0);  // also keeps the reads
  for (float* block : blocks) std::free(block);
  return result;
}

}  // namespace mneme
