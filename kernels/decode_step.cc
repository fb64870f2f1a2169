#include "kernels/decode_step.h"

#include <algorithm>
#include <span>
#include <tuple>

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
// All fields of a struct: a binding that leaves one out does not compile.
auto FieldsOf(const PendingWrites& x) {
  const auto& [capacity, phase, range, keys, updates, log_decay] = x;
  return std::tie(capacity, phase, range, keys, updates, log_decay);
}
auto FieldsOf(const DeltaMixer& x) {
  const auto& [norm, norm_eps, router, round_logits, memories, top_k, shared, heads, key_dim,
               value_heads, value_dim, q_proj, g_proj, k_proj, v_proj, a_proj, b_proj, q_conv,
               k_conv, v_conv, q_window, k_window, v_window, norms, a_log, dt_bias, beta_scale,
               written, state, pending, out_norm, out_norm_eps, out_proj] = x;
  return std::tie(norm, norm_eps, router, round_logits, memories, top_k, shared, heads, key_dim,
                  value_heads, value_dim, q_proj, g_proj, k_proj, v_proj, a_proj, b_proj, q_conv,
                  k_conv, v_conv, q_window, k_window, v_window, norms, a_log, dt_bias, beta_scale,
                  written, state, pending, out_norm, out_norm_eps, out_proj);
}
auto FieldsOf(const GatedFeedForward& x) {
  const auto& [norm, norm_eps, gate, up, down] = x;
  return std::tie(norm, norm_eps, gate, up, down);
}
auto FieldsOf(const DecodeLayer& x) {
  const auto& [mixer, feed_forward] = x;
  return std::tie(mixer, feed_forward);
}

// Numbers are the same where they are equal.
template <typename T>
bool Same(const T& a, const T& b) {
  if constexpr (requires { FieldsOf(a); }) {
    return std::apply(
        [&](const auto&... of_a) {
          return std::apply([&](const auto&... of_b) { return (Same(of_a, of_b) && ...); },
                            FieldsOf(b));
        },
        FieldsOf(a));
  } else {
    return a == b;
  }
}

}  // namespace

bool HaveSameShape(const DecodeLayer& a, const DecodeLayer& b) { return Same(a, b); }

}  // namespace mneme
