#include "engine/engine_stats.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace mneme {
namespace {

constexpr auto kRejectReasons = [] {
  std::array<absl::string_view, std::size(kReasons) + 1> all;
  std::copy(std::begin(kReasons), std::end(kReasons), all.begin());
  all.back() = "OTHER";
  return all;
}();

}  // namespace

absl::string_view StepPhaseName(StepPhase phase) {
  static constexpr absl::string_view kNames[] = {"idle",   "plan",   "forward",
                                                 "sample", "commit", "deliver"};
  static_assert(std::size(kNames) == kStepPhases);
  return kNames[static_cast<size_t>(phase)];
}

std::span<const absl::string_view> EngineStats::RejectReasons() { return kRejectReasons; }

void EngineStats::Reject(const absl::Status& status) {
  rejected[static_cast<size_t>(status.code())].Add();
  const std::optional<std::string> reason = ReasonOf(status);
  const auto last = std::prev(std::end(kRejectReasons));
  const auto at = reason.has_value() ? std::find(std::begin(kRejectReasons), last, *reason) : last;
  rejected_reason[at - std::begin(kRejectReasons)].Add();
}

std::string LayerGroups::Name(int group) const {
  return absl::StrCat(first_layer(group), "-", first_layer(group + 1) - 1);
}

void RoutingCounts::Resize(int layers, int memories) {
  if (memories > 0) groups_ = LayerGroups(layers);
  memories_ = memories;
  counts_ = std::vector<Counter>(static_cast<size_t>(groups_.count()) * memories_);
}

void TrainingStats::Resize(int layers, std::span<const TrainedLayer> trained) {
  if (trained.empty()) return;
  groups = LayerGroups(layers);
  for (int group = 0; group < groups.count(); ++group) at.emplace_back();
  for (const TrainedLayer& layer : trained) ++at[groups.Of(layer.layer)].layers;
}

}  // namespace mneme
