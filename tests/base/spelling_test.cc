#include "base/spelling.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace mneme {
namespace {

TEST(SpellingTest, TheNearestWordIsNearOrNoneIs) {
  const std::vector<std::string> words = {"--grpc-port", "--model", "max_rows", "max_sessions"};
  EXPECT_EQ(NearestSpelling("--modle", words), "--model");
  EXPECT_EQ(NearestSpelling("--port", words), "--grpc-port");
  EXPECT_EQ(NearestSpelling("max_row", words), "max_rows");
  EXPECT_EQ(NearestSpelling("sessions", words), "max_sessions");
  EXPECT_EQ(NearestSpelling("rows", words), "max_rows");
  EXPECT_EQ(NearestSpelling("ows", words), "") << "part of a word";
  EXPECT_EQ(NearestSpelling("temperature", words), "");
}

TEST(SpellingTest, AlternativesReadAsASentenceDoes) {
  EXPECT_EQ(Alternatives({}), "");
  EXPECT_EQ(Alternatives(std::vector<std::string>{"auto"}), "auto");
  EXPECT_EQ(Alternatives(std::vector<std::string>{"text", "json"}), "text or json");
  EXPECT_EQ(Alternatives(std::vector<std::string>{"auto", "cpu", "cuda"}), "auto, cpu or cuda");
}

}  // namespace
}  // namespace mneme
