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

RowIndex IndexRows(const ForwardContext& ctx) {
  const StepBatch& batch = ctx.batch;
  const RowIndex index = {.token_positions = ctx.workspace.Temp(DType::kI64, {batch.tokens}),
                          .segments = {.count = batch.rows,
                                       .offsets = batch.row_offsets,
                                       .slots = batch.slots,
                                       .memories = ctx.TempIndices({batch.rows}),
                                       .fresh = ctx.TempIndices({batch.rows}),
                                       .longest = batch.longest_row,
                                       .longer = batch.longer_rows}};
  ctx.kernels().IndexRows({.row_offsets = batch.row_offsets,
                           .slots = batch.slots,
                           .positions = batch.positions,
                           .prefix = ctx.prefix,
                           .token_positions = index.token_positions,
                           .segments = index.segments});
  return index;
}

}  // namespace mneme
