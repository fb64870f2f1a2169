// Records what layers say of the tokens of one sequence.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/tensor.h"
#include "models/layer_observer.h"

namespace mneme {

class LayerTape final : public LayerObserver {
 public:
  // A track has what one layer said under one name, of every token: a prefix's come first.
  // Positions that a model inserts (ModelInfo::inserted) are tokens here.
  struct Track {
    std::vector<int64_t> shape;  // of a token's row
    int64_t width = 0;           // its elements
    std::vector<double> values;  // [tokens, width]
  };
  using Key = std::pair<int, std::string>;  // layer, name

  // Keeps tracks of these names; of all, if there is none.
  explicit LayerTape(std::set<std::string> names = {}) : names_(std::move(names)) {}

  void OnStep(int tokens) override;
  void OnLayer(Backend& backend, const Observation& observation) override;
  TensorView Scratch(Backend& backend, const Shape& shape) override;

  const std::map<Key, Track>& tracks() const { return tracks_; }
  // Null if there is none.
  const Track* Find(int layer, const std::string& name) const;
  int64_t tokens() const { return tokens_; }

 private:
  const std::set<std::string> names_;
  std::map<Key, Track> tracks_;
  int64_t tokens_ = 0;      // recorded, those of the step included
  int64_t step_first_ = 0;  // the step's first token
  Tensor scratch_;
};

}  // namespace mneme
