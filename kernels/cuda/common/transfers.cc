#include "kernels/cuda/common/transfers.h"

#include <atomic>
#include <utility>

namespace mneme::cuda {
namespace {

class CudaTransfer final : public Transfer {
 public:
  CudaTransfer(Device& device, std::function<void()> on_done)
      : device_(device), on_done_(std::move(on_done)) {
    device_.Check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
  }
  ~CudaTransfer() override {
    device_.Check(cudaEventSynchronize(event_), "transfer");
    cudaEventDestroy(event_);
  }

  bool done() const override { return done_.load(std::memory_order_acquire); }

  void Run(std::span<const TransferPiece> pieces, TransferDirection direction,
           cudaStream_t stream) {
    // Behind the work queued so far.
    device_.Check(cudaEventRecord(event_, device_.stream()), "cudaEventRecord");
    device_.Check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
    const cudaMemcpyKind kind =
        direction == TransferDirection::kToHost ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
    for (const TransferPiece& piece : pieces) {
      device_.Check(
          cudaMemcpyAsync(piece.dst, piece.src, static_cast<size_t>(piece.bytes), kind, stream),
          "cudaMemcpyAsync");
    }
    device_.Check(cudaLaunchHostFunc(
                      stream, [](void* self) { static_cast<CudaTransfer*>(self)->End(); }, this),
                  "cudaLaunchHostFunc");
    // The destructor waits for the call, too.
    device_.Check(cudaEventRecord(event_, stream), "cudaEventRecord");
  }

 private:
  void End() {
    done_.store(true, std::memory_order_release);
    if (on_done_ != nullptr) on_done_();
  }

  Device& device_;
  const std::function<void()> on_done_;
  cudaEvent_t event_ = nullptr;
  std::atomic<bool> done_ = false;
};

}  // namespace

Transfers::~Transfers() {
  for (const cudaStream_t stream : streams_) {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
}

std::unique_ptr<Transfer> Transfers::Begin(std::span<const TransferPiece> pieces,
                                           TransferDirection direction,
                                           std::function<void()> on_done) {
  cudaStream_t& stream = streams_[static_cast<size_t>(direction)];
  if (stream == nullptr) {
    device_.Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  auto transfer = std::make_unique<CudaTransfer>(device_, std::move(on_done));
  transfer->Run(pieces, direction, stream);
  return transfer;
}

}  // namespace mneme::cuda
