// The tokens that penalties look back on, of which some are forgotten.
#include "engine/sessions/token_history.h"

#include <cstdint>
#include <map>
#include <vector>

#include "gtest/gtest.h"

namespace mneme {
namespace {

std::map<int32_t, int32_t> Generated(TokenHistory& history) {
  std::vector<HistoryToken> tokens;
  history.AppendDistinct(tokens);
  std::map<int32_t, int32_t> counts;
  for (const HistoryToken& one : tokens) counts[one.token] = one.generated_count;
  return counts;
}

TEST(TokenHistoryTest, ForgottenTokensKeepTheirPlacesAndCountNowhere) {
  TokenHistory history(4);
  for (const int32_t token : {1, 2, 3, 2, 5}) history.Push(token, /*generated=*/token == 2);
  EXPECT_EQ(Generated(history), (std::map<int32_t, int32_t>{{2, 2}, {3, 0}, {5, 0}}));
  history.Forget(-9, -3);  // of which it has one
  constexpr int32_t kGone = TokenHistory::kForgotten;
  EXPECT_EQ(history.Marks(), (std::vector<int32_t>{kGone, 3, ~2, 5}));
  EXPECT_EQ(Generated(history), (std::map<int32_t, int32_t>{{2, 1}, {3, 0}, {5, 0}}));
  TokenHistory again(4);
  again.Restore(history.Marks());
  EXPECT_EQ(again.Marks(), history.Marks());
  history.Push(7, false);
  history.Push(8, false);
  EXPECT_EQ(Generated(history), (std::map<int32_t, int32_t>{{2, 1}, {5, 0}, {7, 0}, {8, 0}}));
  history.Forget(0, 3);  // what is not there yet
  EXPECT_EQ(history.size(), 4);
  EXPECT_EQ(Generated(history).size(), 4u);
}

}  // namespace
}  // namespace mneme
