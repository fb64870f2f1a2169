// Small letters in pictures: capitals, digits and a few signs, five pixels wide and seven high.
#pragma once

#include "absl/strings/string_view.h"
#include "base/png_image.h"

namespace mneme {

inline constexpr int kTextHeight = 7;
int TextWidth(absl::string_view text);

// Draws from the left upper corner on; what would lie outside of the picture is left out. Small
// letters become capitals, and signs that there are none of here are blank.
void DrawText(Image& image, int x, int y, absl::string_view text, Pixel colour);

}  // namespace mneme
