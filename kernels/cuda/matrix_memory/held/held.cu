#include <algorithm>
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/matrix_memory/held/held.cuh"
#include "kernels/cuda/matrix_memory/held/held.h"
#include "kernels/cuda/matrix_memory/held/ring.cuh"
#include "kernels/cuda/matrix_memory/rules/rules.h"

namespace mneme::cuda::matrix_memory::held {
namespace {

// How rows are dealt out: to blocks of so many warps, so many to each. Blocks of kMost are all
// there are of most heads.
enum class Tile : uint8_t { kFewest, kFew, kMany, kMost };
constexpr int kManyWarps = 8;

// Blocks that the registers of a multiprocessor are to allow.
template <int kWarpElements>
constexpr int kBlocksOf = kWarpElements > 1024  ? 2
                          : kWarpElements > 512 ? 3
                                                : 4;

template <int kKeyDim, int kWarps, int kRows, int kBlocks = kBlocksOf<kRows * kKeyDim>>
void LaunchShape(Device& device, HeldProblem p, int64_t memories) {
  CHECK(p.pending.capacity <= (kPlaces<kKeyDim, kRows>)) << "too many writes held back";
  p.pending.tiles = (p.pending.value_dim + kWarps * kRows - 1) / (kWarps * kRows);
  if (!RangeCountFits(device, p.pending)) return;
  const int64_t blocks = memories * p.pending.value_heads * p.pending.tiles;
  if (blocks == 0) return;
  LaunchOverlapping(device, "matrix memory, writes held back",
                    HeldKernel<kKeyDim, kWarps, kRows, kBlocks>, static_cast<int>(blocks),
                    kWarps * kWarp, sizeof(HeldMemory<kKeyDim, kWarps, kRows>), 1, p);
}

template <int kKeyDim>
void LaunchTile(Device& device, const HeldProblem& p, int64_t memories, Tile tile) {
  constexpr int kMany = 1024 / kKeyDim > 8 ? 8 : 1024 / kKeyDim;
  switch (tile) {
    case Tile::kFewest:
      return LaunchShape<kKeyDim, 4, kMany / 4>(device, p, memories);
    case Tile::kFew:
      return LaunchShape<kKeyDim, 4, kMany / 2>(device, p, memories);
    case Tile::kMany:
      return LaunchShape<kKeyDim, kManyWarps, kMany>(device, p, memories);
    case Tile::kMost:
      return LaunchShape<kKeyDim, kManyWarps, MostRows(kKeyDim)>(device, p, memories);
  }
}

template <int kKeyDim, bool kKeyDecays, int kPlaces>
void LaunchRingShape(Device& device, HeldProblem p) {
  using Memory = RingMemory<kKeyDim, kKeyDecays, kPlaces>;
  p.pending.tiles = (p.pending.value_dim + Memory::kBlockRows - 1) / Memory::kBlockRows;
  if (!RangeCountFits(device, p.pending)) return;
  const int64_t items = int64_t{p.pending.segments.count} * p.pending.value_heads * p.pending.tiles;
  if (items == 0) return;
  const int64_t blocks = std::min<int64_t>(items, RingBlocks(kPlaces) * device.multiprocessors());
  LaunchOverlapping(device, "matrix memory, writes held back",
                    RingKernel<kKeyDim, kKeyDecays, kPlaces>, static_cast<int>(blocks),
                    kRingThreads, sizeof(Memory), 1, p);
}

void LaunchRing(Device& device, const HeldProblem& p) {
  const auto launch = [&]<int kKeyDim>() {
    if (p.key_decays) return LaunchRingShape<kKeyDim, true, 2>(device, p);
    LaunchRingShape<kKeyDim, false, 2>(device, p);
  };
  if (p.pending.key_dim == 64) return launch.operator()<64>();
  if (p.pending.key_dim == 128) return launch.operator()<128>();
  launch.operator()<256>();
}

// Whether bulk copies take what LaunchRing() reads.
bool FitsRing(const Device& device, const HeldProblem& p) {
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  return HasHopperCode(device) && p.pending.capacity <= kHeldWrites && aligned(p.rule.q.data) &&
         aligned(p.rule.k.data) && aligned(p.rule.v.data) && aligned(p.rule.decay.data);
}

// Few matrices gain nothing from holding back: their time is latency. Neither do those that are a
// little more, unless all of them come at once, while the kernel ahead still runs.
constexpr int64_t kFewElements = 8 * 1024;  // of all matrices, for each multiprocessor
// From so many on blocks that stay are worth it.
constexpr int64_t kRingElements = 16 * 1024;
int64_t MemoriesOf(const MatrixMemoryArgs& args) {
  return std::min<int64_t>(args.out.shape[0], args.segments.count);
}
int64_t ElementsOf(const Device& device, const MatrixMemoryArgs& args) {
  return MemoriesOf(args) * args.out.shape[1] * args.out.shape[2] * args.k.shape[2] /
         device.multiprocessors();
}

void Launch(Device& device, const HeldProblem& p, int64_t memories, Tile tile) {
  switch (p.pending.key_dim) {
    case 64:
      return LaunchTile<64>(device, p, memories, tile);
    case 128:
      return LaunchTile<128>(device, p, memories, tile);
    case 256:
      return LaunchTile<256>(device, p, memories, tile);
    default:
      CHECK(false) << "writes held back beside keys of " << p.pending.key_dim;
  }
}

void SetPending(const PendingWrites& pending, Problem& p) {
  CHECK(pending.capacity > 0 && pending.capacity <= kMaxPending);
  p.capacity = pending.capacity;
  p.phase = Field(pending.phase);
  p.range = Field(pending.range);
  p.keys = Field(pending.keys);
  p.updates = Field(pending.updates);
  p.decays = Field(pending.log_decay);
}

HeldProblem MakeProblem(const MatrixMemoryArgs& args, Task task) {
  HeldProblem p = {};
  p.rule = rules::MakeProblem(args);
  p.key_decays = args.rule.decay == MatrixRule::Decay::kKey;
  p.delta = args.rule.correction == MatrixRule::Correction::kDelta;
  Problem& held = p.pending;
  held.task = task;
  held.segments = p.rule.segments;
  held.value_heads = p.rule.heads;
  held.key_dim = p.rule.key_dim;
  held.value_dim = p.rule.value_dim;
  held.state = p.rule.state;
  SetPending(args.pending, held);
  const auto all_heads = [&](const rules::HeadRows& rows) {
    return rows.data == nullptr || rows.heads == p.rule.heads;
  };
  // Heads that share keys share those that are pending.
  const bool shares = args.rule.decay == MatrixRule::Decay::kHead;
  held.heads = shares ? p.rule.k.heads : p.rule.heads;
  CHECK((shares || (all_heads(p.rule.q) && all_heads(p.rule.k))) && all_heads(p.rule.v) &&
        all_heads(p.rule.decay) && all_heads(p.rule.beta))
      << "writes held back of a memory whose tensors have fewer heads";
  return p;
}

}  // namespace

bool HaveKeyDecays(const PendingWrites& pending, int64_t heads, int64_t key_dim) {
  return key_dim > 1 && pending.log_decay.memory_bytes == pending.capacity * heads * key_dim *
                                                              static_cast<int64_t>(sizeof(float));
}

Problem ProblemOfWrites(const MatrixMemoryArgs& args) {
  Problem p = MakeProblem(args, Task::kDecode).pending;
  p.fold_all = true;
  return p;
}

bool AreFew(const Device& device, const MatrixMemoryArgs& args) {
  return ElementsOf(device, args) < kRingElements;
}

bool FitsAtOnce(const Device& device, const MatrixMemoryArgs& args) {
  constexpr int kBlocks = 2;  // of a multiprocessor
  const int64_t heads = args.out.shape[1], value_dim = args.out.shape[2];
  const int rows = kManyWarps * MostRows(static_cast<int>(args.k.shape[2]));
  const int64_t blocks = MemoriesOf(args) * heads * ((value_dim + rows - 1) / rows);
  return ElementsOf(device, args) > kFewElements && blocks <= kBlocks * device.multiprocessors();
}

void LaunchDecode(Device& device, const MatrixMemoryArgs& args, bool early,
                  const DiscretizeArgs* discretize) {
  HeldProblem p = MakeProblem(args, Task::kDecode);
  if (discretize != nullptr) {
    p.rule.v.data = discretize->u.as<const float>();
    p.dt = discretize->dt.as<const float>();
    p.dt_bias = discretize->dt_bias.as<const float>();
    p.rates = discretize->a.as<const float>();
    p.least = discretize->least_step;
    p.most = discretize->most_step;
  }
  p.rule.early = early;
  const int64_t elements = ElementsOf(device, args);
  const bool at_once = FitsAtOnce(device, args);
  if (!at_once && elements >= kRingElements && FitsRing(device, p)) return LaunchRing(device, p);
  p.pending.fold_all = !at_once && elements <= 32 * 1024;
  const Tile tile = elements <= kFewElements ? Tile::kFewest
                    : at_once                ? Tile::kMost
                    : p.pending.fold_all     ? Tile::kFew
                                             : Tile::kMany;
  Launch(device, p, args.segments.count, tile);
}

void SettleSegments(Device& device, const MatrixMemoryArgs& args) {
  Launch(device, MakeProblem(args, Task::kSettleSegments), args.segments.count, Tile::kMany);
}

void SettleSlots(Device& device, const SettleArgs& args) {
  HeldProblem p = {};
  p.key_decays = true;
  Problem& held = p.pending;
  held.task = Task::kSettleSlots;
  held.fold_all = true;
  const auto slots = static_cast<int>(args.slots.shape[0]);
  held.segments = {.slots = args.slots.as<const int>(), .count = slots * args.memories};
  held.memory_count = args.memories;
  held.heads = held.value_heads = args.value_heads;
  held.key_dim = args.key_dim;
  held.value_dim = args.value_dim;
  held.written = Field(args.written);
  held.state = Field(args.state);
  SetPending(args.pending, held);
  Launch(device, p, held.segments.count, Tile::kMany);
}

}  // namespace mneme::cuda::matrix_memory::held
