// A mixer's decode step: which kernels, on which memory.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/cuda/decode_many.h"
#include "kernels/cuda/decode_step.h"
#include "kernels/cuda/gated_delta_launch.h"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/step_layout.h"

namespace mneme::cuda {
namespace {

int64_t LayOut(const DeltaMixerStepArgs& args, std::byte* memory, StepBuffers& buffers) {
  const int64_t rows = args.hidden.shape[0], model_dim = args.hidden.shape[1];
  const int all_memories = args.memories + (args.shared ? 1 : 0);
  const int64_t columns = (args.memories > 0 ? args.top_k : 0) + (args.shared ? 1 : 0);
  const int64_t entries = rows * columns;
  const int64_t keys = int64_t{args.heads} * args.key_dim;
  const int64_t values = int64_t{args.value_heads} * args.value_dim;
  const bool many = rows > kMaxFewRows;
  buffers = {};
  buffers.rows = static_cast<int>(rows);
  buffers.columns = static_cast<int>(columns);
  buffers.segments = static_cast<int>(many ? all_memories * rows : entries);
  StepLayout layout(memory);
  buffers.q = layout.Take<float>(entries * keys);
  buffers.k = layout.Take<float>(entries * keys);
  buffers.v = layout.Take<float>(entries * values);
  buffers.a = layout.Take<float>(entries * args.value_heads);
  buffers.b = layout.Take<float>(entries * args.value_heads);
  buffers.gate = layout.Take<float>(rows * values);
  buffers.read = layout.Take<float>(entries * values);
  buffers.offsets = layout.Take<int32_t>(buffers.segments + 1);
  buffers.slots = layout.Take<int32_t>(buffers.segments);
  buffers.memories = layout.Take<int32_t>(buffers.segments);
  buffers.fresh = layout.Take<int32_t>(buffers.segments);
  if (many) {
    const int64_t projected = args.k_proj.size() > 1 ? entries : rows;
    buffers.mixed = layout.Take<float>(rows * values);
    buffers.token_entries = layout.Take<int32_t>(entries);
    buffers.x = layout.Take<float>(rows * model_dim);
    buffers.raw_q = layout.Take<float>(rows * keys);
    buffers.raw_k = layout.Take<float>(projected * keys);
    buffers.raw_v = layout.Take<float>(projected * values);
    buffers.raw_a = layout.Take<float>(projected * args.value_heads);
    buffers.raw_b = layout.Take<float>(projected * args.value_heads);
    buffers.entry_tokens = layout.Take<int32_t>(entries);
    buffers.group_offsets = layout.Take<int32_t>(all_memories + 1);
  }
  return layout.bytes();
}

TensorView Floats(float* data, Shape shape) { return {data, DType::kF32, shape}; }
TensorView Indices(int32_t* data, Shape shape) { return {data, DType::kI32, shape}; }

Segments SegmentsOf(const StepBuffers& buffers) {
  const int count = buffers.segments;
  return {.count = count,
          .offsets = Indices(buffers.offsets, {count + 1}),
          .slots = Indices(buffers.slots, {count}),
          .memories = Indices(buffers.memories, {count}),
          .fresh = Indices(buffers.fresh, {count}),
          .longest = 1};
}

// Sorted entries: every memory's projections are one product each.
void ProjectManyRows(Device& device, const DeltaMixerStepArgs& args, const StepBuffers& buffers) {
  const int64_t rows = buffers.rows, entries = rows * buffers.columns;
  const int64_t keys = int64_t{args.heads} * args.key_dim;
  const int64_t values = int64_t{args.value_heads} * args.value_dim;
  const int all_memories = args.memories + (args.shared ? 1 : 0);
  LaunchStepRoutes(device, args, buffers);
  const TensorView entry_tokens = Indices(buffers.entry_tokens, {entries});
  const TensorView group_offsets = Indices(buffers.group_offsets, {all_memories + 1});
  const Segments segments = SegmentsOf(buffers);
  Dispatch(device, {.row_offsets = args.row_offsets,
                    .slots = args.slots,
                    .indices = args.indices,
                    .memories = args.memories,
                    .shared = args.shared,
                    .written = args.written,
                    .entry_tokens = entry_tokens,
                    .token_entries = Indices(buffers.token_entries, {rows, buffers.columns}),
                    .group_offsets = group_offsets,
                    .segments = segments});

  const bool per_entry = args.k_proj.size() > 1;
  const int64_t projected = per_entry ? entries : rows;
  const TensorView x = Floats(buffers.x, {rows, args.hidden.shape[1]});
  const auto product = [&](std::span<const PackedMatrix> weights, float* y, int64_t width) {
    LinearArgs args{.x = x, .weights = weights, .y = Floats(y, {projected, width})};
    if (per_entry) {
      args.entry_rows = entry_tokens;
      args.group_offsets = group_offsets;
    }
    return args;
  };
  const LinearArgs products[] = {
      {.x = x, .weights = {&args.q_proj, 1}, .y = Floats(buffers.raw_q, {rows, keys})},
      product(args.k_proj, buffers.raw_k, keys),
      product(args.v_proj, buffers.raw_v, values),
      product(args.a_proj, buffers.raw_a, args.value_heads),
      product(args.b_proj, buffers.raw_b, args.value_heads),
      {.x = x, .weights = {&args.g_proj, 1}, .y = Floats(buffers.gate, {rows, values})}};
  Linear(device, std::span(products).first(args.g_proj.data != nullptr ? 6 : 5));

  const TensorView kv_rows = per_entry ? TensorView{} : entry_tokens;
  const auto convolution = [&](float* raw, int64_t raw_rows, int64_t width, TensorView from,
                               const TensorView& weight, const StateView& window, float* y) {
    return ShortConvArgs{.x = Floats(raw, {raw_rows, width}),
                         .entry_rows = from,
                         .weight = weight,
                         .segments = segments,
                         .window = window,
                         .y = Floats(y, {entries, width})};
  };
  const ShortConvArgs convolutions[] = {
      convolution(buffers.raw_q, rows, keys, entry_tokens, args.q_conv, args.q_window, buffers.q),
      convolution(buffers.raw_k, projected, keys, kv_rows, args.k_conv, args.k_window, buffers.k),
      convolution(buffers.raw_v, projected, values, kv_rows, args.v_conv, args.v_window,
                  buffers.v)};
  ShortConv(device, convolutions);
}

bool Fits(const Device& device, const DeltaMixerStepArgs& args) {
  // A row may be empty: then tokens are not rows.
  if (args.hidden.shape[0] == 0 || args.slots.shape[0] != args.hidden.shape[0]) return false;
  if (args.memories > kMaxStepMemories - 1) return false;
  const DType dtype = args.q_proj.dtype;
  const auto same = [&](std::span<const PackedMatrix> matrices) {
    return std::all_of(matrices.begin(), matrices.end(),
                       [&](const PackedMatrix& m) { return m.dtype == dtype; });
  };
  const bool few = args.hidden.shape[0] <= kMaxFewRows;
  const int64_t widest = std::max(args.hidden.shape[1], int64_t{args.value_heads} * args.value_dim);
  const int64_t shared_bytes =
      widest * (few ? kMaxFewRows : 1) * static_cast<int64_t>(sizeof(float));
  return (args.memories == 0 || args.router.dtype == dtype) && same(args.k_proj) &&
         same(args.v_proj) && same(args.a_proj) && same(args.b_proj) &&
         (args.g_proj.data == nullptr || args.g_proj.dtype == dtype) &&
         shared_bytes + 4096 <= static_cast<int64_t>(device.properties().sharedMemPerBlockOptin);
}

}  // namespace

bool DeltaMixerStep(Device& device, const DeltaMixerStepArgs& args) {
  if (args.hidden.shape[0] > kMaxFewRows && DeltaMixerStepOfMany(device, args)) return true;
  if (!Fits(device, args)) return false;
  StepBuffers buffers;
  auto* const memory = static_cast<std::byte*>(device.StepMemory(LayOut(args, nullptr, buffers)));
  if (memory == nullptr) return true;  // the error is on record
  LayOut(args, memory, buffers);
  const int64_t rows = buffers.rows, entries = rows * buffers.columns;
  const bool few = rows <= kMaxFewRows;
  delta::RawGates raw = {.a = buffers.a,
                         .b = buffers.b,
                         .a_log = args.a_log.as<const float>(),
                         .dt_bias = args.dt_bias.as<const float>(),
                         .beta_scale = args.beta_scale};
  if (few) {
    LaunchStepProjections(device, args, buffers);
  } else {
    ProjectManyRows(device, args, buffers);
    raw.a = buffers.raw_a;
    raw.b = buffers.raw_b;
    raw.rows = args.k_proj.size() > 1 ? nullptr : buffers.entry_tokens;
  }
  const Shape by_value_head{entries, args.value_heads, args.value_dim};
  const GatedDeltaRuleArgs rule = {.q = Floats(buffers.q, {entries, args.heads, args.key_dim}),
                                   .k = Floats(buffers.k, {entries, args.heads, args.key_dim}),
                                   .v = Floats(buffers.v, by_value_head),
                                   .log_decay = Floats(buffers.a, {entries, args.value_heads}),
                                   .beta = Floats(buffers.b, {entries, args.value_heads}),
                                   .segments = SegmentsOf(buffers),
                                   .state = args.state,
                                   .pending = args.pending,
                                   .out = Floats(buffers.read, by_value_head)};
  if (!delta::LaunchRawDecode(device, rule, raw)) {
    LaunchStepGates(device, args, buffers, raw.a, raw.b, raw.rows);
    GatedDeltaRule(device, rule);
  }
  if (few) {
    LaunchStepOutput(device, args, buffers);
    return true;
  }
  LaunchMix(device, {.read = buffers.read,
                     .weights = args.weights.as<const float>(),
                     .gate = args.g_proj.data != nullptr ? buffers.gate : nullptr,
                     .norm = args.out_norm.as<const float>(),
                     .token_entries = buffers.token_entries,
                     .norm_eps = args.out_norm_eps,
                     .rows = buffers.rows,
                     .columns = buffers.columns,
                     .top_k = args.memories == 0 ? 0 : args.top_k,
                     .value_heads = args.value_heads,
                     .value_dim = args.value_dim,
                     .mixed = buffers.mixed});
  const LinearArgs out[] = {
      {.x = Floats(buffers.mixed, {rows, int64_t{args.value_heads} * args.value_dim}),
       .weights = {&args.out_proj, 1},
       .y = args.hidden,
       .accumulate = true}};
  Linear(device, out);
  return true;
}

}  // namespace mneme::cuda
