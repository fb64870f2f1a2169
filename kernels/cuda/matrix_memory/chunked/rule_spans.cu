// S at the start of each span of a chain, from what the spans before add to it and leave of it
// (rule_chains.cu).
#include <cstdint>

#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matrix_memory/chunked/rule_chain.cuh"
#include "kernels/cuda/matrix_memory/chunked/state.cuh"

namespace mneme::cuda::matrix_memory::chunked {
namespace {

// One block a chain, a head and 4 kJoinThreads elements.
constexpr int kJoinThreads = 256;
template <ChunkForm kForm, typename State>
__global__ __launch_bounds__(kJoinThreads) void JoinSpansKernel(RuleChainParams p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const RuleSizes& sizes = p.chunks.sizes;
  const ChainPlan& plan = p.chunks.plan;
  if (blockIdx.x == 0 && threadIdx.x == 0) *plan.taken = 0;
  const int elements = sizes.value_dim * sizes.key_dim;
  const int blocks = (elements + 4 * kJoinThreads - 1) / (4 * kJoinThreads);
  const int chain = blockIdx.x / (sizes.heads * blocks);
  const int head = blockIdx.x / blocks % sizes.heads;
  const int at = (blockIdx.x % blocks * kJoinThreads + threadIdx.x) * 4;
  if (chain >= *plan.chains || at >= elements) return;
  const int segment = plan.segment[chain];
  const int chunks = plan.first_chunk[chain + 1] - plan.first_chunk[chain];
  const int count = (chunks + p.spans.chunks - 1) / p.spans.chunks, first = FirstSpan(p, chain);
  float2 low = {0, 0}, high = {0, 0};
  if (p.segments.fresh[segment] == 0) {
    const State* state =
        MemoryAt<State>(p.state, p.segments.slots[segment], p.segments.memories[segment]) +
        static_cast<int64_t>(head) * elements + at;
    low = LoadPair(state), high = LoadPair(state + 2);
  }
  for (int i = 0; i < count; ++i) {
    const int64_t span = static_cast<int64_t>(first + i) * sizes.heads + head;
    float4* const own = reinterpret_cast<float4*>(p.spans.states + span * elements + at);
    float4 added = {0, 0, 0, 0}, decay = {1, 1, 1, 1};
    if (i + 1 < count) {
      added = *own;
      const float* decays = p.spans.decays + span * SpanDecays(kForm, sizes);
      if (kForm == ChunkForm::kKey) {
        decay = *reinterpret_cast<const float4*>(decays + at % sizes.key_dim);
      } else {
        decay.x = decays[kForm == ChunkForm::kValue ? at / sizes.key_dim : 0];
        decay.y = decay.z = decay.w = decay.x;
      }
    }
    *own = {low.x, low.y, high.x, high.y};
    low = {low.x * decay.x + added.x, low.y * decay.y + added.y};
    high = {high.x * decay.z + added.z, high.y * decay.w + added.w};
  }
}

template <ChunkForm kForm>
void Launch(Device& device, const RuleChainParams& params, DType state_dtype) {
  const RuleSizes& sizes = params.chunks.sizes;
  const int blocks = params.chunks.plan.max_chains * sizes.heads *
                     BlocksFor(int64_t{sizes.value_dim} * sizes.key_dim, 4 * kJoinThreads);
  const auto kernel =
      state_dtype == DType::kF16 ? JoinSpansKernel<kForm, __half> : JoinSpansKernel<kForm, float>;
  LaunchOverlapping(device, "joins of spans", kernel, blocks, kJoinThreads, 0, 1, params);
}

}  // namespace

void JoinSpans(Device& device, ChunkForm form, const RuleChainParams& params, DType state_dtype) {
  switch (form) {
    case ChunkForm::kHead:
      return Launch<ChunkForm::kHead>(device, params, state_dtype);
    case ChunkForm::kKey:
      return Launch<ChunkForm::kKey>(device, params, state_dtype);
    case ChunkForm::kValue:
      return Launch<ChunkForm::kValue>(device, params, state_dtype);
    case ChunkForm::kDeltaKey:
    case ChunkForm::kGeneralKey:
      return;  // whose chains stay whole
  }
}

}  // namespace mneme::cuda::matrix_memory::chunked
