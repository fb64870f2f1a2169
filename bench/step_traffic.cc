#include "bench/step_traffic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "models/checkpoint.h"

namespace mneme {
namespace {

constexpr int kSmallMatrix = 64;  // outputs; smaller products are left out of products()

struct MemoryWeight {
  int layer = 0;
  int memory = 0;
};

// "model.layers.3.attn.gk_proj.1.0.weight" -> {3, 1}, if so many memories are routed;
// nothing for weights that all tokens share, the shared memory's among them, which may be the last
// of a list.
std::optional<MemoryWeight> ParseMemoryWeight(absl::string_view name, int memories) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  MemoryWeight weight;
  bool in_layer = false;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    if (parts[i] == "layers") in_layer = absl::SimpleAtoi(parts[i + 1], &weight.layer);
    if (in_layer && absl::EndsWith(parts[i], "_proj") &&
        absl::SimpleAtoi(parts[i + 1], &weight.memory)) {
      if (weight.memory < memories) return weight;
      return std::nullopt;
    }
  }
  return std::nullopt;
}

// Embeddings go by the names that families give them.
bool IsEmbedding(absl::string_view name) {
  return absl::EndsWith(name, "embeddings.weight") || absl::EndsWith(name, "embed_tokens.weight") ||
         absl::EndsWith(name, "wte.weight");
}

}  // namespace

absl::StatusOr<StepTraffic> StepTraffic::Create(const std::string& folder, const Model& model,
                                                Backend& backend) {
  StepTraffic traffic(backend);
  const ModelInfo& info = model.info();
  CHECK_LE(info.memories, 64) << "memories of a row are kept as bits";
  traffic.top_k_ = info.top_k;
  traffic.layers_.resize(static_cast<size_t>(info.layers));
  for (Layer& layer : traffic.layers_) layer.memories.resize(static_cast<size_t>(info.memories));
  traffic.memory_tokens_.resize(static_cast<size_t>(info.memories));

  MNEME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(folder));
  const bool tied = checkpoint.Find("lm_head.weight") == nullptr;
  for (const auto& [name, entry] : checkpoint.entries()) {
    const std::vector<int64_t>& shape = entry.tensor->shape;
    const auto bytes = static_cast<double>(entry.tensor->bytes());
    const double elements = shape.size() == 2 ? static_cast<double>(entry.tensor->elements()) : 0;
    const bool is_embedding = IsEmbedding(name), is_positions = absl::EndsWith(name, "wpe.weight");
    if (is_embedding || is_positions) {
      traffic.embedding_row_bytes_ += bytes / static_cast<double>(shape[0]);
    }
    if (name == "lm_head.weight" || (is_embedding && tied)) {
      traffic.head_bytes_ = bytes;
      traffic.head_elements_ = elements;
    }
    if (is_embedding || is_positions || name == "lm_head.weight") continue;
    const std::optional<MemoryWeight> routed = ParseMemoryWeight(name, info.memories);
    if (routed.has_value()) {
      Memory& memory = traffic.layers_.at(static_cast<size_t>(routed->layer))
                           .memories.at(static_cast<size_t>(routed->memory));
      memory.bytes += bytes;
      memory.elements += elements;
    } else {
      traffic.common_bytes_ += bytes;
      traffic.common_elements_ += elements;
    }
    if (shape.size() == 2) {
      const double share = routed.has_value() ? static_cast<double>(info.top_k) / info.memories : 1;
      traffic.AddProduct(shape[0], shape[1], share);
    }
  }
  for (const StateField& field : model.state_layout().fields()) {
    if (field.initial == StateInitial::kPhase) continue;  // a word, and none of a layer's
    if (field.traffic == StateTraffic::kSegments) continue;
    if (field.guard == StateGuard::kFlags || field.guard == StateGuard::kFed) {
      traffic.unrouted_memories_ = static_cast<int>(field.memories()) - info.memories;
    }
    if (field.grows()) {
      traffic.contexts_.push_back(field);
      continue;
    }
    // What is of all layers counts with the first one.
    Layer& layer = traffic.layers_.at(static_cast<size_t>(std::max(field.layer, 0)));
    const double ways = field.traffic == StateTraffic::kRead ? 0.5 : 1;
    const double bytes = ways * static_cast<double>(field.memory_bytes());
    if (field.role == StateRole::kHeldBack) {
      traffic.pending_writes_ = field.writes;
      layer.pending_bytes += bytes / field.writes;
    } else {
      layer.state_bytes += bytes;
      // Of memories that are networks, weights and momenta: [memories, heads, in, out].
      if (field.row_values > 0 || field.shape.rank == 4) layer.matrix_bytes += bytes;
    }
  }
  return traffic;
}

void StepTraffic::AddProduct(int64_t out, int64_t in, double share) {
  if (out < kSmallMatrix) return;
  for (Product& product : products_) {
    if (product.out_features == out && product.in_features == in && product.share == share) {
      ++product.count;
      return;
    }
  }
  products_.push_back({.out_features = static_cast<int>(out),
                       .in_features = static_cast<int>(in),
                       .share = share,
                       .count = 1});
}

void StepTraffic::BeginStep(const StepPlan& plan) {
  plan_ = &plan;
  weight_bytes_ = common_bytes_ + embedding_row_bytes_ * plan.tokens() +
                  (plan.logit_rows() > 0 ? head_bytes_ : 0);
  flops_ = 2 * (common_elements_ * plan.tokens() + head_elements_ * plan.logit_rows());
  state_bytes_ = 0;
  for (const Layer& layer : layers_) {
    state_bytes_ += layer.state_bytes * unrouted_memories_ * plan.rows();
  }
  for (const StateField& field : contexts_) {
    for (int row = 0; row < plan.rows(); ++row) {
      const int64_t before = plan.positions[row];
      const PositionRange read = field.held(before);
      const auto written = static_cast<int64_t>(plan.row_tokens(row).size());
      state_bytes_ +=
          static_cast<double>(field.row_bytes() * (read.end - read.begin + written)) / 2;
    }
  }
}

void StepTraffic::OnRouted(int layer, const TensorView& indices, const TensorView&) {
  indices_.resize(static_cast<size_t>(indices.shape.elements()));
  backend_->CopyToHost(indices_.data(), indices.data, indices.bytes());
  std::fill(memory_tokens_.begin(), memory_tokens_.end(), 0);
  const Layer& costs = layers_[static_cast<size_t>(layer)];
  for (int row = 0; row < plan_->rows(); ++row) {
    uint64_t memories = 0;
    for (int i = plan_->row_offsets[row] * top_k_; i < plan_->row_offsets[row + 1] * top_k_; ++i) {
      ++memory_tokens_[indices_[i]];
      memories |= uint64_t{1} << indices_[i];
    }
    state_bytes_ += costs.state_bytes * std::popcount(memories);
  }
  for (size_t m = 0; m < memory_tokens_.size(); ++m) {
    if (memory_tokens_[m] == 0) continue;
    weight_bytes_ += costs.memories[m].bytes;
    flops_ += 2 * costs.memories[m].elements * static_cast<double>(memory_tokens_[m]);
  }
}

double StepTraffic::DecodeStateBytes(double rows) const {
  double bytes = 0;
  for (const Layer& layer : layers_) bytes += layer.state_bytes * (top_k_ + unrouted_memories_);
  return bytes * rows;
}

double StepTraffic::DecodeWeightBytes(double rows) const {
  double bytes = common_bytes_ + head_bytes_ + embedding_row_bytes_ * rows;
  for (const Layer& layer : layers_) {
    const auto memories = static_cast<double>(layer.memories.size());
    for (const Memory& memory : layer.memories) {
      bytes += memory.bytes * (1 - std::pow(1 - top_k_ / memories, rows));
    }
  }
  return bytes;
}

double StepTraffic::DeferredStateBytes(double rows) const {
  if (pending_writes_ == 0) return 2 * DecodeStateBytes(rows);
  const double writes = pending_writes_;
  double bytes = 0;
  for (const Layer& layer : layers_) {
    // From none to all of the writes are there when a token comes; all but the last of a cycle
    // add one.
    const double pending = layer.pending_bytes * (writes / 2 + writes / (writes + 1));
    const double matrices = layer.matrix_bytes * (1 + 1 / (writes + 1));
    const double windows = 2 * (layer.state_bytes - layer.matrix_bytes);
    bytes += (matrices + pending + windows) * (top_k_ + unrouted_memories_);
  }
  return bytes * rows;
}

double StepTraffic::LeastDecodeBytes(double rows) const {
  return DecodeWeightBytes(rows) + std::min(DeferredStateBytes(rows), 2 * DecodeStateBytes(rows));
}

double StepTraffic::PromptFlops(int prompts, int tokens) const {
  double elements = common_elements_;  // that a token is multiplied with
  for (const Layer& layer : layers_) {
    const auto memories = static_cast<double>(layer.memories.size());
    for (const Memory& memory : layer.memories) elements += memory.elements * top_k_ / memories;
  }
  return 2 * prompts * (elements * tokens + head_elements_);
}

double StepTraffic::PromptBytes(int prompts, int tokens, int step_tokens) const {
  const double steps = std::ceil(static_cast<double>(prompts) * tokens / step_tokens);
  double weights = common_bytes_ + head_bytes_, state = 0;
  for (const Layer& layer : layers_) {
    for (const Memory& memory : layer.memories) weights += memory.bytes;
    state += layer.state_bytes * static_cast<double>(layer.memories.size() + unrouted_memories_);
  }
  return steps * weights + prompts * state;
}

}  // namespace mneme
