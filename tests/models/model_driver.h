// Drives a model without an engine: slots filled and stepped by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/state_pool.h"
#include "kernels/backend.h"
#include "kernels/tensor.h"
#include "models/forward_context.h"
#include "models/model.h"

namespace mneme {

class ModelDriver {
 public:
  struct Limits {
    int slots = 1;
    int max_rows = 1;
    int max_tokens = 64;  // of a step
  };
  // The slots start as new sessions. Their memory is first filled with noise, so that a field that
  // is read before it was written shows.
  static absl::StatusOr<std::unique_ptr<ModelDriver>> Create(std::unique_ptr<Backend> backend,
                                                             std::unique_ptr<Model> model,
                                                             const Limits& limits);

  // One sequence of a step; a slot below 0 is a padding row.
  struct Row {
    int slot = 0;
    std::span<const int32_t> tokens;
    std::span<const int32_t> types = {};  // SegmentedText::types; none: 0
  };
  // Feeds the rows in one step. Returns the logits after each token that is wanted (all without
  // `wanted`), [wanted, outputs], with all bits of the backend's activations: the reference's are
  // f64, others f32. The indices count the step's tokens over all rows.
  absl::StatusOr<std::vector<double>> Step(std::span<const Row> rows);
  absl::StatusOr<std::vector<double>> Step(std::span<const Row> rows,
                                           std::span<const int32_t> wanted);

  // Feeds one slot, split into steps of the sizes in `chunks`, used cyclically and cut to the
  // limits; all at once if it is empty, or segment by segment where the model classifies. Calls
  // `sink` with the logits of each step's tokens, [tokens, outputs].
  absl::Status Feed(int slot, std::span<const int32_t> tokens, std::span<const int> chunks,
                    const std::function<absl::Status(std::span<const double>)>& sink);

  // A new session; lazily initialised fields keep their bytes. Phases go round as in the engine.
  void Reset(int slot);
  void Fork(int from, int to);  // `to` becomes a copy of `from`
  // The session of `from` goes to memory of the host, its slab is lost, and it comes back in `to`.
  absl::Status Park(int from, int to);
  void Settle(int slot);                                            // Model::Settle
  int64_t position(int slot) const { return positions_.at(slot); }  // tokens that it was fed
  std::vector<std::byte> ReadSlab(int slot);
  // `position` is that of the session whose slab it was.
  void WriteSlab(int slot, std::span<const std::byte> bytes, int64_t position);
  std::byte* Slab(int slot) const;  // in backend memory

  Backend& backend() { return *backend_; }
  const Model& model() const { return *model_; }
  void set_routing(RoutingObserver* routing) { routing_ = routing; }
  void set_observer(LayerObserver* observer) { observer_ = observer; }

 private:
  ModelDriver(std::unique_ptr<Backend> backend, std::unique_ptr<Model> model, const Limits& limits)
      : backend_(std::move(backend)),
        model_(std::move(model)),
        limits_(limits),
        positions_(static_cast<size_t>(limits.slots)) {}

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  Limits limits_;
  std::vector<int64_t> positions_;   // by slot
  int64_t steps_ = 0;                // not all of them are told what the host knows of rows
  std::unique_ptr<StatePool> pool_;  // all of its slots are taken
  DecodePlan decode_;
  Workspace workspace_ = Workspace::ForMeasuring();
  Tensor token_ids_, token_types_, row_offsets_, slots_, row_positions_, logit_tokens_, logits_;
  RoutingObserver* routing_ = nullptr;
  LayerObserver* observer_ = nullptr;
};

}  // namespace mneme
