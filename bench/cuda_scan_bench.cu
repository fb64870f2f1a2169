// Measures Mamba's selective scan on a GPU at the sizes of mamba-370m: the step of one token, its
// states of several sizes that are not in the cache, and whole prompts. Times of CUDA graphs.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/bench_table.h"
#include "bench/cuda_tables.h"
#include "bench/cuda_timing.h"
#include "kernels/cuda/scan/scan.h"

namespace mneme {
namespace {

using cuda::Device;

constexpr int kChannels = 2048, kStates = 16;
constexpr int64_t kStateBytes = int64_t{4} * kChannels * kStates;

// Prompts of equal length through the scan, of one set of states after the other.
class Scan {
 public:
  Scan(Device& device, int prompts, int tokens, int sets) : device_(device), prompts_(prompts) {
    const int64_t entries = int64_t{prompts} * tokens;
    args_.u = Vectors({entries, kChannels}, -1, 1);
    args_.dt = Vectors({entries, kChannels}, -4, 1);
    args_.gate = Vectors({entries, kChannels}, -2, 2);
    args_.b = Vectors({entries, kStates}, -1, 1);
    args_.c = Vectors({entries, kStates}, -1, 1);
    args_.a = Vectors({kStates, kChannels}, -16, -0.5f);
    args_.dt_bias = Vectors({kChannels}, -4, -2);
    args_.skip = Vectors({kChannels}, -1, 1);
    args_.y = {Allocate(2 * entries * kChannels), DType::kBF16, {entries, kChannels}};
    char* const states = Allocate(int64_t{sets} * prompts * kStateBytes);
    device_.Check(cudaMemset(states, 0, int64_t{sets} * prompts * kStateBytes), "memset");
    args_.state = {reinterpret_cast<std::byte*>(states), kStateBytes, 0, kStateBytes, DType::kF32};
    std::vector<int> offsets, slots, zeros(prompts, 0);
    for (int i = 0; i <= prompts; ++i) offsets.push_back(i * tokens);
    for (int i = 0; i < sets * prompts; ++i) slots.push_back(i);
    slots_ = Ints(slots);
    args_.segments = {.count = prompts,
                      .offsets = Ints(offsets),
                      .slots = {nullptr, DType::kI32, {prompts}},
                      .memories = Ints(zeros),
                      .fresh = Ints(zeros),
                      .longest = tokens};
  }
  ~Scan() {
    cudaDeviceSynchronize();
    for (void* data : allocations_) cudaFree(data);
  }

  void Launch(int set) {
    args_.segments.slots.data = slots_.as<int>() + int64_t{set} * prompts_;
    cuda::scan::SelectiveScan(device_, args_);
  }
  // Bytes of the inputs, once, and of the outputs.
  int64_t token_bytes() const {
    return args_.u.shape[0] * (int64_t{3} * 4 * kChannels + 2 * kChannels + 2 * 4 * kStates);
  }

 private:
  char* Allocate(int64_t bytes) {
    void* data = nullptr;
    device_.Check(cudaMalloc(&data, bytes), "cudaMalloc");
    allocations_.push_back(data);
    return static_cast<char*>(data);
  }
  TensorView Vectors(Shape shape, float least, float most) {
    std::vector<float> values(shape.elements());
    for (float& value : values) {
      seed_ = seed_ * 1664525u + 1013904223u;
      value = least + (most - least) * ((seed_ >> 8) * 0x1p-24f);
    }
    return {Upload(values), DType::kF32, shape};
  }
  TensorView Ints(const std::vector<int>& values) {
    return {Upload(values), DType::kI32, {static_cast<int64_t>(values.size())}};
  }
  template <typename T>
  char* Upload(const std::vector<T>& values) {
    char* const data = Allocate(sizeof(T) * values.size());
    device_.Check(
        cudaMemcpy(data, values.data(), sizeof(T) * values.size(), cudaMemcpyHostToDevice), "copy");
    return data;
  }

  Device& device_;
  const int prompts_;
  uint32_t seed_ = 1;
  std::vector<void*> allocations_;
  SelectiveScanArgs args_;
  TensorView slots_;
};

BenchTable MeasureSteps(Device& device, double copy) {
  BenchTable table(absl::StrFormat("Selective scan, one token, %s: copies move %.2f TB/s, read and "
                                   "written",
                                   device.properties().name, 1e-12 * copy),
                   {{"rows", "rows"},
                    {"state_mb", "state MB", 1},
                    {"step_us", "us", 2},
                    {"tbs", "TB/s", 2},
                    {"of_copy", "of copy %", 1}});
  for (const int megabytes : {3, 12, 50, 100, 400, 1600}) {
    const int rows = static_cast<int>(std::lround(1e6 * megabytes / kStateBytes));
    const int64_t bytes = rows * kStateBytes;
    const int sets = static_cast<int>((kColdBytes + bytes - 1) / bytes);
    Scan scan(device, rows, 1, sets);
    const double seconds = TimeGraph(device,
                                     [&] {
                                       for (int set = 0; set < sets; ++set) scan.Launch(set);
                                     }) /
                           sets;
    // Activations count, too: with one token they are a tenth.
    const double moved = 2.0 * bytes + scan.token_bytes();
    table.AddRow({int64_t{rows}, 1e-6 * bytes, 1e6 * seconds, 1e-12 * moved / seconds,
                  100 * moved / seconds / copy});
  }
  return table;
}

BenchTable MeasurePrompts(Device& device, double copy) {
  BenchTable table(
      "Selective scan, prompts; of copy: of the time in which inputs and outputs move",
      {{"prompts", "prompts"}, {"tokens", "tokens"}, {"us", "us", 1}, {"of_copy", "of copy %", 1}});
  struct Prompts {
    int count, tokens;
  };
  for (const Prompts prompts :
       {Prompts{1, 64}, Prompts{1, 512}, Prompts{1, 2048}, Prompts{1, 8192}, Prompts{8, 2048}}) {
    constexpr int kPasses = 4;
    Scan scan(device, prompts.count, prompts.tokens, 1);
    const double seconds = TimeGraph(device,
                                     [&] {
                                       for (int pass = 0; pass < kPasses; ++pass) scan.Launch(0);
                                     }) /
                           kPasses;
    table.AddRow({int64_t{prompts.count}, int64_t{prompts.tokens}, 1e6 * seconds,
                  100 * scan.token_bytes() / seconds / copy});
  }
  return table;
}

int Main(int argc, char** argv) {
  const CudaTable tables[] = {{"steps", MeasureSteps}, {"prompts", MeasurePrompts}};
  return RunCudaTables(
      "cuda_scan_bench",
      "Times the selective scan of mamba-370m alone: steps of one token, and prompts.", tables,
      argc, argv);
}

}  // namespace
}  // namespace mneme

int main(int argc, char** argv) { return mneme::Main(argc, argv); }
