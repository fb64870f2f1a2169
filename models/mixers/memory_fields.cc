#include "models/mixers/memory_fields.h"

#include <string>

#include "kernels/state_row.h"

namespace mneme {

MemoryFields::MemoryFields(const LayerBuilder& builder, const RoutingConfig& routing, bool prefix)
    : MemoryFields(builder, routing.all_memories(), routing.routed(), prefix) {}

MemoryFields MemoryFields::Flagged(const LayerBuilder& builder, int memories) {
  return MemoryFields(builder, memories, /*flags=*/true, /*prefix=*/false);
}

MemoryFields::MemoryFields(const LayerBuilder& builder, int memories, bool flags, bool prefix)
    : builder_(builder), memories_(memories), prefix_(prefix) {
  if (!flags) return;
  written_ = builder.AddState({.name = "written", .dtype = DType::kU8, .shape = {memories_}});
}

StateField MemoryFields::Add(absl::string_view name, DType dtype, Shape shape,
                             int row_values) const {
  const bool flags = written_.index >= 0;
  return builder_.AddState({.name = std::string(name),
                            .dtype = dtype,
                            .shape = shape,
                            .initial = prefix_ ? StateInitial::kEager : StateInitial::kZero,
                            .guard = flags     ? StateGuard::kFlags
                                     : prefix_ ? StateGuard::kAlways
                                               : StateGuard::kFed,
                            .flags = written_.index,
                            .row_values = row_values});
}

StateField MemoryFields::AddWindow(absl::string_view name, int history,
                                   const Projection& projection) const {
  return AddWindow(name, history, projection.out(),
                   projection.weights.front().dtype == DType::kBF16);
}

StateField MemoryFields::AddWindow(absl::string_view name, int history, int channels,
                                   bool bf16) const {
  const StateFormat& format = builder_.network.state_format;
  return Add(name, bf16 ? format.bf16_window_dtype : format.window_dtype,
             {memories_, history, channels}, 0);
}

StateField MemoryFields::AddMatricesAs(DType dtype, absl::string_view name, int heads,
                                       int value_dim, int key_dim) const {
  return Add(name, dtype, {memories_, heads, value_dim, StateRowPitch(dtype, key_dim)}, key_dim);
}

StateField MemoryFields::AddMatrices(absl::string_view name, int heads, int value_dim,
                                     int key_dim) const {
  return AddMatricesAs(builder_.network.state_format.memory_dtype, name, heads, value_dim, key_dim);
}

StateField MemoryFields::AddExactVector(absl::string_view name, int channels) const {
  const bool f64 = builder_.network.state_format.memory_dtype == DType::kF64;
  return Add(name, f64 ? DType::kF64 : DType::kF32, {memories_, channels}, 0);
}

StateField MemoryFields::AddExactMatrices(absl::string_view name, int heads, int value_dim,
                                          int key_dim) const {
  const bool f64 = builder_.network.state_format.memory_dtype == DType::kF64;
  return AddMatricesAs(f64 ? DType::kF64 : DType::kF32, name, heads, value_dim, key_dim);
}

}  // namespace mneme
