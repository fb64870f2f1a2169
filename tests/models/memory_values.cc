#include "tests/models/memory_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "base/log.h"
#include "kernels/float16.h"
#include "kernels/state_row.h"
#include "tests/models/test_folder.h"
#include "tests/support/random_values.h"

namespace mneme {
namespace {

template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

std::vector<double> Values(const std::byte* data, int64_t bytes, DType dtype, int key_dim) {
  const int64_t pitch = StateRowPitch(dtype, key_dim) * SizeOf(dtype);
  std::vector<double> values;
  for (const std::byte* row = data; row < data + bytes; row += pitch) {
    for (int d = 0; d < key_dim; ++d) {
      switch (dtype) {
        case DType::kF64:
          values.push_back(Load<double>(row + 8 * d));
          break;
        case DType::kF32:
          values.push_back(Load<float>(row + 4 * d));
          break;
        case DType::kF16:
          values.push_back(F32FromF16(Load<uint16_t>(row + 2 * d)));
          break;
        default:
          CHECK(dtype == DType::kI8);
          values.push_back(double{Load<float>(row + pitch - 4)} * static_cast<int8_t>(row[d]));
      }
    }
  }
  return values;
}

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

MemoryValues ReadMemories(const StateLayout& layout, std::span<const std::byte> slab, int key_dim) {
  MemoryValues memories;
  ForEachMemory(
      layout, slab.data(),
      [&](int layer, int memory, const StateField& field, const std::byte* data) {
        memories[{layer, memory}] = Values(data, field.memory_bytes(), field.dtype, key_dim);
      });
  return memories;
}

std::vector<double> FeedRounded(ModelDriver& reference, std::span<const int32_t> tokens, int chunk,
                                const MemoryRounding& rounding, const DeltaMixerConfig& config,
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
