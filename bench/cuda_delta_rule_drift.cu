#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "bench/cuda_delta_rule_check.h"
#include "kernels/cuda/matrix_memory/decode/decode.h"
#include "kernels/cuda/matrix_memory/launch.h"
#include "kernels/cuda/matrix_memory/matrix_memory.h"
#include "kernels/state_row.h"

namespace mneme {
namespace {

using cuda::Device;
using cuda::matrix_memory::decode::DecodePlan;
using cuda::matrix_memory::decode::DecodeTile;
using cuda::matrix_memory::decode::LaunchDecode;

constexpr int kHeads = 4, kKeyDim = 256, kValueDim = 64, kCapacity = 16;
constexpr int kTokens = 2000, kLast = 200;  // of which the last are compared
// Logarithms of the share that a token leaves of a memory, by head: half of it is gone after 7, 70,
// 700 tokens, or never.
constexpr float kLogDecays[kHeads] = {-0.1f, -0.01f, -0.001f, 0};

double RelativeNorm(double error, double size) { return std::sqrt(error / size); }

// One memory that tokens of unit keys go through one by one, on the host in float64 and on a GPU.
class Drift {
 public:
  Drift() : host_(int64_t{kHeads} * kValueDim * kKeyDim, 0.0) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    const auto draw = [&](int64_t n) {
      std::vector<float> values(n);
      for (float& x : values) x = normal(random);
      return values;
    };
    q_ = draw(int64_t{kTokens} * kHeads * kKeyDim);
    k_ = draw(int64_t{kTokens} * kHeads * kKeyDim);
    v_ = draw(int64_t{kTokens} * kHeads * kValueDim);
    for (int64_t at = 0; at < static_cast<int64_t>(q_.size()); at += kKeyDim) {
      SetLength(&q_[at], 1 / std::sqrt(float{kKeyDim}));
      SetLength(&k_[at], 1);
    }
    std::uniform_real_distribution<float> uniform(0.1f, 1.0f);
    for (int i = 0; i < kTokens * kHeads; ++i) {
      log_decay_.push_back(kLogDecays[i % kHeads] * 2 * uniform(random));
      beta_.push_back(uniform(random));
    }
    out_.resize(v_.size());
    for (int t = 0; t < kTokens; ++t) {
      for (int row = 0; row < kHeads * kValueDim; ++row) Follow(t, row);
    }
  }

  void Compare(Device& device, DType dtype, bool fold_all) const {
    const int64_t pitch = StateRowPitch(dtype, kKeyDim) * SizeOf(dtype);
    int64_t slab_bytes = 0;
    const auto field = [&](int64_t bytes, DType type) {
      StateView view = {nullptr, 0, slab_bytes, bytes, type};
      slab_bytes += (bytes + 63) / 64 * 64;
      return view;
    };
    MatrixMemoryArgs args;
    args.state = field(kHeads * kValueDim * pitch, dtype);
    const DType term = PendingDType(dtype);
    args.pending = {.capacity = kCapacity,
                    .phase = field(4, DType::kI32),
                    .range = field(8, DType::kI32),
                    .keys = field(SizeOf(term) * kCapacity * kHeads * kKeyDim, term),
                    .updates = field(SizeOf(term) * kCapacity * kHeads * kValueDim, term),
                    .log_decay = field(4 * kCapacity * kHeads, DType::kF32)};
    StateView written = field(1, DType::kU8);
    char* slab = Upload(std::vector<char>(slab_bytes, 0));
    for (StateView* view :
         {&args.state, &args.pending.phase, &args.pending.range, &args.pending.keys,
          &args.pending.updates, &args.pending.log_decay, &written}) {
      view->base = reinterpret_cast<std::byte*>(slab);
      view->slab_bytes = slab_bytes;
    }
    cudaMemset(written.At(0, 0), 1, 1);
    char *q = Upload(q_), *k = Upload(k_), *v = Upload(v_), *log_decay = Upload(log_decay_),
         *beta = Upload(beta_), *out = Upload(v_);
    char* ints = Upload(std::vector<int>{0, 1, 0, 0, 0, 1});  // offsets, slot, memory, fresh or not
    const auto one = [ints](int at) { return TensorView{ints + 4 * at, DType::kI32, {1}}; };
    for (int t = 0; t < kTokens; ++t) {
      const auto row = [t](char* data, int64_t width) {
        return TensorView{data + 4 * t * kHeads * width, DType::kF32, {1, kHeads, width}};
      };
      args.q = row(q, kKeyDim);
      args.k = row(k, kKeyDim);
      args.v = row(v, kValueDim);
      args.log_decay = row(log_decay, 1);
      args.beta = row(beta, 1);
      args.out = row(out, kValueDim);
      args.segments = {.count = 1,
                       .offsets = one(0),
                       .slots = one(2),
                       .memories = one(3),
                       .fresh = one(t == 0 ? 5 : 4),
                       .longest = 1};
      cuda::matrix_memory::Problem problem = cuda::matrix_memory::MakeProblem(args);
      problem.task = cuda::matrix_memory::Task::kDecode;
      LaunchDecode(device, problem, dtype, {DecodeTile::kDirect4, fold_all});
    }
    cuda::matrix_memory::SettleMemories(device, {.slots = one(2),
                                                 .memories = 1,
                                                 .written = written,
                                                 .heads = kHeads,
                                                 .key_dim = kKeyDim,
                                                 .value_heads = kHeads,
                                                 .value_dim = kValueDim,
                                                 .state = args.state,
                                                 .pending = args.pending});
    device.Check(cudaStreamSynchronize(device.stream()), "drift");
    std::vector<float> outputs(v_.size());
    std::vector<char> state(kHeads * kValueDim * pitch);
    cudaMemcpy(outputs.data(), out, 4 * outputs.size(), cudaMemcpyDeviceToHost);
    cudaMemcpy(state.data(), args.state.At(0, 0), state.size(), cudaMemcpyDeviceToHost);
    for (char* data : {slab, q, k, v, log_decay, beta, out, ints}) cudaFree(data);

    std::printf("%s, %s:", Name(dtype), fold_all ? "each token written" : "held back");
    for (int head = 0; head < kHeads; ++head) {
      double out_error = 0, out_size = 0, error = 0, size = 0;
      for (int t = kTokens - kLast; t < kTokens; ++t) {
        for (int row = 0; row < kValueDim; ++row) {
          const int64_t at = (int64_t{t} * kHeads + head) * kValueDim + row;
          out_error += std::pow(outputs[at] - out_[at], 2);
          out_size += out_[at] * out_[at];
        }
      }
      for (int64_t row = head * kValueDim; row < (head + 1) * kValueDim; ++row) {
        for (int d = 0; d < kKeyDim; ++d) {
          const double want = host_[row * kKeyDim + d];
          error += std::pow(Stored(state.data() + row * pitch, d, dtype) - want, 2);
          size += want * want;
        }
      }
      std::printf("  %g: outputs %.1e, state %.1e", kLogDecays[head],
                  RelativeNorm(out_error, out_size), RelativeNorm(error, size));
    }
    std::printf("\n");
  }

 private:
  static void SetLength(float* x, float length) {
    double sum = 0;
    for (int d = 0; d < kKeyDim; ++d) sum += double{x[d]} * x[d];
    for (int d = 0; d < kKeyDim; ++d) x[d] *= static_cast<float>(length / std::sqrt(sum));
  }
  template <typename T>
  static char* Upload(const std::vector<T>& values) {
    void* data = nullptr;
    cudaMalloc(&data, values.size() * sizeof(T));
    cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
    return static_cast<char*>(data);
  }
  static double Stored(const char* row, int d, DType dtype) {
    if (dtype == DType::kF32) return reinterpret_cast<const float*>(row)[d];
    if (dtype == DType::kF16) return __half2float(reinterpret_cast<const __half*>(row)[d]);
    float scale;
    std::memcpy(&scale, row + StateRowPitch(dtype, kKeyDim) - sizeof(scale), sizeof(scale));
    return double{scale} * static_cast<signed char>(row[d]);
  }
  // Token t, on the host.
  void Follow(int t, int row) {
    const int head = row / kValueDim;
    const float* k = &k_[(int64_t{t} * kHeads + head) * kKeyDim];
    const float* q = &q_[(int64_t{t} * kHeads + head) * kKeyDim];
    double* s = &host_[int64_t{row} * kKeyDim];
    const double decay = std::exp(double{log_decay_[t * kHeads + head]});
    double recall = 0, read = 0;
    for (int d = 0; d < kKeyDim; ++d) recall += (s[d] *= decay) * k[d];
    const int64_t at = int64_t{t} * kHeads * kValueDim + row;
    const double u = beta_[t * kHeads + head] * (v_[at] - recall);
    for (int d = 0; d < kKeyDim; ++d) read += (s[d] += u * k[d]) * q[d];
    out_[at] = read;
  }

  std::vector<float> q_, k_, v_, log_decay_, beta_;
  std::vector<double> out_, host_;
};

}  // namespace

void PrintDeltaRuleDrift(Device& device) {
  std::printf("relative errors after %d tokens, by log decay of a token\n", kTokens);
  const Drift drift;
  drift.Compare(device, DType::kF32, true);
  drift.Compare(device, DType::kF32, false);
  drift.Compare(device, DType::kF16, true);
  drift.Compare(device, DType::kF16, false);
  drift.Compare(device, DType::kI8, true);
  drift.Compare(device, DType::kI8, false);
}

}  // namespace mneme
