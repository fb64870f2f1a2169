// The networks of neural memories, forth and back, for some rows at once. Included by
// neural_memory.cc only.
#pragma once

#include <cstdint>

#include "kernels/cpu/memory_products.h"
#include "kernels/cpu/simd_arrays.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/ops/neural_memory.h"

namespace mneme::MNEME_ISA {

// The tensors of one head of a copy, in its slab; or of its initial value.
struct HeadTensors {
  float* at[kMaxMemoryTensors] = {};
};

// Activated and, where it is wanted, the derivatives; `a` becomes its activation.
inline void ActivateLayer(MemoryNetwork::Activation activation, int64_t n, float* a, float* slope) {
  const Vec one = Set1(1.0f), half = Set1(0.5f);
  ForVectors(n, [&](int64_t i, int lanes) {
    const Vec x = LoadUpTo(a + i, lanes);
    Vec z, d;
    if (activation == MemoryNetwork::Activation::kSilu) {
      const Vec s = Sigmoid(x);
      z = x * s;
      d = s * (one + x * (one - s));
    } else if (activation == MemoryNetwork::Activation::kGelu) {
      const Normal normal = NormalDistribution(x);
      z = x * normal.cumulative;
      d = MulAdd(x * Set1(0x1.988454p-2f), normal.bell, normal.cumulative);  // 1 / sqrt(2 pi)
    } else {
      const Vec c = Set1(0x1.988454p-1f), cubic = Set1(0.044715f);  // sqrt(2 / pi)
      const Vec t = Tanh(c * MulAdd(cubic * x, x * x, x));
      z = half * x * (one + t);
      d = half * (one + t) + half * x * (one - t * t) * c * MulAdd(Set1(3 * 0.044715f) * x, x, one);
    }
    StoreUpTo(a + i, z, lanes);
    if (slope != nullptr) StoreUpTo(slope + i, d, lanes);
  });
}

// What a row is to be trained on.
struct TrainedRow {
  const float* v;
  float rate;   // rate_scale included
  float* loss;  // or null
};

// The network of one head, and what up to `rows` rows leave behind in it.
class HeadNetwork {
 public:
  HeadNetwork(const NeuralMemoryArgs& args, int head, int rows, float*& scratch)
      : network_(args.network), dim_(args.q.shape[2]) {
    const auto take = [&](int64_t width, int count) {
      const Rows taken{scratch, PaddedFloats(width)};
      scratch += count * taken.pitch;
      return taken;
    };
    const int64_t wide = WidestLayer(network_, dim_);
    for (int l = 0; l < network_.depth; ++l) {
      z_[l] = take(l == 0 ? dim_ : network_.hidden, rows);
      slope_[l] = l == 0 ? Rows{} : take(network_.hidden, rows);
      delta_[l] = take(network_.out(l + 1, dim_), rows);
    }
    y_ = take(dim_, rows);
    gain_gradient_ = take(dim_, rows);
    read_[0] = take(wide, rows);
    read_[1] = take(wide, rows);
    gain_ = take(dim_, 1).data;
    shift_ = take(dim_, 1).data;
    for (int64_t i = 0; i < dim_; ++i) {
      gain_[i] = args.gain.empty() ? 0.0f : args.gain.as<float>()[head * dim_ + i];
      shift_[i] = args.shift.empty() ? 0.0f : args.shift.as<float>()[head * dim_ + i];
    }
  }

  static int64_t WidestLayer(const MemoryNetwork& network, int64_t dim) {
    return dim > network.hidden ? dim : network.hidden;
  }
  static int64_t ScratchFloats(const MemoryNetwork& network, int64_t dim, int rows) {
    return (3 * network.depth + 4) * rows * PaddedFloats(WidestLayer(network, dim)) +
           2 * PaddedFloats(dim);
  }

  int64_t elements(int t) const { return network_.shape(t, dim_).elements(); }
  // z_0 of a row that is to be trained, to be filled.
  float* input(int r) const { return z_[0][r]; }
  // Row r's part of the gradient of weights l is the product of these two.
  Rows z(int l) const { return z_[l - 1]; }
  Rows delta(int l) const { return delta_[l - 1]; }
  // Tensors that are vectors, one after the other: visit(tensor, each row's gradient).
  template <typename Visit>
  void ForEachVector(Visit visit) const {
    for (int l = 1; network_.biases && l <= network_.depth; ++l) {
      visit(network_.depth + l - 1, delta_[l - 1]);
    }
    if (network_.trains_gain) visit(network_.gain(), gain_gradient_);
  }

  // The losses of rows input(), and with `gradients` what their gradients are made of.
  void Train(const HeadTensors& net, int rows, const TrainedRow* rows_of, bool gradients) {
    const int depth = network_.depth;
    for (int l = 1; l <= depth; ++l) {
      const Rows a = l == depth ? y_ : z_[l];
      Products(z_[l - 1], rows, net.at[l - 1], network_.in(l, dim_), network_.out(l, dim_),
               Bias(net, l), a);
      for (int r = 0; l < depth && r < rows; ++r) {
        ActivateLayer(network_.activation, network_.hidden, a[r], slope_[l][r]);
      }
    }
    FindGain(net);
    for (int r = 0; r < rows; ++r) Error(r, rows_of[r]);
    for (int l = depth; gradients && l > 1; --l) {
      ProductsOfRows(net.at[l - 1], network_.in(l, dim_), network_.out(l, dim_), delta_[l - 1],
                     rows, delta_[l - 2]);
      for (int r = 0; r < rows; ++r) {
        float* before = delta_[l - 2][r];
        ForVectors(network_.hidden, [&](int64_t i, int lanes) {
          StoreUpTo(before + i, LoadUpTo(before + i, lanes) * LoadUpTo(slope_[l - 1][r] + i, lanes),
                    lanes);
        });
      }
    }
  }

  // sums += the gradients of `rows` rows.
  void AddGradients(int rows, const HeadTensors& sums) const {
    for (int l = 1; l <= network_.depth; ++l) {
      const int64_t in = network_.in(l, dim_), out = network_.out(l, dim_);
      for (int64_t i = 0; i < in; ++i) {
        AddRows(rows, sums.at[l - 1] + i * out, out, delta_[l - 1],
                [&](int r) { return Set1(z_[l - 1][r][i]); });
      }
    }
    ForEachVector([&](int t, Rows gradient) {
      AddRows(rows, sums.at[t], elements(t), gradient, [](int) { return Set1(1.0f); });
    });
  }

  // out[r] = M(x[r])
  void Read(const HeadTensors& net, Rows x, int rows, Rows out) {
    Read(net, x, rows, out, [&](int l, Rows from, const float* bias, Rows y) {
      Products(from, rows, net.at[l - 1], network_.in(l, dim_), network_.out(l, dim_), bias, y);
    });
  }
  // The same by multiply(l, x, bias, y), which may change weights l before it multiplies by them.
  template <typename Multiply>
  void Read(const HeadTensors& net, Rows x, int rows, Rows out, Multiply multiply) {
    const Rows y = Pass(net, x, rows, multiply);
    FindGain(net);
    for (int r = 0; r < rows; ++r) Emit(x[r], y[r], out[r]);
  }
  // y of these.
  template <typename Multiply>
  Rows Pass(const HeadTensors& net, Rows x, int rows, Multiply multiply) {
    for (int l = 1; l <= network_.depth; ++l) {
      const Rows y = read_[l % 2];
      multiply(l, x, Bias(net, l), y);
      for (int r = 0; l < network_.depth && r < rows; ++r) {
        ActivateLayer(network_.activation, network_.hidden, y[r], nullptr);
      }
      x = y;
    }
    return x;
  }
  // Answers one row, from net - ahead sums.
  void ReadAhead(const HeadTensors& net, const HeadTensors& sums, float ahead, const float* x,
                 float* out) {
    Rows from{const_cast<float*>(x), 0};
    for (int l = 1; l <= network_.depth; ++l) {
      const int64_t in = network_.in(l, dim_), width = network_.out(l, dim_);
      const Rows y = read_[l % 2];
      // What G answers goes where y of the row that was trained is no longer needed.
      const Rows less = delta_[l - 1];
      Products(from, 1, net.at[l - 1], in, width, Bias(net, l), y);
      Products(from, 1, sums.at[l - 1], in, width, Bias(sums, l), less);
      ForVectors(width, [&](int64_t i, int lanes) {
        StoreUpTo(y[0] + i,
                  NegMulAdd(Set1(ahead), LoadUpTo(less[0] + i, lanes), LoadUpTo(y[0] + i, lanes)),
                  lanes);
      });
      if (l < network_.depth) {
        ActivateLayer(network_.activation, network_.hidden, y[0], nullptr);
      }
      from = y;
    }
    FindGain(net);
    if (network_.trains_gain) {
      const float* sum = sums.at[network_.gain()];
      for (int64_t i = 0; i < dim_; ++i) gain_[i] -= ahead * sum[i];
    }
    Emit(x, from[0], out);
  }

 private:
  const float* Bias(const HeadTensors& net, int l) const {
    return network_.biases ? net.at[network_.depth + l - 1] : nullptr;
  }
  void FindGain(const HeadTensors& net) {
    if (!network_.trains_gain) return;
    const float* g = net.at[network_.gain()];
    for (int64_t i = 0; i < dim_; ++i) gain_[i] = network_.gain_offset + g[i];
  }

  // sum_r factor(r) rows[r] is added to a vector.
  template <typename Factor>
  static void AddRows(int rows, float* sums, int64_t n, Rows from, Factor factor) {
    ForVectors(n, [&](int64_t o, int lanes) {
      Vec sum = LoadUpTo(sums + o, lanes);
      for (int r = 0; r < rows; ++r) sum = MulAdd(factor(r), LoadUpTo(from[r] + o, lanes), sum);
      StoreUpTo(sums + o, sum, lanes);
    });
  }

  // y becomes n; returns what y was divided by.
  float NormInPlace(float* y) const {
    const auto width = static_cast<float>(dim_);
    if (network_.norm == MemoryNetwork::Norm::kLayer) {
      Vec sum = Zero();
      ForVectors(dim_, [&](int64_t i, int lanes) { sum = sum + LoadUpTo(y + i, lanes); });
      const Vec mean = Set1(Sum(sum) / width);
      ForVectors(dim_, [&](int64_t i, int lanes) {
        StoreUpTo(y + i, LoadUpTo(y + i, lanes) - mean, lanes);
      });
    }
    Vec squares = Zero();
    ForVectors(dim_, [&](int64_t i, int lanes) {
      const Vec part = LoadUpTo(y + i, lanes);
      squares = MulAdd(part, part, squares);
    });
    const float spread = __builtin_sqrtf(Sum(squares) / width + network_.eps);
    ForVectors(dim_, [&](int64_t i, int lanes) {
      StoreUpTo(y + i, LoadUpTo(y + i, lanes) / Set1(spread), lanes);
    });
    return spread;
  }
  MNEME_INLINE Vec Output(const float* x, const float* n, int64_t i, int lanes) const {
    return LoadUpTo(x + i, lanes) +
           MulAdd(LoadUpTo(n + i, lanes), LoadUpTo(gain_ + i, lanes), LoadUpTo(shift_ + i, lanes));
  }

  // From y of row r to delta of the last layer.
  void Error(int r, const TrainedRow& row) {
    float *y = y_[r], *delta = delta_[network_.depth - 1][r], *gained = gain_gradient_[r];
    const bool normed = network_.norm != MemoryNetwork::Norm::kNone;
    const float spread = normed ? NormInPlace(y) : 1.0f;
    Vec sum = Zero(), along = Zero(), loss = Zero();
    ForVectors(dim_, [&](int64_t i, int lanes) {
      const Vec n = LoadUpTo(y + i, lanes);
      const Vec off = (normed ? Output(z_[0][r], y, i, lanes) : n) - LoadUpTo(row.v + i, lanes);
      Vec d = Set1(row.rate) * off;
      loss = MulAdd(off, off, loss);
      if (normed) {
        StoreUpTo(gained + i, d * n, lanes);
        d = d * LoadUpTo(gain_ + i, lanes);
        sum = sum + d;
        along = MulAdd(d, n, along);
      }
      StoreUpTo(delta + i, d, lanes);
    });
    if (row.loss != nullptr) *row.loss = Sum(loss);
    if (!normed) return;
    const auto width = static_cast<float>(dim_);
    const Vec mean = network_.norm == MemoryNetwork::Norm::kLayer ? Set1(Sum(sum) / width) : Zero();
    const Vec by = Set1(Sum(along) / width);
    ForVectors(dim_, [&](int64_t i, int lanes) {
      const Vec d = LoadUpTo(delta + i, lanes) - mean - LoadUpTo(y + i, lanes) * by;
      StoreUpTo(delta + i, d / Set1(spread), lanes);
    });
  }

  void Emit(const float* x, float* y, float* out) const {
    const bool normed = network_.norm != MemoryNetwork::Norm::kNone;
    if (normed) NormInPlace(y);
    ForVectors(dim_, [&](int64_t i, int lanes) {
      StoreUpTo(out + i, normed ? Output(x, y, i, lanes) : LoadUpTo(y + i, lanes), lanes);
    });
  }

  const MemoryNetwork& network_;
  const int64_t dim_;
  Rows z_[kMaxMemoryDepth], slope_[kMaxMemoryDepth], delta_[kMaxMemoryDepth];  // by layer
  Rows y_, gain_gradient_, read_[2];
  float *gain_, *shift_;
};

}  // namespace mneme::MNEME_ISA
