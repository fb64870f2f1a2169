// CpuKernels::Linear: all products of a call, cut into tasks that the workers take one by one.
#include <algorithm>

#include "base/log.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/packed_layout.h"
#include "kernels/ops/checks.h"

namespace mneme {
namespace {

// The cost of a panel, in multiply-adds for each of its outputs. Reading a weight of 16 bits takes
// as long as some ten multiplications by it.
int64_t PanelCost(const LinearTask& task) {
  const int64_t reading = 5 * SizeOf(task.weights.dtype);
  return task.weights.in_features * std::max<int64_t>(reading, task.entries);
}

}  // namespace

void CpuKernels::AddLinearTasks(const LinearArgs& args) {
  Check(args, {DType::kF32});
  const PackedMatrix& shape = args.weights[0];
  const int64_t entries = args.y.shape[0];
  const bool grouped = !args.group_offsets.empty();
  const int64_t groups = static_cast<int64_t>(args.weights.size());
  const int32_t whole[] = {0, static_cast<int32_t>(entries)};
  const int32_t* offsets = grouped ? args.group_offsets.as<int32_t>() : whole;
  for (int64_t g = 0; g < groups; ++g) {
    CHECK(offsets[g] >= 0 && offsets[g] <= offsets[g + 1] && offsets[g + 1] <= entries);
    for (int32_t first = offsets[g]; first < offsets[g + 1]; first += ops_.max_entries) {
      LinearTask task;
      task.entries = std::min(offsets[g + 1] - first, ops_.max_entries);
      task.weights = args.weights[static_cast<size_t>(g)];
      task.x = args.x.as<float>();
      if (!args.entry_rows.empty()) {
        task.entry_rows = args.entry_rows.as<int32_t>() + first;
      } else {
        task.x += int64_t{first} * shape.in_features;
      }
      task.y = args.y.as<float>() + int64_t{first} * shape.out_features;
      task.accumulate = args.accumulate;
      task.round_activations = round_activations_;
      task.panel_end = Panels(shape.out_features);
      linear_whole_.push_back(task);
    }
  }
}

// Tasks that read the same activations follow each other, so that a worker copies them once.
//
// Guided self-scheduling: each task is a fixed part of the work that is left, so that the first are
// long, for steady streams of weights, and the last short, for workers to finish together.
void CpuKernels::CutLinearTasks() {
  std::stable_sort(linear_whole_.begin(), linear_whole_.end(),
                   [](const LinearTask& a, const LinearTask& b) {
                     return a.x != b.x ? a.x < b.x : a.entry_rows < b.entry_rows;
                   });
  int64_t left = 0;
  for (const LinearTask& task : linear_whole_) {
    left += PanelCost(task) * (task.panel_end - task.panel_begin);
  }
  const int64_t smallest = left / (32 * pool_.threads());
  for (LinearTask task : linear_whole_) {
    const int64_t panel_cost = PanelCost(task);
    const int end = task.panel_end;
    while (task.panel_begin < end) {
      const int64_t cost = std::max(smallest, left / (2 * pool_.threads()));
      const int step = ops_.linear_panel_step(task);
      const int64_t panels = std::max<int64_t>(1, (cost / panel_cost + step / 2) / step) * step;
      task.panel_end = static_cast<int>(std::min<int64_t>(end, task.panel_begin + panels));
      linear_tasks_.push_back(task);
      left -= panel_cost * (task.panel_end - task.panel_begin);
      task.panel_begin = task.panel_end;
    }
  }
}

void CpuKernels::Linear(std::span<const LinearArgs> products) {
  const FlushDenormals flush;
  linear_whole_.clear();
  linear_tasks_.clear();
  for (const LinearArgs& args : products) AddLinearTasks(args);
  CutLinearTasks();

  int64_t scratch_bytes = 0;
  double nanoseconds = 0;
  for (const LinearTask& task : linear_whole_) {
    scratch_bytes =
        std::max(scratch_bytes, ops_.linear_scratch_bytes(task.entries, task.weights.in_features));
    nanoseconds += 0.3 * static_cast<double>(PanelCost(task) * (task.panel_end - task.panel_begin));
  }
  for (Worker& worker : workers_) {
    worker.linear_scratch = {};
    worker.linear_scratch.data = worker.linear.Reserve(scratch_bytes);
  }
  const auto run = [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      ops_.linear(linear_tasks_[static_cast<size_t>(i)],
                  workers_[static_cast<size_t>(worker)].linear_scratch);
    }
  };
  const int64_t tasks = static_cast<int64_t>(linear_tasks_.size());
  if (nanoseconds < 5000) {
    run(0, tasks, 0);
  } else {
    pool_.ParallelForDynamic(tasks, 1, run);
  }
  for (const LinearArgs& args : products) {
    if (args.bias.empty()) continue;
    AddBias({.bias = args.bias, .group_offsets = args.group_offsets, .y = args.y});
  }
}

}  // namespace mneme
