#include "tools/routing_tape.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "models/safetensors.h"
#include "models/safetensors_writer.h"

namespace mneme {

absl::StatusOr<RoutingTape> RoutingTape::Create(Backend& backend, const ModelInfo& model,
                                                int max_step_tokens) {
  if (model.memories == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("a model of type ", model.architecture, " has no router"));
  }
  RoutingTape tape(backend);
  tape.layers_ = model.layers;
  tape.memories_ = model.memories;
  tape.top_k_ = model.top_k;
  MNEME_ASSIGN_OR_RETURN(tape.forced_step_,
                         Tensor::Allocate(backend, DType::kI32, {max_step_tokens, model.top_k}));
  return tape;
}

absl::Status RoutingTape::LoadForced(const std::string& path, int64_t tokens) {
  MNEME_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  const SafetensorsTensor* routing = file.header().Find("routing");
  if (routing == nullptr || routing->dtype != DType::kI32 || routing->shape.size() != 3 ||
      routing->shape[0] < tokens || routing->shape[1] != layers_ || routing->shape[2] != top_k_) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": tensor \"routing\" is ",
        routing == nullptr ? "missing"
                           : absl::StrCat(routing->dtype_name, " ", ShapeToString(routing->shape)),
        ", expected I32 [", tokens, " or more, ", layers_, ", ", top_k_, "]"));
  }
  forced_.resize(static_cast<size_t>(routing->elements()));
  std::memcpy(forced_.data(), file.Bytes(*routing).data(), forced_.size() * sizeof(int32_t));
  for (size_t i = 0; i < forced_.size(); ++i) {
    const size_t first = i / top_k_ * top_k_;
    const bool routed = forced_[At(0, static_cast<int>(i / top_k_ % layers_))] != -1;
    if (!routed && forced_[i] == -1) continue;
    const bool repeated = std::find(&forced_[first], &forced_[i], forced_[i]) != &forced_[i];
    if (!routed || forced_[i] < 0 || forced_[i] >= memories_ || repeated) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": element ", i, " of tensor \"routing\" is ", forced_[i], ", expected ",
          !routed    ? "-1, as its layer has no router"
          : repeated ? "memories that differ for each token"
                     : absl::StrCat("a memory from 0 to ", memories_ - 1)));
    }
  }
  return absl::OkStatus();
}

void RoutingTape::BeginStep(int first_token, int count) {
  step_first_ = first_token;
  step_count_ = count;
  tokens_ += count;
  indices_.resize(static_cast<size_t>(tokens_ * layers_ * top_k_), -1);
  weights_.resize(indices_.size());
}

TensorView RoutingTape::Forced(int layer, int tokens, int top_k) {
  if (forced_.empty() || forced_[At(0, layer)] < 0) return {};
  CHECK(tokens == step_count_ && top_k == top_k_) << "only a session that is alone can be forced";
  std::vector<int32_t> step;
  for (int i = 0; i < step_count_; ++i) {
    const auto choice =
        forced_.begin() + static_cast<int64_t>(At(tokens_ - step_count_ + i, layer));
    step.insert(step.end(), choice, choice + top_k_);
  }
  TensorView view = forced_step_.view();
  view.shape.dims[0] = tokens;
  backend_->CopyFromHost(view.data, step.data(), view.bytes());
  return view;
}

void RoutingTape::OnRouted(int layer, const TensorView& indices, const TensorView& weights) {
  std::vector<int32_t> step_indices(static_cast<size_t>(indices.shape.elements()));
  backend_->CopyToHost(step_indices.data(), indices.data, indices.bytes());
  std::vector<std::byte> step_weights(static_cast<size_t>(weights.bytes()));
  backend_->CopyToHost(step_weights.data(), weights.data, weights.bytes());
  for (int i = 0; i < step_count_; ++i) {
    const size_t to = At(tokens_ - step_count_ + i, layer);
    for (int j = 0; j < top_k_; ++j) {
      const size_t from = static_cast<size_t>((step_first_ + i) * top_k_ + j);
      indices_[to + j] = step_indices[from];
      weights_[to + j] =
          weights.dtype == DType::kF64
              ? static_cast<float>(reinterpret_cast<double*>(step_weights.data())[from])
              : reinterpret_cast<float*>(step_weights.data())[from];
    }
  }
}

std::vector<double> RoutingTape::Shares(int layer) const {
  std::vector<double> shares(static_cast<size_t>(memories_));
  for (int64_t token = 0; token < tokens_; ++token) {
    for (int j = 0; j < top_k_; ++j) {
      shares[memory(token, layer, j)] += 1.0 / static_cast<double>(tokens_);
    }
  }
  return shares;
}

absl::Status RoutingTape::Save(const std::string& path) const {
  const std::vector<int64_t> shape = {tokens_, layers_, top_k_};
  const std::vector<SafetensorsSpec> specs = {{"routing", DType::kI32, shape},
                                              {"weights", DType::kF32, shape}};
  MNEME_ASSIGN_OR_RETURN(
      const auto writer,
      SafetensorsWriter::Create(path, specs, {{"memories", absl::StrCat(memories_)}}));
  MNEME_RETURN_IF_ERROR(writer->Write(std::as_bytes(std::span(indices_))));
  MNEME_RETURN_IF_ERROR(writer->Write(std::as_bytes(std::span(weights_))));
  return writer->Finish();
}

}  // namespace mneme
