// A model without a network, for tests of what is kept of sessions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "models/model.h"
#include "models/state_layout.h"

namespace mneme {

// A model that is its layout.
class LayoutModel final : public Model {
 public:
  explicit LayoutModel(StateLayout layout, ModelInfo info = {})
      : info_(std::move(info)), layout_(std::move(layout)) {}
  const ModelInfo& info() const override { return info_; }
  const StateLayout& state_layout() const override { return layout_; }
  absl::Status InitState(Backend&, std::byte*) const override { return absl::OkStatus(); }
  void Forward(ForwardContext&, const TensorView&, const TensorView&) const override {}
  void Settle(ForwardContext&, const TensorView&) const override {}
  int64_t WorkspaceBytes(int, int, int) const override { return 64; }

 private:
  const ModelInfo info_;
  const StateLayout layout_;
};

}  // namespace mneme
