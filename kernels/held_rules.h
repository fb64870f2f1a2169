// Which memories may hold writes back (PendingWrites), of the rules that are not the gated delta
// rule: what a model that keeps their state and a device that writes it agree on.
#pragma once

#include "kernels/ops/matrix_memory.h"
#include "kernels/tensor_view.h"

namespace mneme {

// How many writes such a memory holds back, at most: with its decays a write has three vectors for
// the gated delta rule's two, and with half as many of them a step moves as few bytes.
constexpr int kHeldWrites = 8;

// Whether memories under a rule do: matrices of f32, [heads, value_dim, key_dim]. Tensors have as
// many heads, but for keys and queries of decays of heads, which heads may share; they then share
// the pending keys, too. Their terms are
//
//   S = S_0 diag(E_0) + sum_{j <= n} u_j (E_j k_j)^T     E_j = exp( the log decays after write j )
//
// PendingWrites::log_decay is then [capacity, heads, key_dim] per memory where keys have decays,
// else [capacity, heads]; u_j is v_j where the rule corrects nothing.
constexpr bool HoldsBack(const MatrixRule& rule, int key_dim, int value_dim, DType memory_dtype) {
  const bool decays = rule.decay == MatrixRule::Decay::kNone ||
                      rule.decay == MatrixRule::Decay::kConstant ||
                      rule.decay == MatrixRule::Decay::kKey;
  // With a correction, decays of heads are the gated delta rule's.
  const bool by_head =
      rule.decay == MatrixRule::Decay::kHead && rule.correction == MatrixRule::Correction::kNone;
  return (decays || by_head) && rule.correction != MatrixRule::Correction::kGeneral &&
         rule.read == MatrixRule::Read::kAfter && memory_dtype == DType::kF32 &&
         (key_dim == 64 || key_dim == 128 || key_dim == 256) && value_dim % 4 == 0;
}

}  // namespace mneme
