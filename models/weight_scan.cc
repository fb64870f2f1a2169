#include "models/weight_scan.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "kernels/finite.h"

namespace mneme {
namespace {

// Work is split at fixed places, so that the hash does not depend on the number of threads.
constexpr int64_t kChunkBytes = 1 << 20;
// A block is hashed and checked while it is in the first-level cache.
constexpr int64_t kBlockBytes = 16 << 10;
constexpr int kLanes = 8;
constexpr int64_t kStripeBytes = kLanes * sizeof(uint64_t);
constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15;  // odd, bits of the golden ratio

uint64_t Load(const std::byte* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

// Spreads every bit over all 64; a bijection.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93;
  x = (x ^ (x >> 29)) * 0xA3B195354A39B70D;
  return x ^ (x >> 32);
}

// Eight independent chains of multiplications, so that the multiplier is always busy: eight bytes a
// cycle. A product spreads bits upwards only; its upper half is brought down, so that the next one
// spreads those as well.
class StripeHash {
 public:
  StripeHash() {
    for (int i = 0; i < kLanes; ++i) lanes_[i] = kMultiplier * (2 * i + 1);
  }

  void Add(const std::byte* p, int64_t bytes) {
    for (; bytes >= kStripeBytes; p += kStripeBytes, bytes -= kStripeBytes) {
      for (int i = 0; i < kLanes; ++i) {
        const uint64_t product = (lanes_[i] ^ Load(p + 8 * i)) * kMultiplier;
        lanes_[i] = product ^ (product >> 32);
      }
    }
    if (bytes == 0) return;
    std::byte tail[kStripeBytes] = {};
    std::memcpy(tail, p, static_cast<size_t>(bytes));
    Add(tail, kStripeBytes);
  }

  uint64_t Finish(int64_t bytes) const {
    uint64_t hash = Mix(static_cast<uint64_t>(bytes));
    for (const uint64_t lane : lanes_) hash = Mix(hash * kMultiplier ^ lane);
    return hash;
  }

 private:
  uint64_t lanes_[kLanes];
};

// Elements at an odd address are copied first: a block at a time, so within the cache.
bool BlockIsFinite(const std::byte* block, int64_t bytes, DType dtype) {
  alignas(8) std::byte copy[kBlockBytes];
  if (reinterpret_cast<uintptr_t>(block) % SizeOf(dtype) != 0) {
    std::memcpy(copy, block, static_cast<size_t>(bytes));
    block = copy;
  }
  return AllFinite({const_cast<std::byte*>(block), dtype, {bytes / SizeOf(dtype)}});
}

}  // namespace

WeightScan ScanWeights(ThreadPool& pool, std::span<const std::byte> bytes, DType dtype) {
  const int64_t size = static_cast<int64_t>(bytes.size());
  const int64_t chunks = (size + kChunkBytes - 1) / kChunkBytes;
  std::vector<WeightScan> results(static_cast<size_t>(chunks));
  pool.ParallelForDynamic(chunks, 1, [&](int64_t begin, int64_t end, int /*worker*/) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t chunk_begin = chunk * kChunkBytes;
      const int64_t chunk_end = std::min(size, chunk_begin + kChunkBytes);
      StripeHash hash;
      WeightScan& result = results[static_cast<size_t>(chunk)];
      for (int64_t at = chunk_begin; at < chunk_end; at += kBlockBytes) {
        const std::byte* block = bytes.data() + at;
        const int64_t block_bytes = std::min(kBlockBytes, chunk_end - at);
        hash.Add(block, block_bytes);
        if (result.first_non_finite >= 0 || BlockIsFinite(block, block_bytes, dtype)) continue;
        int64_t element = 0;
        while (BlockIsFinite(block + element * SizeOf(dtype), SizeOf(dtype), dtype)) ++element;
        result.first_non_finite = at / SizeOf(dtype) + element;
      }
      result.hash = hash.Finish(chunk_end - chunk_begin);
    }
  });
  WeightScan total{.hash = Mix(static_cast<uint64_t>(size))};
  for (const WeightScan& chunk : results) {
    total.hash = CombineHashes(total.hash, chunk.hash);
    if (total.first_non_finite < 0) total.first_non_finite = chunk.first_non_finite;
  }
  return total;
}

uint64_t HashBytes(std::span<const std::byte> bytes) {
  StripeHash hash;
  hash.Add(bytes.data(), static_cast<int64_t>(bytes.size()));
  return hash.Finish(static_cast<int64_t>(bytes.size()));
}

uint64_t HashText(absl::string_view text) {
  return HashBytes(std::as_bytes(std::span<const char>(text.data(), text.size())));
}

uint64_t CombineHashes(uint64_t a, uint64_t b) { return Mix(std::rotl(a, 23) * kMultiplier ^ b); }

}  // namespace mneme
