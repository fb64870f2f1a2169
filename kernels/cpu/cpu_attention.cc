// Attention on the CPU: tasks, and the step's keys and values on their way into the context.
#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops/checks.h"

namespace mneme {
namespace {

// Heads of tokens in a task: enough to be worth what its keys and values cost to fetch, few enough
// for the sums to stay near.
constexpr int64_t kQueriesOfTask = 64;

// Rows of one field, of the step's positions [begin, end), the row's first one being `first`.
void Append(const ContextView& context, const TensorView& from, int64_t slot, int64_t first_token,
            int64_t first, int64_t begin, int64_t end) {
  const int64_t width = from.shape[1] * from.shape[2];
  for (int64_t position = begin; position < end; ++position) {
    std::memcpy(context.At(slot, position),
                from.as<float>() + (first_token + position - first) * width,
                static_cast<size_t>(width) * sizeof(float));
  }
}

}  // namespace

void CpuKernels::Attention(const AttentionArgs& args) {
  Check(args, ActivationTypes{DType::kF32});
  CHECK(args.keys.dtype == DType::kF32 && args.values.dtype == DType::kF32) << "keys and values";
  const FlushDenormals flush;
  const int64_t heads = args.q.shape[1], kv_heads = args.k.shape[1], group = heads / kv_heads;
  const int64_t key_dim = args.k.shape[2], value_dim = args.v.shape[2];
  const int64_t held = args.keys.table.positions();
  const int tile = static_cast<int>(std::max<int64_t>(1, kQueriesOfTask / group));
  const int32_t* offsets = args.row_offsets.as<int32_t>();
  const auto position_of = [&](int64_t row) { return args.positions.as<int64_t>()[row]; };
  const auto slot_of = [&](int64_t row) { return args.slots.as<int32_t>()[row]; };

  attention_tasks_.clear();
  double nanoseconds = 0;
  for (int64_t row = 0; row < args.slots.shape[0]; ++row) {
    const int tokens = offsets[row + 1] - offsets[row];
    if (slot_of(row) < 0 || tokens == 0) continue;
    const int64_t end = position_of(row) + tokens;
    CHECK(args.window > 0 || args.segment > 0 || end <= held)
        << end << " positions in a table of " << held;
    const int64_t most = args.window > 0 ? args.window : args.segment > 0 ? args.segment : end;
    const int64_t seen = std::min(most, end) * (args.other_k.empty() ? 1 : 2);
    nanoseconds += 0.05 * static_cast<double>(tokens * seen) *
                   static_cast<double>(heads * (key_dim + value_dim));
    for (int begin = 0; begin < tokens; begin += tile) {
      for (int64_t head = 0; head < kv_heads; ++head) {
        attention_tasks_.push_back({.row = static_cast<int>(row),
                                    .kv_head = static_cast<int>(head),
                                    .begin = begin,
                                    .end = std::min(begin + tile, tokens)});
      }
    }
  }
  const auto run = [&](int64_t begin, int64_t end, int worker) {
    const int64_t floats = AttentionTask::ScratchFloats(tile * group, value_dim);
    auto* scratch = static_cast<float*>(
        workers_[static_cast<size_t>(worker)].attention.Reserve(floats * int64_t{sizeof(float)}));
    for (int64_t i = begin; i < end; ++i) {
      ops_.attention(args, attention_tasks_[static_cast<size_t>(i)], scratch);
    }
  };
  const auto tasks = static_cast<int64_t>(attention_tasks_.size());
  if (nanoseconds < kWorthSharingNanoseconds) {
    run(0, tasks, 0);
  } else {
    pool_.ParallelForDynamic(tasks, 1, run);
  }

  // Only now: of a ring, the step's rows take the place of those that its first tokens read.
  for (int64_t row = 0; row < args.slots.shape[0]; ++row) {
    if (slot_of(row) < 0) continue;
    const int64_t first = position_of(row), end = first + offsets[row + 1] - offsets[row];
    const int64_t begin = std::max(first, end - held);
    Append(args.keys, args.k, slot_of(row), offsets[row], first, begin, end);
    Append(args.values, args.v, slot_of(row), offsets[row], first, begin, end);
    if (args.other_k.empty()) continue;
    Append(args.other_keys, args.other_k, slot_of(row), offsets[row], first, begin, end);
    Append(args.other_values, args.other_v, slot_of(row), offsets[row], first, begin, end);
  }
}

}  // namespace mneme
