#include "base/png_image.h"

#include "absl/strings/str_cat.h"

#ifdef MNEME_HAVE_PNG
#include <png.h>
#endif

namespace mneme {

#ifdef MNEME_HAVE_PNG

absl::Status WritePng(const Image& image, const std::string& path) {
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

absl::Status WritePng(const Image& image, const std::string& path) {
  return absl::UnimplementedError(absl::StrCat("cannot write ", path, " of ", image.width, " x ",
                                               image.height, " pixels: built without libpng"));
}

#endif

}  // namespace mneme
