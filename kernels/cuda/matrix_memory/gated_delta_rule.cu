// Chooses the kernels of a gated delta rule.
#include <algorithm>

#include "base/log.h"
#include "kernels/cuda/dense/dense.h"
#include "kernels/cuda/matrix_memory/chunked/chunked.h"
#include "kernels/cuda/matrix_memory/chunked/streams.h"
#include "kernels/cuda/matrix_memory/decode/decode.h"
#include "kernels/cuda/matrix_memory/held/held.h"
#include "kernels/cuda/matrix_memory/launch.h"
#include "kernels/cuda/matrix_memory/matrix_memory.h"

namespace mneme::cuda::matrix_memory {
namespace {

void SetPending(const PendingWrites& pending, Problem& p) {
  p.capacity = pending.capacity;
  if (pending.capacity == 0) return;
  CHECK(pending.phase.base != nullptr) << "pending writes without a phase";
  p.phase = Field(pending.phase);
  p.range = Field(pending.range);
  p.keys = Field(pending.keys);
  p.updates = Field(pending.updates);
  p.decays = Field(pending.log_decay);
}

void Settle(Device& device, const Problem& p, DType state_dtype) {
  if (Supports(p, state_dtype)) {
    LaunchTokens(device, p, state_dtype);
  } else {
    LaunchGeneral(device, p, state_dtype);
  }
}

decode::DecodePlan PlanOf(const Device& device, const Problem& p, const MatrixMemoryArgs& args) {
  const int entries = static_cast<int>(args.q.shape[0]);
  return decode::PlanDecode(device, p, std::min(entries, p.segments.count) * p.value_heads,
                            args.state.dtype);
}

}  // namespace

Problem MakeProblem(const MatrixMemoryArgs& args) {
  Problem p = {};
  p.q = args.q.as<const float>();
  p.k = args.k.as<const float>();
  p.v = args.v.as<const float>();
  p.log_decay = args.log_decay.as<const float>();
  p.beta = args.beta.as<const float>();
  p.out = args.out.as<float>();
  p.scale = args.scale;
  p.segments = ArraysOf(args.segments);
  p.heads = static_cast<int>(args.q.shape[1]);
  p.key_dim = static_cast<int>(args.q.shape[2]);
  p.value_heads = static_cast<int>(args.v.shape[1]);
  p.value_dim = static_cast<int>(args.v.shape[2]);
  p.state = Field(args.state);
  SetPending(args.pending, p);
  return p;
}

bool IsGatedDelta(const MatrixMemoryArgs& args) {
  using Rule = MatrixRule;
  const int64_t heads = args.out.shape[1];
  const bool decays = args.rule.decay == Rule::Decay::kHead;
  return args.rule.correction == Rule::Correction::kDelta && args.rule.read == Rule::Read::kAfter &&
         (decays || args.rule.decay == Rule::Decay::kNone) && args.q.shape[1] == args.k.shape[1] &&
         args.v.shape[1] == heads && args.beta.shape[1] == heads &&
         (!decays || args.log_decay.shape[1] == heads);
}

void GatedDeltaRule(Device& device, const MatrixMemoryArgs& args) {
  const auto entries = static_cast<int>(args.q.shape[0]);
  if (args.segments.count == 0 || entries == 0) return;
  Problem p = MakeProblem(args);
  const DType state_dtype = args.state.dtype;
  const bool tuned = Supports(p, state_dtype);
  const decode::DecodePlan plan = PlanOf(device, p, args);
  // The general kernel is not bound by memory; it holds back so that there is one way only.
  p.fold_all = tuned ? plan.fold_all : p.capacity == 0;
  const bool may_be_longer = args.segments.longest != 1 && entries > 1;

  if (may_be_longer && device.compute_dtype() == DType::kBF16 && chunked::Supports(device, args)) {
    if (p.capacity > 0) {
      p.task = Task::kSettleSegments;
      Settle(device, p, state_dtype);
    }
    chunked::GatedDeltaChunks(device, args);
  } else if (!tuned) {
    p.task = Task::kAnyEntries;
    LaunchGeneral(device, p, state_dtype);
    return;
  } else if (may_be_longer) {
    p.task = Task::kTokens;
    LaunchTokens(device, p, state_dtype);
  }
  p.task = Task::kDecode;
  if (tuned) {
    decode::LaunchDecode(device, p, state_dtype, plan);
  } else {
    LaunchGeneral(device, p, state_dtype);
  }
}

bool DeltaMemoryPass(Device& device, const DeltaMemoryPassArgs& args) {
  const MatrixMemoryArgs& rule = args.rule;
  const ShortConvArgs convolutions[] = {args.q, args.k, args.v};
  if (rule.segments.longest == 1) {
    ShortConv(device, convolutions);
    DecodeMemories(device, {.norms = args.norms, .gates = args.gates, .rule = rule});
    return true;
  }
  const auto entries = static_cast<int>(rule.q.shape[0]);
  Problem p = MakeProblem(rule);
  const DType state_dtype = rule.state.dtype;
  if (rule.segments.count == 0 || entries < 2 || device.compute_dtype() != DType::kBF16 ||
      !Supports(p, state_dtype) || !chunked::Supports(device, rule) || !chunked::Supports(args)) {
    return false;
  }
  chunked::DeltaChunkPlan chunks;
  if (!chunked::TakeDeltaChunkPlan(device, rule, &chunks)) return true;
  chunked::PrepareDeltaStreams(device, args, chunks);
  const decode::DecodePlan plan = PlanOf(device, p, rule);
  p.fold_all = plan.fold_all;
  const bool decodes = rule.segments.longer > 0 && rule.segments.longer < rule.segments.count;
  // Decoding is bound by memory, and a prompt's few chains leave most of the device idle: both at
  // once, the chains first at everything, as they take longer.
  if (decodes) {
    device.MarkFork();
  } else {
    MoveWindows(device, convolutions);
  }
  if (p.capacity > 0) {
    p.task = Task::kSettleSegments;
    LaunchTokens(device, p, state_dtype, {chunks.segment, chunks.chains, chunks.max_chains});
  }
  chunked::RunDeltaChunks(device, rule, chunks, /*half_keys=*/true);
  if (decodes) {
    device.Fork();
    MoveWindows(device, convolutions);
  }
  p.task = Task::kDecode;
  decode::LaunchDecode(device, p, state_dtype, plan);
  if (decodes) {
    device.Rejoin();
    device.Join();
  }
  return true;
}

void DecodeMemories(Device& device, const DecodeMemoriesArgs& args) {
  const DeltaGatesArgs& gates = args.gates;
  const MatrixMemoryArgs& rule = args.rule;
  if (rule.segments.count == 0 || rule.q.shape[0] == 0) return;
  Problem p = MakeProblem(rule);
  const DType state_dtype = rule.state.dtype;
  if (!Supports(p, state_dtype)) {
    const auto& [q, k] = args.norms;
    dense::L2Norm(device, {.x = rule.q, .scale = q.scale, .eps = q.eps, .y = rule.q});
    dense::L2Norm(device, {.x = rule.k, .scale = k.scale, .eps = k.eps, .y = rule.k});
    dense::DeltaGates(device, gates);
    return GatedDeltaRule(device, rule);
  }
  p.norms = args.norms;
  p.log_decay = gates.a.as<const float>();
  p.beta = gates.b.as<const float>();
  p.gate_rows = gates.entry_rows.as<const int>();
  p.a_log = gates.a_log.as<const float>();
  p.dt_bias = gates.dt_bias.as<const float>();
  p.beta_scale = gates.beta_scale;
  p.folding = args.folding;
  p.task = Task::kDecode;
  decode::LaunchDecode(device, p, state_dtype, PlanOf(device, p, rule));
}

void SettleMemories(Device& device, const SettleArgs& args) {
  const auto slots = static_cast<int>(args.slots.shape[0]);
  if (slots == 0 || args.memories == 0 || args.pending.capacity == 0) return;
  if (held::HaveKeyDecays(args.pending, args.value_heads, args.key_dim)) {
    return held::SettleSlots(device, args);
  }
  Problem p = {};
  p.task = Task::kSettleSlots;
  p.fold_all = true;
  p.segments = {.slots = args.slots.as<const int>(), .count = slots * args.memories};
  p.memory_count = args.memories;
  p.heads = args.heads;
  p.key_dim = args.key_dim;
  p.value_heads = args.value_heads;
  p.value_dim = args.value_dim;
  p.written = Field(args.written);
  p.state = Field(args.state);
  SetPending(args.pending, p);
  Settle(device, p, args.state.dtype);
}

}  // namespace mneme::cuda::matrix_memory
