// Segments of a few tokens, of memories whose steps have several. Most end no step: they read W,
// and their loss is that at A, a head of either being a block's; both pass through registers once,
// and the tokens' pairs are kept for their step. In others one of the tokens ends a step, and a
// block is one head. Then A is in shared memory for the pairs of the step, and W and S pass through
// registers, where what is read of W before and after the step is multiplied with it.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/neural_memory/activate.cuh"
#include "kernels/cuda/neural_memory/resident/chosen.cuh"
#include "kernels/cuda/neural_memory/resident/few_tokens.cuh"
#include "kernels/cuda/neural_memory/resident/pairs.cuh"

namespace mneme::cuda::neural_memory::resident {
namespace {

using few::AddUp;
using few::FindError;
using few::Finish;
using few::kHeld;
using few::kMostDim;
using few::kPartial;
using few::MultiplyBack;
using few::MultiplyHeld;
using few::MultiplyPairs;
using few::PassMatrix;
using few::Prefetch;
using few::Room;
using few::SplitsOf;

constexpr int kMostUnits = 512;              // of the network
constexpr int kMostFew = 8;                  // tokens of a segment
constexpr int64_t kMostShared = 112 * 1024;  // of two blocks on a multiprocessor

// Tokens that only read have a block find their answer, or their loss.
enum class Reading : uint8_t { kAnswer, kLoss };

// One head of a segment.
class HeadOfFew {
 public:
  __device__ HeadOfFew(const Params& p, const Part& part_1, const Part& part_2, const Room& room,
                       const Segment& segment, int head, int64_t begin, float* shared)
      : p_(p),
        part_1_(part_1),
        part_2_(part_2),
        room_(room),
        segment_(segment),
        head_(head),
        begin_(begin),
        shared_(shared),
        tensors_(p, segment, head, /*rank=*/0),
        first_(begin == p.first_position),
        elements_(part_1.rows * part_1.columns) {}

  // Tokens that end no step, of a session that has begun: what W makes of q, or A of k, a block
  // each. All that is done before the wait costs nothing, and every instruction behind it does,
  // most of all one that is not in the cache. So where it `rehearses` a token that W itself stands
  // for comes first, before the wait, of which nothing is written.
  __device__ void Read(Reading reading, bool rehearses) const {
    const int thread = static_cast<int>(threadIdx.x), hidden = part_1_.columns;
    const MemoryNetwork& network = p_.network;
    const bool answers = reading == Reading::kAnswer, at_weights = answers || !p_.has_anchors;
    const Copy& copy = at_weights ? p_.weights : p_.anchors;
    const bool is_initial = !at_weights && !p_.writes_anchors;
    const Share share_1(part_1_), share_2(part_2_);
    float4 held_1[kHeld], held_2[kHeld];
    const float* const stand_in = tensors_.Start(copy, 0, is_initial);
    LoadShare(stand_in, part_1_, share_1, held_1);
    LoadShare(tensors_.Start(copy, 1, is_initial), part_2_, share_2, held_2);
    float *const gain = shared_ + room_.gain, *const shift = shared_ + room_.shift;
    if (thread < p_.dim && network.norm != MemoryNetwork::Norm::kNone) {
      const int place = head_ * p_.dim + thread;
      const float* const gains =
          network.trains_gain ? tensors_.Start(copy, kGain, is_initial) + thread : p_.gain + place;
      gain[thread] = *gains;
      shift[thread] = p_.shift == nullptr ? 0.0f : p_.shift[place];
    }
    float *const units = shared_ + room_.units, *const outputs = shared_ + room_.outputs;
    float* const partial = shared_ + room_.partial;
    // The last block of a head keeps its pairs.
    const bool keeps = !answers || p_.loss == nullptr;
    const int64_t row = int64_t{head_} * (p_.step - 1) + begin_ % p_.step;
    const int rehearsed = rehearses && stand_in != nullptr ? 1 : 0;
    int64_t at = InEntries(segment_.first);

#pragma unroll 1
    for (int entry = segment_.first - rehearsed; entry < segment_.end; ++entry) {
      const bool is_there = entry >= segment_.first;
      if (p_.early && entry == segment_.first) WaitForPreviousKernel();
      const auto vector = [&](const float* of) { return is_there ? of + at : stand_in; };
      const float *const x = vector(answers ? p_.q : p_.k), *const v = vector(p_.v);
      MultiplyHeld(x, held_1, part_1_, share_1, partial);
      __syncthreads();
#pragma unroll 1
      for (int unit = thread; unit < hidden; unit += kThreads) {
        float slope;
        units[unit] = Activate(network.activation, SumOfGroups(partial, part_1_, unit), &slope);
      }
      __syncthreads();
      MultiplyHeld(units, held_2, part_2_, share_2, partial + kPartial);
      __syncthreads();
      if (thread < p_.dim) outputs[thread] = SumOfGroups(partial + kPartial, part_2_, thread);
      __syncthreads();
      if (thread < kWarp) {
        Finish(p_, outputs, x, answers ? nullptr : v, gain, shift, entry, head_, is_there);
      } else if (keeps) {
        KeepPair(entry, row + entry - segment_.first, vector(p_.k), v, is_there);
      }
      if (is_there) at += p_.heads * p_.dim;
    }
  }

  // Tokens one of which ends a step, or those that a session begins with.
  template <bool kLoss>
  __device__ void TakeStep() {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
    const int dim = p_.dim, hidden = part_1_.columns, step = p_.step;
    const int tokens = segment_.end - segment_.first, open = static_cast<int>(begin_ % step);
    const int end = segment_.first + step - 1 - open;  // the entry that ends a step
    const bool ends = end < segment_.end, has_momentum = p_.momentum != nullptr;
    // Of the segment: tokens that read what W was before, and tokens whose losses are found behind.
    const int before = ends ? end - segment_.first : tokens;
    const int left = kLoss ? min(tokens, (open + tokens) % step) : 0;
    const bool period_ends =
        ends && (begin_ + end - segment_.first + 1) % max(p_.anchor_period, int64_t{1}) == 0;
    const bool moves = ends && (p_.has_anchors ? p_.writes_anchors && period_ends : true);
    const int pairs = ends ? step : 0, at_anchor = pairs + (moves ? 0 : left);
    const int inputs = tokens + (moves ? left : 0);
    float *const k = shared_ + room_.k, *const v = shared_ + room_.v;
    float *const x = shared_ + room_.inputs, *const rates = shared_ + room_.rates;

    const Share share_1(part_1_), share_2(part_2_);
    const int pitch = dim + few::kPad;  // of A_2
#pragma unroll 1
    for (int l = 0; l < 2; ++l) {
      const Share& share = l == 0 ? share_1 : share_2;
      const int columns = l == 0 ? hidden : dim, apart = l == 0 ? hidden : pitch;
      const float* const from = Anchor(l);
#pragma unroll 1
      for (int row = share.first; row < share.first + share.count; ++row) {
        CopyAsync16(Matrix(l) + row * apart + share.column, from + row * columns + share.column);
      }
      Prefetch(Weights(l), elements_);
      if (has_momentum) Prefetch(tensors_.Start(p_.momenta, l, first_), elements_);
    }
    LoadGains();
    // Those of former segments, from the slab, or those of this one.
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {
      const bool held = turn == 0;
      if (!held && p_.early) WaitForPreviousKernel();
#pragma unroll 1
      for (int i = thread; i < (pairs + left) * dim / 2; i += kThreads) {
        const int which = i % 2, pair = i / 2 / (dim / 4), four = i / 2 % (dim / 4) * 4;
        const int e = pair < pairs ? end - (step - 1) + pair : segment_.end - left + pair - pairs;
        if ((e < segment_.first) != held) continue;
        const float* from = (which == 0 ? p_.k : p_.v) + InEntries(e);
        if (held) {
          const int64_t at = (int64_t{head_} * (step - 1) + pair) * dim;
          from = which == 0 ? PendingRow(p_.pending_k, p_.initial_k, segment_, first_, at)
                            : PendingRow(p_.pending_v, p_.initial_v, segment_, first_, at);
        }
        float* const to = (which == 0 ? k : v) + pair * dim + four;
        if (from == nullptr) {
          SaveFour(to, {});
        } else {
          CopyAsync16(to, from + four);
        }
      }
#pragma unroll 1
      for (int pair = thread; pair < pairs; pair += kThreads) {
        const int e = end - (step - 1) + pair;
        if ((e < segment_.first) != held) continue;
        float rate = 0;
        if (!held) {
          rate = GateOf(p_, p_.rate, e, head_);
        } else if (const float* const from = PendingRow(p_.pending_rate, p_.initial_rate, segment_,
                                                        first_, int64_t{head_} * (step - 1) + pair);
                   from != nullptr) {
          rate = *from;
        }
        rates[pair] = p_.rate_scale * rate;
      }
    }
#pragma unroll 1
    for (int i = thread; i < inputs * dim / 4; i += kThreads) {
      const int input = i / (dim / 4), four = i % (dim / 4) * 4;
      const float* const from = input < tokens
                                    ? p_.q + InEntries(segment_.first + input)
                                    : p_.k + InEntries(segment_.end - left + input - tokens);
      CopyAsync16(x + 4 * i, from + four);
    }
    CommitCopies();
    const float kept = ends && has_momentum ? GateOf(p_, p_.momentum, end, head_) : 0.0f;
    const float keep = ends ? KeepOf(p_, end, head_) : 1.0f;
    WaitCopies<0>();
    __syncthreads();
    if (first_ && p_.writes_anchors && !moves) {
      SaveShare(share_1, Matrix(0), hidden, hidden, tensors_.InSlab(p_.anchors, 0));
      SaveShare(share_2, Matrix(1), pitch, dim, tensors_.InSlab(p_.anchors, 1));
    }

    // The pairs through A, and back.
    float *const z = shared_ + room_.z, *const delta = z + at_anchor * hidden;
    float* const error = shared_ + room_.error;
    if (at_anchor > 0) {
      const int halves = SplitsOf(at_anchor, hidden, 2);
      MultiplyPairs(k, at_anchor, Matrix(0), hidden, dim, hidden, halves, z);
      __syncthreads();
      AddUp({z, hidden, halves, at_anchor * hidden}, at_anchor, hidden, p_.network.activation, true,
            z, delta);
      __syncthreads();
      const int splits = min(SplitsOf(at_anchor, dim, 4), hidden / at_anchor);
      float* const outputs = Matrix(0);  // which nothing is multiplied with any more
      MultiplyPairs(z, at_anchor, Matrix(1), pitch, hidden, dim, splits, outputs);
      __syncthreads();
      const float scale = p_.step_scale == nullptr ? 1.0f : p_.step_scale[step - 1];
#pragma unroll 1
      for (int pair = warp; pair < at_anchor; pair += kWarps) {
        const int e = pair < pairs ? end - (step - 1) + pair : segment_.end - left + pair - pairs;
        const float loss =
            FindError(p_, outputs + pair * dim, splits, at_anchor * dim, k + pair * dim,
                      v + pair * dim, shared_ + room_.anchor_gain, shared_ + room_.shift,
                      pair < pairs ? scale * rates[pair] : 0.0f, error + pair * dim);
        if (kLoss && lane == 0 && e >= segment_.first) {
          p_.loss[int64_t{e} * p_.heads + head_] = loss;
        }
      }
      __syncthreads();
      if (ends) MultiplyBack(Matrix(1), pitch, hidden, dim, error, pairs, delta);
    }
    MoveGains(pairs, kept, keep, moves);
    __syncthreads();

    // W and S, and what is read of W.
    const auto partial = [&](int input) { return Matrix(0) + input * kPartial; };
    float *const z_of_inputs = shared_ + room_.of_inputs, *const outputs = error;
#pragma unroll 1
    for (int l = 0; l < 2; ++l) {
      const Part& part = l == 0 ? part_1_ : part_2_;
      const bool saves = ends || first_;
      const auto target = [&](const Copy& copy, bool there) {
        return saves && there ? tensors_.InSlab(copy, l) : nullptr;
      };
      PassMatrix(part, {.weights = Weights(l),
                        .momenta = has_momentum ? tensors_.Start(p_.momenta, l, first_) : nullptr,
                        .to_weights = target(p_.weights, true),
                        .to_momenta = target(p_.momenta, has_momentum),
                        .to_anchors = target(p_.anchors, moves && p_.writes_anchors),
                        .left = l == 0 ? k : z,
                        .right = l == 0 ? delta : error,
                        .pairs = pairs,
                        .kept = kept,
                        .keep = keep,
                        .x = l == 0 ? x : z_of_inputs,
                        .before = before,
                        .count = inputs,
                        .partial = partial(0)});
      __syncthreads();
      AddUp({partial(0), kPartial, part.groups, part.columns}, inputs, part.columns,
            p_.network.activation, l == 0, l == 0 ? z_of_inputs : outputs, nullptr);
      __syncthreads();
    }
#pragma unroll 1
    for (int input = warp; input < inputs; input += kWarps) {
      float* const n = outputs + input * dim;
      const float* const new_gain = shared_ + room_.new_gain;
      const bool answers = input < tokens;
      Finish(p_, n, x + input * dim, answers ? nullptr : v + (pairs + input - tokens) * dim,
             input < before ? shared_ + room_.gain : new_gain, shared_ + room_.shift,
             answers ? segment_.first + input : segment_.end - left + input - tokens, head_,
             /*is_there=*/true);
    }
    KeepPairs(p_, segment_, head_, begin_, /*rank=*/0, /*blocks=*/1);
  }

 private:
  static constexpr int kGain = TensorsOfHead<2>::kGain;

  // A pair of the open step, to its row, and its rate; by all warps but the first. Nothing is
  // written of an entry that is not there, for whose rate k stands.
  __device__ void KeepPair(int entry, int64_t row, const float* k, const float* v,
                           bool is_there) const {
    const auto pending = [&](const StateView& view) {
      return MemoryAt<float>(view, segment_.slot, segment_.memory);
    };
    const int fours = p_.dim / 4, i = static_cast<int>(threadIdx.x) - kWarp;
    if (i < 2 * fours) {
      const bool is_key = i < fours;
      const int four = (is_key ? i : i - fours) * 4;
      float* const to = pending(is_key ? p_.pending_k : p_.pending_v) + row * p_.dim + four;
      const float4 x = LoadFour((is_key ? k : v) + four);
      if (is_there) SaveFour(to, x);
    } else if (i == 2 * fours) {
      const float x = *(is_there ? p_.rate + int64_t{entry} * p_.heads + head_ : k);
      const float rate = p_.logits ? Sigmoid(x) : x;
      if (is_there) pending(p_.pending_rate)[row] = rate;
    }
  }

  __device__ int64_t InEntries(int entry) const {
    return (int64_t{entry} * p_.heads + head_) * p_.dim;
  }
  __device__ float* Matrix(int which) const { return shared_ + room_.matrices + which * elements_; }
  __device__ const float* Weights(int tensor) const {
    return tensors_.Start(p_.weights, tensor, first_);
  }
  // A is W where nothing else is kept.
  __device__ const float* Anchor(int tensor) const {
    return p_.has_anchors ? tensors_.Start(p_.anchors, tensor, first_ || !p_.writes_anchors)
                          : Weights(tensor);
  }
  __device__ void LoadGains() const {
    const MemoryNetwork& network = p_.network;
    const bool has_gain = network.norm != MemoryNetwork::Norm::kNone;
    const int i = static_cast<int>(threadIdx.x);
    if (i >= p_.dim) return;
    float gain = 0, anchor_gain = 0, momentum = 0;
    if (network.trains_gain) {
      gain = Weights(kGain)[i];
      anchor_gain = Anchor(kGain)[i];
      const float* const momenta =
          p_.momentum != nullptr ? tensors_.Start(p_.momenta, kGain, first_) : nullptr;
      if (momenta != nullptr) momentum = momenta[i];
    } else if (has_gain) {
      gain = anchor_gain = p_.gain[head_ * p_.dim + i];
    }
    shared_[room_.gain + i] = gain;
    shared_[room_.new_gain + i] = gain;
    shared_[room_.anchor_gain + i] = anchor_gain;
    shared_[room_.gain_momenta + i] = momentum;
    shared_[room_.shift + i] = p_.shift == nullptr ? 0.0f : p_.shift[head_ * p_.dim + i];
  }
  // The step of a gain, whose gradients have taken the place of v; by its own threads.
  __device__ void MoveGains(int pairs, float kept, float keep, bool moves) const {
    const int i = static_cast<int>(threadIdx.x), dim = p_.dim;
    if (!p_.network.trains_gain || i >= dim || (pairs == 0 && !first_)) return;
    float gain = shared_[room_.gain + i], s = shared_[room_.gain_momenta + i];
    if (pairs > 0) {
      s *= kept;
#pragma unroll 1
      for (int pair = 0; pair < pairs; ++pair) s -= shared_[room_.v + pair * dim + i];
      gain = fmaf(keep, gain, s);
    }
    shared_[room_.new_gain + i] = gain;
    tensors_.InSlab(p_.weights, kGain)[i] = gain;
    if (p_.momentum != nullptr) tensors_.InSlab(p_.momenta, kGain)[i] = s;
    if (p_.writes_anchors && (moves || first_)) {
      tensors_.InSlab(p_.anchors, kGain)[i] = moves ? gain : shared_[room_.anchor_gain + i];
    }
  }
  __device__ static void SaveShare(const Share& share, const float* from, int pitch, int columns,
                                   float* to) {
#pragma unroll 1
    for (int row = share.first; row < share.first + share.count; ++row) {
      SaveFour(to + row * columns + share.column, LoadFour(from + row * pitch + share.column));
    }
  }

  const Params& p_;
  const Part &part_1_, &part_2_;
  const Room& room_;
  const Segment& segment_;
  const int head_;
  const int64_t begin_;
  float* const shared_;
  const TensorsOfHead<2> tensors_;
  const bool first_;    // of a session
  const int elements_;  // of a matrix
};

// The first `ending` blocks share the heads of segments that do not only read, which take longest;
// the others have one of all heads each, or, where losses are wanted, two of them one.
template <bool kLoss>
__global__ void __launch_bounds__(kThreads, 2)
    FewTokensKernel(const __grid_constant__ Params p, const __grid_constant__ Part part_1,
                    const __grid_constant__ Part part_2, const __grid_constant__ Room room,
                    int ending, bool rehearses) {
  extern __shared__ float4 shared_fours[];
  LetNextKernelStart();
  if (!p.early) WaitForPreviousKernel();
  float* const shared = reinterpret_cast<float*>(shared_fours);
  const int block = static_cast<int>(blockIdx.x);
  if (block < ending) {
    uint16_t* const chosen = reinterpret_cast<uint16_t*>(shared + room.floats);
    int before = 0;  // heads of the segments looked at
#pragma unroll 1
    for (int base = 0; base < p.segments.count; base += kThreads) {
      const auto ends = [&](const Segment& segment) {
        return segment.end - segment.first <= room.tokens &&
               !OnlyReads(p, segment, p.positions[segment.first]);
      };
      const int heads = ChooseSegments(p, base, chosen, ends) * p.heads;
#pragma unroll 1
      for (int i = (block + ending - before % ending) % ending; i < heads; i += ending) {
        const Segment segment(p.segments, base + chosen[i / p.heads]);
        HeadOfFew(p, part_1, part_2, room, segment, i % p.heads, p.positions[segment.first], shared)
            .TakeStep<kLoss>();
        __syncthreads();
      }
      before += heads;
      __syncthreads();
    }
    // One block of all is enough to keep the order of kernels; the others make room.
    if (block == 0) WaitForPreviousKernel();
    return;
  }
  constexpr int kReadings = kLoss ? 2 : 1;
  const int unit = (block - ending) / kReadings;
  const Segment segment(p.segments, unit / p.heads);
  const int tokens = segment.end - segment.first;
  if (segment.slot < 0 || tokens == 0 || tokens > room.tokens) return;
  const int64_t begin = p.positions[segment.first];
  if (!OnlyReads(p, segment, begin)) return;
  HeadOfFew(p, part_1, part_2, room, segment, unit % p.heads, begin, shared)
      .Read(static_cast<Reading>((block - ending) % kReadings), rehearses);
}

}  // namespace

int LaunchFewTokens(Device& device, const Params& p, int64_t longest) {
  const MemoryNetwork& network = p.network;
  const int dim = p.dim, hidden = network.hidden;
  if (network.depth != 2 || network.biases || dim > kMostDim || hidden > kMostUnits ||
      dim % 4 != 0 || hidden % 4 != 0 || !AreAligned(p.out, p.gated.data)) {
    return 0;
  }
  const Part part_1(dim, hidden, hidden, 0), part_2(hidden, dim, dim, 0);
  const int most = std::min(p.step, kMostFew);
  const int tokens = longest > 0 ? static_cast<int>(std::min<int64_t>(most, longest)) : most;
  const Room room(dim, hidden, p.step, tokens);
  const int64_t bytes = int64_t{4} * room.floats + kChosenBytes;
  if (std::max(part_1.held, part_2.held) > kHeld || hidden < p.step + tokens - 1 ||
      bytes > std::min<int64_t>(device.properties().sharedMemPerBlockOptin, kMostShared)) {
    return 0;
  }
  Params of_block = p;
  of_block.blocks = 1;
  const int heads = p.segments.count * p.heads, readers = (p.loss != nullptr ? 2 : 1) * heads;
  const int ending = std::min(heads, 2 * device.multiprocessors());
  // Where two blocks are on a multiprocessor, many begin only when the kernel ahead is ending.
  const bool rehearses = p.early && readers <= device.multiprocessors();
  LaunchOverlapping(device, "few tokens of a neural memory",
                    p.loss != nullptr ? FewTokensKernel<true> : FewTokensKernel<false>,
                    ending + readers, kThreads, bytes, 1, of_block, part_1, part_2, room, ending,
                    rehearses);
  return tokens;
}

}  // namespace mneme::cuda::neural_memory::resident
