#include "clients/cli/memory_picture.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>

namespace mneme::cli {
namespace {

constexpr int kMargin = 12, kRadius = 3;
constexpr int kMostWidth = 1600, kMostHeight = 800, kLeastHeight = 240;
constexpr int kColumn = 24, kRow = 12;  // pixels between engrams where there is room
constexpr Pixel kWhite = {255, 255, 255}, kBlack = {0, 0, 0}, kInk = {60, 60, 70};

struct Point {
  int x = 0, y = 0;
};

Pixel ColourOf(v1::EngramKind kind) {
  switch (kind) {
    case v1::ENGRAM_KIND_WORKING:
      return {46, 160, 67};
    case v1::ENGRAM_KIND_SHORT_TERM:
      return {230, 126, 34};
    default:
      return {41, 98, 196};
  }
}

// Lays `colour` over what is there; `share` of it shows, from 0 to 1.
void Blend(Pixel& pixel, Pixel colour, double share) {
  const auto mix = [share](uint8_t below, uint8_t above) {
    return static_cast<uint8_t>(std::lround(below + share * (above - below)));
  };
  pixel = {mix(pixel.red, colour.red), mix(pixel.green, colour.green),
           mix(pixel.blue, colour.blue)};
}

void DrawLine(Image& image, Point from, Point to, double share) {
  const int steps = std::max({std::abs(to.x - from.x), std::abs(to.y - from.y), 1});
  for (int i = 0; i <= steps; ++i) {
    const double at = static_cast<double>(i) / steps;
    const auto x = static_cast<int>(std::lround(from.x + at * (to.x - from.x)));
    const auto y = static_cast<int>(std::lround(from.y + at * (to.y - from.y)));
    Blend(image.At(x, y), kInk, share);
  }
}

void DrawDisc(Image& image, Point centre, int radius, Pixel colour) {
  for (int y = -radius; y <= radius; ++y) {
    for (int x = -radius; x <= radius; ++x) {
      if (x * x + y * y <= radius * radius + 1) image.At(centre.x + x, centre.y + y) = colour;
    }
  }
}

// Engrams that are made of a segment: births are segment * that + the place in it. Of those that
// are told at least so many, which is how many there are where one of them is in the last place, or
// has as many segments before it.
int64_t EngramsOfSegment(const v1::InspectMemoryResponse& memory) {
  int64_t engrams = 1;
  for (const v1::Engram& engram : memory.engrams()) {
    engrams = std::max(engrams, engram.birth() / (engram.source().segment() + 1) + 1);
  }
  return engrams;
}

// So many steps of `wanted` pixels, or of fewer where that would be more than `most`.
int Extent(int64_t steps, int wanted, int most) {
  return static_cast<int>(std::min<int64_t>(steps * wanted, most));
}

}  // namespace

Image DrawMemory(const v1::InspectMemoryResponse& memory) {
  const int64_t in_segment = EngramsOfSegment(memory);
  int64_t first = INT64_MAX, last = 0;
  for (const v1::Engram& engram : memory.engrams()) {
    first = std::min(first, engram.source().segment());
    last = std::max(last, engram.source().segment());
  }
  const int64_t columns = std::max<int64_t>(last - first, 0), rows = in_segment - 1;
  const int width = Extent(columns, kColumn, kMostWidth);
  const int height = std::max(Extent(rows, kRow, kMostHeight), rows > 0 ? kLeastHeight : 0);
  Image image(width + 2 * kMargin, height + 2 * kMargin, kWhite);
  std::map<uint32_t, Point> place;
  for (const v1::Engram& engram : memory.engrams()) {
    const int64_t column = engram.source().segment() - first, row = engram.birth() % in_segment;
    place[engram.birth()] = {
        kMargin + static_cast<int>(columns == 0 ? 0 : column * width / columns),
        kMargin + static_cast<int>(rows == 0 ? 0 : row * height / rows)};
  }
  for (int i = memory.edges_size(); i-- > 0;) {  // the strongest last, above the others
    const v1::EngramEdge& edge = memory.edges(i);
    const auto from = place.find(edge.from()), to = place.find(edge.to());
    if (from == place.end() || to == place.end()) continue;
    const double strength = std::max(edge.weight(), edge.weight_back());
    DrawLine(image, from->second, to->second, std::clamp(strength, 0.05, 1.0));
  }
  for (const v1::Engram& engram : memory.engrams()) {
    const Point at = place[engram.birth()];
    if (engram.recalled()) DrawDisc(image, at, kRadius + 2, kBlack);
    DrawDisc(image, at, kRadius, ColourOf(engram.kind()));
  }
  return image;
}

}  // namespace mneme::cli
