// Copies between the device and pinned memory on streams of their own: Backend::BeginTransfer.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <functional>
#include <memory>
#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/common/device.h"

namespace mneme::cuda {

// A stream for each direction, so that one goes on beside the other. Driven by the device's thread.
class Transfers {
 public:
  explicit Transfers(Device& device) : device_(device) {}
  ~Transfers();
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  std::unique_ptr<Transfer> Begin(std::span<const TransferPiece> pieces,
                                  TransferDirection direction, std::function<void()> on_done);

 private:
  Device& device_;
  std::array<cudaStream_t, 2> streams_ = {};  // by direction; null before the first transfer
};

}  // namespace mneme::cuda
