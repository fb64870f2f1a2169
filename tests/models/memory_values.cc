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

std::set<std::string> FieldsOf(const std::string& folder, DType dtype) {
  const auto plan = PlanModel(folder, {.memory_dtype = dtype, .pending_writes = 16});
  std::set<std::string> fields;
  if (!plan.ok()) return fields;
  for (const StateField& field : plan->state_layout.fields()) {
    if (field.dtype == dtype && field.row_values > 0) fields.insert(field.name);
  }
  return fields;
}

std::vector<double> FeedRounded(ModelDriver& reference, std::span<const int32_t> tokens, int chunk,
                                const MemoryRounding& rounding, const std::set<std::string>& fields,
                                const RoutingChoices& choices) {
  const ModelInfo& info = reference.model().info();
  const StateLayout& layout = reference.model().state_layout();
  std::vector<int> steps;
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    steps.push_back(static_cast<int>(std::min<size_t>(chunk, tokens.size() - at)));
  }
  const RoutingChoices cut = Recut(choices, info.layers, info.top_k, steps);
  RecordedRouting force(reference.backend(), cut);
  if (info.memories > 0) reference.set_routing(&force);
  std::map<std::pair<std::string, int64_t>, int> since;  // tokens since the last rounding
  std::vector<double> logits;
  int64_t at = 0;
  for (size_t step = 0; step < steps.size(); ++step) {
    const auto part = FeedSlot(reference, 0, tokens.subspan(at, steps[step]));
    logits.insert(logits.end(), part.begin(), part.end());
    at += steps[step];
    std::vector<std::byte> slab = reference.ReadSlab(0);
    std::map<int, size_t> layers;  // that are routed, by the field with their flags
    for (const StateField& field : layout.fields()) {
      if (field.guard == StateGuard::kFlags) layers.emplace(field.flags, layers.size());
      if (!fields.contains(field.name)) continue;
      CHECK(field.dtype == DType::kF64) << field.name;
      for (int64_t m = 0; m < field.memories(); ++m) {
        int64_t fed = steps[step];
        if (m < info.memories) {
          const auto& chosen = cut[step * info.layers + layers.at(field.flags)];
          fed = std::count(chosen.begin(), chosen.end(), m);
        }
        int& tokens_since = since[{field.name, m}];
        tokens_since += static_cast<int>(fed);
        if (fed == 0 || (fed == 1 && tokens_since <= rounding.held_back)) continue;
        tokens_since = 0;
        auto* values =
            reinterpret_cast<double*>(slab.data() + field.offset + m * field.memory_bytes());
        const auto width = static_cast<int64_t>(field.row_values);
        for (int64_t row = 0; row < field.memory_bytes() / 8; row += width) {
          RoundRow({values + row, static_cast<size_t>(width)}, rounding.dtype);
        }
      }
    }
    reference.WriteSlab(0, slab, reference.position(0));
  }
  reference.set_routing(nullptr);
  return logits;
}

}  // namespace mneme
