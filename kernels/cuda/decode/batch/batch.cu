// A decode step of many rows: which kernels, on which memory.
#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/scratch_layout.h"
#include "kernels/cuda/decode/batch/batch.h"
#include "kernels/cuda/decode/decode.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/row.h"
#include "kernels/cuda/matrix_memory/matrix_memory.h"

namespace mneme::cuda::decode::batch {
namespace {

struct Buffers {
  EntryTable table;
  __nv_bfloat16 *x, *mixed;              // [rows, ..]
  __nv_bfloat16 *raw_q, *raw_k, *raw_v;  // before convolution, [rows or entries, ..]
  float *raw_a, *raw_b;                  // [rows or entries, value_heads]
  float *q, *k, *v;                      // [entries, ..]
  float* gate;                           // [rows, values]
  float* read;                           // [entries, values]
  float *log_decay, *beta;               // [entries, value_heads]
};

struct Sizes {
  Sizes(const DeltaMixer& args, const TensorView& hidden)
      : rows(hidden.shape[0]),
        model_dim(hidden.shape[1]),
        keys(int64_t{args.heads} * args.key_dim),
        values(int64_t{args.value_heads} * args.value_dim),
        top_k(args.memories > 0 ? args.top_k : 0),
        columns(top_k + (args.shared ? 1 : 0)),
        entries(rows * columns),
        per_entry(args.k_proj.size() > 1),
        projected(per_entry ? entries : rows),
        routes_gate(rows >= kMinRowsForRouteGates && 2 * args.value_heads <= kMaxRowGates &&
                    (args.shared || !per_entry)) {}
  int64_t rows, model_dim, keys, values;
  int top_k, columns;
  int64_t entries;
  bool per_entry;
  int64_t projected;
  // The routes' kernel makes a and b of the memory that all rows go to. A block of the projections
  // takes as long for these few outputs as another does for 128.
  bool routes_gate;
};

int64_t LayOut(const DeltaMixer& args, const Sizes& size, std::byte* memory, Buffers& b) {
  ScratchLayout layout(memory);
  b.table.offsets = layout.Take<int32_t>(size.entries + 1);
  b.table.slots = layout.Take<int32_t>(size.entries);
  b.table.memories = layout.Take<int32_t>(size.entries);
  b.table.fresh = layout.Take<int32_t>(size.entries);
  b.table.rows = layout.Take<int32_t>(size.entries);
  b.table.folding = layout.Take<int32_t>(size.entries);
  b.x = layout.Take<__nv_bfloat16>(size.rows * size.model_dim);
  b.mixed = layout.Take<__nv_bfloat16>(size.rows * size.values);
  b.raw_q = layout.Take<__nv_bfloat16>(size.rows * size.keys);
  b.raw_k = layout.Take<__nv_bfloat16>(size.projected * size.keys);
  b.raw_v = layout.Take<__nv_bfloat16>(size.projected * size.values);
  b.raw_a = layout.Take<float>(size.projected * args.value_heads);
  b.raw_b = layout.Take<float>(size.projected * args.value_heads);
  b.q = layout.Take<float>(size.entries * size.keys);
  b.k = layout.Take<float>(size.entries * size.keys);
  b.v = layout.Take<float>(size.entries * size.values);
  b.gate = layout.Take<float>(size.rows * size.values);
  b.read = layout.Take<float>(size.entries * size.values);
  b.log_decay = layout.Take<float>(size.entries * args.value_heads);
  b.beta = layout.Take<float>(size.entries * args.value_heads);
  return layout.bytes();
}

// Whether the products take a matrix.
bool Supports(const PackedMatrix& matrix) {
  return matrix.dtype == DType::kBF16 && matrix.in_features % 64 == 0 && IsAligned(matrix);
}
bool Supports(std::span<const PackedMatrix> matrices) {
  return std::all_of(matrices.begin(), matrices.end(),
                     [](const PackedMatrix& matrix) { return Supports(matrix); });
}

bool Supports(const Device& device, const TensorView& hidden) {
  const int64_t rows = hidden.shape[0], model_dim = hidden.shape[1];
  return device.compute_dtype() == DType::kBF16 && HasHopperCode(device) && rows >= 1 &&
         rows <= kMaxManyChoices && model_dim % 64 == 0 && model_dim <= kMaxManyModelDim &&
         IsAligned(hidden);
}

bool Supports(const Device& device, const DeltaMixerStepArgs& step, const Sizes& size) {
  const DeltaMixer& args = step.mixer;
  return Supports(device, step.hidden) && step.slots.shape[0] == size.rows &&
         args.q_window.dtype == DType::kBF16 && args.k_window.dtype == DType::kBF16 &&
         args.v_window.dtype == DType::kBF16 && size.rows * size.top_k <= kMaxManyChoices &&
         args.memories <= kMaxManyMemories &&
         (args.memories == 0 || args.router.dtype == DType::kBF16) && Supports(args.q_proj) &&
         Supports(args.k_proj) && Supports(args.v_proj) && Supports(args.a_proj) &&
         Supports(args.b_proj) && (args.g_proj.data == nullptr || Supports(args.g_proj)) &&
         Supports(args.out_proj) && size.keys % 64 == 0 && size.values % 64 == 0 &&
         3 + 4 * args.k_proj.size() <= size_t{kMaxManyWeights};
}

TensorView Floats(float* data, Shape shape) { return {data, DType::kF32, shape}; }
TensorView Indices(int32_t* data, Shape shape) { return {data, DType::kI32, shape}; }

Segments SegmentsOf(const EntryTable& table, int64_t entries) {
  return {.count = static_cast<int>(entries),
          .offsets = Indices(table.offsets, {entries + 1}),
          .slots = Indices(table.slots, {entries}),
          .memories = Indices(table.memories, {entries}),
          .fresh = Indices(table.fresh, {entries}),
          .longest = 1};
}

void Route(Device& device, const DeltaMixerStepArgs& step, const Sizes& size, const Buffers& b) {
  const DeltaMixer& args = step.mixer;
  ManyRoutesArgs routes = {.hidden = step.hidden.as<const float>(),
                           .norm = args.norm.as<const float>(),
                           .norm_eps = args.norm_eps,
                           .rows = static_cast<int>(size.rows),
                           .model_dim = static_cast<int>(size.model_dim),
                           .x = b.x,
                           .memories = args.memories,
                           .top_k = size.top_k,
                           .router = static_cast<const __nv_bfloat16*>(args.router.data),
                           .round_logits = args.round_logits == DType::kBF16,
                           .forced = step.choice.forced.as<const int32_t>(),
                           .indices = step.choice.indices.as<int32_t>(),
                           .weights = step.choice.weights.as<float>(),
                           .table = b.table,
                           .columns = size.columns,
                           .slots = step.slots.as<const int32_t>(),
                           .written = args.written,
                           .range = args.pending.range,
                           .capacity = args.pending.capacity};
  if (size.routes_gate) {
    const int stride = args.value_heads * (size.per_entry ? size.columns : 1);
    routes.gates = args.value_heads;
    routes.gate_a = static_cast<const __nv_bfloat16*>(args.a_proj.back().data);
    routes.gate_b = static_cast<const __nv_bfloat16*>(args.b_proj.back().data);
    routes.first_a = b.raw_a + stride - args.value_heads;
    routes.first_b = b.raw_b + stride - args.value_heads;
    routes.gate_stride = stride;
  }
  LaunchManyRoutes(device, routes);
}

// Adds products to a launch.
class ProductList {
 public:
  ProductList(int64_t rows, int64_t in_features) {
    list_.rows = static_cast<int>(rows);
    list_.in_features = static_cast<int>(in_features);
  }
  void SetChoices(const int32_t* indices, int top_k) {
    list_.indices = indices;
    list_.top_k = top_k;
  }
  // One matrix, or a pair, for all rows.
  ManyProduct& Add(const __nv_bfloat16* x, const PackedMatrix& matrix, void* y,
                   const PackedMatrix* second = nullptr, float* second_y = nullptr) {
    ManyProduct& product = Start(x, matrix.out_features, second != nullptr, y, second_y);
    product.all_rows = 1;
    product.columns = 1;
    Take(matrix);
    if (second != nullptr) Take(*second);
    return product;
  }
  // One for each memory, the shared one's last.
  ManyProduct& Add(const __nv_bfloat16* x, std::span<const PackedMatrix> matrices, void* y,
                   std::span<const PackedMatrix> second, float* second_y, const Sizes& size) {
    if (!size.per_entry) {
      return Add(x, matrices[0], y, second.empty() ? nullptr : &second[0], second_y);
    }
    ManyProduct& product = Start(x, matrices[0].out_features, !second.empty(), y, second_y);
    product.all_rows = size.columns > size.top_k ? 1 : 0;
    product.routed = static_cast<int>(matrices.size()) - product.all_rows;
    product.columns = size.columns;
    product.last_choice = size.top_k;
    for (size_t i = 0; i < matrices.size(); ++i) {
      Take(matrices[i]);
      if (!second.empty()) Take(second[i]);
    }
    return product;
  }
  ManyProducts& list() { return list_; }

 private:
  ManyProduct& Start(const __nv_bfloat16* x, int out_features, bool pair, void* y,
                     float* second_y) {
    list_.pairs_of[list_.count] = pair;
    ManyProduct& product = list_.products[list_.count++];
    product.x = x;
    product.y = y;
    product.second_y = second_y;
    product.out_features = out_features;
    product.first_weight = weights_;
    return product;
  }
  void Take(const PackedMatrix& matrix) {
    list_.weights[weights_++] = static_cast<const __nv_bfloat16*>(matrix.data);
  }

  ManyProducts list_ = {};
  int weights_ = 0;
};

void Project(Device& device, const DeltaMixerStepArgs& step, const Sizes& size, const Buffers& b) {
  const DeltaMixer& args = step.mixer;
  ProductList products(size.rows, size.model_dim);
  products.SetChoices(step.choice.indices.as<const int32_t>(), size.top_k);
  products.Add(b.x, args.q_proj, b.raw_q).bf16_y = true;
  if (args.g_proj.data != nullptr) products.Add(b.x, args.g_proj, b.gate);
  products.Add(b.x, args.k_proj, b.raw_k, {}, nullptr, size).bf16_y = true;
  products.Add(b.x, args.v_proj, b.raw_v, {}, nullptr, size).bf16_y = true;
  ManyProduct& gates = products.Add(b.x, args.a_proj, b.raw_a, args.b_proj, b.raw_b, size);
  if (size.routes_gate) gates.all_rows = 0;
  LaunchManyProducts(device, products.list(), ManyEpilogue::kStore);
}

void Convolve(Device& device, const DeltaMixer& args, const Sizes& size, const Buffers& b) {
  struct Convolved {
    __nv_bfloat16* raw;
    int64_t raw_rows, width;
    const TensorView& weight;
    const StateView& window;
    float* y;
    bool by_row;
  };
  const Convolved streams[] = {
      {b.raw_q, size.rows, size.keys, args.q_conv, args.q_window, b.q, true},
      {b.raw_k, size.projected, size.keys, args.k_conv, args.k_window, b.k, !size.per_entry},
      {b.raw_v, size.projected, size.values, args.v_conv, args.v_window, b.v, !size.per_entry}};
  ManyConvolutionsArgs many = {};
  many.entries = static_cast<int>(size.entries);
  many.table = b.table;
  bool width_4 = true;
  for (const Convolved& stream : streams) {
    width_4 &= stream.weight.shape[1] == 4;
    many.list[many.count++] = {.x = stream.raw,
                               .weight = stream.weight.as<const float>(),
                               .window = stream.window,
                               .y = stream.y,
                               .channels = static_cast<int>(stream.width),
                               .by_row = stream.by_row};
  }
  if (width_4 && LaunchManyConvolutions(device, many)) return;
  ShortConvArgs convolutions[3];
  for (int i = 0; i < 3; ++i) {
    const Convolved& stream = streams[i];
    convolutions[i].x = {stream.raw, DType::kBF16, {stream.raw_rows, stream.width}};
    if (stream.by_row) convolutions[i].entry_rows = Indices(b.table.rows, {size.entries});
    convolutions[i].weight = stream.weight;
    convolutions[i].segments = SegmentsOf(b.table, size.entries);
    convolutions[i].window = stream.window;
    convolutions[i].y = Floats(stream.y, {size.entries, stream.width});
  }
  matrix_memory::ShortConv(device, convolutions);
}

void Remember(Device& device, const DeltaMixer& args, const Sizes& size, const Buffers& b) {
  const Shape gate_rows{size.projected, args.value_heads};
  const Shape gates_shape{size.entries, args.value_heads};
  const Shape by_value_head{size.entries, args.value_heads, args.value_dim};
  const MatrixMemoryArgs rule = {.q = Floats(b.q, {size.entries, args.heads, args.key_dim}),
                                 .k = Floats(b.k, {size.entries, args.heads, args.key_dim}),
                                 .v = Floats(b.v, by_value_head),
                                 .log_decay = Floats(b.log_decay, gates_shape),
                                 .beta = Floats(b.beta, gates_shape),
                                 .segments = SegmentsOf(b.table, size.entries),
                                 .state = args.state,
                                 .pending = args.pending,
                                 .out = Floats(b.read, by_value_head)};
  DeltaGatesArgs gates = {.a = Floats(b.raw_a, gate_rows),
                          .b = Floats(b.raw_b, gate_rows),
                          .a_log = args.a_log,
                          .dt_bias = args.dt_bias,
                          .beta_scale = args.beta_scale,
                          .log_decay = rule.log_decay,
                          .beta = rule.beta};
  if (!size.per_entry) gates.entry_rows = Indices(b.table.rows, {size.entries});
  matrix_memory::DecodeMemories(
      device, {.norms = args.norms, .gates = gates, .rule = rule, .folding = b.table.folding});
}

}  // namespace

bool DeltaMixerStep(Device& device, const DeltaMixerStepArgs& step) {
  const DeltaMixer& args = step.mixer;
  const Sizes size(args, step.hidden);
  if (!Supports(device, step, size)) return false;
  Buffers b = {};
  auto* const memory = static_cast<std::byte*>(device.StepMemory(LayOut(args, size, nullptr, b)));
  if (memory == nullptr) return true;  // the error is on record
  LayOut(args, size, memory, b);
  Route(device, step, size, b);
  Project(device, step, size, b);
  Convolve(device, args, size, b);
  Remember(device, args, size, b);
  LaunchMix(device, {.read = b.read,
                     .weights = step.choice.weights.as<const float>(),
                     .gate = args.g_proj.data != nullptr ? b.gate : nullptr,
                     .norm = args.out_norm.as<const float>(),
                     .norm_eps = args.out_norm_eps,
                     .rows = static_cast<int>(size.rows),
                     .columns = size.columns,
                     .top_k = size.top_k,
                     .value_heads = args.value_heads,
                     .value_dim = args.value_dim,
                     .y = b.mixed});
  ProductList out(size.rows, size.values);
  out.Add(b.mixed, args.out_proj, step.hidden.as<float>());
  LaunchManyProducts(device, out.list(), ManyEpilogue::kAdd);
  return true;
}

// One row: no tiles, and weights of both kernels are on their way before what they wait for.
bool OneRow(Device& device, const FeedForwardStepArgs& step) {
  const GatedFeedForward& args = step.network;
  const int64_t mlp_dim = args.gate.out_features;
  const auto takes = [](const PackedMatrix& matrix) {
    return matrix.dtype == DType::kBF16 && matrix.in_features % 8 == 0 && IsAligned(matrix);
  };
  if (!takes(args.gate) || !takes(args.up) || !takes(args.down) ||
      !AreAligned(step.hidden, args.norm)) {
    return false;
  }
  auto* const inner = static_cast<float*>(device.StepMemory(4 * mlp_dim));
  if (inner == nullptr) return true;  // the error is on record
  const linear::RowProduct in = {.weights = args.gate, .up = args.up, .y = inner};
  if (!linear::LaunchRow(device, {.x = step.hidden.as<const float>(),
                                  .norm = args.norm.as<const float>(),
                                  .eps = args.norm_eps,
                                  .products = {&in, 1}})) {
    return false;
  }
  const LinearArgs down = {.x = {inner, DType::kF32, {1, mlp_dim}},
                           .weights = {&args.down, 1},
                           .y = step.hidden,
                           .accumulate = true};
  const LinearArgs* const products[] = {&down};
  if (!linear::LinearRow(device, products)) linear::Linear(device, {&down, 1});
  return true;
}

bool FeedForwardStep(Device& device, const FeedForwardStepArgs& step) {
  const GatedFeedForward& args = step.network;
  const int64_t rows = step.hidden.shape[0], model_dim = step.hidden.shape[1];
  const int64_t mlp_dim = args.gate.out_features;
  if (rows == 1 && OneRow(device, step)) return true;
  if (!Supports(device, step.hidden) || mlp_dim % 64 != 0 || !Supports(args.gate) ||
      !Supports(args.up) || !Supports(args.down)) {
    return false;
  }
  __nv_bfloat16 *x = nullptr, *rounded = nullptr;
  const auto lay_out = [&](std::byte* memory) {
    ScratchLayout layout(memory);
    x = layout.Take<__nv_bfloat16>(rows * model_dim);
    rounded = layout.Take<__nv_bfloat16>(rows * mlp_dim);
    return layout.bytes();
  };
  auto* const memory = static_cast<std::byte*>(device.StepMemory(lay_out(nullptr)));
  if (memory == nullptr) return true;  // the error is on record
  lay_out(memory);
  LaunchManyRoutes(device, {.hidden = step.hidden.as<const float>(),
                            .norm = args.norm.as<const float>(),
                            .norm_eps = args.norm_eps,
                            .rows = static_cast<int>(rows),
                            .model_dim = static_cast<int>(model_dim),
                            .x = x});
  ProductList in(rows, model_dim);
  in.Add(x, args.gate, nullptr, &args.up);
  in.list().rounded = rounded;
  LaunchManyProducts(device, in.list(), ManyEpilogue::kSwiGlu);
  ProductList down(rows, mlp_dim);
  down.Add(rounded, args.down, step.hidden.as<float>());
  LaunchManyProducts(device, down.list(), ManyEpilogue::kAdd);
  return true;
}

}  // namespace mneme::cuda::decode::batch
