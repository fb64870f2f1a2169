#include "models/forward_context.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

constexpr int64_t kWorkspaceAlignment = 64;

}  // namespace

absl::StatusOr<Workspace> Workspace::Create(Backend& backend, int64_t bytes) {
  Workspace workspace;
  MNEME_ASSIGN_OR_RETURN(workspace.buffer_,
                         Buffer::Allocate(backend, std::max(bytes, kWorkspaceAlignment)));
  workspace.base_ = workspace.buffer_.data();
  workspace.capacity_ = workspace.buffer_.bytes();
  return workspace;
}

Workspace Workspace::ForMeasuring() {
  Workspace workspace;
  // Not null, so that a view with a shape is never taken for an absent one.
  workspace.base_ = reinterpret_cast<std::byte*>(kWorkspaceAlignment);
  workspace.capacity_ = std::numeric_limits<int64_t>::max() / 2;
  return workspace;
}

TensorView Workspace::Temp(DType dtype, Shape shape) {
  const TensorView view{base_ + used_, dtype, shape};
  used_ += (view.bytes() + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  CHECK_LE(used_, capacity_) << "workspace is too small for this step";
  peak_ = std::max(peak_, used_);
  return view;
}

}  // namespace mneme
