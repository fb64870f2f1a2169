// Segments of several tokens whose steps are of one token each, with gradients at an anchor: tokens
// under the same anchor, a window, go through two products together, on tensor cores. With n tokens
// of a window behind W_0 and S_0 the memory stands for (kernels/held_steps.h)
//
//   W_n = kept_n W_0 + moved_n S_0 + sum_i g_ni z_i^T delta_i
//   S_n = slowed_n S_0 + sum_i s_ni z_i^T delta_i
//
// so that what token n reads of them are products with W_0 and S_0, and with gradients before it
// through their scores. W and S are in shared memory, hidden units divided among the blocks of a
// cluster. A is W_0 where the window begins with it, else it is read where it is in the slab, or
// in the weights.
#include <cstdint>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/neural_memory/activate.cuh"
#include "kernels/cuda/neural_memory/resident/anchored_windows.cuh"

namespace mneme::cuda::neural_memory::resident {

WindowLayout::WindowLayout(const MemoryNetwork& network, int dim, int blocks, int tiles)
    : tokens(kWindowTile * tiles),
      owned((tokens + blocks - 1) / blocks),
      owner_bits(0),
      units(network.hidden / blocks),
      dim_pitch(dim + 4),
      unit_pitch(units + 4),
      delta_pitch(units + 8),
      token_pitch(tokens + 4),
      floats(0) {
  const auto take = [this](int n) {
    const int taken = floats;
    floats += (n + 3) / 4 * 4;
    return taken;
  };
  while (1 << owner_bits < blocks) ++owner_bits;
  for (int* const matrices : {weights, momenta}) {
    matrices[0] = take(dim * TurnedMatrix::Pitch(units));
    matrices[1] = take(units * TurnedMatrix::Pitch(dim));
  }
  for (int* const vectors : {&q, &k, &v}) *vectors = take(tokens * dim_pitch);
  error = network.trains_gain ? take(tokens * dim_pitch) : v;
  for (int* const of_units : {&z, &z_of_q}) *of_units = take(tokens * unit_pitch);
  delta = take(tokens * delta_pitch);
  for (int* const square : {&reach, &scores}) *square = take(tokens * token_pitch);
  // Of one block these are read before the others come.
  outputs[0] = take(blocks * owned * dim);
  outputs[1] = blocks == 1 ? outputs[0] : take(blocks * owned * dim);
  answers = blocks == 1 ? outputs[1] : take(tokens * dim);
  for (int* const gates : {&rates, &momentum, &keep, &kept, &moved, &slowed, &last}) {
    *gates = take(tokens);
  }
  for (int* const vector : {&gain, &gain_momenta, &anchor_gain, &shift}) *vector = take(dim);
}

namespace {

constexpr int kWindowThreads = 512;
constexpr int kWindowWarps = kWindowThreads / kWarp;

// The n-th segment of several tokens, or -1. Called by whole warps.
__device__ int LongerSegment(const SegmentArrays& p, int n) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int from = 0; from < p.count; from += kWarp) {
    const int own = from + lane;
    const bool longer = own < p.count && p.offsets[own + 1] - p.offsets[own] > 1;
    const unsigned found = __ballot_sync(kAllLanes, longer);
    if (n < __popc(found)) return from + static_cast<int>(__fns(found, 0, n + 1));
    n -= __popc(found);
  }
  return -1;
}

// The tokens of a segment from one on, up to where a window or its anchor ends.
struct Window {
  int from, count;
  bool moves_anchors;
};

template <int kTiles, bool kExact>
class HeadWindows {
 public:
  static constexpr int kTokens = kTiles * kWindowTile;

  __device__ HeadWindows(const Params& p, const WindowLayout& at, const Team& team, int head,
                         float* shared)
      : p_(p),
        at_(at),
        team_(team),
        head_(head),
        shared_(shared),
        weights_{TurnedMatrix(shared + at.weights[0], at.units),
                 TurnedMatrix(shared + at.weights[1], p.dim)},
        momenta_{TurnedMatrix(shared + at.momenta[0], at.units),
                 TurnedMatrix(shared + at.momenta[1], p.dim)} {}

  __device__ int64_t InEntries(int e) const { return (int64_t{e} * p_.heads + head_) * p_.dim; }

  // Starts copies of a matrix' part to shared memory; null: of zeros.
  __device__ void FetchMatrix(const float* from, const Part& part, const TurnedMatrix& to) const {
    for (int row = warp_; row < part.rows; row += kWindowWarps) {
      for (int column = 4 * lane_; column < part.columns; column += 4 * kWarp) {
        if (from == nullptr) {
          SaveFour(to.At(row, column), {});
        } else {
          CopyAsync16(to.At(row, column), from + row * part.pitch + column);
        }
      }
    }
  }
  __device__ void StoreMatrix(const TurnedMatrix& from, const Part& part, float* to) const {
    for (int row = warp_; row < part.rows; row += kWindowWarps) {
      for (int column = 4 * lane_; column < part.columns; column += 4 * kWarp) {
        __stcs(reinterpret_cast<float4*>(to + row * part.pitch + column),
               LoadFour(from.At(row, column)));
      }
    }
  }
  __device__ const TurnedMatrix& weights(int l) const { return weights_[l]; }
  __device__ const TurnedMatrix& momenta(int l) const { return momenta_[l]; }

  // Starts copies of a window's vectors, zeros behind them.
  __device__ void Fetch(const Window& window) const {
    for (int token = warp_; token < kTokens; token += kWindowWarps) {
      const bool valid = token < window.count;
      const int64_t in_entries = InEntries(window.from + (valid ? token : 0));
      for (int i = 4 * lane_; i < p_.dim; i += 4 * kWarp) {
        float* const to = shared_ + token * at_.dim_pitch + i;
        CopyAsync16(SharedAddress(to + at_.q), p_.q + in_entries + i, valid);
        CopyAsync16(SharedAddress(to + at_.k), p_.k + in_entries + i, valid);
        CopyAsync16(SharedAddress(to + at_.v), p_.v + in_entries + i, valid);
      }
    }
    CommitCopies();
  }
  // A lane's token's.
  struct Gates {
    float rate = 0, momentum = 1, keep = 1;
  };
  // For one warp.
  __device__ Gates LoadGates(const Window& window) const {
    Gates gates;
    if (warp_ != 0 || lane_ >= window.count) return gates;
    const int64_t gate = int64_t{window.from + lane_} * p_.heads + head_;
    gates.rate = p_.rate_scale * p_.rate[gate];
    gates.momentum = p_.momentum == nullptr ? 0.0f : p_.momentum[gate];
    if (p_.keep != nullptr) gates.keep = p_.keep[gate];
    return gates;
  }
  // Gates, and what each token finds of W_0 and S_0: by that warp.
  __device__ void FindGates(const Gates& gates) const {
    if (warp_ != 0) return;
    const auto [rate, momentum, keep] = gates;
    float kept = keep, slowed = momentum, moved = momentum;
#pragma unroll
    for (int offset = 1; offset < kTokens; offset *= 2) {
      const float kept_before = __shfl_up_sync(kAllLanes, kept, offset);
      const float slowed_before = __shfl_up_sync(kAllLanes, slowed, offset);
      const float moved_before = __shfl_up_sync(kAllLanes, moved, offset);
      if (lane_ < offset) continue;
      moved = kept * moved_before + slowed_before * moved;
      kept *= kept_before;
      slowed *= slowed_before;
    }
    if (lane_ >= kTokens) return;
    shared_[at_.rates + lane_] = rate;
    shared_[at_.momentum + lane_] = momentum;
    shared_[at_.keep + lane_] = keep;
    shared_[at_.kept + lane_] = kept;
    shared_[at_.slowed + lane_] = slowed;
    shared_[at_.moved + lane_] = moved;
  }

  // a_1 of keys at A, in place of z; scores of keys with queries; what queries find of W_1 and S_1
  // of before the window, in place of theirs. All products are one place of the code, but for those
  // with A in the slab: what a window runs through has to find room in the instruction cache.
  __device__ void MultiplyVectors(const float* anchor, int last) const {
    const int pairs = at_.units / 16, tiles = at_.units / 8;
    if (warp_ == kWindowWarps - 1) FindReach(last);
#pragma unroll 1
    for (int item = warp_; item < pairs + tiles + kTiles; item += kWindowWarps) {
      const bool of_keys = item < pairs, of_queries = !of_keys && item < pairs + tiles;
      const int column = of_keys      ? 16 * item
                         : of_queries ? 8 * (item - pairs)
                                      : kWindowTile * (item - pairs - tiles);
      const LeftVectors left = Left(of_keys ? at_.k : at_.q, at_.dim_pitch);
      float sums[kTiles][2][4];
      if (of_keys && anchor != nullptr) {
        const int between = p_.division.parts[0].pitch;
        Multiply<kExact>(
            p_.dim, left,
            RightVectors{anchor + place_.fourth * between + column + place_.eighth, between, 1},
            sums);
      } else {
        RightColumns<2> right = ColumnsOf(weights_[0], of_keys ? weights_[0] : momenta_[0], column,
                                          of_keys ? column + 8 : column);
        if (!of_keys && !of_queries) right = RowsAsColumns(at_.k, at_.dim_pitch, column);
        Multiply<kExact>(p_.dim, left, right, sums);
      }
      if (of_queries) {
        float before[kTiles][1][4];
        OfBefore(sums, 0, before);
        Save(before, at_.z_of_q, at_.unit_pitch, column);
      } else {
        Save(sums, of_keys ? at_.z : at_.scores, of_keys ? at_.unit_pitch : at_.token_pitch,
             column);
      }
    }
  }
  // z of keys and their slopes, these in place of delta; scores become those of what is reached.
  __device__ void ActivateKeys() const {
    for (int token = warp_; token < kTokens; token += kWindowWarps) {
      float* const z = shared_ + at_.z + token * at_.unit_pitch;
      for (int i = lane_; i < at_.units; i += kWarp) {
        float slope;
        z[i] = Activate(p_.network.activation, z[i], &slope);
        shared_[at_.delta + token * at_.delta_pitch + i] = slope;
      }
      const int score = token * at_.token_pitch + lane_;
      if (lane_ < kTokens) shared_[at_.scores + score] *= shared_[at_.reach + score];
    }
  }
  // Parts of the outputs of keys to the blocks that own the tokens.
  __device__ void SendOutputs(const float* anchor) const {
    for (int item = warp_; item < kTiles * p_.dim / 8; item += kWindowWarps) {
      const int tile = item % kTiles, column = item / kTiles * 8;
      float sums[1][1][4];
      const LeftVectors z = Left(at_.z, at_.unit_pitch, tile);
      if (anchor == nullptr) {
        Multiply<kExact>(at_.units, z,
                         RightColumns<1>{{ColumnOf(weights_[1], column)}, weights_[1].pitch}, sums);
      } else {
        Multiply<kExact>(
            at_.units, z,
            RightVectors{anchor + place_.fourth * p_.dim + column + place_.eighth, p_.dim, 1},
            sums);
      }
      Send(sums, 0, tile, column);
    }
  }
  // Errors of this block's tokens to all blocks.
  __device__ void FindErrors(const Window& window, float scale) const {
    float *const k = shared_ + at_.k, *const v = shared_ + at_.v,
                 *const error = shared_ + at_.error;
    const int rank = team_.rank();
    for (int token = rank + warp_ * p_.blocks; token < window.count;
         token += kWindowWarps * p_.blocks) {
      const int place = token * at_.dim_pitch;
      float* const outputs = shared_ + at_.outputs[0] + (token >> at_.owner_bits) * p_.dim;
      const float rate = scale * shared_[at_.rates + token];
      float loss = 0;
      if (normed_) {
        loss = ErrorOfWarp(p_, outputs, p_.blocks, at_.owned * p_.dim, k + place, v + place,
                           shared_ + at_.anchor_gain, shared_ + at_.shift, rate, error + place);
      } else {
        for (int i = lane_; i < p_.dim; i += kWarp) {
          const float difference = OutputOf(outputs, i) - v[place + i];
          loss = fmaf(difference, difference, loss);
          error[place + i] = rate * difference;
        }
        if (p_.loss != nullptr) loss = WarpSum(loss);
      }
      if (p_.loss != nullptr && lane_ == 0) {
        p_.loss[int64_t{window.from + token} * p_.heads + head_] = loss;
      }
      for (int i = place + lane_; i < place + p_.dim; i += kWarp) {
        for (int to = 0; to < p_.blocks; ++to) {
          if (to == rank) continue;
          *team_.Of(to, error + i) = error[i];
          if (p_.network.trains_gain) *team_.Of(to, v + i) = v[i];
        }
      }
    }
  }
  // delta_1, in place of slopes.
  __device__ void FindDeltas(const float* anchor) const {
    const LeftVectors error = Left(at_.error, at_.dim_pitch);
    for (int item = warp_; item < at_.units / 8; item += kWindowWarps) {
      const int unit = 8 * item, row = unit + place_.eighth;
      float sums[kTiles][1][4];
      if (anchor == nullptr) {
        const TurnedMatrix& w = weights_[1];
        Multiply<kExact>(p_.dim, error,
                         RightRows{w.at + row * w.pitch + place_.fourth, w.pitch, w.Turn(row)},
                         sums);
      } else {
        Multiply<kExact>(p_.dim, error, RightRows{anchor + row * p_.dim + place_.fourth, p_.dim, 0},
                         sums);
      }
      ForEachPair([&](int m, int half, int token, int column) {
        float2* const to = reinterpret_cast<float2*>(shared_ + at_.delta + token * at_.delta_pitch +
                                                     unit + column);
        const float2 slopes = *to;
        *to = {slopes.x * sums[m][0][2 * half], slopes.y * sums[m][0][2 * half + 1]};
      });
    }
  }
  // What queries find of W_1 by now.
  __device__ void AddReached() const {
    for (int item = warp_; item < at_.units / 8; item += kWindowWarps) {
      const int column = 8 * item;
      float sums[kTiles][1][4];
      Load(at_.z_of_q, at_.unit_pitch, column, sums);
      AddProducts<kExact>(kTokens, Left(at_.scores, at_.token_pitch),
                          ColumnsOfVectors(at_.delta, at_.delta_pitch, column), sums);
      Save(sums, at_.z_of_q, at_.unit_pitch, column);
    }
  }
  __device__ void ActivateQueries() const {
    for (int token = warp_; token < kTokens; token += kWindowWarps) {
      float* const z = shared_ + at_.z_of_q + token * at_.unit_pitch;
      for (int i = lane_; i < at_.units; i += kWarp) {
        float slope;
        z[i] = Activate(p_.network.activation, z[i], &slope);
      }
    }
  }
  // What they find of W_2 and S_2 of before the window, and their scores with z of keys.
  __device__ void MultiplyUnits() const {
    const int answers = kTiles * p_.dim / 8;
    for (int item = warp_; item < answers + kTiles * kTiles; item += kWindowWarps) {
      const int tile = item % kTiles;
      const LeftVectors z = Left(at_.z_of_q, at_.unit_pitch, tile);
      const int nth = item < answers ? item : item - answers,
                column = nth / kTiles * (item < answers ? 8 : kWindowTile);
      float sums[1][2][4];
      const RightColumns<2> right = item < answers
                                        ? ColumnsOf(weights_[1], momenta_[1], column, column)
                                        : RowsAsColumns(at_.z, at_.unit_pitch, column);
      Multiply<kExact>(at_.units, z, right, sums);
      if (item < answers) {
        float before[1][1][4];
        OfBefore(sums, tile, before);
        Save(before, at_.answers, p_.dim, column, tile);
      } else {
        float reach[1][2][4];
        Load(at_.reach, at_.token_pitch, column, reach, tile);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[0][n][i] *= reach[0][n][i];
        }
        Save(sums, at_.scores, at_.token_pitch, column, tile);
      }
    }
  }
  // Parts of the answers to the blocks that own the tokens.
  __device__ void SendAnswers() const {
    for (int item = warp_; item < kTiles * p_.dim / 8; item += kWindowWarps) {
      const int tile = item % kTiles, column = item / kTiles * 8;
      float sums[1][1][4];
      Load(at_.answers, p_.dim, column, sums, tile);
      AddProducts<kExact>(kTokens, Left(at_.scores, at_.token_pitch, tile),
                          ColumnsOfVectors(at_.error, at_.dim_pitch, column), sums);
      Send(sums, 1, tile, column);
    }
  }
  // A gain after each token takes the place of its gradient.
  __device__ void LearnGain(const Window& window) const {
    float *const v = shared_ + at_.v, *const gain = shared_ + at_.gain;
    for (int i = static_cast<int>(threadIdx.x); i < p_.dim; i += kWindowThreads) {
      float s = shared_[at_.gain_momenta + i], g = gain[i];
      for (int token = 0; token < window.count; ++token) {
        float* const here = v + token * at_.dim_pitch + i;
        s = p_.momentum == nullptr ? -*here : fmaf(shared_[at_.momentum + token], s, -*here);
        *here = g = fmaf(shared_[at_.keep + token], g, s);
      }
      shared_[at_.gain_momenta + i] = s;
      gain[i] = g;
      if (window.moves_anchors) shared_[at_.anchor_gain + i] = g;
    }
  }
  // The window's gradients become part of W and S; W_0 becomes A in the slab where that is given.
  __device__ void Learn(int last, float* const (&anchors)[2]) const {
    const bool wide = at_.units % 32 == 0 && p_.dim % 32 == 0;
    if (wide) {
      LearnTiles<4>(last, anchors);
    } else {
      LearnTiles<2>(last, anchors);
    }
  }
  __device__ void Answer(const Window& window) const {
    const MemoryNetwork& network = p_.network;
    const float offset = network.trains_gain ? network.gain_offset : 0.0f;
    for (int token = team_.rank() + warp_ * p_.blocks; token < window.count;
         token += kWindowWarps * p_.blocks) {
      float* const n = shared_ + at_.outputs[1] + (token >> at_.owner_bits) * p_.dim;
      float* const out = p_.out + InEntries(window.from + token);
      if (!normed_) {
        for (int i = lane_; i < p_.dim; i += kWarp) out[i] = OutputOf(n, i);
        continue;
      }
      const int place = token * at_.dim_pitch;
      const float* const gain = shared_ + (network.trains_gain ? at_.v + place : at_.gain);
      NormOfWarp(network, p_.dim, n, p_.blocks, at_.owned * p_.dim, n);
      for (int i = lane_; i < p_.dim; i += kWarp) {
        out[i] = shared_[at_.q + place + i] + (n[i] * (offset + gain[i]) + shared_[at_.shift + i]);
      }
    }
  }

 private:
  // An element of an output, of all blocks' parts.
  __device__ float OutputOf(const float* parts, int i) const {
    float y = parts[i];
#pragma unroll 4
    for (int part = 1; part < p_.blocks; ++part) y += parts[part * at_.owned * p_.dim + i];
    return y;
  }
  // visit(tile, half of it, token, column) for each pair of columns that the lane has of sums.
  template <typename Visit>
  __device__ void ForEachPair(const Visit& visit) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        visit(m, half, kWindowTile * m + 8 * half + place_.eighth, 2 * place_.fourth);
      }
    }
  }
  template <int kM, int kN>
  __device__ void Save(const float (&sums)[kM][kN][4], int to, int pitch, int column,
                       int tile = 0) const {
    float* const own =
        shared_ + to + (kWindowTile * tile + place_.eighth) * pitch + column + 2 * place_.fourth;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          *reinterpret_cast<float2*>(own + (16 * m + 8 * half) * pitch + 8 * n) = {
              sums[m][n][2 * half], sums[m][n][2 * half + 1]};
        }
      }
    }
  }
  template <int kM, int kN>
  __device__ void Load(int from, int pitch, int column, float (&sums)[kM][kN][4],
                       int tile = 0) const {
    const float* const own =
        shared_ + from + (kWindowTile * tile + place_.eighth) * pitch + column + 2 * place_.fourth;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 pair =
              *reinterpret_cast<const float2*>(own + (16 * m + 8 * half) * pitch + 8 * n);
          sums[m][n][2 * half] = pair.x;
          sums[m][n][2 * half + 1] = pair.y;
        }
      }
    }
  }
  // To where the owners of the tokens sum them.
  __device__ void Send(const float (&sums)[1][1][4], int which, int tile, int column) const {
    float* const own = shared_ + at_.outputs[which] + team_.rank() * at_.owned * p_.dim + column +
                       2 * place_.fourth;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = kWindowTile * tile + 8 * half + place_.eighth;
      float* const here = own + (token >> at_.owner_bits) * p_.dim;
      *reinterpret_cast<float2*>(team_.Of(token & (p_.blocks - 1), here)) = {
          sums[0][0][2 * half], sums[0][0][2 * half + 1]};
    }
  }
  // Products with W_0 and S_0 of tokens from a tile on, as these count at each.
  template <int kM>
  __device__ void OfBefore(const float (&sums)[kM][2][4], int tile,
                           float (&before)[kM][1][4]) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = kWindowTile * (tile + m) + 8 * half + place_.eighth;
        const float kept = shared_[at_.kept + token], moved = shared_[at_.moved + token];
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          before[m][0][i] = kept * sums[m][0][i] + moved * sums[m][1][i];
        }
      }
    }
  }
  // By one warp, a lane a gradient: what all tokens reach of it.
  __device__ void FindReach(int last) const {
    float s = 0, g = 0;
#pragma unroll 4
    for (int token = 0; token < kTokens; ++token) {
      const float momentum = shared_[at_.momentum + token], keep = shared_[at_.keep + token];
      s = token == lane_ ? -1.0f : momentum * s;
      g = fmaf(keep, g, s);
      if (lane_ < kTokens) {
        shared_[at_.reach + token * at_.token_pitch + lane_] = g;
        if (token == last) shared_[at_.last + lane_] = s;
      }
    }
  }
  // In tiles of 16 rows and 8 kN columns.
  template <int kN>
  __device__ void LearnTiles(int last, float* const (&anchors)[2]) const {
    const int across_1 = at_.units / (8 * kN), of_first = p_.dim / 16 * across_1;
    const int across_2 = p_.dim / (8 * kN), of_second = at_.units / 16 * across_2;
#pragma unroll 1
    for (int item = warp_; item < of_first + of_second; item += kWindowWarps) {
      const bool first = item < of_first;
      const int nth = first ? item : item - of_first, across = first ? across_1 : across_2;
      LearnTile<kN>(first ? 0 : 1, nth / across * 16, nth % across * 8 * kN, first ? at_.k : at_.z,
                    first ? at_.dim_pitch : at_.unit_pitch, first ? at_.delta : at_.error,
                    first ? at_.delta_pitch : at_.dim_pitch, last, first ? anchors[0] : anchors[1]);
    }
  }
  // One of W_l and S_l, of vectors z and delta.
  template <int kN>
  __device__ void LearnTile(int l, int row, int column, int z, int z_pitch, int delta,
                            int delta_pitch, int last, float* anchor) const {
    const float* const own = shared_ + z + place_.fourth * z_pitch + row + place_.eighth;
    const float* const coefficients[2] = {shared_ + at_.reach + last * at_.token_pitch,
                                          shared_ + at_.last};
    const auto left = [&](int m, int i, int k) {
      const int token = k + 4 * (i / 2);
      return coefficients[m][token + place_.fourth] * own[token * z_pitch + 8 * (i % 2)];
    };
    const float kept = shared_[at_.kept + last], moved = shared_[at_.moved + last],
                slowed = shared_[at_.slowed + last];
    float sums[2][kN][4];
    Multiply<kExact>(kTokens, left, ColumnsOfVectors(delta, delta_pitch, column), sums);
    const TurnedMatrix w = l == 0 ? weights_[0] : weights_[1],
                       s = l == 0 ? momenta_[0] : momenta_[1];
    const int first = (row + place_.eighth) * w.pitch, turn = w.Turn(place_.eighth);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const int own_column = column + 8 * n + 2 * place_.fourth;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = first + (own_column ^ turn) + 8 * half * w.pitch;
        float2 *const to_w = reinterpret_cast<float2*>(w.at + at), *const to_s =
                                                                       reinterpret_cast<float2*>(
                                                                           s.at + at);
        const float2 old_w = *to_w, old_s = *to_s;
        const float(&of_w)[4] = sums[0][n], (&of_s)[4] = sums[1][n];
        *to_w = {fmaf(kept, old_w.x, fmaf(moved, old_s.x, of_w[2 * half])),
                 fmaf(kept, old_w.y, fmaf(moved, old_s.y, of_w[2 * half + 1]))};
        *to_s = {fmaf(slowed, old_s.x, of_s[2 * half]), fmaf(slowed, old_s.y, of_s[2 * half + 1])};
        if (anchor == nullptr) continue;
        const int in_row = row + 8 * half + place_.eighth;
        *reinterpret_cast<float2*>(anchor + in_row * (l == 0 ? p_.divided : p_.dim) + own_column) =
            old_w;
      }
    }
  }

  __device__ LeftVectors Left(int vectors, int pitch, int tile = 0) const {
    return {shared_ + vectors + (kWindowTile * tile + place_.eighth) * pitch + place_.fourth, pitch,
            1};
  }
  // Two tiles of rows.
  __device__ RightColumns<2> RowsAsColumns(int vectors, int pitch, int first) const {
    const float* const own = shared_ + vectors + (first + place_.eighth) * pitch + place_.fourth;
    return {{own, own + 8 * pitch}, 1};
  }
  __device__ RightVectors ColumnsOfVectors(int vectors, int pitch, int column) const {
    return {shared_ + vectors + place_.fourth * pitch + column + place_.eighth, pitch, 1};
  }
  __device__ const float* ColumnOf(const TurnedMatrix& w, int column) const {
    return w.At(place_.fourth, column + place_.eighth);
  }
  __device__ RightColumns<2> ColumnsOf(const TurnedMatrix& a, const TurnedMatrix& b, int column_a,
                                       int column_b) const {
    return {{ColumnOf(a, column_a), ColumnOf(b, column_b)}, a.pitch};
  }

  const Params& p_;
  const WindowLayout& at_;
  const Team& team_;
  const int head_;
  float* const shared_;
  const TurnedMatrix weights_[2], momenta_[2];
  const LanePlace place_;
  const bool normed_ = p_.network.norm != MemoryNetwork::Norm::kNone;
  const int lane_ = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_ = static_cast<int>(threadIdx.x) / kWarp;
};

template <int kTiles, bool kExact>
__global__ void __launch_bounds__(kWindowThreads, 1)
    AnchoredWindowsKernel(const __grid_constant__ Params p,
                          const __grid_constant__ WindowLayout at) {
  extern __shared__ float4 shared_fours[];
  LetNextKernelStart();
  if (!p.early) WaitForPreviousKernel();
  const Team team;
  const int unit = static_cast<int>(blockIdx.x) / p.blocks, head = unit % p.heads;
  const int nth = LongerSegment(p.segments, unit / p.heads);
  if (nth < 0) return WaitForPreviousKernel();
  const Segment segment(p.segments, nth);
  if (segment.slot < 0) return WaitForPreviousKernel();
  team.Enter();

  constexpr int kDepth = 2, kGain = TensorsOfHead<kDepth>::kGain;
  const MemoryNetwork& network = p.network;
  const TensorsOfHead<kDepth> tensors(p, segment, head, team.rank());
  float* const shared = reinterpret_cast<float*>(shared_fours);
  const HeadWindows<kTiles, kExact> windows(p, at, team, head, shared);
  const int thread = static_cast<int>(threadIdx.x), dim = p.dim;
  const bool normed = network.norm != MemoryNetwork::Norm::kNone;
  const bool has_momentum = p.momentum != nullptr;
  const int64_t begin = p.positions[segment.first];
  const bool first = begin == p.first_position;
  const bool initial_anchors = first || !p.writes_anchors;

#pragma unroll
  for (int l = 0; l < kDepth; ++l) {
    const Part& part = p.division.parts[l];
    windows.FetchMatrix(tensors.Start(p.weights, l, first), part, windows.weights(l));
    windows.FetchMatrix(has_momentum ? tensors.Start(p.momenta, l, first) : nullptr, part,
                        windows.momenta(l));
  }
  for (int i = thread; normed && i < dim; i += kWindowThreads) {
    shared[at.shift + i] = p.shift == nullptr ? 0.0f : p.shift[head * dim + i];
    if (!network.trains_gain) {
      shared[at.gain + i] = shared[at.anchor_gain + i] = p.gain[head * dim + i];
      continue;
    }
    shared[at.gain + i] = tensors.Start(p.weights, kGain, first)[i];
    shared[at.anchor_gain + i] = tensors.Start(p.anchors, kGain, initial_anchors)[i];
    const float* const momenta = has_momentum ? tensors.Start(p.momenta, kGain, first) : nullptr;
    shared[at.gain_momenta + i] = momenta == nullptr ? 0.0f : momenta[i];
  }
  // Rows behind a window's tokens, which have no errors.
  for (int i = thread; network.trains_gain && i < at.tokens * at.dim_pitch; i += kWindowThreads) {
    shared[at.error + i] = 0;
  }
  const float scale = p.step_scale == nullptr ? 1.0f : p.step_scale[0];
  team.AwaitAll();
  WaitForPreviousKernel();  // state does not depend on it

  const auto window_from = [&](int from) {
    Window window = {from, min(segment.end - from, at.tokens), false};
    if (p.writes_anchors) {
      const int64_t left = p.anchor_period - (begin + from - segment.first) % p.anchor_period;
      window.moves_anchors = left <= window.count;
      if (window.moves_anchors) window.count = static_cast<int>(left);
    }
    return window;
  };
  // A is W, or where these are.
  bool at_weights = false, anchors_moved = false;
  const float* anchors[kDepth];
  for (int l = 0; l < kDepth; ++l) anchors[l] = tensors.Start(p.anchors, l, initial_anchors);

  Window window = window_from(segment.first);
  auto gates = windows.LoadGates(window);
  windows.Fetch(window);
  for (;;) {
    const int last = window.count - 1;
    const float* const anchor_1 = at_weights ? nullptr : anchors[0];
    const float* const anchor_2 = at_weights ? nullptr : anchors[1];
    windows.FindGates(gates);
    AwaitCopies();
    __syncthreads();
    windows.MultiplyVectors(anchor_1, last);
    __syncthreads();
    windows.ActivateKeys();
    __syncthreads();
    windows.SendOutputs(anchor_2);
    team.Sync();
    windows.FindErrors(window, scale);
    team.Sync();
    windows.FindDeltas(anchor_2);
    __syncthreads();
    windows.AddReached();
    __syncthreads();
    windows.ActivateQueries();
    __syncthreads();
    windows.MultiplyUnits();
    __syncthreads();
    windows.SendAnswers();
    if (network.trains_gain) windows.LearnGain(window);
    float* to_anchors[kDepth] = {};
    if (window.moves_anchors) {
      at_weights = anchors_moved = true;
    } else if (at_weights) {
      for (int l = 0; l < kDepth; ++l) anchors[l] = to_anchors[l] = tensors.InSlab(p.anchors, l);
      at_weights = false;
    }
    windows.Learn(last, to_anchors);
    team.Sync();

    const Window done = window;
    const int next = window.from + window.count;
    const bool more = next < segment.end;
    if (more) {
      window = window_from(next);
      gates = windows.LoadGates(window);
      if (!normed) windows.Fetch(window);
    }
    windows.Answer(done);
    if (!more) break;
    if (!normed) continue;
    __syncthreads();
    windows.Fetch(window);
  }

#pragma unroll
  for (int l = 0; l < kDepth; ++l) {
    const Part& part = p.division.parts[l];
    windows.StoreMatrix(windows.weights(l), part, tensors.InSlab(p.weights, l));
    if (has_momentum) windows.StoreMatrix(windows.momenta(l), part, tensors.InSlab(p.momenta, l));
    if (at_weights) windows.StoreMatrix(windows.weights(l), part, tensors.InSlab(p.anchors, l));
    if (!p.writes_anchors || !first || anchors_moved) continue;
    // As they began, in the slab, where they were not yet.
    float* const to = tensors.InSlab(p.anchors, l);
    for (int i = thread; i < part.rows * (part.columns / 4); i += kWindowThreads) {
      const int element = i / (part.columns / 4) * part.pitch + i % (part.columns / 4) * 4;
      SaveFour(to + element, LoadFour(anchors[l] + element));
    }
  }
  for (int i = thread; network.trains_gain && team.rank() == 0 && i < dim; i += kWindowThreads) {
    tensors.InSlab(p.weights, kGain)[i] = shared[at.gain + i];
    if (has_momentum) tensors.InSlab(p.momenta, kGain)[i] = shared[at.gain_momenta + i];
    if (p.writes_anchors) tensors.InSlab(p.anchors, kGain)[i] = shared[at.anchor_gain + i];
  }
}

}  // namespace

void LaunchAnchoredWindows(Device& device, const Plan& plan, const Params& p, int segments) {
  const int tiles = plan.tokens / kWindowTile;
  const WindowLayout layout(p.network, p.dim, plan.blocks, tiles);
  const bool exact = device.compute_dtype() == DType::kF32;
  const auto kernel = tiles == 1
                          ? exact ? AnchoredWindowsKernel<1, true> : AnchoredWindowsKernel<1, false>
                      : exact ? AnchoredWindowsKernel<2, true>
                              : AnchoredWindowsKernel<2, false>;
  LaunchOverlapping(device, "windows of a neural memory under an anchor", kernel,
                    segments * p.heads * plan.blocks, kWindowThreads, plan.shared_bytes,
                    plan.blocks, p, layout);
}

}  // namespace mneme::cuda::neural_memory::resident
