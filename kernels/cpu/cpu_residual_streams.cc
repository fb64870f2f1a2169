// Residual connections of several streams on the CPU: checks, and how they are divided.
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops/checks.h"

namespace mneme {

void CpuKernels::ExpandStreams(const ExpandStreamsArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  For(args.y.shape[0] * args.y.shape[1], 1, 0.2 * static_cast<double>(args.y.shape[2]),
      [&](int64_t begin, int64_t end) { ops_.expand_streams(args, begin, end); });
}

void CpuKernels::ReadStreams(const ReadStreamsArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const auto streams = static_cast<double>(args.x.shape[1]);
  For(args.x.shape[0], 1,
      0.15 * streams * (streams + 3) * static_cast<double>(args.x.shape[2]) + 1000,
      [&](int64_t begin, int64_t end) { ops_.read_streams(args, begin, end); });
}

void CpuKernels::WriteStreams(const WriteStreamsArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  For(args.y.shape[0] * args.y.shape[1], 1, 0.2 * static_cast<double>(args.y.shape[2]),
      [&](int64_t begin, int64_t end) { ops_.write_streams(args, begin, end); });
}

void CpuKernels::SumStreams(const SumStreamsArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  For(args.y.shape[0], 1, 0.1 * static_cast<double>(args.x.shape[1] * args.x.shape[2]),
      [&](int64_t begin, int64_t end) { ops_.sum_streams(args, begin, end); });
}

void CpuKernels::MixViews(const MixViewsArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const auto count = static_cast<double>(args.x.shape[0] * args.y.shape[0]);
  For(args.x.shape[1], 1, 0.15 * count * static_cast<double>(args.x.shape[2]),
      [&](int64_t begin, int64_t end) { ops_.mix_views(args, begin, end); });
}

}  // namespace mneme
