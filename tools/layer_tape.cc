#include "tools/layer_tape.h"

#include <algorithm>

#include "base/log.h"

namespace mneme {
namespace {

// Activations as numbers.
std::vector<double> Download(Backend& backend, const TensorView& view) {
  std::vector<double> values(static_cast<size_t>(view.shape.elements()));
  if (view.dtype == DType::kF64) {
    backend.CopyToHost(values.data(), view.data, view.bytes());
  } else {
    CHECK(view.dtype == DType::kF32) << Name(view.dtype);
    std::vector<float> narrow(values.size());
    backend.CopyToHost(narrow.data(), view.data, view.bytes());
    std::copy(narrow.begin(), narrow.end(), values.begin());
  }
  return values;
}

}  // namespace

void LayerTape::OnStep(int tokens) {
  step_first_ = tokens_;
  tokens_ += tokens;
}

void LayerTape::OnLayer(Backend& backend, const Observation& observation) {
  const std::string name(observation.name);
  if (!names_.empty() && !names_.contains(name)) return;
  const Shape& shape = observation.values.shape;
  Track& track = tracks_[{observation.layer, name}];
  track.shape.assign(shape.dims + 1, shape.dims + shape.rank);
  track.width = 1;
  for (const int64_t dim : track.shape) track.width *= dim;
  track.values.resize(static_cast<size_t>(tokens_ * track.width));

  const std::vector<double> values = Download(backend, observation.values);
  const int64_t entries = shape[0], tokens = tokens_ - step_first_;
  std::vector<int32_t> places(static_cast<size_t>(tokens));
  if (observation.places.empty()) {
    for (int64_t t = 0; t < tokens; ++t) places[t] = static_cast<int32_t>(t);
  } else {
    backend.CopyToHost(places.data(), observation.places.data, observation.places.bytes());
  }
  for (int64_t t = 0; t < tokens; ++t) {
    if (places[t] >= entries) continue;
    const auto from = values.begin() + places[t] * track.width;
    std::transform(from, from + track.width, track.values.begin() + (step_first_ + t) * track.width,
                   [&](double x) { return observation.offset + observation.scale * x; });
  }
}

TensorView LayerTape::Scratch(Backend& backend, const Shape& shape) {
  auto scratch = Tensor::Allocate(backend, backend.activation_dtype(), shape);
  CHECK_OK(scratch.status());
  scratch_ = *std::move(scratch);
  return scratch_.view();
}

const LayerTape::Track* LayerTape::Find(int layer, const std::string& name) const {
  const auto found = tracks_.find({layer, name});
  return found == tracks_.end() ? nullptr : &found->second;
}

}  // namespace mneme
