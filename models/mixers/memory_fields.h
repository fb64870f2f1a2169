// The state of a layer with memories, field by field.
#pragma once

#include "absl/strings/string_view.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/mixers/memory_router.h"
#include "models/projection.h"
#include "models/state_layout.h"

namespace mneme {

// Adds the fields of a layer. They are read as zeros until they are written: behind a router a flag
// for each memory says whether it was (the field `written`, cleared in new sessions), without one
// whether the session was fed at all. Behind a prefix they begin as that left them, and are copied
// into every new session.
class MemoryFields {
 public:
  MemoryFields(const LayerBuilder& builder, const RoutingConfig& routing, bool prefix = false);
  // With a flag for each of `memories`, be there a router or not.
  static MemoryFields Flagged(const LayerBuilder& builder, int memories);

  const LayerBuilder& builder() const { return builder_; }
  // DispatchArgs::written. A field without bytes where there is no router.
  const StateField& written() const { return written_; }

  // The last `history` raw inputs of a convolution of what `projection` gives, for each memory.
  StateField AddWindow(absl::string_view name, int history, const Projection& projection) const;
  // The same of `channels`, where `bf16`: all projections that give them are of bf16.
  StateField AddWindow(absl::string_view name, int history, int channels, bool bf16) const;
  // Matrices [heads, value_dim, key_dim] for each memory, as MatrixMemory keeps them.
  StateField AddMatrices(absl::string_view name, int heads, int value_dim, int key_dim) const;
  // The same, in f32 where other matrices have fewer bits.
  StateField AddExactMatrices(absl::string_view name, int heads, int value_dim, int key_dim) const;
  // A number for each channel, likewise.
  StateField AddExactVector(absl::string_view name, int channels) const;

 private:
  MemoryFields(const LayerBuilder& builder, int memories, bool flags, bool prefix);
  StateField Add(absl::string_view name, DType dtype, Shape shape, int row_values) const;
  StateField AddMatricesAs(DType dtype, absl::string_view name, int heads, int value_dim,
                           int key_dim) const;

  const LayerBuilder& builder_;
  const int memories_;
  const bool prefix_;
  StateField written_;
};

}  // namespace mneme
