// The reference backend's Kernels, and the few helpers its files share.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/kernels.h"
#include "kernels/ops/checks.h"
#include "kernels/tensor_view.h"

namespace mneme {

class ReferenceKernels : public Kernels {
 public:
  explicit ReferenceKernels(DType compute_dtype) : compute_dtype_(compute_dtype) {}

  // dense.cc
  void Embedding(const EmbeddingArgs& args) override;
  void GatherRows(const GatherRowsArgs& args) override;
  void BanTokens(const BanTokensArgs& args) override;
  void RmsNorm(const RmsNormArgs& args) override;
  void Linear(std::span<const LinearArgs> products) override;
  void SwiGlu(const SwiGluArgs& args) override;
  void L2Norm(const L2NormArgs& args) override;
  void GatedRmsNorm(const GatedRmsNormArgs& args) override;
  // routing.cc
  void RouteTopK(const RouteTopKArgs& args) override;
  void Dispatch(const DispatchArgs& args) override;
  void MixMemories(const MixMemoriesArgs& args) override;
  // memory_rules.cc
  void ShortConv(std::span<const ShortConvArgs> convolutions) override;
  void DeltaGates(const DeltaGatesArgs& args) override;
  void GatedDeltaRule(const GatedDeltaRuleArgs& args) override;
  void SettleMemories(const SettleArgs&) override {}  // nothing is ever pending
  // sampling.cc
  void Sample(const SampleArgs& args) override;

 private:
  DType compute_dtype_;
};

namespace reference {

inline constexpr ActivationTypes kTypes{DType::kF64};

// dst[i] = element first + i of `src`, whose dtype is f64, f32, bf16 or f16. Exact.
void Widen(const void* src, DType dtype, int64_t first, int64_t n, double* dst);

inline double Sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }
inline double Silu(double z) { return z / (1.0 + std::exp(-z)); }
// log(1 + exp(z)); the identity above 20, where the released models switch (f32 cannot tell).
inline double Softplus(double z) { return z > 20.0 ? z : std::log1p(std::exp(z)); }

}  // namespace reference
}  // namespace mneme
