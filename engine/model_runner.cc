#include "engine/model_runner.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/memory/memory.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "engine/scheduler.h"

namespace mneme {

namespace {

// A step's arrays begin at multiples of so many bytes.
constexpr int64_t kInputAlignment = 64;

// TryPromptSizes tries the largest size of step, and of the likely ones those between these two:
// beside rows that decode steps are rarely longer, and no library is asked about fewer rows.
constexpr int kFewestTriedTokens = 33, kMostTriedTokens = 2048;

int64_t Aligned(int64_t bytes) {
  return (bytes + kInputAlignment - 1) / kInputAlignment * kInputAlignment;
}

template <typename T>
constexpr DType kIndexDType = std::is_same_v<T, int64_t> ? DType::kI64 : DType::kI32;

template <typename T>
int64_t ArrayBytes(int64_t elements) {
  return Aligned(elements * static_cast<int64_t>(sizeof(T)));
}

// The bytes that WriteInputs() takes at most.
int64_t InputBytes(const RunnerLimits& limits) {
  return 2 * ArrayBytes<int32_t>(limits.tokens) + ArrayBytes<int32_t>(limits.rows + 1) +
         ArrayBytes<int32_t>(limits.rows) + ArrayBytes<int64_t>(limits.rows) +
         ArrayBytes<int32_t>(limits.logit_rows);
}

// Row counts that get a graph: close enough that padding costs little, few enough to be captured in
// a moment.
std::vector<int> GraphRows(int limit) {
  std::vector<int> rows;
  for (int n = 1; n < limit; n *= 2) {
    rows.push_back(n);
    if (n >= 16 && n / 2 * 3 < limit) rows.push_back(n / 2 * 3);
  }
  rows.push_back(limit);
  return rows;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::Create(Backend& backend,
                                                                 const Model& model,
                                                                 StatePool& pool,
                                                                 const RunnerLimits& limits) {
  CHECK(limits.rows >= 1 && limits.tokens >= 1 && limits.logit_rows >= 1);
  auto runner = absl::WrapUnique(new ModelRunner(backend, model, pool, limits));
  const int64_t input_bytes = InputBytes(limits);
  MNEME_ASSIGN_OR_RETURN(runner->inputs_, Buffer::Allocate(backend, input_bytes));
  MNEME_ASSIGN_OR_RETURN(runner->pinned_, Buffer::AllocatePinned(backend, input_bytes));
  MNEME_ASSIGN_OR_RETURN(runner->logits_,
                         Tensor::Allocate(backend, backend.activation_dtype(),
                                          {limits.logit_rows, model.info().outputs()}));
  runner->workspace_bytes_ = model.WorkspaceBytes(limits.tokens, limits.rows, limits.logit_rows);
  MNEME_ASSIGN_OR_RETURN(
      runner->workspace_,
      Workspace::Create(backend, std::max<int64_t>(runner->workspace_bytes_, 64)));
  if (const auto trained = static_cast<int64_t>(model.info().trained.size()); trained > 0) {
    MNEME_ASSIGN_OR_RETURN(runner->surprise_,
                           Tensor::Allocate(backend, DType::kF32, {trained, limits.tokens}));
    for (Buffer& copy : runner->surprises_) {
      MNEME_ASSIGN_OR_RETURN(copy,
                             Buffer::AllocatePinned(backend, runner->surprise_.view().bytes()));
    }
  }
  if (const ModelInfo& info = model.info(); info.engrams > 0) {
    const int64_t cut = info.segment > 0 ? limits.tokens / info.segment : 0;
    const int64_t most = limits.rows + cut;
    MNEME_ASSIGN_OR_RETURN(runner->reports_,
                           Tensor::Allocate(backend, DType::kI32,
                                            {StepReports::kHeaderWords +
                                             most * EngramReportSize(info.recalled_engrams)}));
    for (Buffer& copy : runner->report_copies_) {
      MNEME_ASSIGN_OR_RETURN(copy,
                             Buffer::AllocatePinned(backend, runner->reports_.view().bytes()));
    }
  }
  if (const std::vector<int32_t>& banned = runner->limits_.banned_tokens; !banned.empty()) {
    MNEME_ASSIGN_OR_RETURN(
        runner->banned_tokens_,
        Tensor::Allocate(backend, DType::kI32, {static_cast<int64_t>(banned.size())}));
    backend.CopyFromHost(runner->banned_tokens_.view().data, banned.data(),
                         static_cast<int64_t>(banned.size() * sizeof(int32_t)));
  }
  runner->decode_ = model.CompileDecode(backend, {pool.slabs(), pool.slab_bytes()});
  // Texts go through a model that classifies in steps of all sizes.
  if (limits.graphs && backend.can_capture() && !model.info().classes.exist()) {
    MNEME_RETURN_IF_ERROR(runner->CaptureGraphs());
    MNEME_RETURN_IF_ERROR(runner->TryPromptSizes());
  }
  return runner;
}

absl::Status ModelRunner::CaptureGraphs() {
  // Padding rows alone: no slab is read or written.
  const StepPlan nothing;
  const auto capture = [this]() -> absl::StatusOr<std::unique_ptr<Backend::Graph>> {
    // Once for real: libraries choose their algorithms and scratch memory grows to its size.
    Upload();
    Launch(/*routing=*/nullptr);
    MNEME_RETURN_IF_ERROR(backend_.Synchronize());
    return backend_.Capture([this] { Launch(/*routing=*/nullptr); });
  };
  for (const int rows : GraphRows(std::min({limits_.rows, limits_.tokens, limits_.logit_rows}))) {
    WriteInputs(nothing, /*padding=*/rows);
    MNEME_ASSIGN_OR_RETURN(std::unique_ptr<Backend::Graph> graph, capture());
    graphs_.push_back({.rows = rows, .plain = std::move(graph)});
    if (model_.info().inserted.exist()) {
      batch_.inserted = UsualInserted(rows);
      MNEME_ASSIGN_OR_RETURN(graphs_.back().inserting, capture());
    }
    if (model_.info().segment > 0) {
      batch_.crossings = std::min(rows, kUsualCrossings);
      MNEME_ASSIGN_OR_RETURN(graphs_.back().crossing, capture());
    }
  }
  LOG(INFO) << "recorded " << graphs_.size() << " graphs of decode steps, of "
            << graphs_.front().plain->nodes() << " nodes for 1 row and "
            << graphs_.back().plain->nodes() << " for " << graphs_.back().rows;
  return absl::OkStatus();
}

absl::Status ModelRunner::TryPromptSizes() {
  // One padding row of so many tokens: no slab is read or written.
  const std::vector<int32_t> tokens(limits_.tokens, 0);
  for (int size = limits_.tokens; size > 1;
       size = LikelyStepTokens(std::min(size - 1, kMostTriedTokens))) {
    StepPlan plan;
    plan.AddRow(
        {.slot = -1, .position = 0, .tokens = std::span(tokens).first(size), .samples = true});
    WriteInputs(plan, /*padding=*/0);
    Upload();
    Launch(/*routing=*/nullptr);
    MNEME_RETURN_IF_ERROR(backend_.Synchronize());
    if (size < kFewestTriedTokens) break;
  }
  return absl::OkStatus();
}

void ModelRunner::WriteInputs(const StepPlan& plan, int padding) {
  const int tokens = plan.tokens(), rows = plan.rows();
  int64_t end = 0;  // in bytes
  // Appends `values`, then what `pad` makes for `count` more; returns where they will lie.
  const auto append = [&]<typename T>(const std::vector<T>& values, int count, auto pad) {
    T* to = std::copy(values.begin(), values.end(), reinterpret_cast<T*>(pinned_.data() + end));
    for (int i = 0; i < count; ++i) *to++ = pad(i);
    const int64_t size = static_cast<int64_t>(values.size()) + count;
    const TensorView view = {inputs_.data() + end, kIndexDType<T>, {size}};
    end += ArrayBytes<T>(size);
    return view;
  };
  int longest = padding > 0 ? 1 : 0, longer = 0;
  for (int row = 0; row < rows; ++row) {
    const int length = plan.row_offsets[row + 1] - plan.row_offsets[row];
    longest = std::max(longest, length);
    longer += length > 1 ? 1 : 0;
  }
  batch_ = {.tokens = tokens + padding,
            .rows = rows + padding,
            .longest_row = longest,
            .longer_rows = longer,
            .inserted = InsertedBy(plan),
            .crossings = CrossingsOf(plan.positions)};
  batch_.token_ids = append(plan.token_ids, padding, [](int) { return 0; });
  if (!plan.token_types.empty()) {
    batch_.token_types = append(plan.token_types, padding, [](int) { return 0; });
  }
  batch_.row_offsets = append(plan.row_offsets, padding, [&](int i) { return tokens + i + 1; });
  batch_.slots = append(plan.slots, padding, [](int) { return -1; });
  batch_.positions = append(plan.positions, padding, [](int) { return 0; });
  if (padding > 0) {
    logit_tokens_ = append(plan.logit_tokens, padding, [&](int i) { return tokens + i; });
  } else {
    logit_tokens_ = append(plan.logit_tokens, KnownLogitRows(plan) - plan.logit_rows(),
                           [&](int) { return plan.logit_tokens.back(); });
  }
  input_bytes_ = end;
}

int ModelRunner::InsertedBy(const StepPlan& plan) const {
  int64_t inserted = 0;
  for (int row = 0; row < plan.rows(); ++row) {
    if (plan.slots[row] < 0) continue;
    const int64_t first = plan.positions[row];
    inserted += model_.info().inserted.Between(
        first, first + plan.row_offsets[row + 1] - plan.row_offsets[row]);
  }
  return static_cast<int>(inserted);
}

// Rows begin segments independently: more than four times the average, and more than four, do so in
// fewer than one step of a thousand.
int ModelRunner::UsualInserted(int rows) const {
  const InsertedPositions& inserted = model_.info().inserted;
  if (!inserted.exist()) return 0;
  const int64_t beginning =
      std::min<int64_t>(rows, std::max<int64_t>(4, 4 * rows / inserted.every));
  return static_cast<int>(beginning * inserted.count);
}

int ModelRunner::CrossingsOf(std::span<const int64_t> positions, int64_t more) const {
  const int segment = model_.info().segment;
  if (segment == 0) return -1;
  return static_cast<int>(std::count_if(positions.begin(), positions.end(), [&](int64_t position) {
    return position + more > 0 && (position + more) % segment == 0;
  }));
}

int ModelRunner::ReportsOf(const StepPlan& plan) const {
  const int segment = model_.info().segment;
  if (model_.info().engrams == 0) return 0;
  if (segment == 0) return plan.rows();  // of a model that classifies, whose rows are segments
  int64_t count = 0;
  for (int row = 0; row < plan.rows(); ++row) {
    const int64_t first = plan.positions[row];
    const int64_t end = first + plan.row_offsets[row + 1] - plan.row_offsets[row];
    // Multiples of a segment in [first, end), but for 0.
    if (end > first) count += (end - 1) / segment - std::max<int64_t>(first - 1, 0) / segment;
  }
  return static_cast<int>(count);
}

// For a number of rows that it has not met, a library may look for an algorithm, and load it, for
// milliseconds: the logits of a step without a graph are made for as many as a graph has.
int ModelRunner::KnownLogitRows(const StepPlan& plan) const {
  const auto graph = GraphOf(plan.logit_rows());
  return plan.logit_rows() == 0 || graph == graphs_.end() ? plan.logit_rows() : graph->rows;
}

ModelRunner::Graphs::const_iterator ModelRunner::GraphOf(int rows) const {
  return std::find_if(graphs_.begin(), graphs_.end(),
                      [rows](const DecodeGraph& graph) { return graph.rows >= rows; });
}

int64_t ModelRunner::graph_nodes(int rows) const {
  const auto graph = GraphOf(rows);
  return graph == graphs_.end() ? 0 : graph->plain->nodes();
}

ForwardContext ModelRunner::MakeContext(RoutingObserver* routing) {
  return {.backend = backend_,
          .workspace = workspace_,
          .batch = batch_,
          .slabs = {pool_.slabs(), pool_.slab_bytes()},
          .contexts = pool_.contexts(),
          .routing = routing,
          .surprise = {.values = Surprise()},
          .reports = Reports(),
          .observer = observer_,
          .decode = &decode_};
}

void ModelRunner::Upload() {
  backend_.CopyFromPinned(inputs_.data(), pinned_.data(), input_bytes_);
}

void ModelRunner::Launch(RoutingObserver* routing) {
  ForwardContext context = MakeContext(routing);
  const TensorView logits = Logits(static_cast<int>(logit_tokens_.shape[0]));
  model_.Forward(context, logit_tokens_, logits);
  if (!limits_.banned_tokens.empty()) {
    backend_.kernels().BanTokens({.logits = logits, .tokens = banned_tokens_.view()});
  }
}

TensorView ModelRunner::Logits(int rows) const {
  return {logits_.view().data, backend_.activation_dtype(), {rows, model_.info().outputs()}};
}

TensorView ModelRunner::Surprise() const {
  TensorView values = surprise_.view();
  if (!values.empty()) values.shape = {values.shape[0], batch_.tokens};
  return values;
}

// In front of the draws: whoever has those has this.
void ModelRunner::BeginSurprise(StepSurprise& result) {
  const TensorView values = Surprise();
  if (values.empty()) return;
  surprise_turn_ = 1 - surprise_turn_;
  std::byte* const copy = surprises_[static_cast<size_t>(surprise_turn_)].data();
  backend_.CopyToPinned(copy, values.data, values.bytes());
  result = {.values = std::span(reinterpret_cast<const float*>(copy),
                                static_cast<size_t>(values.shape.elements())),
            .tokens = values.shape[1]};
}

EngramReports ModelRunner::Reports() const {
  const TensorView all = reports_.view();
  if (all.empty()) return {};
  const int64_t size = EngramReportSize(model_.info().recalled_engrams);
  const int64_t most = (all.shape[0] - StepReports::kHeaderWords) / size;
  return {.words = {all.as<int32_t>() + StepReports::kHeaderWords, DType::kI32, {most, size}},
          .range = {all.data, DType::kI32, {2}}};
}

// As BeginSurprise.
void ModelRunner::BeginReports(StepReports& result) {
  result = {};
  if (report_count_ == 0) return;
  report_turn_ = 1 - report_turn_;
  std::byte* const copy = report_copies_[static_cast<size_t>(report_turn_)].data();
  const ModelInfo& info = model_.info();
  const int64_t words =
      StepReports::kHeaderWords + int64_t{report_count_} * EngramReportSize(info.recalled_engrams);
  backend_.CopyToPinned(copy, reports_.view().data, words * int64_t{sizeof(int32_t)});
  result =
      StepReports(std::span(reinterpret_cast<const int32_t*>(copy), static_cast<size_t>(words)),
                  info.recalled_engrams, info.working_engrams);
}

absl::Status ModelRunner::Forward(const StepPlan& plan, RoutingObserver* routing) {
  Begin(plan, routing);
  return backend_.Synchronize();
}

void ModelRunner::Begin(const StepPlan& plan, RoutingObserver* routing) {
  CHECK(!plan.empty());
  CHECK(plan.rows() <= limits_.rows && plan.tokens() <= limits_.tokens &&
        plan.logit_rows() <= limits_.logit_rows);
  logit_rows_ = plan.logit_rows();
  decodes_only_ = DecodesOnly(plan);
  has_next_inputs_ = false;
  const bool replays = Replays(plan, routing);
  const auto graph = GraphOf(plan.rows());
  graph_ = replays ? &*graph : nullptr;
  WriteInputs(plan, /*padding=*/replays ? graph->rows - plan.rows() : 0);
  report_count_ = ReportsOf(plan);
  next_positions_ = plan.positions;
  Upload();
  Run(routing);
}

bool ModelRunner::DecodesOnly(const StepPlan& plan) {
  return plan.decode_rows == plan.rows() && plan.tokens() == plan.rows() &&
         plan.logit_offsets == plan.row_offsets;
}

bool ModelRunner::Replays(const StepPlan& plan, const RoutingObserver* routing) const {
  return routing == nullptr && observer_ == nullptr && DecodesOnly(plan) &&
         GraphOf(plan.rows()) != graphs_.end() && CrossingsOf(plan.positions) <= kUsualCrossings &&
         InsertedBy(plan) <= UsualInserted(plan.rows());
}

void ModelRunner::BeginNext() {
  CHECK(has_next_inputs_);
  has_next_inputs_ = false;
  // Those of rows that turned into padding meanwhile are counted, too.
  batch_.inserted = 0;
  for (int64_t& position : next_positions_) {
    ++position;
    batch_.inserted += static_cast<int>(model_.info().inserted.Between(position, position + 1));
  }
  batch_.crossings = CrossingsOf(next_positions_);
  report_count_ = std::max(batch_.crossings, 0);
  Run(/*routing=*/nullptr);
}

void ModelRunner::Run(RoutingObserver* routing) {
  if (routing == nullptr && graph_ != nullptr && batch_.crossings <= kUsualCrossings &&
      batch_.inserted <= UsualInserted(graph_->rows)) {
    const std::unique_ptr<Backend::Graph>& graph = batch_.inserted > 0    ? graph_->inserting
                                                   : batch_.crossings > 0 ? graph_->crossing
                                                                          : graph_->plain;
    graph->Replay();
  } else {
    Launch(routing);
  }
}

absl::Status ModelRunner::Sample(const SamplingBatch& batch, StepResult& result) {
  BeginSample(batch, result);
  return FinishSample();
}

void ModelRunner::BeginSample(const SamplingBatch& batch, StepResult& result) {
  CHECK_EQ(batch.rows.size(), logit_rows_);
  const size_t rows = batch.rows.size();
  BeginSurprise(result.surprise);
  BeginReports(result.reports);
  result.top_columns = batch.max_top_logprobs;
  result.tokens.resize(rows);
  result.logprobs.resize(rows);
  result.top_tokens.resize(rows * result.top_columns);
  result.top_logprobs.resize(rows * result.top_columns);
  if (rows == 0) return;
  SampleArgs args = {.logits = Logits(logit_rows_),
                     .rows = batch.rows,
                     .history = batch.history,
                     .bias = batch.bias,
                     .max_top_logprobs = batch.max_top_logprobs,
                     .tokens = std::span(result.tokens),
                     .logprobs = std::span(result.logprobs),
                     .top_tokens = std::span(result.top_tokens),
                     .top_logprobs = std::span(result.top_logprobs)};
  if (decodes_only_) {
    args.next_tokens = batch_.token_ids;
    args.next_slots = batch_.slots;
    args.next_positions = batch_.positions;
    has_next_inputs_ = true;
  }
  backend_.kernels().BeginSample(args);
}

absl::Status ModelRunner::FinishSample() {
  if (logit_rows_ == 0) return backend_.Synchronize();
  backend_.kernels().FinishSample();
  return backend_.TakeStatus();
}

absl::Status ModelRunner::ReadClasses(StepResult& result) {
  BeginReports(result.reports);  // there when the logits are
  result.class_logits.resize(static_cast<size_t>(logit_rows_) *
                             static_cast<size_t>(model_.info().outputs()));
  MNEME_RETURN_IF_ERROR(ReadLogits(std::span(result.class_logits)));
  return backend_.TakeStatus();
}

absl::Status ModelRunner::ReadSurprise(StepSurprise& result) {
  BeginSurprise(result);
  return backend_.Synchronize();
}

absl::Status ModelRunner::ReadLogits(std::span<float> out) {
  const int64_t elements = int64_t{logit_rows_} * model_.info().outputs();
  CHECK_EQ(out.size(), elements);
  const void* source = logits_.view().data;
  if (backend_.activation_dtype() == DType::kF64) {
    std::vector<double> wide(elements);
    backend_.CopyToHost(wide.data(), source, elements * static_cast<int64_t>(sizeof(double)));
    std::transform(wide.begin(), wide.end(), out.begin(),
                   [](double x) { return static_cast<float>(x); });
  } else {
    CHECK(backend_.activation_dtype() == DType::kF32);
    backend_.CopyToHost(out.data(), source, elements * static_cast<int64_t>(sizeof(float)));
  }
  return backend_.Synchronize();
}

}  // namespace mneme
