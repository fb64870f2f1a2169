// Counts how surprising memories that are trained at test time find the tokens they are fed, and
// finds those that diverged.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "engine/engine_stats.h"
#include "engine/model_runner.h"
#include "models/model.h"

namespace mneme {

class SurpriseCounter {
 public:
  // What the tokens of a row were to the memories of all layers.
  struct Row {
    double sum = 0;      // of the finite ones: of each token, the mean over layers
    int64_t tokens = 0;  // that count in it
    // The first token at which a memory was no longer finite, and the first such layer.
    struct Divergence {
      int layer = 0;
      int64_t position = 0;  // tokens of the session in front of it
    };
    std::optional<Divergence> divergence;
  };
  // The error of a sequence that goes no further.
  static absl::Status ErrorOf(const Row::Divergence& where);

  // `stats`, which it sizes for the model, must outlive it.
  SurpriseCounter(const ModelInfo& model, TrainingStats& stats)
      : trained_(model.trained), inserted_(model.inserted), stats_(stats) {
    stats_.Resize(model.layers, trained_);
  }

  // Tokens [begin, end) of a step, a row whose session was fed `position` tokens before. Nothing
  // where no memory is trained.
  Row Count(const StepSurprise& surprise, int begin, int end, int64_t position);

 private:
  const std::vector<TrainedLayer> trained_;
  const InsertedPositions inserted_;
  TrainingStats& stats_;
};

}  // namespace mneme
