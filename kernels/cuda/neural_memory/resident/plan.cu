// Which memories are taken, and how they are divided.
#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/shared_layout.h"
#include "kernels/cuda/neural_memory/held.h"
#include "kernels/cuda/neural_memory/resident/anchored_windows.cuh"
#include "kernels/cuda/neural_memory/resident/fused_token.h"
#include "kernels/cuda/neural_memory/resident/held.cuh"
#include "kernels/cuda/neural_memory/resident/held_ahead.h"
#include "kernels/cuda/neural_memory/resident/resident.h"

namespace mneme::cuda::neural_memory::resident {
namespace {

using Read = NeuralMemoryArgs::Read;

// Blocks that fit a multiprocessor, as registers go, and what each may have of its shared memory:
// half, or, of blocks that are fewer than half of the multiprocessors, nearly all.
constexpr int kBlocksAtOnce = 2;
constexpr int64_t kMostShared = 112 * 1024, kMostSharedOfFew = 220 * 1024;

// What blocks divide: hidden units, or outputs.
int Divided(const MemoryNetwork& network, int dim) {
  return network.depth > 1 ? network.hidden : dim;
}

// A copy of A that is not W.
bool HasAnchors(const NeuralMemoryArgs& args) { return args.anchor_period != args.step; }

// A pair a token, at most one order of momentum, and no option of a step.
bool IsPlain(const NeuralMemoryArgs& args) {
  const MemoryNetwork& network = args.network;
  // Reading ahead is what memories with biases do, and those with static gains.
  const bool ahead = args.read == Read::kAhead;
  if (args.read != Read::kRunning && !ahead) return false;
  if (ahead ? network.trains_gain || args.anchor_period != args.step : network.biases) return false;
  if (!args.trains() || args.keys != 1 || args.orders() > 1 || args.frozen_period != 0 ||
      args.max_grad_norm != 0 || args.spectral_norm || args.before.at[0].base != nullptr ||
      network.depth > 2 || args.q.shape[2] % 4 != 0) {
    return false;
  }
  for (const TensorView* option :
       {&args.momentum_mix, &args.tensor_rates, &args.residual_mix, &args.transition}) {
    if (!option->empty()) return false;
  }
  for (int t = 0; t < network.depth; ++t) {
    if (!AreAligned(args.weights.at[t], args.momenta.at[t], args.anchors.at[t],
                    args.gradients.at[t], args.initial_weights.at[t], args.initial_momenta.at[t],
                    args.initial_anchors.at[t], args.initial_gradients.at[t],
                    args.initial_anchor.at[t])) {
      return false;
    }
  }
  return AreAligned(args.q, args.k, args.v, args.pending.k, args.pending.v, args.initial_pending.k,
                    args.initial_pending.v);
}

void Set(const MemoryCopy& copy, const MemoryInitial& initial, const MemoryInitial& otherwise,
         int tensors, Copy& to) {
  for (int t = 0; t < tensors; ++t) {
    to.views[t] = copy.at[t];
    const TensorView& start = initial.at[t].empty() ? otherwise.at[t] : initial.at[t];
    to.initial[t] = start.as<const float>();
  }
}

// Steps of several tokens, whose gradients are found for many steps together.
bool TakesManySteps(const NeuralMemoryArgs& args) {
  return args.step > 1 && args.read != Read::kAhead;
}
Outputs OutputsOf(const NeuralMemoryArgs& args) {
  return TakesManySteps(args) ? Outputs::kToOwner : Outputs::kToAll;
}
// Tokens at once, the next fewer.
int FewerTokens(int tokens) { return tokens > kMostTokens ? tokens - kMostTokens : tokens / 2; }

int64_t UnitsOf(const NeuralMemoryArgs& args) { return args.segments.count * args.q.shape[1]; }

// The more heads there are, `units`, the fewer blocks each has: `blocks` of them, unless 0.
Plan MakePlan(const Device& device, const NeuralMemoryArgs& args, int blocks, int64_t units) {
  const MemoryNetwork& network = args.network;
  const int dim = static_cast<int>(args.q.shape[2]), divided = Divided(network, dim);
  Plan plan;
  if (!IsPlain(args) || std::max(divided, dim) > 4 * kThreads) return plan;
  // Without an anchor a token's gradient is at what the one before it left.
  const int tokens = TakesManySteps(args)                  ? kMostTokensOfSteps
                     : args.step == 1 && !HasAnchors(args) ? 1
                                                           : kMostTokens;
  const auto all = static_cast<int64_t>(device.properties().sharedMemPerBlockOptin);
  for (int team = 1; team <= kMaxTeam && divided % (4 * team) == 0; team *= 2) {
    if (team > 1 && !HasHopperCode(device)) break;
    // More blocks than fit the device at once would only wait; and rows of W_1 come in pieces, of
    // whole sectors unless there is no choice.
    const bool fit = units * team <= kBlocksAtOnce * device.multiprocessors();
    if (plan.blocks != 0 && (!fit || divided / team % 8 != 0)) break;
    if (blocks != 0 && team != blocks) continue;
    const bool few = 2 * units * team <= device.multiprocessors();
    const int64_t room = std::min(all, few ? kMostSharedOfFew : kMostShared);
    for (int most = tokens; most >= std::min(tokens, 2); most = FewerTokens(most)) {
      const Division division(network, dim, team, HasAnchors(args), most, OutputsOf(args));
      const int64_t shared = int64_t{4} * division.floats;
      if (division.held() > kMostHeld || shared > room) continue;
      plan = {.blocks = team, .held = division.held(), .tokens = most, .shared_bytes = shared};
      break;
    }
  }
  return plan;
}

int64_t LongerSegments(const Segments& segments) {
  return segments.longer > 0 ? std::min(segments.longer, segments.count) : segments.count;
}

// For segments of several tokens of what MakePlan() finds a plan for: two products under an anchor
// whose rows and columns, a block's hidden units as well, come in whole tiles. A window has more
// than one tile of tokens where an anchor lasts longer. As few blocks a head as find room, one on a
// multiprocessor; of fewer heads more.
Plan WindowPlan(const Device& device, const NeuralMemoryArgs& args, int blocks) {
  const MemoryNetwork& network = args.network;
  const int dim = static_cast<int>(args.q.shape[2]);
  Plan plan;
  if (args.step != 1 || !HasAnchors(args) || args.segments.longest == 1 || network.depth != 2 ||
      dim % kWindowTile != 0) {
    return plan;
  }
  const int64_t units = LongerSegments(args.segments) * args.q.shape[1];
  const auto all = static_cast<int64_t>(device.properties().sharedMemPerBlockOptin);
  const bool lasts = !args.stores_anchor() || args.anchor_period > kWindowTile;
  for (int team = 1; team <= kMaxTeam && network.hidden % (kWindowTile * team) == 0; team *= 2) {
    if (team > 1 && !HasHopperCode(device)) break;
    if (plan.blocks != 0 && units * team > device.multiprocessors()) break;
    if (blocks != 0 && team != blocks) continue;
    for (int tiles = lasts ? kMostWindowTiles : 1; tiles > 0; --tiles) {
      const int64_t shared = int64_t{4} * WindowLayout(network, dim, team, tiles).floats;
      if (shared > all) continue;
      plan = {.blocks = team, .held = 0, .tokens = tiles * kWindowTile, .shared_bytes = shared};
      break;
    }
  }
  return plan;
}

// As few blocks a head as find room; of few heads as many as the device runs at once, a block a
// multiprocessor, up to where what they tell each other takes longer than what they spare.
HeldDivision DivideHeld(const Device& device, const HeldMemoryArgs& args) {
  constexpr int kEnough = 16;  // hidden units of a block
  const NeuralMemoryArgs& memory = args.memory;
  const int dim = static_cast<int>(memory.q.shape[2]), hidden = memory.network.hidden;
  // Less what is static.
  const auto all = static_cast<int>(device.properties().sharedMemPerBlockOptin) - 64;
  const bool normed = memory.network.norm != MemoryNetwork::Norm::kNone;
  const int gain = memory.network.depth;
  HeldDivision found;
  if (!HasHopperCode(device) ||
      !AreAligned(args.held.numbers, args.held.vectors, memory.out, memory.gain, memory.shift)) {
    return found;
  }
  if (memory.network.trains_gain &&
      !AreAligned(memory.weights.at[gain], memory.momenta.at[gain], memory.initial_weights.at[gain],
                  memory.initial_momenta.at[gain])) {
    return found;
  }
  for (int team = 1; team <= kMaxTeam && hidden % (4 * team) == 0; team *= 2) {
    const bool at_once = UnitsOf(memory) * team <= device.multiprocessors();
    if (found.blocks != 0 && (!at_once || hidden / team < kEnough)) break;
    const HeldDivision division(dim, hidden, normed, team, args.held.capacity, all / 4);
    if (division.blocks != 0) found = division;
  }
  return found;
}

Params MakeParams(const NeuralMemoryArgs& args, const Plan& plan) {
  const int dim = static_cast<int>(args.q.shape[2]);
  const bool has_anchors = HasAnchors(args);
  Params p = {.network = args.network,
              .q = args.q.as<const float>(),
              .k = args.k.as<const float>(),
              .v = args.v.as<const float>(),
              .rate = args.rate.as<const float>(),
              .momentum = args.momentum.as<const float>(),
              .keep = args.keep.as<const float>(),
              .step_scale = args.step_scale.as<const float>(),
              .gain = args.gain.as<const float>(),
              .shift = args.shift.as<const float>(),
              .positions = args.positions.as<const int64_t>(),
              .segments = ArraysOf(args.segments),
              .out = args.out.as<float>(),
              .loss = args.loss.as<float>(),
              .first_position = args.first_position,
              .anchor_period = args.anchor_period,
              .rate_scale = static_cast<float>(args.rate_scale),
              .heads = static_cast<int>(args.q.shape[1]),
              .dim = dim,
              .blocks = plan.blocks,
              .step = static_cast<int>(args.step),
              .divided = Divided(args.network, dim),
              .division = Division(args.network, dim, plan.blocks, has_anchors, plan.tokens,
                                   OutputsOf(args)),
              .early = false,
              .has_anchors = has_anchors,
              .writes_anchors = args.stores_anchor(),
              .logits = false,
              .answer_gate = nullptr,
              .gated = {},
              .others = 0,
              .only_single = false,
              .held = {},
              .weights = {},
              .momenta = {},
              .anchors = {},
              .pending_k = args.pending.k,
              .pending_v = args.pending.v,
              .pending_rate = args.pending.rate,
              .initial_k = args.initial_pending.k.as<const float>(),
              .initial_v = args.initial_pending.v.as<const float>(),
              .initial_rate = args.initial_pending.rate.as<const float>()};
  const int tensors = args.network.tensors();
  Set(args.weights, args.initial_weights, {}, tensors, p.weights);
  const bool ahead = args.read == Read::kAhead;
  Set(ahead ? args.gradients : args.momenta, ahead ? args.initial_gradients : args.initial_momenta,
      {}, tensors, p.momenta);
  if (args.stores_anchor()) {
    Set(args.anchors, args.initial_anchors, args.initial_weights, tensors, p.anchors);
  } else {
    Set({}, args.initial_anchor, {}, tensors, p.anchors);
  }
  return p;
}

}  // namespace

Division::Division(const MemoryNetwork& network, int dim, int blocks, bool has_anchors, int tokens,
                   Outputs outputs)
    : at(),
      tokens(tokens),
      owned(outputs == Outputs::kToOwner ? (tokens + blocks - 1) / blocks : tokens),
      walked(1),
      floats(0) {
  const auto take = [this](int n) { return TakeFloats(n, floats); };
  const int divided = Divided(network, dim), inner = divided / blocks;
  parts[0] = Part(dim, inner, divided, inner);
  if (network.depth > 1) parts[1] = Part(inner, dim, dim, inner * dim);
  for (int l = 0; l < network.depth; ++l) {
    at.weights[l] = take(dim * inner);
    at.anchors[l] = has_anchors ? take(dim * inner) : at.weights[l];
  }
  at.partial = take((outputs == Outputs::kToAll && tokens > 1 ? 2 : 1) * 4 * kThreads);
  for (int& parts_of : at.outputs) parts_of = take((network.depth > 1 ? blocks : 1) * owned * dim);
  walked = std::min(tokens, (at.outputs[1] - at.partial) / (4 * kThreads));
  at.vectors = take(3 * std::max(tokens, 2) * dim);
  at.rates = take(3 * tokens);
  const bool in_place = outputs == Outputs::kToAll && tokens > 1;
  for (int* const units : {&at.z, &at.delta_1}) *units = take(tokens * inner);
  at.z_of_q = in_place ? at.delta_1 : take(tokens * inner);
  const bool v_is_done = in_place && !network.trains_gain;
  at.error = v_is_done ? at.vectors + tokens * dim : take(tokens * dim);
  for (int* const vector :
       {&at.n, &at.n_of_q, &at.gain, &at.gain_momenta, &at.anchor_gain, &at.shift}) {
    *vector = take(dim);
  }
  if (!has_anchors) at.anchor_gain = at.gain;
  for (int l = 0; network.biases && l < network.depth; ++l) {
    at.biases[l] = take(parts[l].columns);
    at.bias_sums[l] = take(parts[l].columns);
  }
}

namespace {

void LaunchAnchored(Device& device, const NeuralMemoryArgs& args, int blocks, const Plan& plan,
                    Params& p) {
  const Plan windows = WindowPlan(device, args, blocks);
  if (windows.blocks == 0) return LaunchAnchoredSteps(device, plan, p);
  const Segments& segments = args.segments;
  const bool early = p.early;
  const bool may_be_single =
      args.q.shape[0] != int64_t{segments.count} * segments.longest || segments.longest == 0;
  if (may_be_single) {
    p.only_single = true;
    LaunchAnchoredSteps(device, plan, p);
  }
  Params of_windows = MakeParams(args, windows);
  of_windows.early = early && !may_be_single;
  LaunchAnchoredWindows(device, windows, of_windows, static_cast<int>(LongerSegments(segments)));
}

}  // namespace

bool Launch(Device& device, const NeuralMemoryArgs& args, int blocks, bool early) {
  const bool one = args.step == 1 && !HasAnchors(args);
  const Plan plan = MakePlan(device, args, blocks, UnitsOf(args));
  if (plan.blocks == 0) return false;
  Params p = MakeParams(args, plan);
  p.early = early;
  if (args.read == Read::kAhead) {
    LaunchReadAhead(device, plan, p);
  } else if (one) {
    LaunchOneTokenSteps(device, plan, p);
  } else if (args.step == 1) {
    LaunchAnchored(device, args, blocks, plan, p);
  } else {
    LaunchSeveralTokenSteps(device, plan, p);
  }
  return true;
}

bool LaunchFused(Device& device, const NeuralMemoryArgs& memory,
                 std::span<const MemoryStream> streams, const HeldSteps& held, bool settled,
                 const NeuralMemoryOutputArgs* output) {
  const int64_t units = UnitsOf(memory);
  if (!HasHopperCode(device) || units == 0 || units * kMaxTeam > device.multiprocessors() ||
      memory.segments.longest != 1 || memory.network.depth != 2 || memory.step != 1 ||
      memory.read != Read::kRunning || HasAnchors(memory)) {
    return false;
  }
  const Plan plan = MakePlan(device, memory, /*blocks=*/0, units);
  if (plan.blocks == 0) return false;
  Params p = MakeParams(memory, plan);
  p.early = settled;
  p.held = held;
  return LaunchFusedToken(device, p, memory, streams, output);
}

bool TakesHeld(const Device& device, const HeldMemoryArgs& args) {
  const NeuralMemoryArgs& memory = args.memory;
  if (MakePlan(device, memory, /*blocks=*/0, UnitsOf(memory)).blocks == 0) return false;
  if (memory.read == Read::kAhead) {
    return TakesHeldAhead(args) && AreAligned(args.held.numbers, args.held.vectors);
  }
  return DivideHeld(device, args).blocks != 0;
}

void LaunchHeld(Device& device, const HeldMemoryArgs& args, bool early) {
  const NeuralMemoryArgs& memory = args.memory;
  if (memory.read == Read::kAhead) {
    Params p = MakeParams(memory, {.blocks = 1, .tokens = 1});
    p.early = early;
    return LaunchHeldAhead(device, p, args);
  }
  // Heads that are few gain nothing by what is held back: each has as many blocks as a cluster may.
  const bool few = UnitsOf(memory) * kMaxTeam <= device.multiprocessors();
  if (few && memory.segments.longest == 1 && !args.always_holds) {
    const Plan plan = MakePlan(device, memory, /*blocks=*/0, UnitsOf(memory));
    Params p = MakeParams(memory, plan);
    p.early = early;
    p.held = args.held;
    return LaunchOneTokenSteps(device, plan, p);
  }
  const HeldDivision division = DivideHeld(device, args);
  Params p = MakeParams(memory, {.blocks = division.blocks, .tokens = 1});
  p.early = early;
  p.held = args.held;
  LaunchHeldSteps(device, division, p);
}

void LaunchLonger(Device& device, const NeuralMemoryArgs& args) {
  const Plan plan = MakePlan(device, args, /*blocks=*/0, UnitsOf(args));
  Params p = MakeParams(args, plan);
  p.others = 1;
  if (args.read == Read::kAhead) return LaunchReadAhead(device, plan, p);
  LaunchOneTokenSteps(device, plan, p);
}

bool LaunchGated(Device& device, const GatedMemoryArgs& args) {
  const NeuralMemoryArgs& memory = args.memory;
  if (!TakesManySteps(memory)) return false;
  // Beside a few longer segments single tokens are most of the work.
  const int64_t longest = memory.segments.longest;
  const bool mostly_single =
      longest == 1 || memory.q.shape[0] <= 2 * int64_t{memory.segments.count};
  const int64_t units =
      mostly_single ? std::max<int64_t>(UnitsOf(memory) / memory.step, 1) : UnitsOf(memory);
  const Plan plan = MakePlan(device, memory, /*blocks=*/0, units);
  if (plan.blocks == 0) return false;
  Params p = MakeParams(memory, plan);
  p.logits = true;
  p.answer_gate = args.gate.as<const float>();
  p.gated = {args.y.data, args.y.dtype == DType::kBF16};
  p.early = args.settled;
  if (mostly_single) p.others = LaunchFewTokens(device, p, longest);
  if (longest == 0 || longest > p.others) LaunchSeveralTokenSteps(device, plan, p);
  return true;
}

}  // namespace mneme::cuda::neural_memory::resident
