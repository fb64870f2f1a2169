#include "kernels/cuda/sampling/draws.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>

#include "base/log.h"

namespace mneme::cuda::sampling {
namespace {

// To free and to allocate pinned memory waits for all that the device does, some milliseconds in
// the middle of a step. So there is enough from the start: for results of 256 rows and 100 of the
// most likely tokens of each; for parameters of as many rows with 1,024 tokens that penalties look
// back on.
constexpr int64_t kFirstResultBytes = 256 << 10, kFirstParameterBytes = 4 << 20;

// What stands where a token will be.
constexpr int32_t kNoTokenYet = std::numeric_limits<int32_t>::min();

}  // namespace

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

void* PinnedMemory::Reserve(Device& device, int64_t bytes) {
  if (bytes > bytes_) {
    if (data_ != nullptr) cudaFreeHost(data_);
    data_ = nullptr;
    bytes_ = std::max(bytes, 2 * bytes_);
    device.Check(cudaMallocHost(&data_, static_cast<size_t>(bytes_)), "pinned memory of sampling");
    if (data_ == nullptr) bytes_ = 0;
  }
  return data_;
}

Draws::Draws(Device& device) : device_(device) {
  for (Draw& draw : draws_) {
    draw.results.Reserve(device, kFirstResultBytes);
    draw.parameters.Reserve(device, kFirstParameterBytes);
  }
}

Draws::~Draws() {
  if (in_flight_ > 0) cudaStreamSynchronize(device_.stream());
}

void Draws::Begin(const SampleArgs& args) {
  CHECK(in_flight_ < kMostInFlight);
  Draw& draw = draws_[next_];
  next_ = (next_ + 1) % draws_.size();
  ++in_flight_;
  draw.launched = false;
  draw.tokens = args.tokens;
  draw.logprobs = args.logprobs;
  draw.top_tokens = args.top_tokens;
  draw.top_logprobs = args.top_logprobs;
  if (args.rows.empty()) return;
  const size_t rows = args.rows.size(), top = rows * args.max_top_logprobs;
  CHECK(args.logits.dtype == DType::kF32 && args.logits.shape[0] == static_cast<int64_t>(rows));
  auto* const memory = static_cast<int32_t*>(
      draw.results.Reserve(device_, static_cast<int64_t>(2 * (rows + top) * sizeof(int32_t))));
  if (memory == nullptr) return;
  draw.from = {.tokens = memory,
               .logprobs = reinterpret_cast<float*>(memory + rows),
               .top_tokens = memory + 2 * rows,
               .top_logprobs = reinterpret_cast<float*>(memory + 2 * rows + top)};
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  std::fill_n(draw.from.tokens, rows, kNoTokenYet);
  std::fill_n(draw.from.logprobs, rows, kNone);
  std::fill_n(draw.from.top_tokens, top, -1);
  std::fill_n(draw.from.top_logprobs, top, kNone);
  if (!SampleLargest(device_, args, draw.from, draw.parameters)) {
    SampleRows(device_, args, draw.from, draw.parameters);
  }
  draw.launched = device_.ok();
}

void Draws::Finish() {
  CHECK(in_flight_ > 0);
  const Draw& draw = draws_[(next_ + draws_.size() - in_flight_--) % draws_.size()];
  if (draw.launched && device_.ok()) Await(draw);
  if (!draw.launched || !device_.ok()) {
    // Whatever did start may not write to memory that is used again.
    cudaStreamSynchronize(device_.stream());
    return;
  }
  std::copy_n(draw.from.tokens, draw.tokens.size(), draw.tokens.begin());
  std::copy_n(draw.from.logprobs, draw.logprobs.size(), draw.logprobs.begin());
  std::copy_n(draw.from.top_tokens, draw.top_tokens.size(), draw.top_tokens.begin());
  std::copy_n(draw.from.top_logprobs, draw.top_logprobs.size(), draw.top_logprobs.begin());
}

// Whatever keeps a kernel from writing its results has stopped the stream, so that is looked at now
// and then, and others may have the processor.
void Draws::Await(const Draw& draw) {
  constexpr int kLooks = 1 << 10;  // a microsecond or two
  const volatile int32_t* const seen = draw.from.tokens;
  for (size_t i = 0; i < draw.tokens.size(); ++i) {
    for (int looks = 1; seen[i] == kNoTokenYet; ++looks) {
      if (looks % kLooks != 0) continue;
      std::this_thread::yield();
      const cudaError_t state = cudaStreamQuery(device_.stream());
      if (state == cudaErrorNotReady || seen[i] != kNoTokenYet) continue;
      return device_.Check(state == cudaSuccess ? cudaErrorUnknown : state, "waiting for draws");
    }
  }
  std::atomic_thread_fence(std::memory_order_acquire);
}

}  // namespace mneme::cuda::sampling
