// Measures the decode step of every matrix memory's rule on a GPU, at the head sizes that its
// models have by default: states of several sizes that are not in the cache, times of CUDA graphs.
// Rules of Mixture-of-Memories (mom_*) go through some memories of each session.
//
// bench/fla_matrix_rules.py measures flash-linear-attention's kernels of the same rules and sizes
// in the same way.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "bench/bench_table.h"
#include "bench/cuda_matrix_memory_check.h"
#include "bench/cuda_timing.h"
#include "kernels/cuda/dense/dense.h"
#include "kernels/cuda/matrix_memory/matrix_memory.h"
#include "kernels/cuda/matrix_memory/rules/rules.h"
#include "kernels/state_row.h"
#include "tools/flag_parser.h"

namespace mneme {
namespace {

using cuda::Device;
using Rule = MatrixRule;
namespace rules = cuda::matrix_memory::rules;

struct Case {
  const char* name;
  Rule rule;
  int heads, key_dim, value_dim;
  int key_heads = 0;  // of q and k; 0: as many
  int memories = 1;   // of a session, of which a token goes through the first `chosen`
  int chosen = 1;
};
// Behind a router of 4 memories that chooses 2, beside a shared one: as mneme-make-model's.
constexpr Case Routed(Case one) {
  one.memories = 5;
  one.chosen = 3;
  return one;
}
constexpr Rule Adding(Rule::Decay decay) {
  return {decay, Rule::Correction::kNone, Rule::Read::kAfter};
}
constexpr Rule Correcting(Rule::Decay decay) {
  return {decay, Rule::Correction::kDelta, Rule::Read::kAfter};
}
const std::vector<std::vector<Case>> kCases = {
    {{"linear_attn", Adding(Rule::Decay::kNone), 4, 256, 256}},
    {{"retnet", Adding(Rule::Decay::kConstant), 8, 256, 512}},
    {{"gla", Adding(Rule::Decay::kKey), 4, 256, 512}},
    {{"delta_net", Correcting(Rule::Decay::kNone), 16, 128, 128}},
    {{"kda", Correcting(Rule::Decay::kKey), 16, 128, 128}},
    {{"hgrn2", Adding(Rule::Decay::kKey), 16, 128, 128}},
    // Two matrices: keys of slots, and their values, with a softmax between.
    {{"gsa", Adding(Rule::Decay::kValue), 4, 512, 64},
     {"gsa", Adding(Rule::Decay::kKey), 4, 64, 512}},
    {{"mamba2", Adding(Rule::Decay::kHead), 32, 128, 64, 1}},
    {{"rwkv6",
      {Rule::Decay::kKey, Rule::Correction::kNone, Rule::Read::kBeforeWithBonus},
      4,
      128,
      256}},
    // The same kernels, and three times as many segments as sessions. Projections, the router and
    // the sum of what memories answer are not measured here.
    {Routed({"mom_linear_attn", Adding(Rule::Decay::kNone), 4, 256, 256})},
    {Routed({"mom_gla", Adding(Rule::Decay::kKey), 4, 256, 512})},
    {Routed({"mom_gsa", Adding(Rule::Decay::kValue), 4, 512, 64}),
     Routed({"mom_gsa", Adding(Rule::Decay::kKey), 4, 64, 512})},
    {{"rwkv7", {Rule::Decay::kKey, Rule::Correction::kGeneral, Rule::Read::kAfter}, 16, 64, 64}},
};

// The matrices of one operation for all sessions of all sets, and its tensors.
class Step {
 public:
  Step(Device& device, const Case& shape, DType dtype, int sessions, int sets)
      : device_(device), segments_(sessions * shape.chosen), dtype_(dtype) {
    const int64_t heads = shape.heads, keys = shape.key_dim, values = shape.value_dim;
    memory_bytes_ = heads * values * StateRowPitch(dtype, keys) * SizeOf(dtype);
    const int64_t slabs = int64_t{sets} * sessions, slab_bytes = shape.memories * memory_bytes_;
    args_.rule = shape.rule;
    const int64_t key_heads = shape.key_heads > 0 ? shape.key_heads : heads;
    args_.q = Vectors({segments_, key_heads, keys}, 1.0f / 16);
    args_.k = Vectors({segments_, key_heads, keys}, 1.0f / 16);
    args_.v = Vectors({segments_, heads, values}, 1);
    switch (shape.rule.decay) {
      case Rule::Decay::kNone:
        break;
      case Rule::Decay::kConstant:
        args_.log_decay = Vectors({heads}, -0.01f);
        break;
      case Rule::Decay::kHead:
        args_.log_decay = Vectors({segments_, heads}, -0.01f);
        break;
      case Rule::Decay::kKey:
        args_.log_decay = Vectors({segments_, heads, keys}, -0.01f);
        break;
      case Rule::Decay::kValue:
        args_.log_decay = Vectors({segments_, heads, values}, -0.01f);
        break;
    }
    if (shape.rule.correction == Rule::Correction::kDelta) {
      args_.beta = Vectors({segments_, heads}, 0.5f);
    }
    if (shape.rule.correction == Rule::Correction::kGeneral) {
      args_.c = Vectors({segments_, heads, keys}, 1.0f / 16);
      args_.e = Vectors({segments_, heads, keys}, 1.0f / 16);
    }
    if (shape.rule.read == Rule::Read::kBeforeWithBonus) args_.bonus = Vectors({heads, keys}, 1);
    args_.out = Vectors({segments_, heads, values}, 0);
    char* states = Allocate(slabs * slab_bytes);
    device_.Check(cudaMemset(states, 0, slabs * slab_bytes), "memset");
    args_.state = {reinterpret_cast<std::byte*>(states), slab_bytes, 0, memory_bytes_, dtype};
    // Memory by memory, as the router's segments are.
    std::vector<int> offsets(segments_ + 1), zeros(segments_, 0), memories, slots;
    for (int s = 0; s <= segments_; ++s) offsets[s] = s;
    for (int s = 0; s < segments_; ++s) memories.push_back(s / sessions);
    for (int set = 0; set < sets; ++set) {
      for (int s = 0; s < segments_; ++s) slots.push_back(set * sessions + s % sessions);
    }
    slots_ = Ints(slots);
    args_.segments = {.count = segments_,
                      .offsets = Ints(offsets),
                      .slots = {nullptr, DType::kI32, {segments_}},
                      .memories = Ints(memories),
                      .fresh = Ints(zeros),
                      .longest = 1};
  }
  ~Step() {
    cudaDeviceSynchronize();
    for (void* data : allocations_) cudaFree(data);
  }

  // Through the dispatcher, or, from 0 on, by that rules::Tile.
  void Launch(int set, int tile) {
    args_.segments.slots.data = slots_.as<int>() + int64_t{set} * segments_;
    if (tile < 0) return cuda::matrix_memory::MatrixMemory(device_, args_);
    rules::Problem problem = rules::MakeProblem(args_);
    problem.lengths = rules::Lengths::kOne;
    rules::LaunchTuned(device_, problem, dtype_, static_cast<rules::Tile>(tile));
  }
  // What a step touches.
  int64_t state_bytes() const { return segments_ * memory_bytes_; }
  const TensorView& out() const { return args_.out; }
  TensorView& q() { return args_.q; }

 private:
  char* Allocate(int64_t bytes) {
    void* data = nullptr;
    device_.Check(cudaMalloc(&data, bytes), "cudaMalloc");
    allocations_.push_back(data);
    return static_cast<char*>(data);
  }
  // Random from -scale to scale, or from scale to 0, or constant where that is 0.5.
  TensorView Vectors(Shape shape, float scale) {
    std::vector<float> values(shape.elements());
    for (float& value : values) {
      seed_ = seed_ * 1664525u + 1013904223u;
      const float unit = (seed_ >> 8) * 0x1p-24f;
      value = scale < 0 ? scale * unit : scale == 0.5f ? scale : scale * (2 * unit - 1);
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

  Device& device_;
  const int segments_;
  const DType dtype_;
  int64_t memory_bytes_;
  uint32_t seed_ = 1;
  std::vector<void*> allocations_;
  MatrixMemoryArgs args_;
  TensorView slots_;
};

// The floor of a step that holds writes back, as a share of that of one that reads and writes every
// matrix. A matrix is read each time and written once in `period` tokens; a write held back is an
// update, a key and what decays, in f32; half a period of them are read, and one is written. 1
// where such terms do not add up to the rule exactly: a general correction, whose terms act on each
// other, and matrices that are not of f32, whose rounding counts.
double HeldBackShare(const std::vector<Case>& shapes, DType dtype) {
  if (dtype != DType::kF32) return 1;
  double whole = 0, held_back = 0;
  for (const Case& shape : shapes) {
    if (shape.rule.correction == Rule::Correction::kGeneral) return 1;
    const double keys = shape.key_dim, values = shape.value_dim, matrix = keys * values;
    const double decays = shape.rule.decay == Rule::Decay::kKey     ? keys
                          : shape.rule.decay == Rule::Decay::kValue ? values
                          : shape.rule.decay == Rule::Decay::kHead  ? 1
                                                                    : 0;
    const double write = keys + values + decays;
    const double period = std::max(1.0, std::round(std::sqrt(2 * matrix / write)));
    whole += shape.heads * 2 * matrix;
    held_back += shape.heads * (matrix * (1 + 1 / period) + ((period - 1) / 2 + 1) * write);
  }
  return std::min(1.0, held_back / whole);
}

struct Options {
  DType dtype = DType::kF32;
  bool sweep = false;
  std::vector<std::string> names;  // none: all
  std::vector<int> megabytes = {3, 12, 50, 100, 400, 1600};
};

BenchTable Measure(Device& device, const Options& options) {
  const double copy = CopyBandwidth(device);
  BenchTable table(
      absl::StrFormat("Matrix memories, one token, %s state, %s: copies move %.2f "
                      "TB/s, read and written",
                      mneme::Name(options.dtype), device.properties().name, 1e-12 * copy),
      {{"rule", "rule"},
       {"head_states", "head states"},
       {"state_mb", "state MB", 1},
       {"tile", "tile"},
       {"step_us", "us", 2},
       {"tbs", "TB/s", 2},
       {"of_copy", "of copy %", 1},
       {"of_held_back", "of held-back floor %", 1}});
  constexpr const char* kTiles[] = {"chosen", "fewest", "few", "rows", "few cached", "rows cached"};
  for (const std::vector<Case>& shapes : kCases) {
    const std::string name = shapes[0].name;
    if (!options.names.empty() &&
        std::find(options.names.begin(), options.names.end(), name) == options.names.end()) {
      continue;
    }
    const double held_back = HeldBackShare(shapes, options.dtype);
    for (const int megabytes : options.megabytes) {
      int64_t session_bytes = 0;  // of a step, in f32, whatever they are stored in
      for (const Case& shape : shapes) {
        session_bytes += int64_t{4} * shape.chosen * shape.heads * shape.key_dim * shape.value_dim;
      }
      const int sessions =
          std::max(1, static_cast<int>(std::lround(1e6 * megabytes / session_bytes)));
      const int64_t bytes = sessions * session_bytes * SizeOf(options.dtype) / 4;
      const int sets = static_cast<int>(std::max<int64_t>(1, (kColdBytes + bytes - 1) / bytes));
      std::vector<std::unique_ptr<Step>> steps;
      int64_t state_bytes = 0, head_states = 0;
      for (const Case& shape : shapes) {
        steps.push_back(std::make_unique<Step>(device, shape, options.dtype, sessions, sets));
        state_bytes += steps.back()->state_bytes();
        head_states += int64_t{sessions} * shape.chosen * shape.heads;
      }
      const int tiles = options.sweep ? 5 : 0;
      for (int tile = -1; tile < tiles; ++tile) {
        const double seconds =
            TimeGraph(device,
                      [&] {
                        for (int set = 0; set < sets; ++set) {
                          for (size_t i = 0; i < steps.size(); ++i) {
                            if (i > 0)
                              cuda::dense::Softmax(device,
                                                   {.x = steps[i - 1]->out(), .y = steps[i]->q()});
                            steps[i]->Launch(set, tile);
                          }
                        }
                      }) /
            sets;
        const double of_copy = 200 * state_bytes / seconds / copy;
        table.AddRow({name, head_states, 1e-6 * state_bytes, kTiles[tile + 1], 1e6 * seconds,
                      2e-12 * state_bytes / seconds, of_copy, of_copy * held_back});
      }
    }
  }
  return table;
}

int Main(int argc, char** argv) {
  constexpr char kProgram[] = "cuda_matrix_memory_bench";
  bool check = false;
  Options options;
  std::string json, dtype = "f32", names, megabytes;
  FlagParser parser(
      "usage: cuda_matrix_memory_bench [flags]\n\n"
      "Times the decode step of the matrix memories' rules alone, states read and written.\n\n");
  parser.Add("--rules", "NAMES", &names, "only these, separated by commas");
  parser.Add("--megabytes", "SIZES", &megabytes, "of states in f32; default: 3,12,50,100,400,1600");
  parser.Add("--state-dtype", "DTYPE", &dtype, "f32, f16 or int8");
  parser.Add("--sweep", &options.sweep, "every way to deal out rows, beside what is chosen");
  parser.Add("--check", &check, "compare with float64 on the host instead");
  parser.Add("--json", "FILE", &json, "also write the results there");
  const absl::Status parsed = parser.ParseFlags(argc, argv);
  if (parser.help_requested()) {
    std::printf("%s", parser.Help().c_str());
    return kExitOk;
  }
  if (!parsed.ok()) return Report(kProgram, parsed, kExitUsage);
  options.dtype = dtype == "f16" ? DType::kF16 : dtype == "int8" ? DType::kI8 : DType::kF32;
  if (!names.empty()) options.names = absl::StrSplit(names, ',');
  if (!megabytes.empty()) {
    options.megabytes.clear();
    for (const std::string& size : std::vector<std::string>(absl::StrSplit(megabytes, ','))) {
      options.megabytes.push_back(std::atoi(size.c_str()));
    }
  }
  Device device(0, DType::kF32);
  if (!device.ok()) return Report(kProgram, absl::InternalError(device.TakeError()), kExitDevice);
  bool passed = true;
  if (check) {
    passed = CheckMatrixMemories(device);
  } else {
    const BenchTable table = Measure(device, options);
    table.Print();
    if (!json.empty()) {
      const absl::Status written = WriteJson({{"matrix_memories", table.ToJson()}}, json);
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
