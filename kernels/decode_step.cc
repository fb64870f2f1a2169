#include "kernels/decode_step.h"

#include <algorithm>

namespace mneme {
namespace {

bool Same(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.shape == b.shape;
}
bool Same(const StateView& a, const StateView& b) {
  return a.slab_bytes == b.slab_bytes && a.memory_bytes == b.memory_bytes && a.dtype == b.dtype;
}
bool Same(const PackedMatrix& a, const PackedMatrix& b) {
  return a.dtype == b.dtype && a.out_features == b.out_features && a.in_features == b.in_features &&
         (a.data == nullptr) == (b.data == nullptr);
}
bool Same(std::span<const PackedMatrix> a, std::span<const PackedMatrix> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const PackedMatrix& x, const PackedMatrix& y) { return Same(x, y); });
}
bool Same(const PendingWrites& a, const PendingWrites& b) {
  return a.capacity == b.capacity && Same(a.phase, b.phase) && Same(a.range, b.range) &&
         Same(a.keys, b.keys) && Same(a.updates, b.updates) && Same(a.log_decay, b.log_decay);
}
bool Same(const DeltaMixer& a, const DeltaMixer& b) {
  return Same(a.norm, b.norm) && a.norm_eps == b.norm_eps && Same(a.router, b.router) &&
         a.round_logits == b.round_logits && a.memories == b.memories && a.top_k == b.top_k &&
         a.shared == b.shared && a.heads == b.heads && a.key_dim == b.key_dim &&
         a.value_heads == b.value_heads && a.value_dim == b.value_dim && Same(a.q_proj, b.q_proj) &&
         Same(a.g_proj, b.g_proj) && Same(a.k_proj, b.k_proj) && Same(a.v_proj, b.v_proj) &&
         Same(a.a_proj, b.a_proj) && Same(a.b_proj, b.b_proj) && Same(a.q_conv, b.q_conv) &&
         Same(a.k_conv, b.k_conv) && Same(a.v_conv, b.v_conv) && Same(a.q_window, b.q_window) &&
         Same(a.k_window, b.k_window) && Same(a.v_window, b.v_window) && a.norms == b.norms &&
         Same(a.a_log, b.a_log) && Same(a.dt_bias, b.dt_bias) && a.beta_scale == b.beta_scale &&
         Same(a.written, b.written) && Same(a.state, b.state) && Same(a.pending, b.pending) &&
         Same(a.out_norm, b.out_norm) && a.out_norm_eps == b.out_norm_eps &&
         Same(a.out_proj, b.out_proj);
}
bool Same(const GatedFeedForward& a, const GatedFeedForward& b) {
  return Same(a.norm, b.norm) && a.norm_eps == b.norm_eps && Same(a.gate, b.gate) &&
         Same(a.up, b.up) && Same(a.down, b.down);
}

}  // namespace

bool HaveSameShape(const DecodeLayer& a, const DecodeLayer& b) {
  return Same(a.mixer, b.mixer) && Same(a.feed_forward, b.feed_forward);
}

}  // namespace mneme
