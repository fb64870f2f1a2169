// The picture of engrams: what is where, and in which colour.
#include "clients/cli/memory_picture.h"

#include <gtest/gtest.h>

#include <tuple>

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
  // Two steps from the first segment to the last one, and margins around.
  EXPECT_EQ(image.width, 2 * 24 + 24);
  const int left = 12, right = image.width - 12, top = 12, bottom = image.height - 12;
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
  const int left = 12, right = image.width - 12, top = 12, bottom = image.height - 12;
  EXPECT_GT(bottom, top);
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
  EXPECT_LE(image.height, 900);
}

TEST(MemoryPictureTest, AnEmptyMemoryIsAnEmptyPicture) {
  const Image image = DrawMemory({});
  EXPECT_GT(image.width, 0);
  EXPECT_EQ(image.pixels.size(), static_cast<size_t>(image.width * image.height));
}

}  // namespace
}  // namespace mneme::cli
