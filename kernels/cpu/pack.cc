// Lays out weight matrices as packed_layout.h describes. Built once per instruction set.
#include <cstring>

#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/packed_layout.h"
#include "kernels/cpu/simd.h"

namespace mneme::MNEME_ISA {
namespace {

// Both layouts are transposes of 32-bit units, a float or a pair of 16-bit floats: a panel's unit
// [u][o] is unit u of the matrix's row o. `units` counts those of a row.
void PackPanel(const char* rows, int64_t row_bytes, int count, int64_t units, char* to) {
  constexpr int kUnit = 4;
  for (int64_t u = 0; u < units; ++u) {
    for (int o = 0; o < count; ++o) {
      std::memcpy(to + (u * kPanelOutputs + o) * kUnit, rows + o * row_bytes + u * kUnit, kUnit);
    }
    std::memset(to + (u * kPanelOutputs + count) * kUnit, 0, (kPanelOutputs - count) * kUnit);
  }
}

}  // namespace

void Pack(const TensorView& matrix, void* dst, int begin, int end) {
  const int out_features = static_cast<int>(matrix.shape[0]);
  const int in_features = static_cast<int>(matrix.shape[1]);
  const int64_t row_bytes = int64_t{in_features} * SizeOf(matrix.dtype);
  const int64_t panel_bytes = PanelBytes(matrix.dtype, in_features);
  const int64_t units = row_bytes / 4;
  const int rest = static_cast<int>(row_bytes % 4);  // half of a pair
  for (int panel = begin; panel < end; ++panel) {
    const int first = panel * kPanelOutputs;
    const int left = out_features - first;
    const int count = left < kPanelOutputs ? left : kPanelOutputs;
    const char* rows = matrix.as<char>() + first * row_bytes;
    char* to = static_cast<char*>(dst) + panel * panel_bytes;
    PackPanel(rows, row_bytes, count, units, to);
    const int64_t done = units * 4 * kPanelOutputs;
    std::memset(to + done, 0, panel_bytes - done);
    for (int o = 0; rest > 0 && o < count; ++o) {
      std::memcpy(to + done + o * 4, rows + o * row_bytes + units * 4, rest);
    }
  }
}

}  // namespace mneme::MNEME_ISA
