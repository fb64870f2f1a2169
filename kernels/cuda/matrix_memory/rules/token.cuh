// What a token does to some rows of a matrix, in the registers of a warp, by a rule that is known
// when the kernel is compiled.
#pragma once

#include "kernels/cuda/matrix_memory/row.cuh"
#include "kernels/cuda/matrix_memory/rules/problem.cuh"

namespace mneme::cuda::matrix_memory::rules {

// A rule, less what a kernel can look up: where the decay of a row comes from.
template <bool kKeyDecay_, MatrixRule::Correction kCorrection_>
struct Policy {
  static constexpr bool kKeyDecay = kKeyDecay_;  // else one for all elements of a row
  static constexpr MatrixRule::Correction kCorrection = kCorrection_;
  static constexpr bool kDelta = kCorrection == MatrixRule::Correction::kDelta;

  static bool Is(const MatrixRule& rule) {
    return (rule.decay == MatrixRule::Decay::kKey) == kKeyDecay && rule.correction == kCorrection &&
           rule.read == MatrixRule::Read::kAfter;
  }
};
using Additive = Policy<false, MatrixRule::Correction::kNone>;
using AdditiveKeyDecay = Policy<true, MatrixRule::Correction::kNone>;
using Delta = Policy<false, MatrixRule::Correction::kDelta>;
using DeltaKeyDecay = Policy<true, MatrixRule::Correction::kDelta>;

// A token of a head. A lane finishes one row, of which it has v and, unless keys have decays, the
// decay.
template <typename Rule, int kKeyDim>
struct Token {
  static constexpr int kSize = Lane<kKeyDim>::kSize;

  // Loads are on their way afterwards; Finish() is what comes when they are there.
  __device__ void LoadHead(const Problem& p, int64_t entry, int head) {
    LoadRow<kKeyDim>(p.k.At(entry, head, kKeyDim), k);
    LoadRow<kKeyDim>(p.q.At(entry, head, kKeyDim), q);
    if constexpr (Rule::kKeyDecay) LoadRow<kKeyDim>(p.decay.At(entry, head, kKeyDim), decays);
  }
  // The same of what is in shared memory; without decays of keys the last one is not read.
  __device__ void TakeHead(const float* shared_k, const float* shared_q,
                           const float* shared_decays) {
    LoadRow<kKeyDim>(shared_k, k);
    LoadRow<kKeyDim>(shared_q, q);
    if constexpr (Rule::kKeyDecay) LoadRow<kKeyDim>(shared_decays, decays);
  }
  // The row may be past the last one.
  __device__ void LoadValue(const Problem& p, int64_t entry, int head, int row) {
    row = min(row, p.value_dim - 1);
    v = p.v.At(entry, head, p.value_dim)[row];
    if constexpr (!Rule::kKeyDecay) decay = RowDecay(p, entry, head, row);
    if constexpr (Rule::kDelta) beta = *p.beta.At(entry, head, 1);
  }
  __device__ void Finish() {
    if constexpr (Rule::kKeyDecay) {
#pragma unroll
      for (float& d : decays) d = expf(d);
    }
    if constexpr (Rule::kDelta) k_dot_q = SumLanes(DotLane(k, q));
  }

  float k[kSize], q[kSize];
  float decays[Rule::kKeyDecay ? kSize : 1];
  float v, decay, beta, k_dot_q;
};

// Takes kRows rows, s, through a token. Returns the output of row lane % kRows, not scaled.
template <typename Rule, int kKeyDim, int kRows>
__device__ inline float TakeToken(const Token<Rule, kKeyDim>& token,
                                  float (&s)[kRows][Lane<kKeyDim>::kSize]) {
  constexpr int kSize = Lane<kKeyDim>::kSize;
  float recalls[kRows], reads[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float decay = Rule::kKeyDecay ? 0.0f : __shfl_sync(kAllLanes, token.decay, r);
    const float v = Rule::kDelta ? 0.0f : __shfl_sync(kAllLanes, token.v, r);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float x = __fmul_rn(Rule::kKeyDecay ? token.decays[i] : decay, s[r][i]);
      s[r][i] = Rule::kDelta ? x : __fmaf_rn(v, token.k[i], x);
    }
    if constexpr (Rule::kDelta) recalls[r] = DotLane(s[r], token.k);
    reads[r] = DotLane(s[r], token.q);
  }
  const float read = SumRows(reads);
  if constexpr (!Rule::kDelta) return read;
  const float recall = SumRows(recalls);
  const float u = __fmul_rn(token.beta, token.v - recall);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float write = __shfl_sync(kAllLanes, u, r);
#pragma unroll
    for (int i = 0; i < kSize; ++i) s[r][i] = __fmaf_rn(write, token.k[i], s[r][i]);
  }
  return __fmaf_rn(u, token.k_dot_q, read);
}

// Elements of a matrix that a warp has in registers at a time: 32 of a lane, or fewer.
constexpr int kWarpElements = 1024;

}  // namespace mneme::cuda::matrix_memory::rules
