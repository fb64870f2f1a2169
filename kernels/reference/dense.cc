#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "base/log.h"
#include "kernels/float16.h"
#include "kernels/reference/reference_kernels.h"

namespace mneme {
namespace reference {

void Widen(const void* src, DType dtype, int64_t first, int64_t n, double* dst) {
  switch (dtype) {
    case DType::kF64:
      std::copy_n(static_cast<const double*>(src) + first, n, dst);
      return;
    case DType::kF32:
      std::copy_n(static_cast<const float*>(src) + first, n, dst);
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < n; ++i) {
        dst[i] = F32FromBF16(static_cast<const uint16_t*>(src)[first + i]);
      }
      return;
    case DType::kF16:
      for (int64_t i = 0; i < n; ++i) {
        dst[i] = F32FromF16(static_cast<const uint16_t*>(src)[first + i]);
      }
      return;
    default:
      CHECK(false) << "a matrix of " << Name(dtype);
  }
}

}  // namespace reference

namespace {

// y[e, :] (+)= W x[row(e), :] for the entries [begin, end).
void MultiplyEntries(const LinearArgs& args, const std::vector<double>& x,
                     const PackedMatrix& matrix, int begin, int end) {
  constexpr int kBlock = 4;  // rows of W at a time: four sums keep the adder busy
  const int in_features = matrix.in_features;
  const int32_t* rows = args.entry_rows.as<const int32_t>();
  std::vector<double> w(static_cast<size_t>(kBlock) * in_features);
  for (int first = 0; first < matrix.out_features && begin < end; first += kBlock) {
    const int count = std::min(kBlock, matrix.out_features - first);
    reference::Widen(matrix.data, matrix.dtype, static_cast<int64_t>(first) * in_features,
                     static_cast<int64_t>(count) * in_features, w.data());
    for (int e = begin; e < end; ++e) {
      const double* xe = x.data() + static_cast<int64_t>(rows ? rows[e] : e) * in_features;
      double sums[kBlock] = {};
      for (int i = 0; i < in_features; ++i) {
        for (int j = 0; j < kBlock; ++j) sums[j] += w[j * in_features + i] * xe[i];
      }
      double* y = args.y.as<double>() + static_cast<int64_t>(e) * matrix.out_features + first;
      for (int j = 0; j < count; ++j) y[j] = args.accumulate ? y[j] + sums[j] : sums[j];
    }
  }
}

// The factor 1 / sqrt(mean(x^2) + eps).
double InverseRms(const double* x, int64_t dim, double eps) {
  double sum = 0;
  for (int64_t i = 0; i < dim; ++i) sum += x[i] * x[i];
  return 1.0 / std::sqrt(sum / static_cast<double>(dim) + eps);
}

void SoftmaxRow(const double* x, int64_t n, double* y) {
  const double largest = *std::max_element(x, x + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += y[i] = std::exp(x[i] - largest);
  for (int64_t i = 0; i < n; ++i) y[i] /= sum;
}

}  // namespace

void ReferenceKernels::Embedding(const EmbeddingArgs& args) {
  Check(args, reference::kTypes);
  const int64_t tokens = args.ids.shape[0], dim = args.table.shape[1];
  for (int64_t t = 0; t < tokens; ++t) {
    const int32_t id = args.ids.as<int32_t>()[t];
    CHECK(id >= 0 && id < args.table.shape[0]) << "token " << id;
    reference::Widen(args.table.data, args.table.dtype, id * dim, dim,
                     args.y.as<double>() + t * dim);
  }
}

void ReferenceKernels::AddPositions(const AddPositionsArgs& args) {
  Check(args, reference::kTypes);
  const int64_t tokens = args.positions.shape[0], dim = args.table.shape[1];
  std::vector<double> row(static_cast<size_t>(dim));
  for (int64_t t = 0; t < tokens; ++t) {
    int64_t position = args.positions.as<int64_t>()[t];
    if (args.period > 0) position %= args.period;
    if (position < 0 || position >= args.table.shape[0]) continue;
    reference::Widen(args.table.data, args.table.dtype, position * dim, dim, row.data());
    double* y = args.y.as<double>() + t * dim;
    for (int64_t i = 0; i < dim; ++i) y[i] += row[static_cast<size_t>(i)];
  }
}

void ReferenceKernels::PositionLayer(const PositionLayerArgs& args) {
  Check(args, reference::kTypes);
  const int64_t tokens = args.positions.shape[0], dim = args.weight.shape[0];
  for (int64_t t = 0; t < tokens; ++t) {
    const auto period = static_cast<double>(args.positions.as<int64_t>()[t] / args.period);
    for (int64_t i = 0; i < dim; ++i) {
      args.y.as<double>()[t * dim + i] =
          reference::Silu(args.weight.as<float>()[i] * period + args.bias.as<float>()[i]);
    }
  }
}

void ReferenceKernels::GatherRows(const GatherRowsArgs& args) {
  Check(args, reference::kTypes);
  const int64_t rows = args.x.shape[0], dim = args.x.shape[1], n = args.indices.shape[0];
  for (int64_t i = 0; i < n; ++i) {
    const int32_t row = args.indices.as<int32_t>()[i];
    CHECK(row >= 0 && row < rows) << "row " << row;
    std::copy_n(args.x.as<double>() + row * dim, dim, args.y.as<double>() + i * dim);
  }
}

void ReferenceKernels::BanTokens(const BanTokensArgs& args) {
  Check(args, reference::kTypes);
  const int64_t rows = args.logits.shape[0], vocab = args.logits.shape[1];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < args.tokens.shape[0]; ++i) {
      const int32_t token = args.tokens.as<int32_t>()[i];
      CHECK(token >= 0 && token < vocab) << "token " << token;
      args.logits.as<double>()[r * vocab + token] = -std::numeric_limits<double>::infinity();
    }
  }
}

void ReferenceKernels::RmsNorm(const RmsNormArgs& args) {
  Check(args, reference::kTypes);
  const int64_t tokens = args.x.shape[0], dim = args.x.shape[1];
  for (int64_t t = 0; t < tokens; ++t) {
    const double* x = args.x.as<double>() + t * dim;
    double* y = args.y.as<double>() + t * dim;
    const double factor = InverseRms(x, dim, args.eps);
    for (int64_t i = 0; i < dim; ++i) y[i] = x[i] * factor * args.weight.as<float>()[i];
  }
}

void ReferenceKernels::LayerNorm(const LayerNormArgs& args) {
  Check(args, reference::kTypes);
  const Shape& shape = args.x.shape;
  const int64_t heads = shape.rank == 3 ? shape[1] : 1, dim = shape[shape.rank - 1];
  for (int64_t row = 0; row < shape[0] * heads; ++row) {
    const double* x = args.x.as<double>() + row * dim;
    double* y = args.y.as<double>() + row * dim;
    const float* weight = args.weight.as<float>() + row % heads * dim;
    const float* bias = args.bias.empty() ? nullptr : args.bias.as<float>() + row % heads * dim;
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < dim; ++i) mean += x[i] / static_cast<double>(dim);
    for (int64_t i = 0; i < dim; ++i) {
      variance += (x[i] - mean) * (x[i] - mean) / static_cast<double>(dim);
    }
    const double factor = 1.0 / std::sqrt(variance + args.eps);
    for (int64_t i = 0; i < dim; ++i) {
      y[i] = (x[i] - mean) * factor * weight[i] + (bias != nullptr ? bias[i] : 0.0);
    }
  }
}

void ReferenceKernels::Linear(std::span<const LinearArgs> products) {
  CheckAll(products, reference::kTypes);
  for (const LinearArgs& args : products) {
    const int64_t entries = args.y.shape[0];
    const bool grouped = !args.group_offsets.empty();
    std::vector<double> x(args.x.as<double>(), args.x.as<double>() + args.x.shape.elements());
    if (compute_dtype_ == DType::kBF16) {
      for (double& value : x) value = RoundToBF16(static_cast<float>(value));
    }
    for (size_t g = 0; g < args.weights.size(); ++g) {
      const int32_t* offsets = args.group_offsets.as<int32_t>();
      const PackedMatrix& matrix = args.weights[g];
      MultiplyEntries(args, x, matrix, grouped ? offsets[g] : 0,
                      grouped ? offsets[g + 1] : static_cast<int>(entries));
    }
    if (!args.bias.empty()) {
      AddBias({.bias = args.bias, .group_offsets = args.group_offsets, .y = args.y});
    }
  }
}

void ReferenceKernels::AddBias(const AddBiasArgs& args) {
  Check(args, reference::kTypes);
  const int64_t dim = args.y.shape[1];
  // The last group need not end with the last entry.
  const int64_t entries = args.group_offsets.empty()
                              ? args.y.shape[0]
                              : args.group_offsets.as<int32_t>()[args.bias.shape[0]];
  for (int64_t e = 0, g = 0; e < entries; ++e) {
    if (!args.group_offsets.empty()) {
      while (e >= args.group_offsets.as<int32_t>()[g + 1]) ++g;
    }
    for (int64_t i = 0; i < dim; ++i) {
      args.y.as<double>()[e * dim + i] += args.bias.as<float>()[g * dim + i];
    }
  }
}

void ReferenceKernels::Activate(std::span<const ActivateArgs> activations) {
  CheckAll(activations, reference::kTypes);
  for (const ActivateArgs& args : activations) {
    const int64_t entries = args.y.shape[0], dim = args.y.shape[1];
    for (int64_t e = 0; e < entries; ++e) {
      const int64_t row = args.entry_rows.empty() ? e : args.entry_rows.as<int32_t>()[e];
      for (int64_t i = 0; i < dim; ++i) {
        args.y.as<double>()[e * dim + i] =
            args.scale * reference::Activate(args.activation, args.x.as<double>()[row * dim + i]);
      }
    }
  }
}

void ReferenceKernels::Multiply(const MultiplyArgs& args) {
  Check(args, reference::kTypes);
  const int64_t n = args.y.shape.elements(), of_factor = args.y.shape[1] / args.b.shape[1];
  for (int64_t i = 0; i < n; ++i) {
    const double product = args.a.as<double>()[i] * args.b.as<double>()[i / of_factor];
    args.y.as<double>()[i] = args.accumulate ? args.y.as<double>()[i] + product : product;
  }
}

void ReferenceKernels::AddScaled(const AddScaledArgs& args) {
  Check(args, reference::kTypes);
  const int64_t rows = args.x.shape[0], dim = args.x.shape[1];
  for (int64_t i = 0; i < rows * dim; ++i) {
    args.y.as<double>()[i] += args.scale.as<float>()[i % dim] * args.x.as<double>()[i];
  }
}

void ReferenceKernels::SwiGlu(const SwiGluArgs& args) {
  Check(args, reference::kTypes);
  const int64_t n = args.gate.shape.elements();
  for (int64_t i = 0; i < n; ++i) {
    args.y.as<double>()[i] = reference::Silu(args.gate.as<double>()[i]) * args.up.as<double>()[i];
  }
}

void ReferenceKernels::L2Norm(const L2NormArgs& args) {
  Check(args, reference::kTypes);
  const int64_t entries = args.x.shape[0], heads = args.x.shape[1], dim = args.x.shape[2];
  for (int64_t h = 0; h < entries * heads; ++h) {
    const double* x = args.x.as<double>() + h * dim;
    double* y = args.y.as<double>() + h * dim;
    double sum = 0;
    for (int64_t i = 0; i < dim; ++i) sum += x[i] * x[i];
    const double factor = args.scale / std::sqrt(sum + args.eps);
    for (int64_t i = 0; i < dim; ++i) y[i] = x[i] * factor;
  }
}

void ReferenceKernels::SumNorm(const SumNormArgs& args) {
  Check(args, reference::kTypes);
  const int64_t rows = args.x.shape[0] * args.x.shape[1], dim = args.x.shape[2];
  for (int64_t h = 0; h < rows; ++h) {
    const double* x = args.x.as<double>() + h * dim;
    const double sum = std::accumulate(x, x + dim, 0.0) + args.eps;
    double* y = args.y.as<double>() + h * dim;
    for (int64_t i = 0; i < dim; ++i) y[i] = sum == 0 ? 0 : x[i] / sum;
  }
}

void ReferenceKernels::Divide(const DivideArgs& args) {
  Check(args, reference::kTypes);
  const int64_t dim = args.x.shape[2], n = args.x.shape.elements();
  for (int64_t i = 0; i < n; ++i) {
    args.y.as<double>()[i] = args.x.as<double>()[i] / (args.z.as<double>()[i / dim] + args.eps);
  }
}

void ReferenceKernels::Softmax(const SoftmaxArgs& args) {
  Check(args, reference::kTypes);
  const int64_t rows = args.x.shape[0] * args.x.shape[1], dim = args.x.shape[2];
  for (int64_t h = 0; h < rows; ++h) {
    SoftmaxRow(args.x.as<double>() + h * dim, dim, args.y.as<double>() + h * dim);
  }
}

void ReferenceKernels::MapFeatures(const FeatureMapArgs& args) {
  Check(args, reference::kTypes);
  const int64_t rows = args.x.shape[0] * args.x.shape[1], dim = args.x.shape[2];
  std::vector<double> both(static_cast<size_t>(2 * dim));
  for (int64_t h = 0; h < rows; ++h) {
    const double* x = args.x.as<double>() + h * dim;
    double* y = args.y.as<double>() + h * dim * FeaturesOf(args.map);
    const bool hedgehog = args.map == FeatureMap::kHedgehog;
    for (int64_t i = 0; i < dim; ++i) {
      both[i] = hedgehog ? 2 * x[i] : std::max(x[i], 0.0);
      both[dim + i] = -both[i];
    }
    if (hedgehog) {
      SoftmaxRow(both.data(), 2 * dim, y);
      continue;
    }
    for (int64_t roll = 1; roll <= 4; ++roll) {
      for (int64_t i = 0; i < 2 * dim; ++i) {
        // In one-dimensional heads a roll may go round more than once.
        y[(roll - 1) * 2 * dim + i] = both[i] * both[(i - roll + 4 * dim) % (2 * dim)];
      }
    }
  }
}

void ReferenceKernels::Rope(const RopeArgs& args) {
  Check(args, reference::kTypes);
  const int64_t tokens = args.x.shape[0], heads = args.x.shape[1], half = args.x.shape[2] / 2;
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t at_token = args.positions.as<int64_t>()[t];
    const auto position = static_cast<double>(args.period > 0 ? at_token % args.period : at_token);
    for (int64_t j = 0; j < half; ++j) {
      double frequency = args.frequencies.as<float>()[j];
      if (args.frequencies.shape.rank == 2) frequency += args.frequencies.as<float>()[half + j];
      const double angle = position * frequency;
      const double cos = std::cos(angle), sin = std::sin(angle);
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = (t * heads + h) * 2 * half + (args.interleaved ? 2 * j : j);
        const int64_t other = at + (args.interleaved ? 1 : half);
        const double a = args.x.as<double>()[at], b = args.x.as<double>()[other];
        args.y.as<double>()[at] = a * cos - b * sin;
        args.y.as<double>()[other] = b * cos + a * sin;
      }
    }
  }
}

void ReferenceKernels::GatedRmsNorm(const GatedRmsNormArgs& args) {
  Check(args, reference::kTypes);
  const int64_t tokens = args.x.shape[0], heads = args.x.shape[1], dim = args.x.shape[2];
  std::vector<double> weights(static_cast<size_t>(args.weight.shape.elements()));
  reference::Widen(args.weight.data, args.weight.dtype, 0, args.weight.shape.elements(),
                   weights.data());
  for (int64_t h = 0; h < tokens * heads; ++h) {
    const double* x = args.x.as<double>() + h * dim;
    const double* gate = args.gate.empty() ? nullptr : args.gate.as<double>() + h * dim;
    double* y = args.y.as<double>() + h * dim;
    const double factor = InverseRms(x, dim, args.eps);
    const double* weight = weights.data();
    if (args.weight.shape.rank == 2) weight += h % heads * dim;
    for (int64_t i = 0; i < dim; ++i) {
      const double open = gate == nullptr ? 1.0 : reference::Activate(args.activation, gate[i]);
      y[i] = x[i] * factor * weight[i] * open;
    }
  }
}

}  // namespace mneme
