#include "engine/model_runner.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace mneme {

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::Create(Backend& backend,
                                                                 const Model& model,
                                                                 StatePool& pool,
                                                                 const RunnerLimits& limits) {
  CHECK(limits.rows >= 1 && limits.tokens >= 1 && limits.logit_rows >= 1);
  auto runner = absl::WrapUnique(new ModelRunner(backend, model, pool, limits));
  const auto indices = [&](int n) { return Tensor::Allocate(backend, DType::kI32, {n}); };
  MNEME_ASSIGN_OR_RETURN(runner->token_ids_, indices(limits.tokens));
  MNEME_ASSIGN_OR_RETURN(runner->row_offsets_, indices(limits.rows + 1));
  MNEME_ASSIGN_OR_RETURN(runner->slots_, indices(limits.rows));
  MNEME_ASSIGN_OR_RETURN(runner->logit_tokens_, indices(limits.logit_rows));
  MNEME_ASSIGN_OR_RETURN(runner->logits_,
                         Tensor::Allocate(backend, backend.activation_dtype(),
                                          {limits.logit_rows, model.info().vocab}));
  runner->workspace_bytes_ = model.WorkspaceBytes(limits.tokens, limits.rows, limits.logit_rows);
  MNEME_ASSIGN_OR_RETURN(
      runner->workspace_,
      Workspace::Create(backend, std::max<int64_t>(runner->workspace_bytes_, 64)));
  return runner;
}

TensorView ModelRunner::Upload(const Tensor& buffer, const std::vector<int32_t>& values) {
  const TensorView whole = buffer.view();
  const auto count = static_cast<int64_t>(values.size());
  CHECK_LE(count, whole.shape[0]);
  if (count > 0) {
    backend_.CopyFromHost(whole.data, values.data(), count * static_cast<int64_t>(sizeof(int32_t)));
  }
  return {whole.data, DType::kI32, {count}};
}

absl::Status ModelRunner::Forward(const StepPlan& plan, RoutingObserver* routing) {
  CHECK(!plan.empty());
  logit_rows_ = plan.logit_rows();
  const StepBatch batch = {.tokens = plan.tokens(),
                           .rows = plan.rows(),
                           .token_ids = Upload(token_ids_, plan.token_ids),
                           .row_offsets = Upload(row_offsets_, plan.row_offsets),
                           .slots = Upload(slots_, plan.slots)};
  ForwardContext context = {.backend = backend_,
                            .workspace = workspace_,
                            .batch = batch,
                            .slabs = pool_.slabs(),
                            .slab_bytes = pool_.slab_bytes(),
                            .routing = routing};
  const TensorView logits = {
      logits_.view().data, backend_.activation_dtype(), {logit_rows_, model_.info().vocab}};
  model_.Forward(context, Upload(logit_tokens_, plan.logit_tokens), logits);
  return backend_.Synchronize();
}

absl::Status ModelRunner::Sample(const SamplingBatch& batch, StepResult& result) {
  CHECK_EQ(batch.rows.size(), logit_rows_);
  const size_t rows = batch.rows.size();
  result.top_columns = batch.max_top_logprobs;
  result.tokens.resize(rows);
  result.logprobs.resize(rows);
  result.top_tokens.resize(rows * result.top_columns);
  result.top_logprobs.resize(rows * result.top_columns);
  if (rows == 0) return absl::OkStatus();
  const TensorView logits = {
      logits_.view().data, backend_.activation_dtype(), {logit_rows_, model_.info().vocab}};
  backend_.kernels().Sample({.logits = logits,
                             .rows = batch.rows,
                             .history = batch.history,
                             .bias = batch.bias,
                             .max_top_logprobs = batch.max_top_logprobs,
                             .tokens = std::span(result.tokens),
                             .logprobs = std::span(result.logprobs),
                             .top_tokens = std::span(result.top_tokens),
                             .top_logprobs = std::span(result.top_logprobs)});
  return backend_.Synchronize();
}

absl::Status ModelRunner::Run(const StepPlan& plan, const SamplingBatch& batch,
                              StepResult& result) {
  MNEME_RETURN_IF_ERROR(Forward(plan));
  return Sample(batch, result);
}

absl::Status ModelRunner::ReadLogits(std::span<float> out) {
  const int64_t elements = int64_t{logit_rows_} * model_.info().vocab;
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
