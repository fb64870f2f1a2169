// The view that a layer has of one step.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/kernels.h"
#include "kernels/tensor.h"
#include "kernels/tensor_view.h"
#include "models/layer_observer.h"
#include "models/norm.h"
#include "models/state_layout.h"

namespace mneme {

// Rows of a step that begin a segment of positions, but for rare steps: where each launch counts,
// so many are worked on together, and decode steps with no more of them have graphs.
inline constexpr int kUsualCrossings = 64;

// One step's ragged batch, in backend memory. Row r owns tokens [row_offsets[r], row_offsets[r+1]).
struct StepBatch {
  int tokens = 0;
  int rows = 0;
  int longest_row = 0;  // tokens of the longest row; 0: not known
  int longer_rows = 0;  // rows of more than one token; 0: not known
  // Positions that the network inserts in front of the step's tokens (InsertedPositions::Between),
  // or more of them; below 0: not known.
  int inserted = -1;
  // Rows that begin a segment of positions other than the first (Crossings), or more of them; below
  // 0: not known.
  int crossings = -1;
  TensorView token_ids;  // [tokens] i32
  // [tokens] i32: SegmentedText::types, of networks that classify; empty: 0.
  TensorView token_types;
  TensorView row_offsets;  // [rows + 1] i32
  TensorView slots;        // [rows] i32, < 0: padding row
  // [rows] i64: tokens that the row's slab was fed before this step. Of padding rows: any number.
  TensorView positions;
};

// Scratch memory of a step: a bump allocator whose addresses repeat from step to step. It has a
// fixed size; asking for more is a bug. Temporaries live until the enclosing Scope ends.
class Workspace {
 public:
  static absl::StatusOr<Workspace> Create(Backend& backend, int64_t bytes);
  // Has no memory: its views must not be read or written. For finding out how much a step takes.
  static Workspace ForMeasuring();

  // Uninitialised, 64-byte aligned.
  TensorView Temp(DType dtype, Shape shape);

  int64_t peak_bytes() const { return peak_; }  // most that was in use at once

  class Scope {
   public:
    explicit Scope(Workspace& workspace) : workspace_(workspace), mark_(workspace.used_) {}
    ~Scope() { workspace_.used_ = mark_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    int64_t mark_;
  };

 private:
  Buffer buffer_;
  std::byte* base_ = nullptr;
  int64_t capacity_ = 0;
  int64_t used_ = 0;
  int64_t peak_ = 0;
};

// Watches, or dictates, where tokens are routed (mneme-logits, mneme-inspect; the server counts).
// Called between kernels of a layer, so on a device it costs a synchronisation and fused steps:
// there the server installs it for few steps (RoutingCounter).
class RoutingObserver {
 public:
  virtual ~RoutingObserver() = default;
  // Indices to force for the step's tokens in this layer, [tokens, top_k] i32 in backend memory, or
  // empty. May be asked more than once before OnRouted().
  virtual TensorView Forced(int layer, int tokens, int top_k) = 0;
  virtual void OnRouted(int layer, const TensorView& indices, const TensorView& weights) = 0;
};

// Where trained memories say how surprising each token of a step is (SurpriseArgs): kernels write
// it, so that it costs no wait.
struct SurpriseSink {
  TensorView values;         // [ModelInfo::trained, tokens] f32, or empty
  TensorView places, outer;  // as of SurpriseArgs

  // The values of one of the layers, by its place in ModelInfo::trained.
  TensorView Of(int trained) const {
    const int64_t tokens = values.shape[1];
    return {values.as<float>() + trained * tokens, DType::kF32, {tokens}};
  }
};

// What follows from the rows of a step alone (IndexRowsArgs): the network makes it once for all of
// its blocks, where one of them uses it.
struct RowIndex {
  TensorView token_positions;  // [tokens] i64
  Segments segments;           // a row is a segment of the one memory that all of its tokens go to
};

// Runs of a network's layers that the device does as one operation in steps of decode rows, in
// order. Made for one pool of slabs (Model::CompileDecode), once.
struct DecodePlan {
  struct Run {
    int first = 0, count = 0;  // blocks
    std::unique_ptr<DecodeProgram> program;
  };
  std::vector<Run> runs;
};

struct ForwardContext {
  Backend& backend;
  Workspace& workspace;
  const StepBatch& batch;
  Slabs slabs = {};
  std::span<const ContextTable> contexts;  // by StateField::group; empty in a dry run
  RoutingObserver* routing = nullptr;
  SurpriseSink surprise = {};
  EngramReports reports = {};  // empty: nobody wants any
  LayerObserver* observer = nullptr;
  TensorView observed_places = {};     // Observation::places
  const DecodePlan* decode = nullptr;  // of these slabs; null: every step goes block by block
  RowIndex row_index = {};
  // [tokens, LanguageModelParts::first_values] act: values that the first layer leaves to the
  // others (RWKV-7). The network makes room for them once a step, where its layers use it.
  TensorView first_values = {};
  // Rows of a prefix that every session was fed before its first token: positions count from them.
  int64_t prefix = 0;
  // The step feeds the next row of the prefix itself, to a slab that is to become `initial`.
  bool prepares = false;
  // The state behind the prefix, which new sessions share, as a slab without its growing part. Null
  // where there is no prefix, and while it is prepared.
  std::byte* initial = nullptr;

  Kernels& kernels() const { return backend.kernels(); }
  TensorView Temp(Shape shape) const { return workspace.Temp(backend.activation_dtype(), shape); }
  // A temporary that is to be multiplied by `weights` and by nothing else. Its dtype is
  // Backend::product_dtype, if that is one for all of them.
  TensorView TempForProducts(Shape shape,
                             std::initializer_list<std::span<const PackedMatrix>> weights) const {
    return TempForProducts(shape, std::span(weights.begin(), weights.size()));
  }
  TensorView TempForProducts(Shape shape,
                             std::span<const std::span<const PackedMatrix>> weights) const {
    DType dtype = backend.activation_dtype();
    bool first = true;
    for (const std::span<const PackedMatrix> list : weights) {
      for (const PackedMatrix& matrix : list) {
        const DType wanted = backend.product_dtype(matrix, shape[shape.rank - 2]);
        if (!first && wanted != dtype) return Temp(shape);
        dtype = wanted;
        first = false;
      }
    }
    return workspace.Temp(dtype, shape);
  }
  // A temporary for products of x with `weights`, on their way to operations that take
  // Backend::output_dtype; for steps with prompts.
  TensorView TempOfProducts(const TensorView& x, std::span<const PackedMatrix> weights,
                            Shape shape) const {
    const bool rounded = x.dtype != backend.activation_dtype() && batch.longest_row != 1;
    return workspace.Temp(
        rounded ? backend.output_dtype(weights, x.shape[0]) : backend.activation_dtype(), shape);
  }
  // The same in a step of decode rows, for one product that nothing in its call of Linear groups,
  // on its way to where it is rounded anyway: to a bf16 window, or to products with `factors`.
  TensorView TempForRounding(const TensorView& x, const PackedMatrix& weights,
                             std::span<const PackedMatrix> factors, Shape shape) const {
    bool rounds = x.dtype != backend.activation_dtype();
    for (const PackedMatrix& matrix : factors) {
      rounds = rounds && backend.product_dtype(matrix, x.shape[0]) == x.dtype;
    }
    return workspace.Temp(
        rounds ? backend.step_output_dtype(weights, x.shape[0]) : backend.activation_dtype(),
        shape);
  }
  // A temporary with the norm of x, [tokens, dim], for products with `weights`.
  TensorView Normed(const Norm& norm, const TensorView& x,
                    std::initializer_list<std::span<const PackedMatrix>> weights) const {
    const TensorView y = TempForProducts(x.shape, weights);
    ApplyNorm(kernels(), norm, x, y);
    return y;
  }
  // The choice of a layer with a router, and what the observer hears of it.
  RoutingChoice NewChoice(int layer, int top_k) const {
    return {
        .forced = routing != nullptr ? routing->Forced(layer, batch.tokens, top_k) : TensorView{},
        .indices = TempIndices({batch.tokens, top_k}),
        .weights = Temp({batch.tokens, top_k})};
  }
  void Tell(int layer, const RoutingChoice& choice) const {
    if (routing != nullptr) routing->OnRouted(layer, choice.indices, choice.weights);
  }
  void Observe(int layer, absl::string_view name, const TensorView& values, double scale = 1,
               double offset = 0) const {
    if (observer == nullptr) return;
    observer->OnLayer(backend, {.layer = layer,
                                .name = name,
                                .values = values,
                                .scale = scale,
                                .offset = offset,
                                .places = observed_places});
  }
  TensorView TempIndices(Shape shape) const { return workspace.Temp(DType::kI32, shape); }
  StateView State(const StateField& field) const { return slabs.View(field); }
  // The value of a field behind the prefix; without data where there is none.
  TensorView Initial(const StateField& field) const {
    if (initial == nullptr) return {};
    return {initial + field.offset, field.dtype, field.shape};
  }
  // The context of a field that grows, with one memory.
  ContextView Context(const StateField& field) const {
    return {contexts.empty() ? ContextTable() : contexts[static_cast<size_t>(field.group)],
            field.offset, field.row_bytes(), field.dtype};
  }
};

// Indexes the rows of a step, in the caller's workspace scope.
RowIndex IndexRows(const ForwardContext& ctx);

}  // namespace mneme
