// One token through a Mamba-2 layer: the convolutions in front of the memories, these, and what
// is behind them. The kernel here takes rows of matrices as matrix_memory/rules/rows.cuh does, with
// their step sizes in front and skip and gate behind; writes are held back by matrix_memory/held/.
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/state_dispatch.h"
#include "kernels/cuda/dense/dense.h"
#include "kernels/cuda/matrix_memory/held/held.h"
#include "kernels/cuda/matrix_memory/held/places.cuh"
#include "kernels/cuda/matrix_memory/matrix_memory.h"
#include "kernels/cuda/matrix_memory/rules/launch.cuh"
#include "kernels/cuda/scan/scan.h"
#include "kernels/cuda/scan/token.cuh"
#include "kernels/held_rules.h"

namespace mneme::cuda::scan {
namespace {

namespace rules = matrix_memory::rules;

struct StepProblem {
  rules::Problem memory;
  const float *u, *dt, *dt_bias, *a;
  float least, most;
  const float *skip, *gate;  // no gate: none
  matrix_memory::Problem pending;
};

// Rows that hold writes back take in what is pending for them.
template <int kStates, int kRows, typename Rows>
__device__ inline void AddPending(const matrix_memory::Problem& p, const matrix_memory::Item& item,
                                  const matrix_memory::Range& range, Rows& rows) {
  using matrix_memory::Cache;
  constexpr int kSize = matrix_memory::Lane<kStates>::kSize;
  const float* const keys = p.keys.At<const float>(item.slot, item.memory);
  const float* const updates = p.updates.At<const float>(item.slot, item.memory);
  const float* const decays = p.decays.At<const float>(item.slot, item.memory);
  for (int j = range.begin; j < range.end; ++j) {
    const int64_t at = matrix_memory::held::HeadAt(p, j, item.head);
    const int64_t key_at = matrix_memory::held::KeyAt(p, j, item.head);
    float key[kSize];
    matrix_memory::LoadRow<kStates, Cache::kGlobal>(keys + key_at * kStates, key);
    const float own = __ldcg(updates + at * p.value_dim + min(rows.row, p.value_dim - 1));
    const float decay = expf(__ldcg(decays + at));
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float update = __shfl_sync(kAllLanes, own, r);
#pragma unroll
      for (int i = 0; i < kSize; ++i) rows.s[r][i] = fmaf(update, key[i], decay * rows.s[r][i]);
    }
  }
}

// kHolds: other steps hold writes back, and p.pending is set.
template <typename T, int kStates, int kRows, bool kHolds, typename Y>
__global__ void __launch_bounds__(rules::kRowThreads, rules::BlocksOf(kRows* kStates))
    StepKernel(const __grid_constant__ StepProblem p, Y* y) {
  LetNextKernelStart();
  if (!p.memory.early) WaitForPreviousKernel();
  rules::Piece piece;
  if (!rules::FindPiece(p.memory, blockIdx.x, piece)) {
    WaitForPreviousKernel();
    return;
  }
  // Past the cache of the multiprocessor, as in rules/rows.cuh.
  rules::WarpRows<T, kStates, kRows, matrix_memory::Cache::kGlobal> rows(p.memory, piece);
  if constexpr (kHolds) {
    const matrix_memory::Item item = {.slot = piece.slot,
                                      .memory = piece.memory,
                                      .head = piece.head,
                                      .tile = piece.tile,
                                      .first = piece.first,
                                      .length = 1,
                                      .fresh = piece.fresh};
    const matrix_memory::Range range = matrix_memory::ReadRange(p.pending, item);
    if (range.size() > 0) AddPending<kStates, kRows>(p.pending, item, range, rows);
    if (p.memory.early) WaitForPreviousKernel();
    if (range.size() > 0 || item.fresh) {
      __syncthreads();  // all have read the range
      matrix_memory::RangeChange change;
      if (threadIdx.x == 0) change.Begin(p.pending, item, range, /*fold=*/true);
      change.Finish();
    }
  } else {
    if (p.memory.early) WaitForPreviousKernel();
  }
  if (rows.count <= 0) return;
  rules::Token<rules::Additive, kStates> token;
  token.LoadHead(p.memory, piece.first, piece.head);
  const int dim = p.memory.value_dim, row = min(rows.row, dim - 1);
  const int64_t head = int64_t{piece.first} * p.memory.heads + piece.head;
  const int64_t at = head * dim + row;
  const float u = p.u[at], skip = p.skip[piece.head * dim + row];
  const float gate = p.gate != nullptr ? p.gate[at] : 0.0f;
  const float step = fminf(p.most, fmaxf(p.least, Softplus(p.dt[head] + p.dt_bias[piece.head])));
  token.decay = expf(step * p.a[piece.head]);
  token.v = step * u;
  token.Finish();
  float out = fmaf(skip, u, p.memory.scale * rules::TakeToken(token, rows.s));
  if (p.gate != nullptr) out *= Silu(gate);
  if (threadIdx.x % kWarp < rows.count) y[at] = FromFloat<Y>(out);
  rows.Store();
}

template <typename T, int kStates, typename Y>
void Launch(Device& device, StepProblem p, Y* y) {
  constexpr int kRows = rules::kWarpElements / kStates / 2;
  const int blocks = rules::PlanRows<kRows>(p.memory);
  const auto launch = [&](auto kernel) {
    LaunchOverlapping(device, "step of Mamba-2", kernel, blocks, rules::kRowThreads, 0, 1, p, y);
  };
  if constexpr (std::is_same_v<T, float>) {
    if (p.pending.capacity > 0) {
      p.pending.tiles = p.memory.tiles;
      if (!matrix_memory::RangeCountFits(device, p.pending)) return;
      return launch(StepKernel<T, kStates, kRows, true, Y>);
    }
  }
  launch(StepKernel<T, kStates, kRows, false, Y>);
}

// Convolutions as one kernel. Whether the one behind it may begin to read its state.
bool Convolve(Device& device, std::span<const ShortConvArgs> convolutions,
              const Segments& segments) {
  std::vector<MemoryStream> streams;
  for (const ShortConvArgs& convolution : convolutions) {
    streams.push_back({.convolution = convolution, .activation = {}, .last = {}});
  }
  bool launched = false;
  if (!streams.empty() &&
      !matrix_memory::LaunchStreams(device, streams, segments, &launched, /*known=*/true)) {
    matrix_memory::ShortConv(device, convolutions);
  }
  return launched;
}

// What is behind memories that have been read.
void PutOut(Device& device, const Mamba2StepArgs& args, const GatedRmsNormArgs* norm) {
  const bool gated = !args.gate.y.empty();
  if (gated && norm != nullptr &&
      Mamba2Output(device, {.skip = args.skip, .gate = args.gate, .norm = *norm})) {
    return;
  }
  dense::AddScaled(device, args.skip);
  if (gated) dense::SwiGlu(device, args.gate);
  if (norm != nullptr) dense::GatedRmsNorm(device, *norm);
}

}  // namespace

bool Mamba2LayerStep(Device& device, const Mamba2LayerStepArgs& layer) {
  const Mamba2StepArgs& args = layer.step;
  const MatrixMemoryArgs& memory = args.memory;
  StepProblem p = {};
  p.memory = rules::MakeProblem(memory);
  const int states = p.memory.key_dim;
  const bool holds = memory.pending.capacity > 0;
  const int rows = p.memory.value_dim;
  if (memory.segments.longest != 1 ||
      (holds && !HoldsBack(memory.rule, states, rows, memory.state.dtype)) ||
      memory.rule.decay != MatrixRule::Decay::kHead || !rules::Additive::Is(memory.rule) ||
      (states != 64 && states != 128 && states != 256) || p.memory.v.group != 1 ||
      !rules::Supports(p.memory, memory.state.dtype)) {
    return false;
  }
  if (memory.segments.count == 0 || memory.out.shape[0] == 0) return true;
  const bool early = Convolve(device, layer.convolutions, memory.segments);
  if (holds && !matrix_memory::held::AreFew(device, memory)) {
    matrix_memory::held::LaunchDecode(device, memory, early, &args.discretize);
    PutOut(device, args, layer.norm);
    return true;
  }
  if (holds) p.pending = matrix_memory::held::ProblemOfWrites(memory);
  p.memory.lengths = rules::Lengths::kOne;
  // The scales of int8 rows come by way of the multiprocessor's cache.
  p.memory.early = early && memory.state.dtype != DType::kI8;
  p.u = args.discretize.u.as<const float>();
  p.dt = args.discretize.dt.as<const float>();
  p.dt_bias = args.discretize.dt_bias.as<const float>();
  p.a = args.discretize.a.as<const float>();
  p.least = args.discretize.least_step;
  p.most = args.discretize.most_step;
  p.skip = args.skip.scale.as<const float>();
  const bool gated = !args.gate.y.empty();
  if (gated) p.gate = args.gate.gate.as<const float>();
  const TensorView& y = gated ? args.gate.y : args.skip.y;
  ForStateType(memory.state.dtype, [&]<typename T>() {
    const auto launch = [&]<typename Y>(Y* to) {
      if (states == 64) return Launch<T, 64>(device, p, to);
      if (states == 128) return Launch<T, 128>(device, p, to);
      Launch<T, 256>(device, p, to);
    };
    if (y.dtype == DType::kBF16) return launch(y.as<__nv_bfloat16>());
    launch(y.as<float>());
  });
  if (layer.norm != nullptr) dense::GatedRmsNorm(device, *layer.norm);
  return true;
}

}  // namespace mneme::cuda::scan
