// Writes to a memory that a device holds back, and folds into the matrix later.
#pragma once

#include "kernels/tensor_view.h"

namespace mneme {

// The dtype of keys and updates: beside matrices of 16 and 8 bits, which round more, they are f16,
// and saturate beyond 65504.
constexpr DType PendingDType(DType memory_dtype) {
  return memory_dtype == DType::kF32 ? DType::kF32 : DType::kF16;
}

// A device may hold back the last writes to a memory: it keeps them beside the matrix and folds
// them only every so many tokens, which halves the traffic of a decode step. With n writes pending,
// of keys k_j, updates u_j and log decays g_j, the memory stands for
//
//   S = exp(G_n) S_0 + sum_{j <= n} exp(G_n - G_j) u_j k_j^T      G_j = g_1 + ... + g_j
//
// exactly; a token needs S_0 k, S_0 q and the products k_j.k and k_j.q alone. A fresh memory has no
// pending writes, whatever its fields hold.
struct PendingWrites {
  int capacity = 0;  // 0: the device writes every token; the views are unset
  // i32, one of a slab, not of each memory: where the places of a memory begin whenever nothing is
  // pending, and so the tokens at which it is added up. A session is given one of capacity + 1 when
  // it is born, in turn, and keeps it wherever its slab is copied: a batch's memories then do not
  // all fold in the same step, and a session's bits do not depend on where it lies. One number
  // serves all layers: a birth writes one word, and kernels keep memories of a layer apart.
  StateView phase;
  // Per memory: i32 [2], the writes [begin, end) of the following are pending. A memory whose
  // begin == end has none, whatever the two are.
  StateView range;
  StateView keys;     // per memory: [capacity, heads, key_dim] PendingDType
  StateView updates;  // per memory: [capacity, value_heads, value_dim] PendingDType
  // Per memory: [capacity, value_heads] f32, g_j; under rules whose keys have decays [capacity,
  // value_heads, key_dim] (kernels/held_rules.h). Not G_j: a difference of two large sums would
  // lose what the terms' weights depend on.
  StateView log_decay;
};

}  // namespace mneme
