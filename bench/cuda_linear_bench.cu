// Matrix products on the GPU: every path of Linear() over the projections of two models, and, with
// --check, its results against double loops.
//
// Times are graph replays over enough copies of the weights that they come from memory. Bytes are
// those of the weights that entries need, of x and of y, each once.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "bench/cuda_linear_problem.cuh"

namespace mneme::cuda::linear {
namespace {

// Seconds per call of `work(i)`, i = 0 .. copies - 1, by graph replay.
double Seconds(Device& device, int copies, const std::function<void(int)>& work) {
  work(0);  // grows scratch memory, asks cuBLAS
  Require(device, "first run");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  device.Check(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeRelaxed), "capture");
  for (int i = 0; i < copies; ++i) work(i);
  device.Check(cudaStreamEndCapture(device.stream(), &graph), "capture");
  device.Check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaGraphDestroy(graph);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  for (int round = 0; round < 6; ++round) {
    cudaEventRecord(begin, device.stream());
    device.Check(cudaGraphLaunch(exec, device.stream()), "replay");
    cudaEventRecord(end, device.stream());
    cudaEventSynchronize(end);
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    if (round > 0) times.push_back(milliseconds);
  }
  Require(device, "replay");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(exec);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e-3 / copies;
}

__global__ void CopyBytes(const uint4* from, uint4* to, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = from[i + j * stride];
#pragma unroll
    for (int j = 0; j < 4; ++j) to[i + j * stride] = v[j];
  }
  for (; i < count; i += stride) to[i] = from[i];
}

double CopyBandwidth(Device& device) {
  Arena arena(device);
  const int64_t bytes = int64_t{2} << 30;
  const TensorView from = arena.Random({bytes / 4}, DType::kF32, 1);
  const TensorView to = arena.Random({bytes / 4}, DType::kF32, 1);
  double best = 0;
  for (int i = 0; i < 4; ++i) {  // the first of them wake the device up
    const double seconds = Seconds(device, 10, [&](int) {
      CopyBytes<<<8 * device.multiprocessors(), 256, 0, device.stream()>>>(
          from.as<const uint4>(), to.as<uint4>(), bytes / 16);
    });
    best = std::max(best, 2.0 * static_cast<double>(bytes) / seconds);
  }
  return best;
}

// One call of Linear().
struct Call {
  const char* name;
  int in;
  std::vector<int> outs;     // ungrouped
  std::vector<int> grouped;  // four routed memories, two a token, and a shared one
};

void Time(bool quick) {
  Device device(0, DType::kBF16);
  Require(device, "device");
  const double copy = CopyBandwidth(device);
  std::printf("%s: copy %.3f TB/s\n", device.properties().name, copy * 1e-12);
  const std::vector<Call> calls = {
      {"340m qgkvab", 1024, {1024, 1024}, {1024, 1024, 4, 4}},
      {"340m kv", 1024, {}, {1024, 1024}},
      {"340m o", 1024, {1024}, {}},
      {"340m gate,up", 1024, {2048, 2048}, {}},
      {"340m down", 2048, {1024}, {}},
      {"340m head", 1024, {32000}, {}},
      {"340m router", 1024, {4}, {}},
      {"1.3b qgkvab", 2048, {1024, 1024}, {1024, 1024, 4, 4}},
      {"1.3b o", 1024, {2048}, {}},
      {"1.3b gate,up", 2048, {5632, 5632}, {}},
      {"1.3b down", 5632, {2048}, {}},
  };
  const std::vector<Variant> variants = Variants();
  std::printf("%-13s %5s %7s | %6s %5s %5s %6s |", "call", "rows", "MB", "us", "TB/s", "copy%",
              "TF/s");
  for (size_t v = 1; v < variants.size(); ++v) std::printf(" %7s", variants[v].name.c_str());
  std::printf("  us\n");
  std::vector<int> row_counts = {1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192};
  if (quick) row_counts = {1, 8, 64, 2048};
  for (const Call& call : calls) {
    for (const int rows : row_counts) {
      if (rows > 512 && call.outs.size() == 1 && call.outs[0] > 30000) continue;
      Arena arena(device);
      const Routing routing(rows, 4, 2);
      int64_t stored = 0;  // weights of one copy
      double bytes = rows * 4.0 * call.in, operations = 0;
      const auto count = [&](int out, int groups, int used, double entries) {
        const int64_t matrix = int64_t{out} * call.in * 2;
        stored += groups * matrix;
        bytes += static_cast<double>(used * matrix) + entries * out * 4;
        operations += 2 * entries * out * call.in;
      };
      for (const int out : call.outs) count(out, 1, 1, rows);
      for (const int out : call.grouped) {
        count(out, 5, routing.used, static_cast<double>(routing.rows.size()));
      }
      const int copies = static_cast<int>(
          std::clamp<int64_t>((int64_t{200} << 20) / stored + 1, rows >= 2048 ? 2 : 3, 64));

      const TensorView x = arena.Random({rows, call.in}, DType::kF32, 1);
      const TensorView entry_rows = arena.Ints(routing.rows), offsets = arena.Ints(routing.offsets);
      std::vector<std::vector<std::vector<PackedMatrix>>> weights(copies);
      std::vector<std::vector<LinearArgs>> products(copies);
      std::vector<TensorView> outputs;
      for (int c = 0; c < copies; ++c) {
        const auto add = [&](int out, bool grouped) {
          auto& set = weights[c].emplace_back();
          const TensorView w = arena.Random({grouped ? 5 : 1, out, call.in}, DType::kBF16, 0.03f);
          for (int g = 0; g < (grouped ? 5 : 1); ++g) {
            set.push_back(
                {w.as<__nv_bfloat16>() + int64_t{g} * out * call.in, DType::kBF16, out, call.in});
          }
          const int64_t entries = grouped ? static_cast<int64_t>(routing.rows.size()) : rows;
          const size_t index = products[c].size();
          if (c == 0) outputs.push_back(arena.Random({entries, out}, DType::kF32, 1));
          LinearArgs args;
          args.x = x;
          args.y = outputs[index];
          if (grouped) {
            args.entry_rows = entry_rows;
            args.group_offsets = offsets;
          }
          products[c].push_back(args);
        };
        for (const int out : call.outs) add(out, false);
        for (const int out : call.grouped) add(out, true);
        for (size_t i = 0; i < products[c].size(); ++i) products[c][i].weights = weights[c][i];
      }
      Require(device, "set up");
      for (const Variant& variant : variants) {
        const std::string& name = variant.name;
        const bool wanted = rows >= variant.first_rows && rows <= variant.last_rows &&
                            (name != "blas" || call.grouped.empty());
        if (!wanted) {
          std::printf(" %7s", "-");
          continue;
        }
        const double seconds =
            Seconds(device, copies, [&](int c) { variant.run(device, products[c]); });
        if (name == "auto") {
          std::printf("%-13s %5d %7.2f | %6.1f %5.2f %4.0f%% %6.1f |", call.name, rows,
                      bytes * 1e-6, seconds * 1e6, bytes / seconds * 1e-12,
                      100 * bytes / seconds / copy, operations / seconds * 1e-12);
        } else {
          std::printf(" %7.1f", seconds * 1e6);
        }
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace mneme::cuda::linear

int main(int argc, char** argv) {
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--check") == 0) return mneme::cuda::linear::CheckLinear();
    if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else {
      std::printf("usage: cuda_linear_bench [--check | --quick]\n");
      return 2;
    }
  }
  mneme::cuda::linear::Time(quick);
  return 0;
}
