#include "tools/routing_image.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"

#ifdef MNEME_HAVE_PNG
#include <png.h>
#endif

namespace mneme {
namespace {

struct Pixel {
  uint8_t red, green, blue;
};

struct Image {
  int width = 0, height = 0;
  std::vector<Pixel> pixels;
};

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
  Image image;
  image.width = static_cast<int>(tokens) * cell;
  image.height = tape.layers() * layer_height;
  image.pixels.assign(static_cast<size_t>(image.width) * image.height, Colour(0));
  for (int layer = 0; layer < tape.layers(); ++layer) {
    const int top = layer * layer_height;
    for (int64_t token = 0; tape.routed(layer) && token < tokens; ++token) {
      for (int choice = 0; choice < tape.top_k(); ++choice) {
        const int row = top + tape.memory(token, layer, choice) * cell_height;
        for (int y = row; y < row + cell_height; ++y) {
          auto* at = &image.pixels[static_cast<size_t>(y) * image.width + token * cell];
          std::fill_n(at, cell, Colour(tape.weight(token, layer, choice)));
        }
      }
    }
    auto* line = &image.pixels[static_cast<size_t>(top + layer_height - kLine) * image.width];
    std::fill_n(line, image.width * kLine, kLineColour);
  }
  return image;
}

}  // namespace

#ifdef MNEME_HAVE_PNG

absl::Status WriteRoutingImage(const RoutingTape& tape, const std::string& path) {
  const Image image = Draw(tape);
  png_image header = {};
  header.version = PNG_IMAGE_VERSION;
  header.width = static_cast<png_uint_32>(image.width);
  header.height = static_cast<png_uint_32>(image.height);
  header.format = PNG_FORMAT_RGB;
  if (png_image_write_to_file(&header, path.c_str(), /*convert_to_8_bit=*/0, image.pixels.data(),
                              /*row_stride=*/0, /*colormap=*/nullptr) == 0) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", header.message));
  }
  return absl::OkStatus();
}

#else

absl::Status WriteRoutingImage(const RoutingTape& tape, const std::string& path) {
  const Image image = Draw(tape);
  return absl::UnimplementedError(absl::StrCat("cannot write ", path, " of ", image.width, " x ",
                                               image.height, " pixels: built without libpng"));
}

#endif

}  // namespace mneme
