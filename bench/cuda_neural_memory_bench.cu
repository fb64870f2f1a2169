// Measures memories that are networks on a GPU, one layer of the sizes that models have: decode
// steps on states that are not in the cache, the same with steps held back, prompts, and how a head
// is divided among blocks.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/bench_table.h"
#include "bench/cuda_tables.h"
#include "bench/cuda_timing.h"
#include "kernels/cuda/neural_memory/held.h"
#include "kernels/cuda/neural_memory/neural_memory.h"
#include "kernels/cuda/neural_memory/resident/resident.h"

namespace mneme {
namespace {

using cuda::Device;
using Read = NeuralMemoryArgs::Read;

struct Memory {
  const char* name;
  int heads, dim, depth, hidden;
  int step, anchor_period;
  bool ahead;  // TTT: biases, a static norm, read ahead; else a trained gain, momentum, forgetting

  MemoryNetwork network() const {
    using Norm = MemoryNetwork::Norm;
    return {.depth = depth,
            .hidden = depth == 1 ? 0 : hidden,
            .biases = ahead,
            .activation =
                ahead ? MemoryNetwork::Activation::kGeluTanh : MemoryNetwork::Activation::kGelu,
            .norm = ahead || step > 1 ? Norm::kLayer : Norm::kNone,
            .trains_gain = !ahead && step > 1,
            .gain_offset = 1};
  }
  // The bytes of one copy of all heads.
  int64_t copy_bytes() const {
    int64_t elements = 0;
    for (int t = 0; t < network().tensors(); ++t) elements += network().shape(t, dim).elements();
    return 4 * heads * elements;
  }
  bool has_anchors() const { return anchor_period != 0 && anchor_period != step; }
  int64_t pair_bytes() const {
    return step > 1 && !ahead ? int64_t{4} * heads * (step - 1) * (2 * dim + 1) : 0;
  }
  int64_t slab_bytes() const {
    return (copy_bytes() * (has_anchors() ? 3 : 2) + pair_bytes() + 255) / 256 * 256;
  }
  // The vectors of a step that is held back.
  double step_bytes() const { return 4.0 * heads * HeldVectors(dim, hidden); }
  // Read and written of the state by a token whose steps are held back, on average: W and S are
  // read, and written by one in `period`.
  double held_token_bytes(int period) const {
    const double both = 2.0 * static_cast<double>(copy_bytes()), writes = 1.0 / period;
    return both * (1 + writes) + step_bytes() * (0.5 * (period - 1) + 1 - writes);
  }
  // Read and written by a token that is fed alone, of the state, on average.
  double token_bytes() const {
    const auto copy = static_cast<double>(copy_bytes());
    if (ahead) return copy * (3 + 1.0 / step);
    if (step == 1) return copy * (has_anchors() || anchor_period == 0 ? 5 : 4);
    return copy * (1 + (has_anchors() ? 4.0 : 3.0) / step);
  }
};

const Memory kMemories[] = {
    {"titans 340M, e 4", 16, 64, 2, 256, 1, 1, false},
    {"titans 340M, e 2", 16, 64, 2, 128, 1, 1, false},
    {"titans 760M, e 4", 16, 96, 2, 384, 1, 1, false},
    {"titans 340M, e 2, anchor of 16", 16, 64, 2, 128, 1, 16, false},
    {"titans 340M, e 2, anchor of 64", 16, 64, 2, 128, 1, 64, false},
    {"one matrix of 64", 16, 64, 1, 0, 1, 1, false},
    {"titans-pytorch, steps of 16", 4, 64, 2, 128, 16, 128, false},
    {"ttt-linear 350M", 16, 64, 1, 0, 16, 16, true},
    {"ttt-mlp 350M", 16, 64, 2, 256, 16, 16, true},
};

// Rows of equal length through a layer, of one set of states after the other.
class Layer {
 public:
  // `holds`: up to kMostHeldSteps of each row, which are not in phase.
  Layer(Device& device, const Memory& memory, int rows, int tokens, int sets, bool holds = false)
      : device_(device), rows_(rows) {
    const int heads = memory.heads, dim = memory.dim;
    const int64_t entries = int64_t{rows} * tokens;
    const MemoryNetwork network = memory.network();
    args_.network = network;
    args_.q = Floats({entries, heads, dim}, -0.125f, 0.125f);
    args_.k = Floats({entries, heads, dim}, -0.125f, 0.125f);
    args_.v = Floats({entries, heads, dim}, -1, 1);
    args_.rate = Floats({entries, heads}, 0, 0.01f);
    if (!memory.ahead) {
      args_.momentum = Floats({entries, heads}, 0.1f, 0.9f);
      args_.keep = Floats({entries, heads}, 0.9f, 0.99f);
    } else {
      args_.gain = Floats({heads, dim}, 1, 1);
      args_.shift = Floats({heads, dim}, 0, 0);
      args_.step_scale = Floats({memory.step}, 0.0625f, 0.0625f);
    }
    args_.step = memory.step;
    args_.anchor_period = memory.anchor_period;
    args_.read = memory.ahead ? Read::kAhead : Read::kRunning;
    args_.first_position = -1;
    // Rows of all phases of a step.
    std::vector<int64_t> positions;
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < tokens; ++i) positions.push_back(int64_t{1024} + row + i);
    }
    args_.positions = {Upload(positions), DType::kI64, {entries}};
    const int64_t numbers = holds ? int64_t{4} * heads * HeldNumbers(kMostHeldSteps) : 0;
    const int64_t vectors = holds ? kMostHeldSteps * static_cast<int64_t>(memory.step_bytes()) : 0;
    const int64_t slab_bytes = memory.slab_bytes() + (numbers + vectors + 255) / 256 * 256;
    const int64_t all = slab_bytes * rows * sets;
    auto* const slabs = reinterpret_cast<std::byte*>(Allocate(all));
    device_.Check(cudaMemset(slabs, 0, static_cast<size_t>(all)), "memset");
    int64_t offset = 0;
    const auto field = [&](int64_t bytes) {
      const StateView view{slabs, slab_bytes, offset, bytes, DType::kF32};
      offset += bytes;
      return view;
    };
    const auto copy = [&](MemoryCopy& to) {
      for (int t = 0; t < network.tensors(); ++t) {
        to.at[t] = field(4 * heads * network.shape(t, dim).elements());
      }
    };
    copy(args_.weights);
    copy(memory.ahead ? args_.gradients : args_.momenta);
    if (memory.has_anchors()) copy(args_.anchors);
    if (memory.pair_bytes() > 0) {
      const int64_t held = int64_t{4} * heads * (memory.step - 1);
      args_.pending = {field(held * dim), field(held * dim), field(held)};
    }
    if (holds) {
      held_ = {.capacity = kMostHeldSteps, .numbers = field(numbers), .vectors = field(vectors)};
      for (int slot = 0; slot < rows * sets; ++slot) {
        std::vector<float> of_heads(static_cast<size_t>(numbers / 4));
        for (int head = 0; head < heads; ++head) {
          float* const own = of_heads.data() + head * HeldNumbers(kMostHeldSteps);
          own[0] = static_cast<float>(slot % (kMostHeldSteps + 1));
          own[1] = own[3] = 1;
        }
        device_.Check(cudaMemcpy(held_.numbers.At(slot, 0), of_heads.data(),
                                 static_cast<size_t>(numbers), cudaMemcpyHostToDevice),
                      "copy");
      }
    }
    for (int t = 0; t < network.tensors(); ++t) {
      const Shape one = network.shape(t, dim);
      args_.initial_weights.at[t] =
          Floats(one.rank == 2 ? Shape{heads, one[0], one[1]} : Shape{heads, one[0]}, 0, 0);
    }
    std::vector<int> offsets, slots, zeros(static_cast<size_t>(rows), 0);
    for (int i = 0; i <= rows; ++i) offsets.push_back(i * tokens);
    for (int i = 0; i < sets * rows; ++i) slots.push_back(i);
    slots_ = Ints(slots);
    args_.segments = {.count = rows,
                      .offsets = Ints(offsets),
                      .slots = {nullptr, DType::kI32, {rows}},
                      .memories = Ints(zeros),
                      .fresh = Ints(zeros),
                      .longest = tokens};
    args_.out = {Allocate(4 * entries * heads * dim), DType::kF32, {entries, heads, dim}};
  }
  ~Layer() {
    cudaDeviceSynchronize();
    for (void* data : allocations_) cudaFree(data);
  }

  // Divided among so many blocks, or 0; false if it cannot be.
  bool Launch(int set, int blocks = 0) {
    args_.segments.slots.data = slots_.as<int>() + int64_t{set} * rows_;
    if (blocks != 0) return cuda::neural_memory::resident::Launch(device_, args_, blocks);
    cuda::neural_memory::NeuralMemory(device_, args_);
    return true;
  }
  // Steps that are held back, unless they are so few that they had better be written; state is read
  // while the kernel ahead still runs.
  void LaunchHeld(int set, bool always) {
    args_.segments.slots.data = slots_.as<int>() + int64_t{set} * rows_;
    cuda::neural_memory::resident::LaunchHeld(
        device_, {.streams = {}, .memory = args_, .held = held_, .always_holds = always},
        /*early=*/true);
  }
  // The bytes of inputs and outputs.
  double entry_bytes() const { return 16.0 * static_cast<double>(args_.q.shape.elements()); }

 private:
  char* Allocate(int64_t bytes) {
    void* data = nullptr;
    device_.Check(cudaMalloc(&data, static_cast<size_t>(bytes)), "cudaMalloc");
    allocations_.push_back(data);
    return static_cast<char*>(data);
  }
  TensorView Floats(Shape shape, float least, float most) {
    std::vector<float> values(static_cast<size_t>(shape.elements()));
    for (float& value : values) {
      seed_ = seed_ * 1664525u + 1013904223u;
      value = least + (most - least) * static_cast<float>(seed_ >> 8) * 0x1p-24f;
    }
    return {Upload(values), DType::kF32, shape};
  }
  TensorView Ints(const std::vector<int>& values) {
    return {Upload(values), DType::kI32, {static_cast<int64_t>(values.size())}};
  }
  template <typename T>
  char* Upload(const std::vector<T>& values) {
    char* const data = Allocate(static_cast<int64_t>(sizeof(T) * values.size()));
    device_.Check(
        cudaMemcpy(data, values.data(), sizeof(T) * values.size(), cudaMemcpyHostToDevice), "copy");
    return data;
  }

  Device& device_;
  const int rows_;
  uint32_t seed_ = 1;
  std::vector<void*> allocations_;
  NeuralMemoryArgs args_;
  HeldSteps held_;
  TensorView slots_;
};

int SetsOf(const Memory& memory, int rows) {
  return static_cast<int>(std::max<int64_t>(1, kColdBytes / (memory.slab_bytes() * rows)));
}

// Seconds of a step of so many rows; 0 if it cannot be divided among `blocks`.
double TimeStep(Device& device, const Memory& memory, int rows, int blocks, double* moved) {
  const int sets = SetsOf(memory, rows);
  Layer layer(device, memory, rows, 1, sets);
  if (!layer.Launch(0, blocks)) return 0;
  if (moved != nullptr) *moved = rows * memory.token_bytes() + layer.entry_bytes();
  return TimeGraph(device,
                   [&] {
                     for (int set = 0; set < sets; ++set) layer.Launch(set, blocks);
                   }) /
         sets;
}

BenchTable MeasureSteps(Device& device, double copy) {
  BenchTable table(absl::StrFormat("Neural memory, a token a row, one layer, %s: copies move "
                                   "%.2f TB/s, read and written",
                                   device.properties().name, 1e-12 * copy),
                   {{"memory", "memory"},
                    {"rows", "rows"},
                    {"moved_mb", "moved MB", 1},
                    {"step_us", "us", 2},
                    {"tbs", "TB/s", 2},
                    {"of_copy", "of copy %", 1}});
  for (const Memory& memory : kMemories) {
    for (const int rows : {1, 8, 64, 128}) {
      double moved = 0;
      const double seconds = TimeStep(device, memory, rows, 0, &moved);
      table.AddRow({std::string(memory.name), int64_t{rows}, 1e-6 * moved, 1e6 * seconds,
                    1e-12 * moved / seconds, 100 * moved / seconds / copy});
    }
  }
  return table;
}

BenchTable MeasureHeldSteps(Device& device, double copy) {
  BenchTable table(
      "Neural memory, a token a row, steps held back; the share is that of a copy of "
      "what they move",
      {{"memory", "memory"},
       {"rows", "rows"},
       {"moved_mb", "moved MB", 1},
       {"held_us", "us", 2},
       {"of_copy", "of copy %", 1},
       {"served_us", "as served, us", 2},
       {"written_us", "all written, us", 2}});
  for (const Memory& memory : kMemories) {
    if (memory.step != 1 || memory.anchor_period != 1 || memory.depth != 2) continue;
    for (const int rows : {1, 8, 32, 64, 128}) {
      // State that is read early was written some kernels ago.
      const int sets = std::max(SetsOf(memory, rows), 3);
      double moved = 0;
      const auto seconds = [&](bool always) {
        Layer layer(device, memory, rows, 1, sets, /*holds=*/true);
        moved = rows * memory.held_token_bytes(kMostHeldSteps + 1) + layer.entry_bytes();
        return TimeGraph(device,
                         [&] {
                           for (int set = 0; set < sets; ++set) layer.LaunchHeld(set, always);
                         }) /
               sets;
      };
      const double held = seconds(true);
      table.AddRow({std::string(memory.name), int64_t{rows}, 1e-6 * moved, 1e6 * held,
                    100 * moved / held / copy, 1e6 * seconds(false),
                    1e6 * TimeStep(device, memory, rows, 0, nullptr)});
    }
  }
  return table;
}

BenchTable MeasureDivision(Device& device) {
  BenchTable table("Neural memory, a token a row: us where so many blocks have a head; 0: none can",
                   {{"memory", "memory"},
                    {"rows", "rows"},
                    {"one_us", "1", 2},
                    {"two_us", "2", 2},
                    {"four_us", "4", 2},
                    {"eight_us", "8", 2}});
  for (const Memory& memory : kMemories) {
    for (const int rows : {1, 8, 64}) {
      const auto us = [&](int blocks) {
        return 1e6 * TimeStep(device, memory, rows, blocks, nullptr);
      };
      table.AddRow({std::string(memory.name), int64_t{rows}, us(1), us(2), us(4), us(8)});
    }
  }
  return table;
}

BenchTable MeasurePrompts(Device& device) {
  BenchTable table("Neural memory, prompts through one layer", {{"memory", "memory"},
                                                                {"prompts", "prompts"},
                                                                {"tokens", "tokens"},
                                                                {"us", "us", 1},
                                                                {"token_us", "us/token", 3},
                                                                {"mtokens", "M tokens/s", 3}});
  for (const Memory& memory : kMemories) {
    for (const int prompts : {1, 8}) {
      constexpr int kTokens = 2048;
      Layer layer(device, memory, prompts, kTokens, 1);
      const double seconds = TimeGraph(device, [&] { layer.Launch(0); });
      table.AddRow({std::string(memory.name), int64_t{prompts}, int64_t{kTokens}, 1e6 * seconds,
                    1e6 * seconds / kTokens, 1e-6 * prompts * kTokens / seconds});
    }
  }
  return table;
}

int Main(int argc, char** argv) {
  const CudaTable tables[] = {
      {"steps", MeasureSteps},
      {"held", MeasureHeldSteps},
      {"division", [](Device& device, double) { return MeasureDivision(device); }},
      {"prompts", [](Device& device, double) { return MeasurePrompts(device); }}};
  return RunCudaTables(
      "cuda_neural_memory_bench",
      "Times a layer of memories that are networks alone: steps of one token, the same held back,\n"
      "how heads are divided among blocks, and prompts.",
      tables, argc, argv);
}

}  // namespace
}  // namespace mneme

int main(int argc, char** argv) { return mneme::Main(argc, argv); }
