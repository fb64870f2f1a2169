// Draws of rows that all ask for their most likely token and nothing else: what DrawRows does for
// them, by one block a row and in little code, without blocks that wait for one another. For one or
// two rows the draw is as long as the work of a layer otherwise; for hundreds DrawRows takes some
// four times as long as reading the logits does.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/sampling/draws.h"
#include "kernels/cuda/sampling/next_inputs.cuh"

namespace mneme::cuda::sampling {
namespace {

constexpr int kThreads = 1024;
static_assert(kThreads == kWarp * kWarp);  // a warp goes through what the warps have found

// A number for each float but NaN, in the same order; zeros are equal.
__device__ inline uint32_t Ordered(float x) {
  const auto bits = __float_as_int(x + 0.0f);
  return static_cast<uint32_t>(bits) ^ (bits < 0 ? 0xffffffffu : 0x80000000u);
}

// The largest key of a warp and the lowest token that has it, in all lanes.
__device__ inline void TakeLargest(uint32_t& key, int& token) {
  const uint32_t largest = __reduce_max_sync(kAllLanes, key);
  token = __reduce_min_sync(kAllLanes, key == largest ? token : std::numeric_limits<int>::max());
  key = largest;
}

struct EndTokens {
  int32_t tokens[kMaxRowEndTokens];
};

// A block for each row of logits [rows, vocab]. tokens[row]: the largest finite logit's lowest
// token; kNoLogits where there is none, or where that is infinity. `ends`, which a block reads from
// the host's memory while it waits for logits, is null where nobody wants the next step's rows.
__global__ void __launch_bounds__(kThreads)
    LargestOfRows(const float* logits, int vocab, int32_t* tokens, const EndTokens* ends,
                  NextInputs next) {
  constexpr int kAtOnce = 8;  // loads of a thread that are under way together
  __shared__ uint32_t keys[kThreads / kWarp];
  __shared__ int places[kThreads / kWarp];
  const float* const row = logits + int64_t{blockIdx.x} * vocab;
  EndTokens end_tokens = {};
  if (threadIdx.x == 0 && ends != nullptr) end_tokens = ends[blockIdx.x];
  float largest = -INFINITY;
  int token = std::numeric_limits<int>::max();
#pragma unroll 1
  for (int first = 4 * threadIdx.x; first < vocab; first += 4 * kThreads * kAtOnce) {
    float4 fours[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int at = first + n * 4 * kThreads;
      fours[n] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
      if (at < vocab) fours[n] = __ldcg(reinterpret_cast<const float4*>(row + at));
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const float four[4] = {fours[n].x, fours[n].y, fours[n].z, fours[n].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (four[j] > largest) {
          largest = four[j];
          token = first + n * 4 * kThreads + j;
        }
      }
    }
  }
  uint32_t key = Ordered(largest);
  TakeLargest(key, token);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (lane == 0) {
    keys[warp] = key;
    places[warp] = token;
  }
  __syncthreads();
  if (warp > 0) return;
  key = keys[lane];
  token = places[lane];
  TakeLargest(key, token);
  const bool finite = key > Ordered(-INFINITY) && key < Ordered(INFINITY);
  if (lane == 0) {
    tokens[blockIdx.x] = finite ? token : kNoLogits;
    WriteNextInputs(finite ? token : kNoLogits, end_tokens.tokens, blockIdx.x, next);
  }
}

}  // namespace

bool SampleLargest(Device& device, const SampleArgs& args, const DrawResults& to,
                   PinnedMemory& parameters) {
  const auto rows = static_cast<int64_t>(args.rows.size());
  const auto vocab = static_cast<int>(args.logits.shape[1]);
  const auto* const logits = args.logits.as<const float>();
  const bool fits = vocab % 4 == 0 && IsAligned(logits);
  const bool plain = std::all_of(args.rows.begin(), args.rows.end(), [](const SamplingRow& row) {
    return row.IsGreedy() && row.forced_token < 0 && row.top_logprobs < 0 &&
           row.history_begin == row.history_end && row.bias_begin == row.bias_end;
  });
  if (!fits || !plain) return false;
  EndTokens* ends = nullptr;
  if (args.next_tokens.data != nullptr) {
    ends = static_cast<EndTokens*>(
        parameters.Reserve(device, rows * static_cast<int64_t>(sizeof(EndTokens))));
    if (ends == nullptr) return true;
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(args.rows[r].end_tokens, kMaxRowEndTokens, ends[r].tokens);
    }
  }
  LargestOfRows<<<static_cast<unsigned>(rows), kThreads, 0, device.stream()>>>(
      logits, vocab, to.tokens, ends, NextInputsOf(args));
  device.Check(cudaGetLastError(), "SampleLargest");
  return true;
}

}  // namespace mneme::cuda::sampling
