#include "bench/synthetic_step.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "kernels/float16.h"

namespace mneme {
namespace {

constexpr int64_t kArenaBytes = int64_t{64} << 20;

TensorView Reshaped(TensorView view, Shape shape) {
  view.shape = shape;
  return view;
}

}  // namespace

SyntheticStep::SyntheticStep(Backend& backend, const StepShape& shape, int rows, int tokens_per_row)
    : backend_(backend),
      kernels_(backend.kernels()),
      shape_(shape),
      rows_(rows),
      tokens_(rows * tokens_per_row),
      groups_(shape.memories + 1),
      columns_(shape.top_k + 1) {
  const int dim = shape.model_dim, keys = shape.heads * shape.key_dim;
  const int values = shape.heads * shape.value_dim;
  CHECK_EQ(keys, values) << "one convolution serves all three streams";
  CHECK(shape.weight_dtype == DType::kBF16);

  // Weights of variance 1 / model_dim, drawn once and used from a different place for each matrix.
  random_bits_.resize(static_cast<size_t>(shape.vocab) * dim + 4096);
  const float limit = std::sqrt(3.0f / static_cast<float>(dim));
  for (size_t i = 0; i < random_bits_.size(); ++i) {
    random_bits_[i] = BF16FromF32((2 * UniformFloat(1, 0, i) - 1) * limit);
  }

  layers_.resize(static_cast<size_t>(shape.layers));
  for (Layer& layer : layers_) {
    layer.router = Weights(shape.memories, dim);
    layer.q = Weights(keys, dim);
    for (int m = 0; m < groups_; ++m) layer.k.push_back(Weights(keys, dim));
    for (int m = 0; m < groups_; ++m) layer.v.push_back(Weights(values, dim));
    for (int m = 0; m < groups_; ++m) layer.a.push_back(Weights(shape.heads, dim));
    for (int m = 0; m < groups_; ++m) layer.b.push_back(Weights(shape.heads, dim));
    layer.gate = Weights(values, dim);
    layer.out = Weights(dim, values);
    layer.mlp_gate = Weights(shape.mlp_dim, dim);
    layer.mlp_up = Weights(shape.mlp_dim, dim);
    layer.mlp_down = Weights(dim, shape.mlp_dim);
  }
  lm_head_ = Weights(shape.vocab, dim);
  table_ = {random_bits_.data(), DType::kBF16, {shape.vocab, dim}};
  norm_ = Random({dim}, 1, 1);
  head_norm_ = Random({shape.value_dim}, 1, 1);
  conv_ = Random({keys, shape.conv_width}, -0.5f, 0.5f);
  a_log_ = Random({shape.heads}, 0.0f, 2.7f);
  dt_bias_ = Random({shape.heads}, -5.0f, -2.0f);

  const int64_t window_bytes = int64_t{4} * (shape.conv_width - 1) * (2 * keys + values);
  const int64_t matrix_bytes = int64_t{4} * shape.heads * shape.key_dim * shape.value_dim;
  layer_bytes_ = (64 + groups_ * (window_bytes + matrix_bytes) + 4095) / 4096 * 4096;
  slab_bytes_ = layer_bytes_ * shape.layers;
  slabs_ = static_cast<std::byte*>(Memory(slab_bytes_ * rows));
  backend.Zero(slabs_, slab_bytes_ * rows);

  ids_ = Indices({tokens_});
  row_offsets_ = Indices({rows + 1});
  slots_ = Indices({rows});
  last_rows_ = Indices({rows});
  for (int t = 0; t < tokens_; ++t) ids_.as<int32_t>()[t] = (t * 7919 + 13) % shape.vocab;
  for (int r = 0; r <= rows; ++r) row_offsets_.as<int32_t>()[r] = r * tokens_per_row;
  for (int r = 0; r < rows; ++r) {
    slots_.as<int32_t>()[r] = r;
    last_rows_.as<int32_t>()[r] = (r + 1) * tokens_per_row - 1;
  }

  const int entries = tokens_ * columns_;
  hidden_ = Activation({tokens_, dim});
  x_ = Activation({tokens_, dim});
  router_ = Activation({tokens_, shape.memories});
  indices_ = Indices({tokens_, shape.top_k});
  weights_ = Activation({tokens_, shape.top_k});
  entry_tokens_ = Indices({entries});
  token_entries_ = Indices({tokens_, columns_});
  group_offsets_ = Indices({groups_ + 1});
  q_ = Activation({tokens_, keys});
  gate_ = Activation({tokens_, values});
  k_ = Activation({entries, keys});
  v_ = Activation({entries, values});
  a_ = Activation({entries, shape.heads});
  b_ = Activation({entries, shape.heads});
  qe_ = Activation({entries, keys});
  ke_ = Activation({entries, keys});
  ve_ = Activation({entries, values});
  decay_ = Activation({entries, shape.heads});
  beta_ = Activation({entries, shape.heads});
  mixed_ = Activation({tokens_, values});
  mlp_gate_ = Activation({tokens_, shape.mlp_dim});
  mlp_up_ = Activation({tokens_, shape.mlp_dim});
  last_ = Activation({rows, dim});
  logits_ = Activation({rows, shape.vocab});
  const int count = groups_ * rows;
  segments_ = {count, Indices({count + 1}), Indices({count}), Indices({count}), Indices({count})};
}

void* SyntheticStep::Memory(int64_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  if (bytes > arena_left_) {
    absl::StatusOr<Buffer> buffer = Buffer::Allocate(backend_, std::max(bytes, kArenaBytes));
    CHECK_OK(buffer.status());
    arena_ = buffer->data();
    arena_left_ = buffer->bytes();
    buffers_.push_back(*std::move(buffer));
  }
  void* data = arena_;
  arena_ += bytes;
  arena_left_ -= bytes;
  return data;
}

TensorView SyntheticStep::Activation(Shape shape) {
  return {Memory(shape.elements() * 4), DType::kF32, shape};
}

TensorView SyntheticStep::Indices(Shape shape) {
  return {Memory(shape.elements() * 4), DType::kI32, shape};
}

TensorView SyntheticStep::Random(Shape shape, float low, float high) {
  const TensorView view = Activation(shape);
  for (int64_t i = 0; i < shape.elements(); ++i) {
    const float u = UniformFloat(2, 0, static_cast<uint64_t>(i));
    view.as<float>()[i] = low + (high - low) * u;
  }
  return view;
}

PackedMatrix SyntheticStep::Weights(int out, int in) {
  const size_t from = reinterpret_cast<uintptr_t>(arena_) / 64 % 4096;
  const TensorView matrix = {random_bits_.data() + from, DType::kBF16, {out, in}};
  return backend_.PackMatrix(matrix, Memory(backend_.PackedBytes(DType::kBF16, out, in)));
}

StateView SyntheticStep::State(int layer, int64_t offset, int64_t memory_bytes, DType dtype) const {
  return {slabs_, slab_bytes_, layer * layer_bytes_ + offset, memory_bytes, dtype};
}

void SyntheticStep::CountGroup(const PackedMatrix& weights, int64_t entries) {
  if (entries == 0) return;
  const double elements = static_cast<double>(weights.out_features) * weights.in_features;
  weight_bytes_ += 2 * elements;
  flops_ += 2 * elements * static_cast<double>(entries);
}

template <typename Call>
void SyntheticStep::Timed(const char* name, Call call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  seconds_[name] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void SyntheticStep::Run() {
  weight_bytes_ = state_bytes_ = flops_ = 0;
  seconds_.clear();
  const int dim = shape_.model_dim;
  Timed("embedding", [&] { kernels_.Embedding({.ids = ids_, .table = table_, .y = hidden_}); });
  weight_bytes_ += 2.0 * tokens_ * dim;
  for (int layer = 0; layer < shape_.layers; ++layer) {
    const Layer& weights = layers_[static_cast<size_t>(layer)];
    Timed("norm", [&] { kernels_.RmsNorm({.x = hidden_, .weight = norm_, .y = x_}); });
    Mix(layer);
    Timed("norm", [&] { kernels_.RmsNorm({.x = hidden_, .weight = norm_, .y = x_}); });
    const LinearArgs up[] = {{.x = x_, .weights = {&weights.mlp_gate, 1}, .y = mlp_gate_},
                             {.x = x_, .weights = {&weights.mlp_up, 1}, .y = mlp_up_}};
    Timed("linear mlp up", [&] { kernels_.Linear(up); });
    Timed("swiglu", [&] { kernels_.SwiGlu({.gate = mlp_gate_, .up = mlp_up_, .y = mlp_gate_}); });
    const LinearArgs down[] = {
        {.x = mlp_gate_, .weights = {&weights.mlp_down, 1}, .y = hidden_, .accumulate = true}};
    Timed("linear mlp down", [&] { kernels_.Linear(down); });
    CountGroup(weights.mlp_gate, tokens_);
    CountGroup(weights.mlp_up, tokens_);
    CountGroup(weights.mlp_down, tokens_);
  }
  Timed("norm", [&] {
    kernels_.GatherRows({.x = hidden_, .indices = last_rows_, .y = last_});
    kernels_.RmsNorm({.x = last_, .weight = norm_, .y = last_});
  });
  const LinearArgs head[] = {{.x = last_, .weights = {&lm_head_, 1}, .y = logits_}};
  Timed("linear lm_head", [&] { kernels_.Linear(head); });
  CountGroup(lm_head_, rows_);

  std::vector<SamplingRow> rows(static_cast<size_t>(rows_));
  for (SamplingRow& row : rows) row.temperature = 0;
  std::vector<int32_t> tokens(rows.size());
  std::vector<float> logprobs(rows.size());
  Timed("sample", [&] {
    kernels_.Sample({.logits = logits_, .rows = rows, .tokens = tokens, .logprobs = logprobs});
  });
  for (int r = 0; r < rows_; ++r) {
    ids_.as<int32_t>()[last_rows_.as<int32_t>()[r]] = tokens[static_cast<size_t>(r)];
  }
}

void SyntheticStep::Mix(int layer) {
  const Layer& weights = layers_[static_cast<size_t>(layer)];
  const int keys = shape_.heads * shape_.key_dim, heads = shape_.heads;
  const int entries = tokens_ * columns_;
  const LinearArgs route[] = {{.x = x_, .weights = {&weights.router, 1}, .y = router_}};
  Timed("linear router", [&] { kernels_.Linear(route); });
  Timed("route", [&] {
    kernels_.RouteTopK({.logits = router_,
                        .round_logits = DType::kBF16,
                        .indices = indices_,
                        .weights = weights_});
    kernels_.Dispatch({.row_offsets = row_offsets_,
                       .slots = slots_,
                       .indices = indices_,
                       .memories = shape_.memories,
                       .shared = true,
                       .written = State(layer, 0, 1, DType::kU8),
                       .entry_tokens = entry_tokens_,
                       .token_entries = token_entries_,
                       .group_offsets = group_offsets_,
                       .segments = segments_});
  });
  const auto grouped = [&](const std::vector<PackedMatrix>& matrices, TensorView y) {
    return LinearArgs{.x = x_,
                      .weights = matrices,
                      .entry_rows = entry_tokens_,
                      .group_offsets = group_offsets_,
                      .y = y};
  };
  const LinearArgs project[] = {{.x = x_, .weights = {&weights.q, 1}, .y = q_},
                                grouped(weights.k, k_),
                                grouped(weights.v, v_),
                                grouped(weights.a, a_),
                                grouped(weights.b, b_),
                                {.x = x_, .weights = {&weights.gate, 1}, .y = gate_}};
  Timed("linear qkvg", [&] { kernels_.Linear(project); });

  const int64_t window_bytes = int64_t{4} * (shape_.conv_width - 1) * keys;
  const auto window = [&](int stream) {
    return State(layer, 64 + stream * groups_ * window_bytes, window_bytes, DType::kF32);
  };
  const ShortConvArgs convolutions[] = {
      {q_, entry_tokens_, conv_, segments_, window(0), qe_},
      {k_, {}, conv_, segments_, window(1), ke_},
      {v_, {}, conv_, segments_, window(2), ve_},
  };
  Timed("short_conv", [&] { kernels_.ShortConv(convolutions); });
  const Shape by_key = {entries, heads, shape_.key_dim};
  const Shape by_value = {entries, heads, shape_.value_dim};
  const TensorView q = Reshaped(qe_, by_key), k = Reshaped(ke_, by_key);
  const TensorView v = Reshaped(ve_, by_value);
  Timed("l2 norm", [&] {
    kernels_.L2Norm({.x = q, .scale = 1.0f / 16, .y = q});
    kernels_.L2Norm({.x = k, .y = k});
  });
  Timed("gates", [&] {
    kernels_.DeltaGates({.a = a_,
                         .b = b_,
                         .a_log = a_log_,
                         .dt_bias = dt_bias_,
                         .log_decay = decay_,
                         .beta = beta_});
  });
  const int64_t matrix_bytes = int64_t{4} * heads * shape_.key_dim * shape_.value_dim;
  Timed("delta rule", [&] {
    kernels_.GatedDeltaRule(
        {.q = q,
         .k = k,
         .v = v,
         .log_decay = decay_,
         .beta = beta_,
         .segments = segments_,
         .state = State(layer, 64 + 3 * groups_ * window_bytes, matrix_bytes, DType::kF32),
         .out = v});
  });
  Timed("mix", [&] {
    kernels_.MixMemories(
        {.x = ve_, .token_entries = token_entries_, .weights = weights_, .y = mixed_});
    const Shape heads_shape = {tokens_, heads, shape_.value_dim};
    kernels_.GatedRmsNorm({.x = Reshaped(mixed_, heads_shape),
                           .gate = Reshaped(gate_, heads_shape),
                           .weight = head_norm_,
                           .y = Reshaped(mixed_, heads_shape)});
  });
  const LinearArgs out[] = {
      {.x = mixed_, .weights = {&weights.out, 1}, .y = hidden_, .accumulate = true}};
  Timed("linear out", [&] { kernels_.Linear(out); });

  CountGroup(weights.router, tokens_);
  CountGroup(weights.q, tokens_);
  CountGroup(weights.gate, tokens_);
  CountGroup(weights.out, tokens_);
  const int32_t* offsets = group_offsets_.as<int32_t>();
  for (int g = 0; g < groups_; ++g) {
    for (const auto* group : {&weights.k, &weights.v, &weights.a, &weights.b}) {
      CountGroup((*group)[static_cast<size_t>(g)], offsets[g + 1] - offsets[g]);
    }
  }
  const int32_t* segments = segments_.offsets.as<int32_t>();
  for (int s = 0; s < segments_.count; ++s) {
    if (segments[s] < segments[s + 1]) {
      state_bytes_ += static_cast<double>(3 * window_bytes + matrix_bytes);
    }
  }
}

}  // namespace mneme
