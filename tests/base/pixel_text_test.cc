// Letters in pictures: each has a form of its own, and all stay inside.
#include "base/pixel_text.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

namespace mneme {
namespace {

constexpr Pixel kPaper = {255, 255, 255}, kLetters = {10, 20, 30};

// A line for each row of pixels: # where there is ink.
std::string Drawn(Image image) {
  std::string rows;
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      rows += image.At(x, y).red == kLetters.red ? '#' : '.';
    }
    rows += '\n';
  }
  return rows;
}
std::string Drawn(absl::string_view text, int x = 0, int y = 0) {
  Image image(TextWidth(text), kTextHeight, kPaper);
  DrawText(image, x, y, text, kLetters);
  return Drawn(std::move(image));
}

TEST(PixelTextTest, ATextIsItsLettersSideBySide) {
  EXPECT_EQ(Drawn("T1"),
            "#####...#..\n"
            "..#....##..\n"
            "..#.....#..\n"
            "..#.....#..\n"
            "..#.....#..\n"
            "..#.....#..\n"
            "..#....###.\n");
  EXPECT_EQ(TextWidth("T1"), 11);
  EXPECT_EQ(TextWidth(""), 0);
  EXPECT_EQ(Drawn("link"), Drawn("LINK"));
}

TEST(PixelTextTest, EverySignHasAFormOfItsOwn) {
  std::map<std::string, char> forms;
  for (const char sign : std::string("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.,:()% ")) {
    const auto [at, is_new] = forms.emplace(Drawn(std::string(1, sign)), sign);
    EXPECT_TRUE(is_new) << sign << " looks like " << at->second;
  }
  EXPECT_EQ(forms[Drawn("~")], ' ') << "there is none of that";
}

TEST(PixelTextTest, WhatIsOutsideIsLeftOut) {
  EXPECT_EQ(Drawn("H", 2, 5), ".....\n.....\n.....\n.....\n.....\n..#..\n..#..\n");
  EXPECT_EQ(Drawn("H", -3, -6), ".#...\n.....\n.....\n.....\n.....\n.....\n.....\n");
  EXPECT_EQ(Drawn("H", 400, -900), Drawn(" "));
}

}  // namespace
}  // namespace mneme
