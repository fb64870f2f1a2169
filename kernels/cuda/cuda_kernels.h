// The operations on CUDA: hands each to its launcher.
#pragma once

#include <span>

#include "kernels/cuda/draws.h"
#include "kernels/cuda/operations.h"
#include "kernels/kernels.h"

namespace mneme::cuda {

class CudaKernels final : public Kernels {
 public:
  explicit CudaKernels(Device& device) : device_(device) {}

  void Embedding(const EmbeddingArgs& args) override { cuda::Embedding(device_, args); }
  void GatherRows(const GatherRowsArgs& args) override { cuda::GatherRows(device_, args); }
  void BanTokens(const BanTokensArgs& args) override { cuda::BanTokens(device_, args); }
  void RmsNorm(const RmsNormArgs& args) override { cuda::RmsNorm(device_, args); }
  void Linear(std::span<const LinearArgs> products) override { cuda::Linear(device_, products); }
  void SwiGlu(const SwiGluArgs& args) override { cuda::SwiGlu(device_, args); }
  void RouteTopK(const RouteTopKArgs& args) override { cuda::RouteTopK(device_, args); }
  void Dispatch(const DispatchArgs& args) override { cuda::Dispatch(device_, args); }
  void ShortConv(std::span<const ShortConvArgs> convolutions) override {
    cuda::ShortConv(device_, convolutions);
  }
  void L2Norm(const L2NormArgs& args) override { cuda::L2Norm(device_, args); }
  void DeltaGates(const DeltaGatesArgs& args) override { cuda::DeltaGates(device_, args); }
  void GatedDeltaRule(const GatedDeltaRuleArgs& args) override {
    cuda::GatedDeltaRule(device_, args);
  }
  void SettleMemories(const SettleArgs& args) override { cuda::SettleMemories(device_, args); }
  void MixMemories(const MixMemoriesArgs& args) override { cuda::MixMemories(device_, args); }
  void GatedRmsNorm(const GatedRmsNormArgs& args) override { cuda::GatedRmsNorm(device_, args); }
  void Sample(const SampleArgs& args) override {
    BeginSample(args);
    FinishSample();
  }
  void BeginSample(const SampleArgs& args) override { draws_.Begin(args); }
  void FinishSample() override { draws_.Finish(); }

  bool NormAndRoute(const RmsNormArgs& norm, const PackedMatrix& router,
                    const RouteTopKArgs& route) override {
    return cuda::NormAndRoute(device_, norm, router, route);
  }
  bool SwiGluProduct(const SwiGluProductArgs& args) override {
    return cuda::SwiGluProduct(device_, args);
  }
  bool MixAndNorm(const MixMemoriesArgs& mix, const GatedRmsNormArgs& norm) override {
    return cuda::MixAndNorm(device_, mix, norm);
  }
  bool DeltaMemoryPass(const DeltaMemoryPassArgs& args) override {
    return cuda::DeltaMemoryPass(device_, args);
  }
  bool DeltaMixerStep(const DeltaMixerStepArgs& args) override {
    return cuda::DeltaMixerStep(device_, args);
  }
  bool FeedForwardStep(const FeedForwardStepArgs& args) override {
    return cuda::FeedForwardStep(device_, args);
  }
  DecodeDone DecodeLayers(std::span<const DecodeLayerArgs> layers,
                          const DecodeHeadArgs* head) override {
    return cuda::DecodeLayers(device_, layers, head);
  }

 private:
  Device& device_;
  Draws draws_{device_};
};

}  // namespace mneme::cuda
