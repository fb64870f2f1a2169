// Chooses the kernels of a matrix memory.
#include <algorithm>

#include "base/log.h"
#include "kernels/cuda/matrix_memory/chunked/chunked.h"
#include "kernels/cuda/matrix_memory/held/held.h"
#include "kernels/cuda/matrix_memory/matrix_memory.h"
#include "kernels/cuda/matrix_memory/rules/rules.h"
#include "kernels/held_rules.h"

namespace mneme::cuda::matrix_memory {

namespace rules {

Problem MakeProblem(const MatrixMemoryArgs& args) {
  const int heads = static_cast<int>(args.out.shape[1]);
  const auto rows_of = [heads](const TensorView& tensor) -> HeadRows {
    if (tensor.empty()) return {nullptr, 1, 1};
    const int n = static_cast<int>(tensor.shape[1]);
    return {tensor.as<const float>(), n, heads / n};
  };
  const bool constant = args.rule.decay == MatrixRule::Decay::kConstant;
  Problem p = {};
  p.rule = args.rule;
  p.q = rows_of(args.q);
  p.k = rows_of(args.k);
  p.v = rows_of(args.v);
  if (constant) {
    p.constant = args.log_decay.as<const float>();
  } else {
    p.decay = rows_of(args.log_decay);
  }
  p.beta = rows_of(args.beta);
  p.c = rows_of(args.c);
  p.e = rows_of(args.e);
  p.bonus = args.bonus.as<const float>();
  p.out = args.out.as<float>();
  p.scale = args.scale;
  p.segments = ArraysOf(args.segments);
  p.state = Field(args.state);
  p.heads = heads;
  p.key_dim = static_cast<int>(args.k.shape[2]);
  p.value_dim = static_cast<int>(args.out.shape[2]);
  p.lengths = Lengths::kAny;
  return p;
}

}  // namespace rules

void MatrixMemory(Device& device, const MatrixMemoryArgs& args, bool early) {
  rules::Problem problem = rules::MakeProblem(args);
  const DType state_dtype = args.state.dtype;
  const bool tuned = rules::Supports(problem, state_dtype);
  const bool gated_delta = IsGatedDelta(args);
  // The delta rule without a decay is the gated one's where that has chunks or holds writes back.
  const bool decays = args.rule.decay != MatrixRule::Decay::kNone;
  const bool holds = args.pending.capacity > 0;
  const bool held =
      holds && tuned && HoldsBack(args.rule, problem.key_dim, problem.value_dim, state_dtype);
  const bool at_once = held && args.segments.longest == 1 && held::FitsAtOnce(device, args);
  if (gated_delta && (decays || !tuned || (holds && !at_once))) {
    return GatedDeltaRule(device, args);
  }
  CHECK(held || !holds) << "pending writes of a rule that nothing holds back for";
  const int64_t entries = args.out.shape[0], segments = args.segments.count;
  if (segments == 0 || entries == 0) return;
  const bool longer = args.segments.longest != 1 && entries > 1;
  const bool in_chunks =
      longer && device.compute_dtype() == DType::kBF16 && chunked::SupportsRule(device, args);
  if (longer && holds) held::SettleSegments(device, args);
  if (in_chunks) chunked::MatrixChunks(device, args);
  if (!tuned) {
    if (in_chunks) problem.lengths = rules::Lengths::kOne;
    return rules::LaunchAnyShape(device, problem, state_dtype);
  }
  if (longer && !in_chunks) {
    problem.lengths = rules::Lengths::kLonger;
    rules::LaunchTuned(device, problem, state_dtype, rules::Tile::kTokens);
  }
  if (holds) return held::LaunchDecode(device, args, early && !longer);
  problem.lengths = rules::Lengths::kOne;
  // The scales of int8 rows come by way of the multiprocessor's cache.
  problem.early = early && !longer && state_dtype != DType::kI8;
  const int64_t head_states = std::min(entries, segments) * problem.heads;
  rules::LaunchTuned(device, problem, state_dtype,
                     rules::PlanDecode(device, problem, head_states, state_dtype));
}

}  // namespace mneme::cuda::matrix_memory
