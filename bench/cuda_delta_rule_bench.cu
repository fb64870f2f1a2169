// Measures the decode step of the gated delta rule on a GPU: head size 256, as many head states as
// a layer of a step has, matrices that are not in the cache. Times are of CUDA graphs, averaged
// over whole cycles of folding; the worst step of a cycle is reported beside.
//
// bench/run_gpu.sh sets the figures beside flash-linear-attention's.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/bench_table.h"
#include "bench/cuda_delta_rule_check.h"
#include "kernels/cuda/matrix_memory/decode/decode.h"
#include "kernels/cuda/matrix_memory/launch.h"
#include "kernels/cuda/matrix_memory/matrix_memory.h"
#include "kernels/state_row.h"
#include "tools/flag_parser.h"

namespace mneme {
namespace {

using cuda::Device;
using cuda::matrix_memory::decode::DecodePlan;
using cuda::matrix_memory::decode::DecodeTile;
using cuda::matrix_memory::decode::LaunchDecode;
using cuda::matrix_memory::decode::PlanDecode;

constexpr int kHeads = 4, kDim = 256;  // of a memory; keys and values
constexpr int kCapacity = 16;          // pending writes
constexpr int64_t kColdBytes = 240'000'000;
constexpr int kRounds = 5;

struct Measurement {
  double step = 0, worst = 0;  // seconds
};

// Slabs with one memory each, enough for several steps over different ones.
class DecodeBench {
 public:
  DecodeBench(Device& device, int head_states, DType dtype)
      : device_(device), sessions_(head_states / kHeads), dtype_(dtype) {
    state_bytes_ = int64_t{kHeads} * kDim * StateRowPitch(dtype, kDim) * SizeOf(dtype);
    const DType term = PendingDType(dtype);
    const int64_t pending = SizeOf(term) * int64_t{kCapacity} * kHeads * kDim;
    slab_bytes_ = state_bytes_ + 2 * pending + 4096;
    sets_ = static_cast<int>(std::max<int64_t>(
        1, (kColdBytes + sessions_ * state_bytes_ - 1) / (sessions_ * state_bytes_)));
    slabs_ = Allocate(static_cast<int64_t>(sets_) * sessions_ * slab_bytes_);
    device_.Check(cudaMemset(slabs_, 0, sets_ * sessions_ * slab_bytes_), "memset");
    args_.q = Vectors({sessions_, kHeads, kDim}, 1.0f / 16);
    args_.k = Vectors({sessions_, kHeads, kDim}, 1.0f / 16);
    args_.v = Vectors({sessions_, kHeads, kDim}, 1);
    args_.log_decay = Vectors({sessions_, kHeads}, -0.01f);
    args_.beta = Vectors({sessions_, kHeads}, 0.5f);
    args_.out = Vectors({sessions_, kHeads, kDim}, 0);
    int64_t at = 0;
    const auto field = [&](int64_t bytes, DType type) {
      StateView view = {reinterpret_cast<std::byte*>(slabs_), slab_bytes_, at, bytes, type};
      at += (bytes + 63) / 64 * 64;
      return view;
    };
    args_.state = field(state_bytes_, dtype);
    args_.pending = {.capacity = kCapacity,
                     .phase = field(4, DType::kI32),
                     .range = field(8, DType::kI32),
                     .keys = field(pending, term),
                     .updates = field(pending, term),
                     .log_decay = field(4 * kCapacity * kHeads, DType::kF32)};
    std::vector<int> offsets(sessions_ + 1), zeros(sessions_, 0), slots;
    for (int s = 0; s <= sessions_; ++s) offsets[s] = s;
    for (int s = 0; s < sets_ * sessions_; ++s) slots.push_back(s);
    args_.segments = {.count = sessions_,
                      .offsets = Ints(offsets),
                      .memories = Ints(zeros),
                      .fresh = Ints(zeros),
                      .longest = 1};
    slots_ = Ints(slots);
    // Where a cycle begins: spread, as EmptyRange() would have it.
    for (int s = 0; s < sets_ * sessions_; ++s) {
      const int begin = s % (kCapacity + 1);
      const int range[2] = {begin, begin};
      device_.Check(cudaMemcpy(slabs_ + s * slab_bytes_ + args_.pending.range.offset, range, 8,
                               cudaMemcpyHostToDevice),
                    "copy");
    }
  }
  ~DecodeBench() {
    cudaDeviceSynchronize();
    for (void* data : allocations_) cudaFree(data);
  }

  DecodePlan Plan() {
    return PlanDecode(device_, cuda::matrix_memory::MakeProblem(args_), sessions_ * kHeads, dtype_);
  }

  Measurement Measure(const DecodePlan& plan) {
    const auto step = [&] {
      for (int set = 0; set < sets_; ++set) {
        args_.segments.slots = slots_;
        args_.segments.slots.data = slots_.as<int>() + int64_t{set} * sessions_;
        cuda::matrix_memory::Problem problem = cuda::matrix_memory::MakeProblem(args_);
        problem.task = cuda::matrix_memory::Task::kDecode;
        LaunchDecode(device_, problem, dtype_, plan);
      }
    };
    const int steps = plan.fold_all ? 4 : kCapacity + 1;
    const cudaGraphExec_t cycle = Record([&] {
      for (int i = 0; i < steps; ++i) step();
    });
    const cudaGraphExec_t one = Record(step);
    Measurement measured;
    std::vector<double> times;
    Time(cycle);
    Time(cycle);
    for (int round = 0; round < kRounds; ++round) times.push_back(Time(cycle) / (steps * sets_));
    measured.step = Median(times);
    for (int i = 0; i < steps; ++i) {
      times.clear();
      for (int round = 0; round < 3; ++round) {
        times.push_back(Time(one) / sets_);
        if (round < 2) {
          for (int rest = 1; rest < steps; ++rest) cudaGraphLaunch(one, device_.stream());
        }
      }
      measured.worst = std::max(measured.worst, Median(times));
    }
    cudaGraphExecDestroy(cycle);
    cudaGraphExecDestroy(one);
    return measured;
  }

  // The bytes that a step moves, averaged over a cycle.
  double Bytes(bool fold_all) const {
    const double vectors = 4.0 * 4 * kDim * kHeads * sessions_;
    const double state = static_cast<double>(state_bytes_) * sessions_;
    if (fold_all) return 2 * state + vectors;
    const double pair =  // key, update, decay
        (2.0 * kDim * SizeOf(PendingDType(dtype_)) + 4) * kHeads * sessions_;
    return state * (1 + 1.0 / (kCapacity + 1)) + vectors +
           pair * (kCapacity / 2.0 + double{kCapacity} / (kCapacity + 1));
  }

 private:
  char* Allocate(int64_t bytes) {
    void* data = nullptr;
    device_.Check(cudaMalloc(&data, bytes), "cudaMalloc");
    allocations_.push_back(data);
    return static_cast<char*>(data);
  }
  TensorView Vectors(Shape shape, float scale) {
    std::vector<float> values(shape.elements());
    for (float& value : values) {
      seed_ = seed_ * 1664525u + 1013904223u;
      value = scale * (scale < 0 || scale == 0.5f ? 1.0f : (seed_ >> 8) * 0x1p-23f - 1);
    }
    char* data = Allocate(4 * shape.elements());
    device_.Check(cudaMemcpy(data, values.data(), 4 * values.size(), cudaMemcpyHostToDevice),
                  "copy");
    return {data, DType::kF32, shape};
  }
  TensorView Ints(const std::vector<int>& values) {
    char* data = Allocate(4 * values.size());
    device_.Check(cudaMemcpy(data, values.data(), 4 * values.size(), cudaMemcpyHostToDevice),
                  "copy");
    return {data, DType::kI32, {static_cast<int64_t>(values.size())}};
  }
  cudaGraphExec_t Record(const std::function<void()>& work) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    device_.Check(cudaStreamBeginCapture(device_.stream(), cudaStreamCaptureModeRelaxed), "begin");
    work();
    device_.Check(cudaStreamEndCapture(device_.stream(), &graph), "end of capture");
    device_.Check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    cudaGraphDestroy(graph);
    return exec;
  }
  double Time(cudaGraphExec_t graph) {
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    cudaEventRecord(begin, device_.stream());
    device_.Check(cudaGraphLaunch(graph, device_.stream()), "graph");
    cudaEventRecord(end, device_.stream());
    device_.Check(cudaEventSynchronize(end), "event");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return 1e-3 * ms;
  }
  static double Median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }

  Device& device_;
  const int sessions_;
  const DType dtype_;
  int64_t state_bytes_, slab_bytes_;
  int sets_;
  char* slabs_;
  uint32_t seed_ = 1;
  std::vector<void*> allocations_;
  MatrixMemoryArgs args_;
  TensorView slots_;
};

double CopyBandwidth(Device& device) {
  constexpr int64_t kBytes = int64_t{2} << 30;
  char* data = nullptr;
  device.Check(cudaMalloc(&data, 2 * kBytes), "cudaMalloc");
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  double best = 0;
  for (int round = 0; round < 6; ++round) {
    cudaEventRecord(begin, device.stream());
    cudaMemcpyAsync(data + kBytes, data, kBytes, cudaMemcpyDeviceToDevice, device.stream());
    cudaEventRecord(end, device.stream());
    cudaEventSynchronize(end);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    best = std::max(best, 2.0 * kBytes / (1e-3 * ms));
  }
  cudaFree(data);
  return best;
}

const char* Name(DecodeTile tile) {
  constexpr const char* kNames[cuda::matrix_memory::decode::kDecodeTiles] = {
      "direct 2", "direct 4", "bulk 4", "bulk 8", "bulk", "stream"};
  return kNames[static_cast<int>(tile)];
}

BenchTable Measure(Device& device, bool sweep) {
  const double copy = CopyBandwidth(device);
  BenchTable table(absl::StrFormat("The gated delta rule, one token, head size %d, %s: copies move "
                                   "%.2f TB/s, read and written",
                                   kDim, device.properties().name, 1e-12 * copy),
                   {{"head_states", "head states"},
                    {"state_dtype", "state"},
                    {"tile", "tile"},
                    {"writes", "writes"},
                    {"step_us", "us", 1},
                    {"worst_us", "worst step us", 1},
                    {"moved_mb", "MB moved", 1},
                    {"tbs", "TB/s", 2},
                    {"of_copy", "of copy %", 1}});
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kI8}) {
    for (const int head_states : {12, 24, 48, 96, 192, 384, 1536, 3072, 6144}) {
      DecodeBench bench(device, head_states, dtype);
      std::vector<DecodePlan> plans = {bench.Plan()};
      if (sweep) {
        plans.clear();
        for (int i = 0; i < cuda::matrix_memory::decode::kDecodeTiles; ++i) {
          const auto tile = static_cast<DecodeTile>(i);
          // int8 has one kernel, whatever is asked for.
          if (dtype == DType::kI8 && tile != DecodeTile::kDirect4) continue;
          for (const bool fold_all : {true, false}) plans.push_back({tile, fold_all});
        }
      }
      for (const DecodePlan& plan : plans) {
        const Measurement measured = bench.Measure(plan);
        const double bytes = bench.Bytes(plan.fold_all);
        table.AddRow({int64_t{head_states}, mneme::Name(dtype), Name(plan.tile),
                      plan.fold_all ? "read+write" : "held back", 1e6 * measured.step,
                      1e6 * measured.worst, 1e-6 * bytes, 1e-12 * bytes / measured.step,
                      100 * bytes / measured.step / copy});
      }
    }
  }
  return table;
}

int Main(int argc, char** argv) {
  constexpr char kProgram[] = "cuda_delta_rule_bench";
  bool sweep = false, check = false, drift = false;
  std::string json;
  FlagParser parser(
      "usage: cuda_delta_rule_bench [flags]\n\n"
      "Times the decode step of the gated delta rule alone, averaged over whole cycles of "
      "folding.\n\n");
  parser.Add("--sweep", &sweep,
             "every tile and both ways of writing, not only those that are used");
  parser.Add("--check", &check, "compare with float64 on the host instead");
  parser.Add("--drift", &drift, "the same after 2,000 tokens, for each way to store a matrix");
  parser.Add("--json", "FILE", &json, "also write the results there");
  const absl::Status parsed = parser.ParseFlags(argc, argv);
  if (parser.help_requested()) {
    std::printf("%s", parser.Help().c_str());
    return kExitOk;
  }
  if (!parsed.ok()) return Report(kProgram, parsed, kExitUsage);
  Device device(0, DType::kF32);
  if (!device.ok()) return Report(kProgram, absl::InternalError(device.TakeError()), kExitDevice);
  bool passed = true;
  if (check) {
    passed = CheckDeltaRule(device);
  } else if (drift) {
    PrintDeltaRuleDrift(device);
  } else {
    const BenchTable table = Measure(device, sweep);
    const std::string error = device.TakeError();
    if (!error.empty()) return Report(kProgram, absl::InternalError(error), kExitFailure);
    table.Print();
    if (!json.empty()) {
      const absl::Status written = WriteJson({{"delta_rule", table.ToJson()}}, json);
      if (!written.ok()) return Report(kProgram, written, kExitFailure);
    }
  }
  const std::string error = device.TakeError();
  if (!error.empty()) return Report(kProgram, absl::InternalError(error), kExitFailure);
  return passed ? kExitOk : kExitFailure;
}

}  // namespace
}  // namespace mneme

int main(int argc, char** argv) { return mneme::Main(argc, argv); }
