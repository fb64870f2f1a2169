// Norms, gates, embedding, routing and the short convolution. Built once per instruction set.
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/simd_math.h"

namespace mneme::MNEME_ISA {
namespace {

// Calls f(offset, lanes) for [0, n) in steps of a vector; the last may be partial.
template <typename F>
MNEME_INLINE void ForVectors(int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, kLanes);
  if (i < n) f(i, static_cast<int>(n - i));
}

MNEME_INLINE Vec LoadUpTo(const float* p, int lanes) {
  return lanes == kLanes ? Load(p) : LoadFirst(p, lanes);
}
MNEME_INLINE void StoreUpTo(float* p, Vec a, int lanes) {
  if (lanes == kLanes) {
    Store(p, a);
  } else {
    StoreFirst(p, a, lanes);
  }
}

MNEME_INLINE float SumOfSquares(const float* x, int64_t n) {
  Vec sum = Zero();
  ForVectors(n, [&](int64_t i, int lanes) {
    const Vec v = LoadUpTo(x + i, lanes);
    sum = MulAdd(v, v, sum);
  });
  return Sum(sum);
}

MNEME_INLINE float InverseRoot(float x) { return 1.0f / __builtin_sqrtf(x); }

}  // namespace

void Embedding(const EmbeddingArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.table.shape[1];
  const int32_t* ids = args.ids.as<int32_t>();
  float* y = args.y.as<float>();
  for (int64_t t = begin; t < end; ++t) {
    const int64_t from = ids[t] * dim;
    float* to = y + t * dim;
    if (args.table.dtype == DType::kF32) {
      __builtin_memcpy(to, args.table.as<float>() + from, dim * sizeof(float));
      continue;
    }
    const bool bf16 = args.table.dtype == DType::kBF16;
    const uint16_t* row = args.table.as<uint16_t>() + from;
    int64_t i = 0;
    for (; i + kLanes <= dim; i += kLanes) {
      Store(to + i, bf16 ? LoadBF16(row + i) : LoadF16(row + i));
    }
    for (; i < dim; ++i) to[i] = bf16 ? F32FromBF16(row[i]) : F32FromF16(row[i]);
  }
}

void RmsNorm(const RmsNormArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.x.shape[1];
  const float* weight = args.weight.as<float>();
  for (int64_t t = begin; t < end; ++t) {
    const float* x = args.x.as<float>() + t * dim;
    float* y = args.y.as<float>() + t * dim;
    const Vec scale = Set1(InverseRoot(SumOfSquares(x, dim) / static_cast<float>(dim) + args.eps));
    ForVectors(dim, [&](int64_t i, int lanes) {
      StoreUpTo(y + i, LoadUpTo(x + i, lanes) * scale * LoadUpTo(weight + i, lanes), lanes);
    });
  }
}

void GatedRmsNorm(const GatedRmsNormArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.x.shape[2];
  const float* weight = args.weight.as<float>();
  const float* gates = args.gate.as<float>();
  for (int64_t row = begin; row < end; ++row) {
    const float* x = args.x.as<float>() + row * dim;
    float* y = args.y.as<float>() + row * dim;
    const Vec scale = Set1(InverseRoot(SumOfSquares(x, dim) / static_cast<float>(dim) + args.eps));
    ForVectors(dim, [&](int64_t i, int lanes) {
      Vec value = LoadUpTo(x + i, lanes) * scale * LoadUpTo(weight + i, lanes);
      if (gates != nullptr) value = value * Silu(LoadUpTo(gates + row * dim + i, lanes));
      StoreUpTo(y + i, value, lanes);
    });
  }
}

void L2Norm(const L2NormArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.x.shape[2];
  for (int64_t row = begin; row < end; ++row) {
    const float* x = args.x.as<float>() + row * dim;
    float* y = args.y.as<float>() + row * dim;
    const Vec scale = Set1(args.scale * InverseRoot(SumOfSquares(x, dim) + args.eps));
    ForVectors(dim, [&](int64_t i, int lanes) {
      StoreUpTo(y + i, LoadUpTo(x + i, lanes) * scale, lanes);
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

void DeltaGates(const DeltaGatesArgs& args, int64_t begin, int64_t end) {
  const int64_t heads = args.log_decay.shape[1];
  const float* a_log = args.a_log.as<float>();
  const float* dt_bias = args.dt_bias.as<float>();
  const int32_t* rows = args.entry_rows.as<int32_t>();
  for (int64_t e = begin; e < end; ++e) {
    const int64_t row = rows == nullptr ? e : rows[e];
    const float* a = args.a.as<float>() + row * heads;
    const float* b = args.b.as<float>() + row * heads;
    float* log_decay = args.log_decay.as<float>() + e * heads;
    float* beta = args.beta.as<float>() + e * heads;
    ForVectors(heads, [&](int64_t i, int lanes) {
      const Vec rate = Exp(LoadUpTo(a_log + i, lanes));
      const Vec step = Softplus(LoadUpTo(a + i, lanes) + LoadUpTo(dt_bias + i, lanes));
      const Vec gate = Set1(args.beta_scale) * Sigmoid(LoadUpTo(b + i, lanes));
      StoreUpTo(log_decay + i, Zero() - rate * step, lanes);
      StoreUpTo(beta + i, gate, lanes);
    });
  }
}

namespace {

constexpr int64_t kConvChannels = 1024;  // at a time: windows are read in runs of 4 KB

float* Window(const ShortConvArgs& args, int segment) {
  return args.window.as<float>(args.segments.slots.as<int32_t>()[segment],
                               args.segments.memories.as<int32_t>()[segment]);
}

// Channels [first, first + count) of one segment; weight[j] holds tap j of each, oldest first.
// The width is kWidth, or args' where that is 0. Meanwhile the same channels of `next`, another
// window, are fetched, evenly, for requests in a bunch would wait for each other.
template <int kWidth>
void ConvolveSegment(const ShortConvArgs& args, int segment, int64_t first, int64_t count,
                     const float (*weight)[kConvChannels], const float* next) {
  const int width = kWidth > 0 ? kWidth : static_cast<int>(args.weight.shape[1]);
  const int64_t channels = args.x.shape[1];
  const float* x = args.x.as<float>() + first;
  const int32_t* entry_rows = args.entry_rows.as<int32_t>();
  const int begin = args.segments.offsets.as<int32_t>()[segment];
  const int end = args.segments.offsets.as<int32_t>()[segment + 1];
  const bool fresh = args.segments.fresh.as<int32_t>()[segment] != 0;
  float* window = Window(args, segment) + first;
  next += first;
  float* y = args.y.as<float>() + first;
  ForVectors(count, [&](int64_t c, int lanes) {
    constexpr int kTaps = kWidth > 0 ? kWidth : kMaxConvWidth;
    Vec tap[kTaps], history[kTaps];  // history: the last width values, oldest first
    MNEME_UNROLL
    for (int j = 0; j < width; ++j) tap[j] = LoadUpTo(weight[j] + c, lanes);
    MNEME_UNROLL
    for (int j = 0; j + 1 < width; ++j) {
      history[j + 1] = fresh ? Zero() : LoadUpTo(window + j * channels + c, lanes);
      Prefetch(next + j * channels + c);
    }
    for (int e = begin; e < end; ++e) {
      MNEME_UNROLL
      for (int j = 0; j + 1 < width; ++j) history[j] = history[j + 1];
      const int64_t row = entry_rows == nullptr ? e : entry_rows[e];
      history[width - 1] = LoadUpTo(x + row * channels + c, lanes);
      Vec sum = tap[0] * history[0];
      MNEME_UNROLL
      for (int j = 1; j < width; ++j) sum = MulAdd(tap[j], history[j], sum);
      StoreUpTo(y + e * channels + c, Silu(sum), lanes);
    }
    MNEME_UNROLL
    for (int j = 0; j + 1 < width; ++j) {
      StoreUpTo(window + j * channels + c, history[j + 1], lanes);
    }
  });
}

// The first segment from `s` on that has entries and a slot, or the number of segments.
int NextActive(const Segments& segments, int s) {
  const int32_t* offsets = segments.offsets.as<int32_t>();
  while (s < segments.count &&
         (offsets[s] == offsets[s + 1] || segments.slots.as<int32_t>()[s] < 0)) {
    ++s;
  }
  return s;
}

}  // namespace

void ShortConv(const ShortConvArgs& args, int64_t begin, int64_t end) {
  const int width = static_cast<int>(args.weight.shape[1]);
  const auto convolve = width == 4 ? ConvolveSegment<4> : ConvolveSegment<0>;

  for (int64_t first = begin; first < end; first += kConvChannels) {
    const int64_t count = end - first < kConvChannels ? end - first : kConvChannels;
    float weight[kMaxConvWidth][kConvChannels];
    for (int64_t c = 0; c < count; ++c) {
      for (int j = 0; j < width; ++j) {
        weight[j][c] = args.weight.as<float>()[(first + c) * width + j];
      }
    }
    for (int s = NextActive(args.segments, 0); s < args.segments.count;) {
      const int next = NextActive(args.segments, s + 1);
      const int fetched = next < args.segments.count ? next : s;
      convolve(args, s, first, count, weight, Window(args, fetched));
      s = next;
    }
  }
}

}  // namespace mneme::MNEME_ISA
