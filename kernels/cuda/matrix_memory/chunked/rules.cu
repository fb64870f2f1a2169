// Chooses the chunked form of a matrix memory's rule.
#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/scratch_layout.h"
#include "kernels/cuda/matrix_memory/chunked/chunked.h"
#include "kernels/cuda/matrix_memory/chunked/planning.cuh"
#include "kernels/cuda/matrix_memory/chunked/rule.h"

namespace mneme::cuda::matrix_memory::chunked {
namespace {

using Rule = MatrixRule;

constexpr int kPlanThreads = 1024;

__global__ __launch_bounds__(kPlanThreads) void PlanRuleKernel(ChunkPlanning planning) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  PlanChunks<kPlanThreads>(planning);
}

// Whether the gated delta rule's own chunks take it, an absent decay being a log decay of zero.
bool IsGatedDelta(const Rule& rule) {
  return rule.correction == Rule::Correction::kDelta && rule.read == Rule::Read::kAfter &&
         (rule.decay == Rule::Decay::kNone || rule.decay == Rule::Decay::kHead);
}

bool FormOf(const Rule& rule, ChunkForm* form) {
  const bool of_keys = rule.decay == Rule::Decay::kKey;
  if (rule.read != Rule::Read::kAfter) {
    *form = ChunkForm::kKey;
    return of_keys && rule.correction == Rule::Correction::kNone;
  }
  if (rule.correction != Rule::Correction::kNone) {
    const bool delta = rule.correction == Rule::Correction::kDelta;
    *form = delta ? ChunkForm::kDeltaKey : ChunkForm::kGeneralKey;
    return of_keys;
  }
  *form = of_keys                             ? ChunkForm::kKey
          : rule.decay == Rule::Decay::kValue ? ChunkForm::kValue
                                              : ChunkForm::kHead;
  return true;
}

int HeadsOf(const TensorView& tensor) {
  return tensor.empty() ? 1 : static_cast<int>(tensor.shape[1]);
}

RuleSizes SizesOf(ChunkForm form, const MatrixMemoryArgs& args) {
  RuleSizes sizes = {};
  sizes.heads = static_cast<int>(args.out.shape[1]);
  sizes.key_dim = static_cast<int>(args.k.shape[2]);
  sizes.value_dim = static_cast<int>(args.v.shape[2]);
  sizes.query_heads = HeadsOf(args.q);
  sizes.key_heads = HeadsOf(args.k);
  sizes.value_heads = HeadsOf(args.v);
  sizes.decay_heads =
      args.rule.decay == Rule::Decay::kConstant ? sizes.heads : HeadsOf(args.log_decay);
  sizes.beta_heads = HeadsOf(args.beta);
  const int keys = std::lcm(sizes.query_heads, sizes.key_heads);
  int gated = std::lcm(keys, std::lcm(sizes.decay_heads, sizes.beta_heads));
  gated = std::lcm(gated, std::lcm(HeadsOf(args.c), HeadsOf(args.e)));
  if (!args.bonus.empty()) gated = sizes.heads;
  const bool of_keys = form == ChunkForm::kKey || Corrects(form);
  sizes.image_heads = of_keys ? gated : keys;
  sizes.product_heads = form == ChunkForm::kValue ? sizes.heads : gated;
  return sizes;
}

// Where whole chains would keep half of the device busy at most, enough spans for all of it. Those
// of four chunks or less are not worth their joining.
ChainSpans SpansOf(const Device& device, ChunkForm form, const ChainPlan& bounds,
                   const RuleSizes& sizes) {
  constexpr int kLeastChunks = 4, kMostSpans = 32;
  const int chains = bounds.max_chains * sizes.heads * ((sizes.value_dim + 63) / 64);
  const int wanted = std::min(device.multiprocessors() / chains, kMostSpans) * bounds.max_chains;
  if (Corrects(form) || wanted < 2 * bounds.max_chains ||
      bounds.max_chunks < 2 * kLeastChunks * bounds.max_chains) {
    return {};
  }
  ChainSpans spans;
  spans.chunks = std::max((bounds.max_chunks + wanted - 1) / wanted, kLeastChunks);
  spans.count = bounds.max_chunks / spans.chunks + bounds.max_chains;
  return spans;
}

RuleChunks LayOut(ScratchLayout& layout, ChunkForm form, ChainPlan plan, const RuleSizes& sizes,
                  ChainSpans spans, int64_t entries) {
  plan.chains = layout.Take<int>(1);
  plan.taken = layout.Take<int>(1);
  plan.segment = layout.Take<int>(plan.max_chains);
  plan.first_chunk = layout.Take<int>(plan.max_chains + 1);
  plan.first_row = layout.Take<int>(plan.max_chains + 1);
  const int64_t span_heads = int64_t{spans.count} * sizes.heads;
  spans.states = layout.Take<float>(span_heads * sizes.value_dim * sizes.key_dim);
  spans.decays = layout.Take<float>(span_heads * SpanDecays(form, sizes));
  RuleChunks chunks = {plan, sizes, spans};
  const int64_t images = int64_t{plan.max_chunks} * sizes.image_heads;
  const int64_t products = int64_t{plan.max_chunks} * sizes.product_heads;
  chunks.keys =
      layout.Take<__nv_bfloat16>(images * KeyTiles(form) * (sizes.key_dim * int64_t{kChunk}));
  chunks.products = layout.Take<__nv_bfloat16>(products * ProductTiles(form) * (kChunk * kChunk));
  chunks.gates = layout.Take<float>(products * GateFloats(form, sizes.key_dim));
  const int64_t values =
      form == ChunkForm::kValue ? entries * sizes.heads * int64_t{sizes.value_dim} : 0;
  chunks.values = layout.Take<float>(values);
  chunks.decays = layout.Take<float>(values);
  return chunks;
}

}  // namespace

bool SupportsRule(const Device& device, const MatrixMemoryArgs& args) {
  const int64_t heads = args.out.shape[1];
  if (IsGatedDelta(args.rule)) {
    const bool gates_fit =
        args.beta.shape[1] == heads && (args.log_decay.empty() || args.log_decay.shape[1] == heads);
    return args.q.shape[1] == args.k.shape[1] && args.v.shape[1] == heads && gates_fit &&
           Supports(device, args);
  }
  ChunkForm form;
  if (!HasHopperCode(device) || !FormOf(args.rule, &form)) return false;
  const int64_t value_dim = args.v.shape[2];
  return HasRuleChains(form, static_cast<int>(args.k.shape[2])) && value_dim > 0 &&
         value_dim % (form == ChunkForm::kValue ? kChunk : 16) == 0 &&
         (args.state.dtype == DType::kF32 || args.state.dtype == DType::kF16) &&
         args.state.memory_bytes % 8 == 0 &&
         AreAligned(args.q, args.k, args.v, args.log_decay, args.out) &&
         AreAligned(args.c, args.e, args.bonus);
}

void MatrixChunks(Device& device, const MatrixMemoryArgs& args) {
  const Segments& segments = args.segments;
  const int entries = static_cast<int>(args.q.shape[0]);
  if (segments.count == 0 || entries < 2 || segments.longest == 1) return;
  CHECK(SupportsRule(device, args)) << "a rule or sizes without a chunked form";
  if (IsGatedDelta(args.rule)) return GatedDeltaChunks(device, args);
  ChunkForm form = {};
  FormOf(args.rule, &form);
  const RuleSizes sizes = SizesOf(form, args);
  // Each chain has two entries or more, and at most one chunk that is not full.
  ChainPlan bounds = {};
  const int longer = segments.longer > 0 ? segments.longer : segments.count;
  bounds.max_chains = std::min({segments.count, longer, entries / 2});
  bounds.max_chunks = entries / kChunk + bounds.max_chains;
  ScratchLayout counted(nullptr);
  const ChainSpans spans = SpansOf(device, form, bounds, sizes);
  LayOut(counted, form, bounds, sizes, spans, entries);
  auto* const scratch = static_cast<std::byte*>(device.Scratch(counted.bytes()));
  if (scratch == nullptr) return;
  ScratchLayout layout(scratch);
  const RuleChunks chunks = LayOut(layout, form, bounds, sizes, spans, entries);
  const ChunkPlanning planning = {chunks.plan, ArraysOf(segments)};
  LaunchOverlapping(device, "plan of chunks", PlanRuleKernel, 1, kPlanThreads, 0, 1, planning);
  if (form == ChunkForm::kHead || form == ChunkForm::kValue) {
    PrepareHeadChunks(device, form, chunks, args);
  } else if (form == ChunkForm::kGeneralKey || !args.bonus.empty()) {
    PrepareBeforeChunks(device, form, chunks, args);
  } else {
    PrepareKeyChunks(device, form, chunks, args);
  }
  RunRuleChains(device, form, chunks, args);
}

}  // namespace mneme::cuda::matrix_memory::chunked
