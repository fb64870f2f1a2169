#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/reference_kernels.h"

namespace mneme {
namespace {

constexpr int kSinkhornRounds = 20;
constexpr double kLeastNorm = 1e-12;

// `matrix` is [n, n], row by row.
void MakeDoublyStochastic(std::vector<double>& matrix, int64_t n) {
  const auto at = [&](int64_t s, int64_t t) -> double& {
    return matrix[static_cast<size_t>(s * n + t)];
  };
  for (int64_t t = 0; t < n; ++t) {
    double largest = at(0, t);
    for (int64_t s = 1; s < n; ++s) largest = std::max(largest, at(s, t));
    for (int64_t s = 0; s < n; ++s) at(s, t) = std::exp(at(s, t) - largest);
  }
  for (int round = 0; round < kSinkhornRounds; ++round) {
    for (int64_t t = 0; t < n; ++t) {
      double sum = 0;
      for (int64_t s = 0; s < n; ++s) sum += at(s, t);
      for (int64_t s = 0; s < n; ++s) at(s, t) /= std::max(sum, kLeastNorm);
    }
    for (int64_t s = 0; s < n; ++s) {
      double sum = 0;
      for (int64_t t = 0; t < n; ++t) sum += at(s, t);
      for (int64_t t = 0; t < n; ++t) at(s, t) /= std::max(sum, kLeastNorm);
    }
  }
}

}  // namespace

void ReferenceKernels::ExpandStreams(const ExpandStreamsArgs& args) {
  Check(args, reference::kTypes);
  const int64_t tokens = args.x.shape[0], streams = args.y.shape[1], dim = args.x.shape[1];
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < streams * dim; ++i) {
      args.y.as<double>()[t * streams * dim + i] =
          args.x.as<double>()[t * dim + i % dim] + args.embedding.as<float>()[i];
    }
  }
}

void ReferenceKernels::ReadStreams(const ReadStreamsArgs& args) {
  Check(args, reference::kTypes);
  const StreamMixing& mixing = args.mixing;
  const int64_t tokens = args.x.shape[0], n = args.x.shape[1], dim = args.x.shape[2];
  const float* scales = mixing.scales.as<float>();
  const bool dynamic = mixing.kind == StreamMixing::Kind::kDynamic;
  std::vector<double> z(static_cast<size_t>(dim)), pre(static_cast<size_t>(n)),
      residual(static_cast<size_t>(n * n)), mixed(static_cast<size_t>(n));
  for (int64_t token = 0; token < tokens; ++token) {
    double* x = args.x.as<double>() + token * n * dim;
    for (int64_t s = 0; s < n; ++s) {
      double squares = 0;
      for (int64_t i = 0; i < dim; ++i) squares += x[s * dim + i] * x[s * dim + i];
      const double scale =
          std::sqrt(static_cast<double>(dim)) / std::max(std::sqrt(squares), kLeastNorm);
      for (int64_t i = 0; i < dim; ++i) {
        z[static_cast<size_t>(i)] = x[s * dim + i] * scale * (1.0 + mixing.gain.as<float>()[i]);
      }
      const auto product = [&](const float* weight) {
        double sum = 0;
        for (int64_t i = 0; i < dim; ++i) sum += weight[i] * z[static_cast<size_t>(i)];
        return dynamic ? std::tanh(sum) : sum;
      };
      for (int64_t j = 0; j <= n; ++j) {
        const double a =
            scales[j == 0 ? 0 : 1] * product(mixing.alpha_weight.as<float>() + j * dim) +
            mixing.alpha.as<float>()[s * (1 + n) + j];
        if (j == 0) {
          pre[static_cast<size_t>(s)] = dynamic ? a : reference::Sigmoid(a);
        } else {
          residual[static_cast<size_t>(s * n + j - 1)] = a;
        }
      }
      if (mixing.beta.empty()) continue;
      const double u =
          scales[2] * product(mixing.beta_weight.as<float>()) + mixing.beta.as<float>()[s];
      args.post.as<double>()[token * n + s] = dynamic ? u : 2 * reference::Sigmoid(u);
    }
    if (mixing.kind == StreamMixing::Kind::kConstrained) MakeDoublyStochastic(residual, n);
    if (mixing.kind == StreamMixing::Kind::kSum) std::fill(residual.begin(), residual.end(), 1.0);
    for (int64_t i = 0; i < dim; ++i) {
      double input = 0;
      for (int64_t s = 0; s < n; ++s) input += pre[static_cast<size_t>(s)] * x[s * dim + i];
      args.y.as<double>()[token * dim + i] = input;
      if (mixing.beta.empty()) continue;
      for (int64_t t = 0; t < n; ++t) {
        mixed[static_cast<size_t>(t)] = 0;
        for (int64_t s = 0; s < n; ++s) {
          mixed[static_cast<size_t>(t)] +=
              residual[static_cast<size_t>(s * n + t)] * x[s * dim + i];
        }
      }
      for (int64_t t = 0; t < n; ++t) x[t * dim + i] = mixed[static_cast<size_t>(t)];
    }
  }
}

void ReferenceKernels::WriteStreams(const WriteStreamsArgs& args) {
  Check(args, reference::kTypes);
  const int64_t tokens = args.y.shape[0], streams = args.y.shape[1], dim = args.y.shape[2];
  for (int64_t row = 0; row < tokens * streams; ++row) {
    const double post = args.post.as<double>()[row];
    for (int64_t i = 0; i < dim; ++i) {
      args.y.as<double>()[row * dim + i] += post * args.x.as<double>()[row / streams * dim + i];
    }
  }
}

void ReferenceKernels::SumStreams(const SumStreamsArgs& args) {
  Check(args, reference::kTypes);
  const int64_t tokens = args.x.shape[0], streams = args.x.shape[1], dim = args.x.shape[2];
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < dim; ++i) {
      double sum = 0;
      for (int64_t s = 0; s < streams; ++s) {
        sum += args.x.as<double>()[(t * streams + s) * dim + i];
      }
      args.y.as<double>()[t * dim + i] = sum;
    }
  }
}

void ReferenceKernels::MixViews(const MixViewsArgs& args) {
  Check(args, reference::kTypes);
  const int64_t count = args.x.shape[0], tokens = args.x.shape[1], dim = args.x.shape[2];
  const int64_t views = args.y.shape[0];
  for (int64_t v = 0; v < views; ++v) {
    for (int64_t t = 0; t < tokens; ++t) {
      const double* weights = args.weights.as<double>() + (t * views + v) * count;
      for (int64_t i = 0; i < dim; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < count; ++j) {
          sum += weights[j] * args.x.as<double>()[(j * tokens + t) * dim + i];
        }
        args.y.as<double>()[(v * tokens + t) * dim + i] = sum;
      }
    }
  }
}

}  // namespace mneme
