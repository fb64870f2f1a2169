// Measures attention on a GPU: steps of one token over long contexts, and prompts, 32 query heads
// and 8 of keys and values of 128, all in bf16. Times of CUDA graphs; sdpa_attention.py does the
// same with PyTorch's.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/bench_table.h"
#include "bench/cuda_timing.h"
#include "kernels/cuda/attention/attention.h"
#include "tools/flag_parser.h"

namespace mneme {
namespace {

using cuda::Device;

struct Work {
  int rows, tokens;  // sessions, and what each is fed
  int64_t past;      // positions before
};

constexpr int kHeads = 32, kKvHeads = 8, kDim = 128;

// A step of sessions that were fed alike, whose contexts lie one behind the other.
class Sessions {
 public:
  Sessions(Device& device, const Work& work) : device_(device) {
    const int64_t tokens = int64_t{work.rows} * work.tokens;
    const int64_t blocks = (work.past + work.tokens + kContextBlock - 1) / kContextBlock;
    const int64_t row_bytes = int64_t{2} * kKvHeads * kDim;
    const int64_t block_bytes = 2 * kContextBlock * row_bytes;
    const int64_t bytes = work.rows * blocks * block_bytes;
    char* const contexts = Allocate(bytes);
    device_.Check(cudaMemset(contexts, 0x3c, bytes), "memset");  // numbers about 0.01
    std::vector<int64_t> offsets, positions(work.rows, work.past);
    for (int64_t i = 0; i < work.rows * blocks; ++i) offsets.push_back(i * block_bytes);
    std::vector<int> rows, slots;
    for (int i = 0; i <= work.rows; ++i) rows.push_back(i * work.tokens);
    for (int i = 0; i < work.rows; ++i) slots.push_back(i);
    const ContextTable table = {reinterpret_cast<std::byte*>(contexts),
                                {Upload(offsets), DType::kI64, {work.rows, blocks}}};
    args_ = {.q = Vectors({tokens, kHeads, kDim}),
             .k = Vectors({tokens, kKvHeads, kDim}),
             .v = Vectors({tokens, kKvHeads, kDim}),
             .row_offsets = {Upload(rows), DType::kI32, {work.rows + 1}},
             .slots = {Upload(slots), DType::kI32, {work.rows}},
             .positions = {Upload(positions), DType::kI64, {work.rows}},
             .longest_row = work.tokens,
             .scale = 0.0884f,
             .keys = {table, 0, row_bytes, DType::kBF16},
             .values = {table, kContextBlock * row_bytes, row_bytes, DType::kBF16},
             .out = Vectors({tokens, kHeads, kDim})};
  }
  ~Sessions() {
    cudaDeviceSynchronize();
    for (void* data : allocations_) cudaFree(data);
  }

  void Launch() { cuda::attention::Attention(device_, args_); }

 private:
  char* Allocate(int64_t bytes) {
    void* data = nullptr;
    device_.Check(cudaMalloc(&data, bytes), "cudaMalloc");
    allocations_.push_back(data);
    return static_cast<char*>(data);
  }
  TensorView Vectors(Shape shape) {
    std::vector<float> values(shape.elements());
    for (float& value : values) {
      seed_ = seed_ * 1664525u + 1013904223u;
      value = (seed_ >> 8) * 0x1p-23f - 1;
    }
    return {Upload(values), DType::kF32, shape};
  }
  template <typename T>
  char* Upload(const std::vector<T>& values) {
    char* const data = Allocate(sizeof(T) * values.size());
    device_.Check(
        cudaMemcpy(data, values.data(), sizeof(T) * values.size(), cudaMemcpyHostToDevice), "copy");
    return data;
  }

  Device& device_;
  uint32_t seed_ = 1;
  std::vector<void*> allocations_;
  AttentionArgs args_;
};

double Seconds(Device& device, const Work& work) {
  constexpr int kPasses = 4;
  Sessions sessions(device, work);
  return TimeGraph(device,
                   [&] {
                     for (int pass = 0; pass < kPasses; ++pass) sessions.Launch();
                   }) /
         kPasses;
}

BenchTable MeasureSteps(Device& device, double copy) {
  BenchTable table(
      absl::StrFormat("Attention, one token a session, %s: copies move %.2f TB/s, read "
                      "and written",
                      device.properties().name, 1e-12 * copy),
      {{"rows", "rows"},
       {"positions", "positions"},
       {"context_mb", "context MB", 1},
       {"us", "us", 1},
       {"tbs", "TB/s", 2},
       {"of_copy", "of copy %", 1}});
  for (const Work& work : {Work{1, 1, 512}, Work{32, 1, 512}, Work{256, 1, 512}, Work{1, 1, 32767},
                           Work{64, 1, 32767}}) {
    const double seconds = Seconds(device, work);
    const double bytes = 2.0 * 2 * work.rows * (work.past + 1) * kKvHeads * kDim;
    table.AddRow({int64_t{work.rows}, work.past + 1, 1e-6 * bytes, 1e6 * seconds,
                  1e-12 * bytes / seconds, 100 * bytes / seconds / copy});
  }
  return table;
}

BenchTable MeasurePrompts(Device& device) {
  BenchTable table(
      "Attention, prompts",
      {{"prompts", "prompts"}, {"tokens", "tokens"}, {"us", "us", 1}, {"tflops", "TFLOP/s", 1}});
  for (const Work& work : {Work{1, 2048, 0}, Work{1, 8192, 0}, Work{8, 2048, 0}}) {
    const double seconds = Seconds(device, work);
    const double seen = 0.5 * work.tokens * (work.tokens + 1.0);
    table.AddRow({int64_t{work.rows}, int64_t{work.tokens}, 1e6 * seconds,
                  1e-12 * work.rows * 4.0 * seen * kHeads * kDim / seconds});
  }
  return table;
}

int Main(int argc, char** argv) {
  constexpr char kProgram[] = "cuda_attention_bench";
  std::string json;
  FlagParser parser(
      "usage: cuda_attention_bench [flags]\n\n"
      "Times attention alone: steps of one token, and prompts.\n\n");
  parser.Add("--json", "FILE", &json, "also write the results there");
  const absl::Status parsed = parser.ParseFlags(argc, argv);
  if (parser.help_requested()) {
    std::printf("%s", parser.Help().c_str());
    return kExitOk;
  }
  if (!parsed.ok()) return Report(kProgram, parsed, kExitUsage);
  Device device(0, DType::kBF16);
  if (!device.ok()) return Report(kProgram, absl::InternalError(device.TakeError()), kExitDevice);
  const BenchTable steps = MeasureSteps(device, CopyBandwidth(device));
  steps.Print();
  const BenchTable prompts = MeasurePrompts(device);
  prompts.Print();
  if (!json.empty()) {
    const absl::Status written =
        WriteJson({{"steps", steps.ToJson()}, {"prompts", prompts.ToJson()}}, json);
    if (!written.ok()) return Report(kProgram, written, kExitFailure);
  }
  const std::string error = device.TakeError();
  if (!error.empty()) return Report(kProgram, absl::InternalError(error), kExitFailure);
  return kExitOk;
}

}  // namespace
}  // namespace mneme

int main(int argc, char** argv) { return mneme::Main(argc, argv); }
