#include "engine/sessions/conversation_digest.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tokenizers/byte_tokenizer.h"

namespace mneme {
namespace {

constexpr int32_t kBos = 256;

ConversationDigest DigestOf(const Tokenizer* tokenizer, const std::vector<int32_t>& tokens) {
  ConversationDigest digest;
  for (const int32_t token : tokens) digest.Add(tokenizer, token);
  return digest;
}

TEST(ConversationDigestTest, RecognisesABeginning) {
  const auto tokenizer = *MakeByteTokenizer(259, kBos, 257);
  const std::vector<int32_t> history = {kBos, 'a', 'b', 'c'};
  for (const size_t tokens : {0, 1, 3, 4}) {
    const ConversationDigest session =
        DigestOf(tokenizer.get(), {history.begin(), history.begin() + tokens});
    const HistoryMatch match = MatchHistory(tokenizer.get(), history, session);
    EXPECT_TRUE(match.matches);
    EXPECT_FALSE(match.cuts_token);
    EXPECT_EQ(match.tokens, static_cast<int64_t>(tokens));
  }
}

TEST(ConversationDigestTest, RefusesWhatDiffersInOneTokenOrIsLonger) {
  const auto tokenizer = *MakeByteTokenizer(259, kBos, 257);
  const std::vector<int32_t> history = {kBos, 'a', 'b', 'c'};
  for (const std::vector<int32_t>& fed : std::vector<std::vector<int32_t>>{
           {'a'}, {kBos, 'b'}, {kBos, 'b', 'a'}, {257, 'a'}, {kBos, 'a', 'b', 'c', 'd'}}) {
    EXPECT_FALSE(MatchHistory(tokenizer.get(), history, DigestOf(tokenizer.get(), fed)).matches);
  }
}

// Without a tokenizer no token has a text, so that ids are what counts.
TEST(ConversationDigestTest, ComparesIdsWhereThereIsNoTokenizer) {
  const ConversationDigest session = DigestOf(nullptr, {1, 300});
  EXPECT_EQ(MatchHistory(nullptr, std::vector<int32_t>{1, 300, 5}, session).tokens, 2);
  EXPECT_FALSE(MatchHistory(nullptr, std::vector<int32_t>{1, 301, 5}, session).matches);
}

// A model may cut a text otherwise than its tokenizer: what counts is where both have a cut.
TEST(ConversationDigestTest, TextsAreCommonUpToTheLastCutOfBoth) {
  const auto common = [](const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
    const CommonText text = MatchTexts(nullptr, a, b);
    return std::pair(text.a, text.b);
  };
  using Pair = std::pair<int64_t, int64_t>;
  EXPECT_EQ(common({1, 2, 3}, {1, 2, 4}), Pair(2, 2));
  EXPECT_EQ(common({1, 2}, {1, 2, 4}), Pair(2, 2));
  EXPECT_EQ(common({}, {1}), Pair(0, 0));
  EXPECT_EQ(common({5}, {1}), Pair(0, 0));
  // 0xff and four bytes of an id are five tokens of bytes.
  const auto tokenizer = *MakeByteTokenizer(259, kBos, 257);
  const std::vector<int32_t> whole = {kBos, 'a', 'b'};
  const std::vector<int32_t> bytes = {0xff, 0, 1, 0, 0, 'a', 'c'};
  ASSERT_EQ(kBos, 256);
  const CommonText cut = MatchTexts(tokenizer.get(), whole, bytes);
  EXPECT_EQ(Pair(cut.a, cut.b), Pair(2, 6));
}

}  // namespace
}  // namespace mneme
