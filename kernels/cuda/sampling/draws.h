// Draws in flight. A kernel writes its results to pinned memory of the host, which the host looks
// at: it has them microseconds before the stream says that the kernel has ended, and need not wait
// for what is queued behind that kernel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda::sampling {

// Memory of the host that the device can read and write. Grows.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Uninitialised, until the next call, which must not come before the device is done with it. Null
  // if there is none: the error is on record.
  void* Reserve(Device& device, int64_t bytes);

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Where a kernel writes what SampleArgs says of `tokens` and the three after it. Logprobs and lists
// need not be written where nobody asked for them. A token comes last, after a system-wide fence:
// whoever sees it sees all else of its row.
struct DrawResults {
  int32_t* tokens = nullptr;
  float* logprobs = nullptr;
  int32_t* top_tokens = nullptr;
  float* top_logprobs = nullptr;
};

// See Kernels::BeginSample and FinishSample.
class Draws {
 public:
  explicit Draws(Device& device);
  ~Draws();  // waits for those in flight
  Draws(const Draws&) = delete;
  Draws& operator=(const Draws&) = delete;

  void Begin(const SampleArgs& args);
  void Finish();

 private:
  struct Draw {
    PinnedMemory results, parameters;
    DrawResults from;
    std::span<int32_t> tokens;
    std::span<float> logprobs;
    std::span<int32_t> top_tokens;
    std::span<float> top_logprobs;
    bool launched = false;
  };
  static constexpr int kMostInFlight = 2;

  void Await(const Draw& draw);

  Device& device_;
  // Used in turns. One more than can be in flight: a kernel may still read its parameters when the
  // host has its tokens, but not when the host has those of the kernel behind it.
  std::array<Draw, kMostInFlight + 1> draws_;
  size_t next_ = 0;    // of draws_: what is begun next
  int in_flight_ = 0;  // those before it
};

// sampling/sampling.cu: launches the draws of all rows. `parameters` stays until they are finished.
void SampleRows(Device& device, const SampleArgs& args, const DrawResults& to,
                PinnedMemory& parameters);
// sampling/largest.cu: the same of rows that all want their most likely token alone; else false.
bool SampleLargest(Device& device, const SampleArgs& args, const DrawResults& to,
                   PinnedMemory& parameters);

}  // namespace mneme::cuda::sampling
