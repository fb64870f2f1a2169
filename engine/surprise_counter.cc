#include "engine/surprise_counter.h"

#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace mneme {

SurpriseCounter::Row SurpriseCounter::Count(const StepSurprise& surprise, int begin, int end,
                                            int64_t position) {
  Row row;
  if (trained_.empty()) return row;
  for (const TrainedLayer& layer : trained_) {
    stats_.at[stats_.groups.Of(layer.layer)].steps.Add(
        layer.Steps(inserted_.Of(position), inserted_.Of(position + end - begin)));
  }
  for (int token = begin; token < end; ++token) {
    std::array<double, LayerGroups::kMost> sums = {};
    double sum = 0;
    for (size_t i = 0; i < trained_.size(); ++i) {
      const double value = trained_[i].loss_scale * surprise.Of(static_cast<int>(i), token);
      if (!std::isfinite(value)) {
        stats_.divergences.Add();
        row.divergence = {trained_[i].layer, position + token - begin};
        return row;
      }
      sums[stats_.groups.Of(trained_[i].layer)] += value;
      sum += value;
    }
    for (int group = 0; group < stats_.groups.count(); ++group) {
      TrainingStats::Group& counts = stats_.at[group];
      if (counts.layers > 0) counts.surprise.Observe(sums[group] / counts.layers);
    }
    row.sum += sum / static_cast<double>(trained_.size());
    ++row.tokens;
  }
  return row;
}

absl::Status SurpriseCounter::ErrorOf(const Row::Divergence& where) {
  return absl::InternalError(absl::StrCat("the memory of layer ", where.layer,
                                          " diverged at position ", where.position,
                                          ": training it made it non-finite"));
}

}  // namespace mneme
