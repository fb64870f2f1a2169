// A backend whose operations are timed one by one: where the time of a step goes, whatever the
// model.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "kernels/backend.h"

namespace mneme {

// Does what `inner` does, on a device whose operations are done when they return. A fused operation
// that the device declines counts as none.
class TimedBackend final : public Backend {
 public:
  explicit TimedBackend(std::unique_ptr<Backend> inner);
  ~TimedBackend() override;

  // Seconds by operation since the last call.
  std::map<std::string, double> TakeSeconds();

  absl::string_view name() const override { return inner_->name(); }
  std::string description() const override { return inner_->description(); }
  DType activation_dtype() const override { return inner_->activation_dtype(); }
  StateFormat state_format() const override { return inner_->state_format(); }
  DType compute_dtype() const override { return inner_->compute_dtype(); }
  DType product_dtype(const PackedMatrix& weights, int64_t rows) const override {
    return inner_->product_dtype(weights, rows);
  }
  DType step_output_dtype(const PackedMatrix& weights, int64_t rows) const override {
    return inner_->step_output_dtype(weights, rows);
  }
  DType output_dtype(std::span<const PackedMatrix> weights, int64_t rows) const override {
    return inner_->output_dtype(weights, rows);
  }
  absl::StatusOr<void*> Allocate(int64_t bytes) override { return inner_->Allocate(bytes); }
  void Free(void* data) override { inner_->Free(data); }
  absl::StatusOr<int64_t> AvailableBytes() const override { return inner_->AvailableBytes(); }
  absl::StatusOr<void*> AllocatePinned(int64_t bytes) override {
    return inner_->AllocatePinned(bytes);
  }
  void CopyFromHost(void* dst, const void* src, int64_t bytes) override {
    inner_->CopyFromHost(dst, src, bytes);
  }
  void CopyToHost(void* dst, const void* src, int64_t bytes) override {
    inner_->CopyToHost(dst, src, bytes);
  }
  void Copy(void* dst, const void* src, int64_t bytes) override { inner_->Copy(dst, src, bytes); }
  void Zero(void* dst, int64_t bytes) override { inner_->Zero(dst, bytes); }
  absl::Status Synchronize() override { return inner_->Synchronize(); }
  int64_t PackedBytes(DType dtype, int out_features, int in_features) const override {
    return inner_->PackedBytes(dtype, out_features, in_features);
  }
  PackedMatrix PackMatrix(const TensorView& matrix, void* dst) override {
    return inner_->PackMatrix(matrix, dst);
  }
  Kernels& kernels() override;

 private:
  class TimedKernels;

  std::unique_ptr<Backend> inner_;
  std::unique_ptr<TimedKernels> kernels_;
};

}  // namespace mneme
