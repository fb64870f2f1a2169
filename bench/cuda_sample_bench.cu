// Measures the draw of a step's tokens on a GPU: rows of logits as a trained model leaves them, and
// as one of random weights does, by the parameters that requests ask for. Times of CUDA graphs.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench_table.h"
#include "bench/cuda_tables.h"
#include "bench/cuda_timing.h"
#include "kernels/cuda/sampling/draws.h"

namespace mneme {
namespace {

using cuda::Device;

enum class Logits : uint8_t { kPeaked, kFlat };

// Numbers that look normal, of variance 1.
class Noise {
 public:
  float Next() {
    float sum = -6;
    for (int i = 0; i < 12; ++i) sum += Uniform();
    return sum;
  }
  float Uniform() {
    seed_ = seed_ * 1664525u + 1013904223u;
    return static_cast<float>(seed_ >> 8) * 0x1p-24f;
  }

 private:
  uint32_t seed_ = 1;
};

std::vector<float> MakeLogits(Logits kind, int rows, int vocab) {
  Noise noise;
  std::vector<float> logits(static_cast<size_t>(rows) * vocab);
  for (int r = 0; r < rows; ++r) {
    for (int t = 0; t < vocab; ++t) {
      // A rank of the token in this row; probabilities fall with its square where they are peaked.
      const float rank = 1 + noise.Uniform() * static_cast<float>(vocab);
      const float fall = kind == Logits::kPeaked ? 2 * std::log(rank) : 0;
      logits[static_cast<size_t>(r) * vocab + t] = noise.Next() - fall;
    }
  }
  return logits;
}

class Draws {
 public:
  Draws(Device& device, Logits kind, int rows, int vocab) : device_(device) {
    const std::vector<float> logits = MakeLogits(kind, rows, vocab);
    device.Check(cudaMalloc(&logits_, logits.size() * 4), "cudaMalloc");
    device.Check(cudaMemcpy(logits_, logits.data(), logits.size() * 4, cudaMemcpyHostToDevice),
                 "copy");
    device.Check(cudaMallocHost(&tokens_, rows * int64_t{4}), "cudaMallocHost");
    args_.logits = {reinterpret_cast<std::byte*>(logits_), DType::kF32, {rows, vocab}};
  }
  ~Draws() {
    cudaDeviceSynchronize();
    cudaFree(logits_);
    cudaFreeHost(tokens_);
  }

  double Microseconds(const SamplingRow& row) {
    std::vector<SamplingRow> rows(static_cast<size_t>(args_.logits.shape[0]), row);
    for (size_t r = 0; r < rows.size(); ++r) rows[r].seed = r;
    args_.rows = rows;
    constexpr int kPasses = 4;
    const auto draw = [&] {
      for (int pass = 0; pass < kPasses; ++pass) {
        if (!cuda::sampling::SampleLargest(device_, args_, {.tokens = tokens_}, parameters_)) {
          cuda::sampling::SampleRows(device_, args_, {.tokens = tokens_}, parameters_);
        }
      }
    };
    return 1e6 * TimeGraph(device_, draw) / kPasses;
  }

 private:
  Device& device_;
  float* logits_ = nullptr;
  int32_t* tokens_ = nullptr;
  SampleArgs args_;
  cuda::sampling::PinnedMemory parameters_;
};

BenchTable Measure(Device& device, double copy) {
  BenchTable table("Draws, us; read: what the logits take at half of a copy's rate",
                   {{"logits", "logits"},
                    {"vocab", "vocab"},
                    {"rows", "rows"},
                    {"read", "read", 1},
                    {"greedy", "greedy", 1},
                    {"temperature", "t 0.8", 1},
                    {"top_p", "t 0.8, top_p 0.95", 1},
                    {"top_k", "top_k 40", 1},
                    {"min_p", "min_p 0.05", 1}});
  for (const Logits kind : {Logits::kPeaked, Logits::kFlat}) {
    for (const int vocab : {32'000, 65'536, 248'320}) {
      for (const int rows : {1, 32, 256}) {
        Draws draws(device, kind, rows, vocab);
        const auto time = [&](float temperature, float top_p, int top_k, float min_p) {
          return draws.Microseconds(
              {.temperature = temperature, .top_p = top_p, .min_p = min_p, .top_k = top_k});
        };
        table.AddRow({kind == Logits::kPeaked ? "peaked" : "flat", int64_t{vocab}, int64_t{rows},
                      1e6 * 4 * rows * vocab / copy, time(0, 1, 0, 0), time(0.8f, 1, 0, 0),
                      time(0.8f, 0.95f, 0, 0), time(0.8f, 1, 40, 0), time(0.8f, 1, 0, 0.05f)});
      }
    }
  }
  return table;
}

int Main(int argc, char** argv) {
  const CudaTable tables[] = {{"draws", Measure}};
  return RunCudaTables("cuda_sample_bench", "draws of tokens", tables, argc, argv);
}

}  // namespace
}  // namespace mneme

int main(int argc, char** argv) { return mneme::Main(argc, argv); }
