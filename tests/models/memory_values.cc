#include "tests/models/memory_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "base/log.h"
#include "models/state_codec.h"
#include "tests/models/test_folder.h"
#include "tests/support/random_values.h"

namespace mneme {
namespace {

// As kernels/state_row.h.
void RoundRow(std::span<double> row, DType dtype) {
  if (dtype == DType::kF16) {
    for (double& value : row) value = RoundTo(value, DType::kF16);
    return;
  }
  CHECK(dtype == DType::kI8);
  double largest = 0;
  for (const double value : row) largest = std::max(largest, std::abs(value));
  if (largest == 0) return;
  const double scale = static_cast<float>(largest / 127);
  for (double& value : row) value = scale * std::nearbyint(value / scale);
}

// Calls visit(layer, memory, field, data of the memory) for matrices that were written.
template <typename Byte, typename Visit>
void ForEachMemory(const StateLayout& layout, Byte* slab, Visit visit) {
  const std::byte* written = nullptr;  // of the layer: its flags lie in front of its matrices
  int layer = 0;
  for (const StateField& field : layout.fields()) {
    if (absl::EndsWith(field.name, ".written")) written = slab + field.offset;
    if (!absl::EndsWith(field.name, ".memory")) continue;
    CHECK(written != nullptr) << field.name << " has no flags in front of it";
    for (int m = 0; m < field.shape[0]; ++m) {
      if (written[m] != std::byte{0}) {
        visit(layer, m, field, slab + field.offset + m * field.memory_bytes());
      }
    }
    ++layer;
  }
}

}  // namespace

MemoryValues ReadMemories(ModelDriver& driver, int slot) {
  const auto state = DecodeState(driver.backend(), driver.model(), driver.Slab(slot), /*tokens=*/0);
  CHECK_OK(state.status());
  MemoryValues memories;
  const StateTensor* written = nullptr;  // of the layer: its flags lie in front of its matrices
  int layer = 0;
  for (const StateTensor& tensor : state->tensors) {
    if (absl::EndsWith(tensor.name, ".written")) written = &tensor;
    if (!absl::EndsWith(tensor.name, ".memory")) continue;
    const int64_t elements = tensor.shape.elements() / tensor.shape[0];
    for (int m = 0; m < tensor.shape[0]; ++m) {
      if (written->bytes[m] == std::byte{0}) continue;
      std::vector<double>& values = memories[{layer, m}];
      for (int64_t i = m * elements; i < (m + 1) * elements; ++i) {
        if (tensor.dtype == DType::kF64) {
          values.push_back(reinterpret_cast<const double*>(tensor.bytes.data())[i]);
        } else {
          values.push_back(reinterpret_cast<const float*>(tensor.bytes.data())[i]);
        }
      }
    }
    ++layer;
  }
  return memories;
}

std::vector<double> FeedRounded(ModelDriver& reference, std::span<const int32_t> tokens, int chunk,
                                const MemoryRounding& rounding, const GatedDeltaConfig& config,
                                const RoutingChoices& choices) {
  const int layers = reference.model().info().layers;
  std::vector<int> steps;
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    steps.push_back(static_cast<int>(std::min<size_t>(chunk, tokens.size() - at)));
  }
  const RoutingChoices cut = Recut(choices, layers, config.top_k, steps);
  RecordedRouting force(reference.backend(), cut);
  reference.set_routing(&force);
  std::map<std::pair<int, int>, int> since;  // tokens since the last rounding
  std::vector<double> logits;
  int64_t at = 0;
  for (size_t step = 0; step < steps.size(); ++step) {
    const auto part = FeedSlot(reference, 0, tokens.subspan(at, steps[step]));
    logits.insert(logits.end(), part.begin(), part.end());
    at += steps[step];
    std::vector<std::byte> slab = reference.ReadSlab(0);
    ForEachMemory(reference.model().state_layout(), slab.data(),
                  [&](int layer, int memory, const StateField& field, std::byte* data) {
                    CHECK(field.dtype == DType::kF64);
                    int64_t fed = steps[step];
                    if (memory < config.memories) {
                      const std::vector<int32_t>& chosen = cut[step * layers + layer];
                      fed = std::count(chosen.begin(), chosen.end(), memory);
                    }
                    int& tokens_since = since[{layer, memory}];
                    tokens_since += static_cast<int>(fed);
                    if (fed == 0 || (fed == 1 && tokens_since <= rounding.held_back)) return;
                    tokens_since = 0;
                    auto* values = reinterpret_cast<double*>(data);
                    for (int64_t row = 0; row < field.memory_bytes() / 8; row += config.key_dim) {
                      RoundRow({values + row, static_cast<size_t>(config.key_dim)}, rounding.dtype);
                    }
                  });
    reference.WriteSlab(0, slab, reference.position(0));
  }
  reference.set_routing(nullptr);
  return logits;
}

}  // namespace mneme
