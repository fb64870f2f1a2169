#include "tools/recall_comparison.h"

#include <algorithm>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "engine/step_plan.h"
#include "models/engrams/engram_graph.h"
#include "models/state_codec.h"

namespace mneme {
namespace {

std::string Without(const std::vector<uint32_t>& births, const std::vector<uint32_t>& others) {
  std::vector<uint32_t> rest;
  std::set_difference(births.begin(), births.end(), others.begin(), others.end(),
                      std::back_inserter(rest));
  return rest.empty() ? "none" : absl::StrJoin(rest, " ");
}

}  // namespace

absl::StatusOr<Recalls> RecallsOf(ToolRunner& tool, std::span<const int32_t> ids) {
  const int64_t segment = tool.model->info().segment;
  if (segment == 0) {
    return absl::InvalidArgumentError("the model makes no engrams of what it generates from");
  }
  const std::optional<int> slot = tool.pool->Acquire();
  CHECK(slot.has_value()) << "no free slab";
  const int64_t most = tool.runner->limits().tokens;
  Recalls recalls;
  StepPlan plan;
  for (int64_t at = 0; at < static_cast<int64_t>(ids.size());) {
    // Up to a segment's first token, with which it recalls.
    const int64_t next = (at + segment - 1) / segment * segment + 1;
    const int64_t end = std::min({next, at + most, static_cast<int64_t>(ids.size())});
    plan.Clear();
    plan.AddRow({.slot = *slot,
                 .position = at,
                 .tokens = ids.subspan(static_cast<size_t>(at), static_cast<size_t>(end - at))});
    MNEME_RETURN_IF_ERROR(tool.runner->Forward(plan));
    at = end;
    if (at != next || at == 1) continue;
    MNEME_ASSIGN_OR_RETURN(const CanonicalState state,
                           DecodeState(*tool.backend, *tool.model,
                                       tool.pool->slabs() + *slot * tool.pool->slab_bytes(), at));
    const EngramGraph graph = EngramGraph::Read(state, {.tokens = tool.model->info().segment}, {});
    std::vector<uint32_t>& births = recalls.emplace_back();
    for (const size_t i : graph.recalled()) births.push_back(graph.engrams()[i].birth);
  }
  tool.pool->Release(*slot);
  return recalls;
}

std::string FirstDifference(const Recalls& exact, const Recalls& rounded) {
  CHECK_EQ(exact.size(), rounded.size());
  const auto [want, got] = std::mismatch(exact.begin(), exact.end(), rounded.begin());
  if (want == exact.end()) {
    return absl::StrCat("each of ", exact.size(), " segments behind the first recalls the same");
  }
  return absl::StrCat("the first segment that recalls others is ", want - exact.begin() + 1, " of ",
                      exact.size(), ": without rounding also engrams ", Without(*want, *got),
                      "; with it also ", Without(*got, *want));
}

}  // namespace mneme
