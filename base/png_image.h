// Pictures of pixels, as PNG files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace mneme {

struct Pixel {
  uint8_t red = 0, green = 0, blue = 0;
};

struct Image {
  Image(int image_width, int image_height, Pixel colour)
      : width(image_width),
        height(image_height),
        pixels(static_cast<size_t>(image_width) * static_cast<size_t>(image_height), colour) {}

  // Column and row, from the left upper corner; inside of the picture.
  Pixel& At(int x, int y) {
    return pixels[static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x)];
  }

  int width, height;
  std::vector<Pixel> pixels;  // row by row
};

// UNAVAILABLE where the file cannot be written, UNIMPLEMENTED in a build without libpng.
absl::Status WritePng(const Image& image, const std::string& path);

}  // namespace mneme
