// Times on a GPU, of what is launched again and again on states that are not in the cache.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/cuda/common/device.h"

namespace mneme {

// States that are taken in turns and come to this much are not in the cache.
constexpr int64_t kColdBytes = 240'000'000;

// Seconds of what `work` launches, replayed as a graph: the median of some rounds.
double TimeGraph(cuda::Device& device, const std::function<void()>& work);

// Bytes read and written each second by a large copy.
double CopyBandwidth(cuda::Device& device);

}  // namespace mneme
