// Attention within a row, in both directions. Built once per instruction set.
#include "kernels/cpu/attend.h"
#include "kernels/cpu/isa_functions.h"

namespace mneme::MNEME_ISA {

void SegmentAttention(const SegmentAttentionArgs& args, int row, int head, float* scores) {
  const int64_t dim = args.q.shape[2], pitch = args.q.shape[1] * dim;
  const int32_t first = args.row_offsets.as<int32_t>()[row];
  const int64_t begin = first * pitch + head * dim;
  const float* const keys = args.k.as<float>() + begin;
  const float* const values = args.v.as<float>() + begin;
  for (int64_t token = 0; token < args.row_offsets.as<int32_t>()[row + 1] - first; ++token) {
    const int64_t at = begin + token * pitch;
    Attend(args.q.as<float>() + at, keys, values, pitch, args.seen.as<int32_t>()[row], dim,
           args.scale, scores, /*sums=*/nullptr, args.out.as<float>() + at);
  }
}

}  // namespace mneme::MNEME_ISA
