#include "clients/cli/memory_picture.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/pixel_text.h"

namespace mneme::cli {
namespace {

constexpr int kRadius = 3, kRing = 2;
constexpr int kMostWidth = 1600, kMostHeight = 800, kLeastHeight = 240;
constexpr int kColumn = 24, kRow = 12;      // pixels between engrams where there is room
constexpr int kRight = 28, kGap = 6;        // beside the plot; between lines of text
constexpr int kAxis = kRadius + kRing + 4;  // from the plot to its axes
constexpr int kTick = 3;
constexpr Pixel kWhite = {255, 255, 255}, kBlack = {0, 0, 0}, kInk = {60, 60, 70};

constexpr absl::string_view kAcross = "across: segment of the conversation, the oldest on the left";
constexpr absl::string_view kDown = "down: place among the engrams of a segment";
constexpr absl::string_view kLines =
    "lines: recalled together, the darker the likelier where one of both is";

struct Point {
  int x = 0, y = 0;
};

struct LegendEntry {
  v1::EngramKind kind;
  bool ring;
  absl::string_view name;
};
constexpr LegendEntry kLegend[] = {{v1::ENGRAM_KIND_WORKING, false, "working"},
                                   {v1::ENGRAM_KIND_SHORT_TERM, false, "short-term"},
                                   {v1::ENGRAM_KIND_LONG_TERM, false, "long-term"},
                                   {v1::ENGRAM_KIND_LONG_TERM, true, "ring: recalled now"}};
constexpr int kDot = 2 * (kRadius + kRing) + kGap;  // of the legend, with its gap
constexpr int kBetween = 18;                        // its entries

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

void DrawEngram(Image& image, Point at, v1::EngramKind kind, bool recalled) {
  if (recalled) DrawDisc(image, at, kRadius + kRing, kBlack);
  DrawDisc(image, at, kRadius, ColourOf(kind));
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

// Numbers of an axis: from `first` on in `steps` steps, which take `extent` pixels.
struct Axis {
  int64_t first = 0, steps = 0;
  int extent = 0;

  int At(int64_t number) const {
    return steps == 0 ? 0 : static_cast<int>((number - first) * extent / steps);
  }
  // 1, 2, 5, 10 and so on, so that numbers are at least so many pixels apart.
  int64_t Between(int least) const {
    int64_t between = 1;
    for (int i = 0; steps > 0 && between * extent < int64_t{least} * steps; ++i) {
      between = i % 3 == 1 ? between / 2 * 5 : between * 2;
    }
    return between;
  }
};

void DrawAxes(Image& image, const Axis& across, const Axis& down) {
  const int left = kPlotLeft - kAxis, bottom = kPlotTop + down.extent + kAxis;
  DrawLine(image, {left, kPlotTop - kRadius}, {left, bottom}, 0.5);
  DrawLine(image, {left, bottom}, {kPlotLeft + across.extent + kRadius, bottom}, 0.5);
  const auto each = [](const Axis& axis, int least, auto draw) {
    const int64_t between = axis.Between(least);
    const int64_t begin = (axis.first + between - 1) / between * between;
    for (int64_t n = begin; n <= axis.first + axis.steps; n += between) draw(n);
  };
  const int widest = TextWidth(absl::StrCat(across.first + across.steps));
  each(across, widest + kBetween, [&](int64_t n) {
    const int x = kPlotLeft + across.At(n);
    DrawLine(image, {x, bottom}, {x, bottom + kTick}, 0.5);
    const std::string text = absl::StrCat(n);
    DrawText(image, x - TextWidth(text) / 2, bottom + kTick + 2, text, kInk);
  });
  each(down, kTextHeight + kGap, [&](int64_t n) {
    const int y = kPlotTop + down.At(n);
    DrawLine(image, {left - kTick, y}, {left, y}, 0.5);
    const std::string text = absl::StrCat(n);
    DrawText(image, left - kTick - 2 - TextWidth(text), y - kTextHeight / 2, text, kInk);
  });
}

int LegendWidth() {
  int width = 0;
  for (const LegendEntry& entry : kLegend) width += kDot + TextWidth(entry.name) + kBetween;
  return std::max({width - kBetween, TextWidth(kAcross), TextWidth(kDown), TextWidth(kLines)});
}

// From that height on.
void DrawLegend(Image& image, int y) {
  constexpr int kLeft = kPlotLeft - kAxis;
  for (const absl::string_view text : {kAcross, kDown, kLines}) {
    DrawText(image, kLeft, y, text, kInk);
    y += kTextHeight + kGap;
  }
  int x = kLeft;
  for (const LegendEntry& entry : kLegend) {
    DrawEngram(image, {x + kRadius + kRing, y + kTextHeight / 2}, entry.kind, entry.ring);
    DrawText(image, x + kDot, y, entry.name, kInk);
    x += kDot + TextWidth(entry.name) + kBetween;
  }
}
constexpr int kLegendHeight = 4 * (kTextHeight + kGap);

}  // namespace

Image DrawMemory(const v1::InspectMemoryResponse& memory) {
  const int64_t in_segment = EngramsOfSegment(memory);
  int64_t first = INT64_MAX, last = 0;
  for (const v1::Engram& engram : memory.engrams()) {
    first = std::min(first, engram.source().segment());
    last = std::max(last, engram.source().segment());
  }
  Axis across = {.first = std::min(first, last), .steps = std::max<int64_t>(last - first, 0)};
  Axis down = {.steps = in_segment - 1};
  across.extent = Extent(across.steps, kColumn, kMostWidth);
  down.extent = std::max(Extent(down.steps, kRow, kMostHeight), down.steps > 0 ? kLeastHeight : 0);
  constexpr int kNumbers = kTick + 2 + kTextHeight + 2 * kGap;  // below the axis
  const int legend = kPlotTop + down.extent + kAxis + kNumbers;
  Image image(kPlotLeft + std::max(across.extent, LegendWidth() - kAxis) + kRight,
              legend + kLegendHeight + kGap, kWhite);
  DrawText(image, kPlotLeft - kAxis, kGap,
           absl::StrCat("engrams: ", memory.engrams_size(), ", links: ", memory.edges_size()),
           kInk);
  DrawAxes(image, across, down);
  DrawLegend(image, legend);
  std::map<uint32_t, Point> place;
  for (const v1::Engram& engram : memory.engrams()) {
    place[engram.birth()] = {kPlotLeft + across.At(engram.source().segment()),
                             kPlotTop + down.At(engram.birth() % in_segment)};
  }
  for (int i = memory.edges_size(); i-- > 0;) {  // the strongest last, above the others
    const v1::EngramEdge& edge = memory.edges(i);
    const auto from = place.find(edge.from()), to = place.find(edge.to());
    if (from == place.end() || to == place.end()) continue;
    const double strength = std::max(edge.weight(), edge.weight_back());
    DrawLine(image, from->second, to->second, std::clamp(strength, 0.05, 1.0));
  }
  for (const v1::Engram& engram : memory.engrams()) {
    DrawEngram(image, place[engram.birth()], engram.kind(), engram.recalled());
  }
  return image;
}

}  // namespace mneme::cli
