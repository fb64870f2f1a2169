// What a token does to some rows of a matrix, in the registers of a warp, by a rule that is known
// when the kernel is compiled.
#pragma once

#include "kernels/cuda/matrix_memory/row.cuh"
#include "kernels/cuda/matrix_memory/rules/problem.cuh"

namespace mneme::cuda::matrix_memory::rules {

// A rule, less what a kernel can look up: where the decay of a row comes from.
template <bool kKeyDecay_, MatrixRule::Correction kCorrection_,
          MatrixRule::Read kRead_ = MatrixRule::Read::kAfter>
struct Policy {
  static constexpr bool kKeyDecay = kKeyDecay_;  // else one for all elements of a row
  static constexpr MatrixRule::Correction kCorrection = kCorrection_;
  static constexpr MatrixRule::Read kRead = kRead_;
  static constexpr bool kDelta = kCorrection == MatrixRule::Correction::kDelta;
  static constexpr bool kGeneral = kCorrection == MatrixRule::Correction::kGeneral;
  static constexpr bool kBonus = kRead == MatrixRule::Read::kBeforeWithBonus;
  // What all rows of a head are multiplied by: k, q, decays, c, e or a bonus, in this order.
  static constexpr int kVectors = 2 + kKeyDecay + 2 * kGeneral + kBonus;
  // RWKV has no longer ones, and more vectors of them would not fit into registers.
  static constexpr int kMostKeyDim = kGeneral || kBonus ? 128 : 512;

  static bool Is(const MatrixRule& rule) {
    return (rule.decay == MatrixRule::Decay::kKey) == kKeyDecay && rule.correction == kCorrection &&
           rule.read == kRead;
  }
};
using Additive = Policy<false, MatrixRule::Correction::kNone>;
using AdditiveKeyDecay = Policy<true, MatrixRule::Correction::kNone>;
using Delta = Policy<false, MatrixRule::Correction::kDelta>;
using DeltaKeyDecay = Policy<true, MatrixRule::Correction::kDelta>;
using GeneralKeyDecay = Policy<true, MatrixRule::Correction::kGeneral>;
using BonusKeyDecay =
    Policy<true, MatrixRule::Correction::kNone, MatrixRule::Read::kBeforeWithBonus>;

// A token of a head. A lane finishes one row, of which it has v and, unless keys have decays, the
// decay.
template <typename Rule, int kKeyDim>
struct Token {
  static constexpr int kSize = Lane<kKeyDim>::kSize;

  // Where the vectors of a head are, in the order of Policy::kVectors.
  __device__ static void FindVectors(const Problem& p, int64_t entry, int head,
                                     const float* (&from)[Rule::kVectors]) {
    from[0] = p.k.At(entry, head, kKeyDim);
    from[1] = p.q.At(entry, head, kKeyDim);
    if constexpr (Rule::kKeyDecay) from[2] = p.decay.At(entry, head, kKeyDim);
    if constexpr (Rule::kGeneral) {
      from[Rule::kVectors - 2] = p.c.At(entry, head, kKeyDim);
      from[Rule::kVectors - 1] = p.e.At(entry, head, kKeyDim);
    }
    if constexpr (Rule::kBonus) from[Rule::kVectors - 1] = p.bonus + int64_t{head} * kKeyDim;
  }
  // Takes those vectors. Loads are on their way afterwards; Finish() is what comes when they are
  // there.
  __device__ void TakeVectors(const float* const (&from)[Rule::kVectors]) {
    LoadRow<kKeyDim>(from[0], k);
    LoadRow<kKeyDim>(from[1], q);
    if constexpr (Rule::kKeyDecay) LoadRow<kKeyDim>(from[2], decays);
    if constexpr (Rule::kGeneral) {
      LoadRow<kKeyDim>(from[Rule::kVectors - 2], c);
      LoadRow<kKeyDim>(from[Rule::kVectors - 1], e);
    }
    if constexpr (Rule::kBonus) LoadRow<kKeyDim>(from[Rule::kVectors - 1], bonus);
  }
  __device__ void LoadHead(const Problem& p, int64_t entry, int head) {
    const float* from[Rule::kVectors];
    FindVectors(p, entry, head, from);
    TakeVectors(from);
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
    if constexpr (Rule::kDelta) written_dot_q = SumLanes(DotLane(k, q));
    if constexpr (Rule::kGeneral) written_dot_q = SumLanes(DotLane(e, q));
    if constexpr (Rule::kBonus) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kSize; ++i) sum = __fmaf_rn(__fmul_rn(q[i], bonus[i]), k[i], sum);
      through = SumLanes(sum);
    }
  }

  float k[kSize], q[kSize];
  float decays[Rule::kKeyDecay ? kSize : 1];
  float c[Rule::kGeneral ? kSize : 1], e[Rule::kGeneral ? kSize : 1];
  float bonus[Rule::kBonus ? kSize : 1];
  float v, decay, beta;
  float written_dot_q;  // of what is written last: k, or e
  float through;        // what q gets of v past the matrix
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
    if constexpr (Rule::kGeneral) recalls[r] = DotLane(s[r], token.c);
    if constexpr (Rule::kBonus) reads[r] = DotLane(s[r], token.q);
    const float v = Rule::kDelta ? 0.0f : __shfl_sync(kAllLanes, token.v, r);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float x = __fmul_rn(Rule::kKeyDecay ? token.decays[i] : decay, s[r][i]);
      s[r][i] = Rule::kDelta ? x : __fmaf_rn(v, token.k[i], x);
    }
    if constexpr (Rule::kDelta) recalls[r] = DotLane(s[r], token.k);
    if constexpr (!Rule::kBonus) reads[r] = DotLane(s[r], token.q);
  }
  const float read = SumRows(reads);
  if constexpr (Rule::kBonus) return __fmaf_rn(token.through, token.v, read);
  if constexpr (!Rule::kDelta && !Rule::kGeneral) return read;
  const float recall = SumRows(recalls);
  const float u = Rule::kGeneral ? recall : __fmul_rn(token.beta, token.v - recall);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float write = __shfl_sync(kAllLanes, u, r);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      s[r][i] = __fmaf_rn(write, Rule::kGeneral ? token.e[i] : token.k[i], s[r][i]);
    }
  }
  return __fmaf_rn(u, token.written_dot_q, read);
}

// Elements of a matrix that a warp has in registers at a time: 32 of a lane, or fewer.
constexpr int kWarpElements = 1024;

}  // namespace mneme::cuda::matrix_memory::rules
