// The phases, between barriers, of a head's tokens under an anchor: their gradients,
// what queries read after each of them, and what is learned: anchored_windows.cu has the equations.
#pragma once

#include <cstdint>

#include "kernels/cuda/neural_memory/activate.cuh"
#include "kernels/cuda/neural_memory/resident/window_tiles.cuh"

namespace mneme::cuda::neural_memory::resident {

// The tokens of a segment from one on, up to where a window or its anchor ends.
struct Window {
  int from, count;
  bool moves_anchors;
};

template <int kTiles>
class HeadWindows : public WindowTiles {
 public:
  static constexpr int kTokens = kTiles * kWindowTile;

  __device__ HeadWindows(const Params& p, const WindowLayout& at, const Team& team, int head,
                         float* shared)
      : WindowTiles(p, at, team, shared), head_(head) {}

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
  // Those of the token that a lane has.
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
      const LeftRows left = Left(of_keys ? at_.k : at_.q, at_.dim_pitch);
      float sums[kTiles][2][4];
      if (of_keys && anchor != nullptr) {
        const int between = p_.division.parts[0].pitch;
        Multiply(p_.dim, left,
                 RightVectors{anchor + place_.fourth * between + column + place_.eighth, between},
                 sums);
      } else {
        RightColumns<2> right = ColumnsOf(weights_[0], of_keys ? weights_[0] : momenta_[0], column,
                                          of_keys ? column + 8 : column);
        if (!of_keys && !of_queries) right = RowsAsColumns(at_.k, at_.dim_pitch, column);
        Multiply(p_.dim, left, right, sums);
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
      const LeftRows z = Left(at_.z, at_.unit_pitch, tile);
      if (anchor == nullptr) {
        Multiply(at_.units, z, RightColumns<1>{{ColumnOf(weights_[1], column)}, weights_[1].pitch},
                 sums);
      } else {
        Multiply(at_.units, z,
                 RightVectors{anchor + place_.fourth * p_.dim + column + place_.eighth, p_.dim},
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
    const LeftRows error = Left(at_.error, at_.dim_pitch);
    for (int item = warp_; item < at_.units / 8; item += kWindowWarps) {
      const int unit = 8 * item, row = unit + place_.eighth;
      float sums[kTiles][1][4];
      if (anchor == nullptr) {
        const TurnedMatrix& w = weights_[1];
        Multiply(p_.dim, error,
                 RightRows{w.at + row * w.pitch + place_.fourth, w.pitch, w.Turn(row)}, sums);
      } else {
        Multiply(p_.dim, error, RightRows{anchor + row * p_.dim + place_.fourth, p_.dim, 0}, sums);
      }
      ForEachPair<kTiles>([&](int m, int half, int token, int column) {
        float2* const to = reinterpret_cast<float2*>(shared_ + at_.delta + token * at_.delta_pitch +
                                                     unit + column);
        const float2 slopes = *to;
        *to = {slopes.x * sums[m][0][2 * half], slopes.y * sums[m][0][2 * half + 1]};
      });
    }
  }
  // Adds what queries find of W_1 by now.
  __device__ void AddReached() const {
    for (int item = warp_; item < at_.units / 8; item += kWindowWarps) {
      const int column = 8 * item;
      float sums[kTiles][1][4];
      Load(at_.z_of_q, at_.unit_pitch, column, sums);
      AddProducts(kTokens, Left(at_.scores, at_.token_pitch),
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
  // Products of queries with W_2 and S_2 of before the window, and scores with z of keys.
  __device__ void MultiplyUnits() const {
    const int answers = kTiles * p_.dim / 8;
    for (int item = warp_; item < answers + kTiles * kTiles; item += kWindowWarps) {
      const int tile = item % kTiles;
      const LeftRows z = Left(at_.z_of_q, at_.unit_pitch, tile);
      const int nth = item < answers ? item : item - answers,
                column = nth / kTiles * (item < answers ? 8 : kWindowTile);
      float sums[1][2][4];
      const RightColumns<2> right = item < answers
                                        ? ColumnsOf(weights_[1], momenta_[1], column, column)
                                        : RowsAsColumns(at_.z, at_.unit_pitch, column);
      Multiply(at_.units, z, right, sums);
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
      AddProducts(kTokens, Left(at_.scores, at_.token_pitch, tile),
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
  __device__ int64_t InEntries(int e) const { return (int64_t{e} * p_.heads + head_) * p_.dim; }

  // Finds what all tokens reach of each gradient, a lane a gradient: for one warp.
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
    Multiply(kTokens, left, ColumnsOfVectors(delta, delta_pitch, column), sums);
    const TurnedMatrix w = l == 0 ? weights_[0] : weights_[1],
                       s = l == 0 ? momenta_[0] : momenta_[1];
    const int first = (row + place_.eighth) * w.pitch, turn = w.Turn(place_.eighth);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const int own_column = column + 8 * n + 2 * place_.fourth;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = first + (own_column ^ turn) + 8 * half * w.pitch;
        float2* const to_w = reinterpret_cast<float2*>(w.at + at);
        float2* const to_s = reinterpret_cast<float2*>(s.at + at);
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

  const int head_;
};

}  // namespace mneme::cuda::neural_memory::resident
