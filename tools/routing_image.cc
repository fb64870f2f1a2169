#include "tools/routing_image.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/png_image.h"

namespace mneme {
namespace {

// Dark blue over orange to white: brightness rises all the way, so that it also works in grey.
Pixel Colour(float weight) {
  const float w = std::clamp(weight, 0.0f, 1.0f);
  const auto channel = [](float x) {
    return static_cast<uint8_t>(std::lround(255 * std::clamp(x, 0.0f, 1.0f)));
  };
  return {channel(2.0f * w), channel(1.8f * w - 0.5f),
          channel(w < 0.5f ? 0.35f * (1 - w) : 3 * w - 2)};
}

Image Draw(const RoutingTape& tape) {
  constexpr int kLine = 1;  // pixels between layers
  constexpr Pixel kLineColour = {128, 128, 128};
  const int64_t tokens = tape.tokens();
  // Wide pictures of few tokens, at most some thousand pixels for many.
  const int cell =
      static_cast<int>(std::clamp<int64_t>(1200 / std::max<int64_t>(tokens, 1), 1, 12));
  const int cell_height = std::max(cell, 4);
  const int layer_height = tape.memories() * cell_height + kLine;
  Image image(static_cast<int>(tokens) * cell, tape.layers() * layer_height, Colour(0));
  for (int layer = 0; layer < tape.layers(); ++layer) {
    const int top = layer * layer_height;
    for (int64_t token = 0; tape.routed(layer) && token < tokens; ++token) {
      for (int choice = 0; choice < tape.top_k(); ++choice) {
        const int row = top + tape.memory(token, layer, choice) * cell_height;
        for (int y = row; y < row + cell_height; ++y) {
          std::fill_n(&image.At(static_cast<int>(token) * cell, y), cell,
                      Colour(tape.weight(token, layer, choice)));
        }
      }
    }
    std::fill_n(&image.At(0, top + layer_height - kLine), image.width * kLine, kLineColour);
  }
  return image;
}

}  // namespace

absl::Status WriteRoutingImage(const RoutingTape& tape, const std::string& path) {
  return WritePng(Draw(tape), path);
}

}  // namespace mneme
