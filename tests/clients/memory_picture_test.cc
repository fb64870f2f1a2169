// The picture of engrams: what is where, and in which colour.
#include "clients/cli/memory_picture.h"

#include <gtest/gtest.h>

#include <tuple>

#include "absl/strings/string_view.h"
#include "base/pixel_text.h"

namespace mneme::cli {
namespace {

using Colour = std::tuple<int, int, int>;

Colour At(Image& image, int x, int y) {
  const Pixel pixel = image.At(x, y);
  return {pixel.red, pixel.green, pixel.blue};
}

void Add(v1::InspectMemoryResponse& memory, uint32_t birth, int64_t segment, v1::EngramKind kind,
         bool recalled = false) {
  v1::Engram& engram = *memory.add_engrams();
  engram.set_birth(birth);
  engram.set_kind(kind);
  engram.set_recalled(recalled);
  engram.mutable_source()->set_segment(segment);
}

void Link(v1::InspectMemoryResponse& memory, uint32_t from, uint32_t to, double weight) {
  v1::EngramEdge& edge = *memory.add_edges();
  edge.set_from(from);
  edge.set_to(to);
  edge.set_weight_back(weight);
}

TEST(MemoryPictureTest, EngramsLieWhereTheyWereBorn) {
  v1::InspectMemoryResponse memory;
  Add(memory, 20, 10, v1::ENGRAM_KIND_LONG_TERM, /*recalled=*/true);
  Add(memory, 23, 11, v1::ENGRAM_KIND_SHORT_TERM);
  Add(memory, 24, 12, v1::ENGRAM_KIND_WORKING);
  Link(memory, 20, 24, 1);
  Link(memory, 20, 77, 1);  // which is not told of
  Image image = DrawMemory(memory);
  // Two steps from the first segment to the last one.
  const int left = kPlotLeft, right = left + 2 * 24, top = kPlotTop, bottom = top + 240;
  EXPECT_EQ(At(image, left, top), Colour(41, 98, 196));
  EXPECT_EQ(At(image, left + 5, top), Colour(0, 0, 0)) << "its ring";
  EXPECT_EQ(At(image, left + 24, bottom), Colour(230, 126, 34));
  EXPECT_EQ(At(image, left + 24 + 5, bottom), Colour(255, 255, 255)) << "no ring";
  EXPECT_EQ(At(image, right, top), Colour(46, 160, 67));
  EXPECT_EQ(At(image, left + 24, top), Colour(60, 60, 70)) << "the edge";
  EXPECT_EQ(At(image, left + 24, top + 20), Colour(255, 255, 255));
}

// All engrams of the newest segment were forgotten: there are no working engrams, and places stay.
TEST(MemoryPictureTest, PlacesDoNotDependOnWhoIsLeft) {
  v1::InspectMemoryResponse memory;
  memory.mutable_summary()->set_working(0);
  Add(memory, 20, 10, v1::ENGRAM_KIND_LONG_TERM);
  Add(memory, 23, 11, v1::ENGRAM_KIND_SHORT_TERM);
  Image image = DrawMemory(memory);
  const int left = kPlotLeft, right = left + 24, top = kPlotTop, bottom = top + 240;
  EXPECT_EQ(At(image, left, top), Colour(41, 98, 196));
  EXPECT_EQ(At(image, right, bottom), Colour(230, 126, 34));
}

TEST(MemoryPictureTest, ManySegmentsFitIntoAPicture) {
  v1::InspectMemoryResponse memory;
  for (int i = 0; i < 1000; ++i) {
    Add(memory, 50 * 1000000u + static_cast<uint32_t>(4321 * i), 1000000 + 4321 * i / 50,
        v1::ENGRAM_KIND_LONG_TERM);
    Link(memory, 50 * 1000000u, 50 * 1000000u + static_cast<uint32_t>(4321 * i), 1);
  }
  const Image image = DrawMemory(memory);
  EXPECT_LE(image.width, 1700);
  EXPECT_LE(image.height, 950);
}

Image Text(absl::string_view text) {
  Image image(TextWidth(text), kTextHeight, {255, 255, 255});
  DrawText(image, 0, 0, text, {60, 60, 70});
  return image;
}

// Whether `part` is what the image has there.
bool IsAt(Image& image, int x, int y, Image& part) {
  for (int row = 0; row < part.height; ++row) {
    for (int column = 0; column < part.width; ++column) {
      if (At(image, x + column, y + row) != At(part, column, row)) return false;
    }
  }
  return true;
}

bool Shows(Image& image, absl::string_view text) {
  Image part = Text(text);
  for (int y = 0; y + part.height <= image.height; ++y) {
    for (int x = 0; x + part.width <= image.width; ++x) {
      if (IsAt(image, x, y, part)) return true;
    }
  }
  return false;
}

TEST(MemoryPictureTest, ItSaysWhatItShows) {
  v1::InspectMemoryResponse memory;
  for (uint32_t segment = 3; segment <= 40; ++segment) {
    Add(memory, 8 * segment + segment % 8, segment, v1::ENGRAM_KIND_LONG_TERM);
  }
  Link(memory, 27, 36, 1);
  Image image = DrawMemory(memory);
  for (const char* text :
       {"across: segment of the conversation", "down: place among the engrams of a segment",
        "lines: recalled together", "working", "short-term", "long-term", "ring: recalled now",
        "engrams: 38, links: 1"}) {
    EXPECT_TRUE(Shows(image, text)) << text;
  }
  // Numbers stand below their segments, and beside their places.
  const auto below = [&](int segment, const char* text) {
    Image part = Text(text);
    const int x = kPlotLeft + 24 * (segment - 3) - part.width / 2;
    for (int y = kPlotTop + 240; y < image.height - kTextHeight; ++y) {
      if (IsAt(image, x, y, part)) return true;
    }
    return false;
  };
  EXPECT_TRUE(below(4, "4"));
  EXPECT_TRUE(below(40, "40"));
  EXPECT_FALSE(below(4, "5"));
  const auto beside = [&](int place, const char* text) {
    Image part = Text(text);
    for (int x = 0; x < kPlotLeft; ++x) {
      if (IsAt(image, x, kPlotTop + place * 240 / 7 - kTextHeight / 2, part)) return true;
    }
    return false;
  };
  EXPECT_TRUE(beside(0, "0"));
  EXPECT_TRUE(beside(7, "7"));
}

TEST(MemoryPictureTest, AnEmptyMemoryIsAnEmptyPicture) {
  const Image image = DrawMemory({});
  EXPECT_GT(image.width, 0);
  EXPECT_EQ(image.pixels.size(), static_cast<size_t>(image.width * image.height));
}

}  // namespace
}  // namespace mneme::cli
