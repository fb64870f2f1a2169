// Executes a StepPlan: upload, forward, sample, download. A step of decode rows alone replays a
// graph, where the backend can record one: graphs are made at creation, one for each of a few row
// counts, and a step takes the next larger one with padding rows. Other steps are launched kernel
// by kernel, rows that decode and prompts in the same kernels: those rows add little to what a
// prompt's kernels cost, and would cost a pass over all weights by themselves.
//
// A step of decode rows leaves its draws on the device as the inputs of one more such step of the
// same rows, so that BeginNext() can launch that one before the host has seen them.
//
// Usable without the rest of the engine, by tools that feed rows and read logits:
//
//   auto pool = StatePool::Create(backend, model, /*slots=*/8);
//   auto runner = ModelRunner::Create(backend, model, **pool, {.rows = 8, .tokens = 64,
//                                                              .logit_rows = 64});
//   StepPlan plan;
//   plan.AddRow({.slot = slot, .position = 0, .tokens = tokens, .scored_tokens = 5});
//   status = (*runner)->Forward(plan);          // logits after each of the tokens
//   status = (*runner)->ReadLogits(logits);     // [tokens, vocab]
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/sampler.h"
#include "engine/state_pool.h"
#include "engine/step_plan.h"
#include "engine/step_reports.h"
#include "kernels/backend.h"
#include "kernels/tensor.h"
#include "models/forward_context.h"
#include "models/model.h"

namespace mneme {

// The largest step; memory for it is taken at creation.
struct RunnerLimits {
  int rows = 1;
  int tokens = 1;
  int logit_rows = 1;
  bool graphs = true;  // false: every step launches its kernels one by one
  // Rows of the model's head that are no token: their logits are -inf. In [0, vocab).
  std::vector<int32_t> banned_tokens;
};

// How surprising trained memories found each token of a step, padding behind them.
struct StepSurprise {
  // [ModelInfo::trained, tokens], NaN where a memory diverged (SurpriseArgs); empty where no memory
  // is trained. There until results of the step after the next are begun.
  std::span<const float> values;
  int64_t tokens = 0;

  float Of(int trained, int token) const { return values[trained * tokens + token]; }
};

// The outputs of Kernels::Sample, an element for each logit row of the plan; and what memories say
// of its tokens.
struct StepResult {
  std::vector<int32_t> tokens;  // kNoLogits, kNothingLeft: none could be drawn
  std::vector<float> logprobs;  // NaN where not asked for, or where the logits have no softmax
  int top_columns = 0;
  std::vector<int32_t> top_tokens;  // [logit_rows, top_columns]
  std::vector<float> top_logprobs;
  StepSurprise surprise;
  StepReports reports;
  // [logit_rows, classes], in place of all else, of models that classify.
  std::vector<float> class_logits;
};

// Driven by one thread, the backend's. Backend, model and pool must outlive it. After an error the
// slabs of the plan's rows are spoilt: some layers may have taken the tokens, others not.
class ModelRunner {
 public:
  static absl::StatusOr<std::unique_ptr<ModelRunner>> Create(Backend& backend, const Model& model,
                                                             StatePool& pool,
                                                             const RunnerLimits& limits);

  // Feeds the plan's tokens and computes its logits, which stay until the next call.
  absl::Status Forward(const StepPlan& plan, RoutingObserver* routing = nullptr);
  // The same without waiting for the device, where it can: FinishSample() waits, and has the
  // status.
  void Begin(const StepPlan& plan, RoutingObserver* routing = nullptr);
  // Draws a token from every logit row of the plan fed last. `batch` has a row for each.
  absl::Status Sample(const SamplingBatch& batch, StepResult& result);
  // The same in two parts, as Kernels::BeginSample: `result` is there after the second one.
  void BeginSample(const SamplingBatch& batch, StepResult& result);
  absl::Status FinishSample();

  // What a model that classifies has in place of draws: waits for the step, and copies its logits.
  absl::Status ReadClasses(StepResult& result);
  bool classifies() const { return model_.info().classes.exist(); }

  // Whether every row of the plan feeds one token and draws from the logits after it.
  static bool DecodesOnly(const StepPlan& plan);
  // Whether Begin() replays a graph, which takes microseconds. Kernel by kernel it takes
  // milliseconds.
  bool Replays(const StepPlan& plan, const RoutingObserver* routing = nullptr) const;
  // The step after the one whose BeginSample() was called last, which was of a plan that
  // DecodesOnly: every row feeds what it drew, at the next position. One that SamplingRow::EndsWith
  // its token is padding from then on. Without waiting, as Begin(). Nothing else may come between
  // the two calls.
  void BeginNext();

  // Has `observer` look on in every step that begins from now on; null ends it.
  void set_observer(LayerObserver* observer) { observer_ = observer; }

  // Copies the logits of the last Forward, widened or rounded to f32.
  //   out  [logit_rows, outputs]
  absl::Status ReadLogits(std::span<float> out);
  // Copies how surprising the memories found the tokens of the last Forward.
  absl::Status ReadSurprise(StepSurprise& result);

  const RunnerLimits& limits() const { return limits_; }
  // ModelInfo::segment.
  int segment() const { return model_.info().segment; }
  // StepBatch::crossings of rows that will have fed so many tokens more than these positions say.
  int CrossingsOf(std::span<const int64_t> positions, int64_t more = 0) const;
  // Whether Begin() returns before the step is done.
  bool asynchronous() const { return backend_.asynchronous(); }
  int64_t workspace_bytes() const { return workspace_bytes_; }
  int64_t weight_bytes() const { return model_.info().weight_bytes; }
  int64_t slab_bytes() const { return pool_.slab_bytes(); }
  // Nodes of the graph that a decode step of so many rows replays; 0: there is none.
  int64_t graph_nodes(int rows) const;

 private:
  ModelRunner(Backend& backend, const Model& model, StatePool& pool, const RunnerLimits& limits)
      : backend_(backend), model_(model), pool_(pool), limits_(limits) {}
  absl::Status CaptureGraphs();
  // Runs prompts of the sizes LikelyStepTokens, so that the device's libraries load and
  // choose their kernels now and not beside rows that decode.
  absl::Status TryPromptSizes();
  // Of decode steps of so many rows. Where the model inserts positions, a step in which it does so
  // has a graph with room for UsualInserted of them; where it makes engrams, one in which rows
  // begin a segment has one with room for kUsualCrossings of them. Steps of more have none.
  struct DecodeGraph {
    int rows = 0;
    std::unique_ptr<Backend::Graph> plain = nullptr, inserting = nullptr, crossing = nullptr;
  };
  // Sorted by row count; empty where the backend records none.
  using Graphs = std::vector<DecodeGraph>;
  // The first one for so many rows or more.
  Graphs::const_iterator GraphOf(int rows) const;
  // StepBatch::inserted.
  int InsertedBy(const StepPlan& plan) const;
  // How many positions hardly any step of so many rows inserts more than.
  int UsualInserted(int rows) const;
  // How often rows of a plan begin a segment, at its first token or later.
  int ReportsOf(const StepPlan& plan) const;
  // How many rows of logits a step without padding rows makes.
  int KnownLogitRows(const StepPlan& plan) const;
  // Puts the plan's arrays into pinned_, with `padding` rows of one token and its logits each
  // behind them.
  void WriteInputs(const StepPlan& plan, int padding);
  ForwardContext MakeContext(RoutingObserver* routing);
  // Launches the upload of what was written last.
  void Upload();
  // Launches the forward pass over what was uploaded last, kernel by kernel.
  void Launch(RoutingObserver* routing);
  // The same by the last step's graph, if it had one.
  void Run(RoutingObserver* routing);
  TensorView Logits(int rows) const;
  // Where the memories write in the step that was written last; empty if none is trained.
  TensorView Surprise() const;
  // Launches the copy of that to the host.
  void BeginSurprise(StepSurprise& result);
  // Where crossings report in any step; empty if the model makes no engrams.
  EngramReports Reports() const;
  // Launches the copy of what there is of the step that was begun last.
  void BeginReports(StepReports& result);

  Backend& backend_;
  const Model& model_;
  StatePool& pool_;
  const RunnerLimits limits_;
  int64_t workspace_bytes_ = 0;
  Workspace workspace_;
  DecodePlan decode_;
  // The arrays of a step, one behind the other, so that a step is one upload; where they lie
  // depends on their sizes alone. Each begins at a multiple of 64 bytes.
  Buffer inputs_;
  Buffer pinned_;            // what inputs_ gets
  int64_t input_bytes_ = 0;  // of the last step, as the next two
  StepBatch batch_;
  Tensor banned_tokens_;  // i32, empty without any
  TensorView logit_tokens_;
  Tensor logits_;                    // [limits.logit_rows, outputs] act
  Tensor surprise_;                  // [ModelInfo::trained, limits.tokens] f32, or empty
  std::array<Buffer, 2> surprises_;  // pinned copies of it, in turns
  int surprise_turn_ = 0;
  Tensor reports_;  // [StepReports::kHeaderWords + those of all reports that there may be] i32
  std::array<Buffer, 2> report_copies_;  // pinned, in turns
  int report_turn_ = 0;
  int report_count_ = 0;  // of the step that was begun last, at most
  LayerObserver* observer_ = nullptr;
  int logit_rows_ = 0;                   // of the last Forward
  bool decodes_only_ = false;            // the last step
  bool has_next_inputs_ = false;         // inputs_ holds what BeginNext() feeds
  const DecodeGraph* graph_ = nullptr;   // of the last step; null: it was launched kernel by kernel
  std::vector<int64_t> next_positions_;  // of the last step's rows
  Graphs graphs_;
};

}  // namespace mneme
