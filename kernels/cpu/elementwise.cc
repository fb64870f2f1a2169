// Lookups, activations, products of elements, routing and mixing. Built once per instruction set.
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/simd_arrays.h"
#include "kernels/cpu/simd_math.h"

namespace mneme::MNEME_ISA {

namespace {

// write(i, values, lanes) for the values of a row of a table, as f32.
template <typename F>
MNEME_INLINE void ForRow(const TensorView& table, int64_t row, F write) {
  const int64_t dim = table.shape[1];
  if (table.dtype == DType::kF32) {
    const float* from = table.as<float>() + row * dim;
    ForVectors(dim, [&](int64_t i, int lanes) { write(i, LoadUpTo(from + i, lanes), lanes); });
    return;
  }
  const bool bf16 = table.dtype == DType::kBF16;
  const uint16_t* from = table.as<uint16_t>() + row * dim;
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    write(i, bf16 ? LoadBF16(from + i) : LoadF16(from + i), kLanes);
  }
  if (i == dim) return;
  float last[kLanes];
  for (int64_t j = i; j < dim; ++j) last[j - i] = bf16 ? F32FromBF16(from[j]) : F32FromF16(from[j]);
  const int lanes = static_cast<int>(dim - i);
  write(i, LoadUpTo(last, lanes), lanes);
}

}  // namespace

void Embedding(const EmbeddingArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.table.shape[1];
  for (int64_t t = begin; t < end; ++t) {
    float* y = args.y.as<float>() + t * dim;
    ForRow(args.table, args.ids.as<int32_t>()[t],
           [&](int64_t i, Vec row, int lanes) { StoreUpTo(y + i, row, lanes); });
  }
}

void AddPositions(const AddPositionsArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.table.shape[1];
  for (int64_t t = begin; t < end; ++t) {
    int64_t position = args.positions.as<int64_t>()[t];
    if (args.period > 0) position %= args.period;
    if (position < 0 || position >= args.table.shape[0]) continue;
    float* y = args.y.as<float>() + t * dim;
    ForRow(args.table, position, [&](int64_t i, Vec row, int lanes) {
      StoreUpTo(y + i, LoadUpTo(y + i, lanes) + row, lanes);
    });
  }
}

void PositionLayer(const PositionLayerArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.weight.shape[0];
  const float* weight = args.weight.as<float>();
  const float* bias = args.bias.as<float>();
  for (int64_t t = begin; t < end; ++t) {
    const Vec period = Set1(static_cast<float>(args.positions.as<int64_t>()[t] / args.period));
    float* y = args.y.as<float>() + t * dim;
    ForVectors(dim, [&](int64_t i, int lanes) {
      const Vec z = MulAdd(LoadUpTo(weight + i, lanes), period, LoadUpTo(bias + i, lanes));
      StoreUpTo(y + i, Silu(z), lanes);
    });
  }
}

void AddBias(const AddBiasArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.y.shape[1];
  const int32_t* offsets = args.group_offsets.as<int32_t>();
  int64_t group = 0;
  for (int64_t e = begin; e < end; ++e) {
    while (offsets != nullptr && e >= offsets[group + 1]) ++group;
    const float* bias = args.bias.as<float>() + group * dim;
    float* y = args.y.as<float>() + e * dim;
    ForVectors(dim, [&](int64_t i, int lanes) {
      StoreUpTo(y + i, LoadUpTo(y + i, lanes) + LoadUpTo(bias + i, lanes), lanes);
    });
  }
}

namespace {

template <typename F>
MNEME_INLINE void Apply(const float* x, float scale, float* y, int64_t n, F activation) {
  ForVectors(n, [&](int64_t i, int lanes) {
    StoreUpTo(y + i, Set1(scale) * activation(LoadUpTo(x + i, lanes)), lanes);
  });
}

}  // namespace

void Activate(const ActivateArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.y.shape[1];
  const int32_t* rows = args.entry_rows.as<int32_t>();
  while (begin < end) {
    const int64_t entry = begin / dim, first = begin % dim;
    // Without a list of rows the elements lie as those of x do.
    int64_t n = end - begin;
    if (rows != nullptr && n > dim - first) n = dim - first;
    const int64_t row = rows == nullptr ? entry : rows[entry];
    const float* x = args.x.as<float>() + row * dim + first;
    float* y = args.y.as<float>() + begin;
    switch (args.activation) {
      case Activation::kIdentity:
        Apply(x, args.scale, y, n, [](Vec z) { return z; });
        break;
      case Activation::kSilu:
        Apply(x, args.scale, y, n, [](Vec z) { return Silu(z); });
        break;
      case Activation::kSigmoid:
        Apply(x, args.scale, y, n, [](Vec z) { return Sigmoid(z); });
        break;
      case Activation::kRelu:
        Apply(x, args.scale, y, n, [](Vec z) { return Max(Zero(), z); });
        break;
      case Activation::kEluPlusOne:
        Apply(x, args.scale, y, n, [](Vec z) { return Max(Zero(), z) + Exp(Min(Zero(), z)); });
        break;
      case Activation::kTanh:
        Apply(x, args.scale, y, n, [](Vec z) { return Tanh(z); });
        break;
      case Activation::kSquaredRelu:
        Apply(x, args.scale, y, n, [](Vec z) { return Max(Zero(), z) * Max(Zero(), z); });
        break;
      case Activation::kGeluTanh:
        Apply(x, args.scale, y, n, [](Vec z) { return GeluTanh(z); });
        break;
      case Activation::kGelu:
        Apply(x, args.scale, y, n, [](Vec z) { return z * NormalDistribution(z).cumulative; });
        break;
    }
    begin += n;
  }
}

void Multiply(const MultiplyArgs& args, int64_t begin, int64_t end) {
  const int64_t of_factor = args.y.shape[1] / args.b.shape[1];
  if (of_factor > 1) {
    for (int64_t i = begin; i < end;) {
      const int64_t head = i / of_factor, stop = (head + 1) * of_factor;
      const int64_t count = (stop < end ? stop : end) - i;
      const Vec factor = Set1(args.b.as<float>()[head]);
      const float* from = args.a.as<float>() + i;
      float* to = args.y.as<float>() + i;
      ForVectors(count, [&](int64_t j, int lanes) {
        const Vec before = args.accumulate ? LoadUpTo(to + j, lanes) : Zero();
        StoreUpTo(to + j, MulAdd(LoadUpTo(from + j, lanes), factor, before), lanes);
      });
      i += count;
    }
    return;
  }
  const float* a = args.a.as<float>() + begin;
  const float* b = args.b.as<float>() + begin;
  float* y = args.y.as<float>() + begin;
  ForVectors(end - begin, [&](int64_t i, int lanes) {
    const Vec before = args.accumulate ? LoadUpTo(y + i, lanes) : Zero();
    StoreUpTo(y + i, MulAdd(LoadUpTo(a + i, lanes), LoadUpTo(b + i, lanes), before), lanes);
  });
}

void AddScaled(const AddScaledArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.x.shape[1];
  const float* scale = args.scale.as<float>();
  for (int64_t row = begin; row < end; ++row) {
    const float* x = args.x.as<float>() + row * dim;
    float* y = args.y.as<float>() + row * dim;
    ForVectors(dim, [&](int64_t i, int lanes) {
      StoreUpTo(y + i,
                MulAdd(LoadUpTo(scale + i, lanes), LoadUpTo(x + i, lanes), LoadUpTo(y + i, lanes)),
                lanes);
    });
  }
}

void SwiGlu(const SwiGluArgs& args, int64_t begin, int64_t end) {
  const float* gate = args.gate.as<float>() + begin;
  const float* up = args.up.as<float>() + begin;
  float* y = args.y.as<float>() + begin;
  ForVectors(end - begin, [&](int64_t i, int lanes) {
    StoreUpTo(y + i, Silu(LoadUpTo(gate + i, lanes)) * LoadUpTo(up + i, lanes), lanes);
  });
}

void Rope(const RopeArgs& args, int64_t begin, int64_t end) {
  constexpr int64_t kPairs = 64;  // at a time
  const int64_t heads = args.x.shape[1], half = args.x.shape[2] / 2;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t at_token = args.positions.as<int64_t>()[t];
    const auto position = static_cast<double>(args.period > 0 ? at_token % args.period : at_token);
    for (int64_t first = 0; first < half; first += kPairs) {
      const int64_t count = half - first < kPairs ? half - first : kPairs;
      float cosines[kPairs], sines[kPairs];
      for (int64_t j = 0; j < count; ++j) {
        double frequency = args.frequencies.as<float>()[first + j];
        if (args.frequencies.shape.rank == 2) {
          frequency += args.frequencies.as<float>()[half + first + j];
        }
        const double angle = position * frequency;
        cosines[j] = static_cast<float>(__builtin_cos(angle));
        sines[j] = static_cast<float>(__builtin_sin(angle));
      }
      for (int64_t h = 0; args.interleaved && h < heads; ++h) {
        const int64_t at = (t * heads + h) * 2 * half + 2 * first;
        const float* x = args.x.as<float>() + at;
        float* y = args.y.as<float>() + at;
        for (int64_t j = 0; j < count; ++j) {
          const float a = x[2 * j], b = x[2 * j + 1];
          y[2 * j] = a * cosines[j] - b * sines[j];
          y[2 * j + 1] = b * cosines[j] + a * sines[j];
        }
      }
      for (int64_t h = 0; !args.interleaved && h < heads; ++h) {
        const int64_t at = (t * heads + h) * 2 * half + first;
        const float* x = args.x.as<float>() + at;
        float* y = args.y.as<float>() + at;
        ForVectors(count, [&](int64_t j, int lanes) {
          const Vec a = LoadUpTo(x + j, lanes), b = LoadUpTo(x + half + j, lanes);
          const Vec cos = LoadUpTo(cosines + j, lanes), sin = LoadUpTo(sines + j, lanes);
          StoreUpTo(y + j, NegMulAdd(b, sin, a * cos), lanes);
          StoreUpTo(y + half + j, MulAdd(a, sin, b * cos), lanes);
        });
      }
    }
  }
}

void MixMemories(const MixMemoriesArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.x.shape[1];
  const int64_t columns = args.token_entries.shape[1];
  const int64_t top_k = args.weights.empty() ? 0 : args.weights.shape[1];
  const float* x = args.x.as<float>();
  for (int64_t t = begin; t < end; ++t) {
    const int32_t* entries = args.token_entries.as<int32_t>() + t * columns;
    const float* weights = args.weights.as<float>() + t * top_k;
    float* y = args.y.as<float>() + t * dim;
    ForVectors(dim, [&](int64_t i, int lanes) {
      Vec sum = Zero();
      for (int64_t j = 0; j < columns; ++j) {
        const Vec value = LoadUpTo(x + entries[j] * dim + i, lanes);
        sum = j < top_k ? MulAdd(Set1(weights[j]), value, sum) : sum + value;
      }
      StoreUpTo(y + i, sum, lanes);
    });
  }
}

void RouteTopK(const RouteTopKArgs& args, int64_t begin, int64_t end) {
  const int64_t memories = args.logits.shape[1];
  const int64_t top_k = args.indices.shape[1];
  const bool round = args.round_logits == DType::kBF16;
  for (int64_t t = begin; t < end; ++t) {
    const float* logits = args.logits.as<float>() + t * memories;
    int32_t* indices = args.indices.as<int32_t>() + t * top_k;
    float* weights = args.weights.as<float>() + t * top_k;
    const auto logit = [&](int64_t m) { return round ? mneme::RoundToBF16(logits[m]) : logits[m]; };
    // Insertion into a short sorted list. A NaN never wins a comparison, so it comes last and in
    // order: indices stay distinct whatever the logits are.
    const auto better = [&](float a, float b) { return a > b || (b != b && a == a); };
    if (args.forced.empty()) {
      int64_t found = 0;
      for (int64_t m = 0; m < memories; ++m) {
        int64_t at = found < top_k ? found++ : top_k;
        const float value = logit(m);
        while (at > 0 && better(value, logit(indices[at - 1]))) {
          if (at < top_k) indices[at] = indices[at - 1];
          --at;
        }
        if (at < top_k) indices[at] = static_cast<int32_t>(m);
      }
    } else {
      const int32_t* forced = args.forced.as<int32_t>() + t * top_k;
      for (int64_t j = 0; j < top_k; ++j) indices[j] = forced[j];
    }
    float largest = logit(indices[0]);
    for (int64_t j = 1; j < top_k; ++j) {
      const float value = logit(indices[j]);
      largest = value > largest ? value : largest;
    }
    float sum = 0.0f;
    for (int64_t j = 0; j < top_k; ++j) {
      float lane[kLanes];
      Store(lane, Exp(Set1(logit(indices[j]) - largest)));
      weights[j] = lane[0];
      sum += weights[j];
    }
    for (int64_t j = 0; j < top_k; ++j) weights[j] /= sum;
  }
}

}  // namespace mneme::MNEME_ISA
