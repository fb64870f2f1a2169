// The general correction, keys with decays: RWKV-7.
#include <cstdlib>
#include <type_traits>

#include "kernels/cuda/matrix_memory/rules/launch.cuh"
#include "kernels/cuda/matrix_memory/rules/pairs.cuh"

namespace mneme::cuda::matrix_memory::rules {
namespace {

// Segments of one entry, 64 rows a block.
template <typename T, typename Shape, bool kHint>
__global__ void __launch_bounds__(Shape::kWarps* kWarp, Shape::kMultiprocessorBlocks)
    PairsKernel(const __grid_constant__ Problem p) {
  using Rows = PairRows<T, Shape::kPairs, Shape::kRounds, kHint>;
  __shared__ typename Rows::Copy copies[Shape::kWarps];
  LetNextKernelStart();
  if (!p.early) WaitForPreviousKernel();
  Piece piece;
  if (!FindPiece(p, blockIdx.x, piece)) {
    WaitForPreviousKernel();
    return;
  }
  const int warp = threadIdx.x / kWarp;
  Rows rows(p, piece, (piece.tile * Shape::kWarps + warp) * Rows::kAllRows, copies[warp]);
  if (p.early) WaitForPreviousKernel();
  PairToken token;
  PairToken::Load(p.k.At(piece.first, piece.head, kPairKeys), token.k);
  PairToken::Load(p.q.At(piece.first, piece.head, kPairKeys), token.q);
  PairToken::Load(p.decay.At(piece.first, piece.head, kPairKeys), token.decays);
  PairToken::Load(p.c.At(piece.first, piece.head, kPairKeys), token.c);
  PairToken::Load(p.e.At(piece.first, piece.head, kPairKeys), token.e);
  const float* const from = p.v.At(piece.first, piece.head, p.value_dim) + rows.row;
  float v[Shape::kRounds];  // all before any output, which may take its place
#pragma unroll
  for (int r = 0; r < Shape::kRounds; ++r) v[r] = from[r * Rows::kRows];
  token.Finish();
  float* const out = p.out + (int64_t{piece.first} * p.heads + piece.head) * p.value_dim + rows.row;
  Rows::ForRounds([&](auto round) {
    const float y = p.scale * rows.template Take<round>(token, v[round]);
    if (Rows::Finishes()) out[round * Rows::kRows] = y;
  });
}

template <typename T>
void LaunchPairs(Device& device, Problem p, Tile tile) {
  p.tiles = p.value_dim / kPairKeys;
  static const bool hint = std::getenv("MNEME_HINT") != nullptr;
  WithPairShape(tile, [&]<typename Shape>(Shape) {
    LaunchOverlapping(device, "matrix memory, rows in pairs",
                      hint ? PairsKernel<T, Shape, true> : PairsKernel<T, Shape, false>,
                      p.segments.count * p.heads * p.tiles, Shape::kWarps * kWarp, 0, 1, p);
  });
}

}  // namespace

void LaunchGeneralKeyDecay(Device& device, const Problem& problem, DType state_dtype, Tile tile) {
  if (tile != Tile::kTokens && GoesInPairs(problem, state_dtype)) {
    return state_dtype == DType::kF32 ? LaunchPairs<float>(device, problem, tile)
                                      : LaunchPairs<__half>(device, problem, tile);
  }
  LaunchTunedRule<GeneralKeyDecay>(device, problem, state_dtype, tile);
}

}  // namespace mneme::cuda::matrix_memory::rules
