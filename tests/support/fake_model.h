// A model whose whole memory is a hash of the tokens it was fed: any token misrouted, dropped,
// repeated or fed after a stop changes what it says next. It aborts if a row's position is not the
// number of tokens that its slab was fed.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/reference/reference_kernels.h"
#include "models/model.h"
#include "tests/support/fake_clock.h"

namespace mneme {

// The memory of a session of the fake model. `eager` begins as a constant that only the initial
// slab has; `lazy` counts as zero until it was written, whatever its bytes say.
struct FakeMemory {
  uint64_t eager = 0x6d6e656d65ull;
  uint64_t lazy = 0;

  void Feed(int32_t token);
  void Feed(std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) Feed(token);
  }
  // Logit of each token, in [-4, 4). Token 0 gets `first_token_bonus` more: a model whose end token
  // it is ends sooner or later.
  std::vector<double> Logits(int vocab, double first_token_bonus = 0) const;

  friend bool operator==(const FakeMemory&, const FakeMemory&) = default;
};

struct FakeModelOptions {
  int vocab = 32;
  double first_token_bonus = 0;
  int phases = 0;   // above 0: slabs end with such a field
  int segment = 0;  // ModelInfo::segment
  // Above 0: the tokens fed are also kept as rows of so many positions, which every step reads
  // through the table; it aborts if they are not those that its memory is made of.
  int max_context = 0;
  int32_t poison_token = -1;  // the logits after it, and no later ones, are all NaN
  int32_t narrow_token =
      -1;  // of the logits after it, and no later ones, all but that of 0 are -inf
  // Called in each step; a test advances its clock, or waits.
  std::function<void(int rows, int tokens)> on_step;
  // Called in a step in which rows begin so many segments.
  std::function<void(int crossings)> on_crossings;
  std::function<void(int rows)> on_logits;  // called with the rows of logits that a step makes
};

// Runs on any backend whose memory is the host's and whose activations are f64 or f32.
class FakeModel final : public Model {
 public:
  explicit FakeModel(FakeModelOptions options = {});

  const ModelInfo& info() const override { return info_; }
  const StateLayout& state_layout() const override { return layout_; }
  absl::Status InitState(Backend& backend, std::byte* slab) const override;
  void Forward(ForwardContext& ctx, const TensorView& logit_tokens,
               const TensorView& logits) const override;
  void Settle(ForwardContext&, const TensorView&) const override {}
  int64_t WorkspaceBytes(int tokens, int rows, int logit_rows) const override;

 private:
  const FakeModelOptions options_;
  ModelInfo info_;
  StateLayout layout_;
  StateField eager_;  // FakeMemory's, and the number of tokens fed
  StateField lazy_, written_;
  StateField tokens_;  // of max_context
};

// The float64 reference backend, whose steps and allocations fail when told to. Its graphs are the
// recorded closures.
class FaultyBackend final : public Backend {
 public:
  FaultyBackend();

  // The next Synchronize() returns this.
  void FailNext(absl::Status error) { failure_ = std::move(error); }
  // The n-th allocation from now on fails; 0 is the next one.
  void FailAllocation(int n) { allocations_left_ = n; }
  // Says so, and works at once all the same, but that draws come when they are finished.
  void set_asynchronous(bool asynchronous) { asynchronous_ = asynchronous; }
  // Transfers that begin from now on wait for FinishTransfers(), or for who waits for them.
  void HoldTransfers() { holds_transfers_ = true; }
  // Does the work of those that wait, in order, and holds no more.
  void FinishTransfers();
  int held_transfers() const { return static_cast<int>(held_.size()); }
  void set_available_bytes(int64_t bytes) { available_bytes_ = bytes; }
  int live_allocations() const { return live_allocations_; }

  absl::string_view name() const override { return "faulty"; }
  std::string description() const override { return "fails when told to"; }
  DType activation_dtype() const override { return inner_->activation_dtype(); }
  StateFormat state_format() const override { return inner_->state_format(); }
  DType compute_dtype() const override { return inner_->compute_dtype(); }
  absl::StatusOr<void*> Allocate(int64_t bytes) override;
  void Free(void* data) override;
  absl::StatusOr<int64_t> AvailableBytes() const override { return available_bytes_; }
  void CopyFromHost(void* dst, const void* src, int64_t bytes) override {
    inner_->CopyFromHost(dst, src, bytes);
  }
  void CopyToHost(void* dst, const void* src, int64_t bytes) override {
    inner_->CopyToHost(dst, src, bytes);
  }
  void Copy(void* dst, const void* src, int64_t bytes) override { inner_->Copy(dst, src, bytes); }
  std::unique_ptr<Transfer> BeginTransfer(std::span<const TransferPiece> pieces,
                                          TransferDirection direction,
                                          std::function<void()> on_done) override;
  void Zero(void* dst, int64_t bytes) override { inner_->Zero(dst, bytes); }
  absl::Status Synchronize() override;
  bool asynchronous() const override { return asynchronous_; }
  int64_t PackedBytes(DType dtype, int out_features, int in_features) const override {
    return inner_->PackedBytes(dtype, out_features, in_features);
  }
  PackedMatrix PackMatrix(const TensorView& matrix, void* dst) override {
    return inner_->PackMatrix(matrix, dst);
  }
  Kernels& kernels() override { return asynchronous_ ? late_kernels_ : inner_->kernels(); }
  bool can_capture() const override { return true; }
  absl::StatusOr<std::unique_ptr<Graph>> Capture(std::function<void()> work) override;
  int64_t replays() const { return replays_; }

 private:
  // Draws at once, and leaves rubbish where the results will be. Aborts if a draw is finished that
  // was not begun, and if more than two are in flight.
  class LateKernels final : public ReferenceKernels {
   public:
    LateKernels() : ReferenceKernels(DType::kF64) {}
    void BeginSample(const SampleArgs& args) override;
    void FinishSample() override;

   private:
    struct Draw {
      SampleArgs args;  // with the outputs as they were asked for
      std::vector<int32_t> tokens, top_tokens;
      std::vector<float> logprobs, top_logprobs;
    };
    std::deque<Draw> in_flight_;
  };

  // Leaves rubbish where it will copy to until it does.
  class HeldTransfer final : public Transfer {
   public:
    HeldTransfer(FaultyBackend& backend, std::span<const TransferPiece> pieces,
                 std::function<void()> on_done);
    ~HeldTransfer() override;
    bool done() const override { return done_; }
    void Finish();

   private:
    FaultyBackend& backend_;
    const std::vector<TransferPiece> pieces_;
    const std::function<void()> on_done_;
    bool done_ = false;
  };

  const std::unique_ptr<Backend> inner_;
  bool holds_transfers_ = false;
  std::vector<HeldTransfer*> held_;
  LateKernels late_kernels_;
  int64_t replays_ = 0;
  absl::Status failure_;
  bool asynchronous_ = false;
  int allocations_left_ = -1;
  std::atomic<int> live_allocations_{0};
  int64_t available_bytes_ = int64_t{1} << 34;
};

}  // namespace mneme
