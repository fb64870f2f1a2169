#include "engine/stop_condition.h"

#include <random>
#include <string>
#include <vector>

#include "engine/status_payload.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

// Feeds pieces as tokens 100, 101, ... and collects what is shown.
struct ShownText {
  std::string shown;
  std::vector<std::string> shown_after;  // each piece
  StopCondition::Outcome outcome;
  int pieces = 0;
};

ShownText Feed(const StopParams& params, const std::vector<std::string>& pieces) {
  const StopRules rules(params, {});
  StopCondition stop(rules);
  ShownText run;
  for (const std::string& piece : pieces) {
    run.outcome = stop.OnToken(100 + run.pieces++, piece, run.shown);
    run.shown_after.push_back(run.shown);
    if (run.outcome.finish != FinishReason::kNone) break;
  }
  return run;
}

StopParams Strings(std::vector<std::string> strings, int max_tokens = 100) {
  StopParams params;
  params.max_tokens = max_tokens;
  params.stop_strings = std::move(strings);
  return params;
}

TEST(StopConditionTest, AStopStringInsideATokenIsCutExactly) {
  const ShownText run = Feed(Strings({"END"}), {"abc", "dENDef"});
  EXPECT_EQ(run.shown, "abcd");
  EXPECT_EQ(run.outcome.finish, FinishReason::kStop);
  EXPECT_EQ(run.outcome.matched, "END");
}

TEST(StopConditionTest, AStopStringAcrossTokensIsNeverShown) {
  const ShownText run = Feed(Strings({"END"}), {"abE", "N", "Dx"});
  EXPECT_EQ(run.shown_after[0], "ab");
  EXPECT_EQ(run.shown_after[1], "ab");
  EXPECT_EQ(run.shown, "ab");
  EXPECT_EQ(run.pieces, 3);
}

TEST(StopConditionTest, WhatTurnsOutToBeTextIsShownLater) {
  const ShownText run = Feed(Strings({"END"}), {"EN", "EN", "D!"});
  EXPECT_EQ(run.shown_after[0], "");
  EXPECT_EQ(run.shown_after[1], "EN");
  EXPECT_EQ(run.shown, "EN");
  EXPECT_EQ(run.outcome.finish, FinishReason::kStop);
}

TEST(StopConditionTest, ARepeatedPrefixIsNotMissed) {
  EXPECT_EQ(Feed(Strings({"aab"}), {"a", "a", "a", "b"}).shown, "a");
  EXPECT_EQ(Feed(Strings({"abac"}), {"ab", "abac"}).shown, "ab");
}

TEST(StopConditionTest, TheStringThatIsCompleteFirstWins) {
  const ShownText run = Feed(Strings({"abcdef", "cd"}), {"abcdef"});
  EXPECT_EQ(run.shown, "ab");
  EXPECT_EQ(run.outcome.matched, "cd");
}

TEST(StopConditionTest, OfStringsThatEndTogetherTheLongestWins) {
  const ShownText run = Feed(Strings({"d", "bcd"}), {"abcd"});
  EXPECT_EQ(run.shown, "a");
  EXPECT_EQ(run.outcome.matched, "bcd");
}

TEST(StopConditionTest, AMatchedStringIsKeptIfAskedFor) {
  StopParams params = Strings({"END"});
  params.include_stop_in_output = true;
  const ShownText run = Feed(params, {"abEN", "Dxy"});
  EXPECT_EQ(run.shown, "abEND");
}

TEST(StopConditionTest, StopStringsOfSeveralBytesPerCharacterAreCutBetweenCharacters) {
  const ShownText run = Feed(Strings({"é!"}), {"aè", "é", "é", "!"});
  EXPECT_EQ(run.shown_after[0], "aè");
  EXPECT_EQ(run.shown_after[1], "aè");
  EXPECT_EQ(run.shown, "aèé");
}

TEST(StopConditionTest, StringsBeforeMinTokensAreText) {
  StopParams params = Strings({"ab"});
  params.min_tokens = 3;
  const ShownText run = Feed(params, {"ab", "ab", "cab"});
  EXPECT_EQ(run.shown, "ababc");
  EXPECT_EQ(run.pieces, 3);
  EXPECT_EQ(run.outcome.matched, "ab");
}

TEST(StopConditionTest, AStringThatBeganBeforeMinTokensStillMatches) {
  StopParams params = Strings({"abc"});
  params.min_tokens = 3;
  EXPECT_EQ(Feed(params, {"xa", "b", "c"}).shown, "x");
}

TEST(StopConditionTest, LengthShowsWhatWasHeldBack) {
  const ShownText run = Feed(Strings({"END"}, /*max_tokens=*/2), {"a", "EN"});
  EXPECT_EQ(run.shown, "aEN");
  EXPECT_EQ(run.outcome.finish, FinishReason::kLength);
}

TEST(StopConditionTest, StopTokensEndAndSayTheirId) {
  StopParams params;
  params.max_tokens = 10;
  params.stop_token_ids = {7};
  const std::vector<int32_t> end_tokens = {2};
  const StopRules rules(params, end_tokens);
  for (const int32_t token : {2, 7}) {
    StopCondition stop(rules);
    std::string shown;
    EXPECT_EQ(stop.OnToken(5, "x", shown).finish, FinishReason::kNone);
    const StopCondition::Outcome outcome = stop.OnToken(token, "", shown);
    EXPECT_EQ(outcome.finish, FinishReason::kStop);
    EXPECT_EQ(outcome.matched, std::to_string(token));
    EXPECT_EQ(shown, "x");
  }
}

TEST(StopConditionTest, IgnoredEndTokensDoNotEnd) {
  StopParams params;
  params.max_tokens = 10;
  params.ignore_eos = true;
  const std::vector<int32_t> end_tokens = {2};
  const StopRules rules(params, end_tokens);
  EXPECT_FALSE(rules.IsStopToken(2));
}

TEST(StopConditionTest, AStopTokenOnTheLastTokenIsAStop) {
  StopParams params;
  params.max_tokens = 1;
  params.stop_token_ids = {7};
  const StopRules rules(params, {});
  StopCondition stop(rules);
  std::string shown;
  EXPECT_EQ(stop.OnToken(7, "", shown).finish, FinishReason::kStop);
}

TEST(StopConditionTest, WhoGoesOnIsKnownBeforeTheTextUnlessThereAreStopStrings) {
  StopParams params;
  params.max_tokens = 3;
  params.stop_token_ids = {5};
  const std::vector<int32_t> end_tokens = {2};
  const StopRules rules(params, end_tokens);
  std::string shown;
  for (const int32_t last : {1, 2, 5}) {
    StopCondition stop(rules);
    for (const int32_t token : {7, last}) {
      const bool goes_on = stop.GoesOnAfter(token);
      EXPECT_EQ(goes_on, token != 2 && token != 5);
      EXPECT_EQ(stop.OnToken(token, "x", shown).finish == FinishReason::kNone, goes_on);
    }
    EXPECT_FALSE(stop.GoesOnAfter(7)) << "it is the last one";
  }
  const StopRules with_strings(Strings({"END"}), {});
  EXPECT_FALSE(StopCondition(with_strings).GoesOnAfter(7)) << "its text may be the end";
}

// Random texts over two letters, cut into random pieces, against a plain search.
TEST(StopConditionTest, AgreesWithAPlainSearchHoweverTheTextIsCut) {
  std::mt19937 random(/*seed=*/3);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const auto word = [&](int low, int high) {
    std::string text(pick(low, high), 'a');
    for (char& c : text) c = static_cast<char>('a' + pick(0, 1));
    return text;
  };
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::string> strings(pick(1, 3));
    for (std::string& s : strings) s = word(1, 5);
    const std::string text = word(0, 20);
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t size = pick(1, 4);
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    // The shortest prefix of the text that ends with a stop string; the longest such string.
    std::string want = text, matched;
    for (size_t end = 1; end <= text.size() && matched.empty(); ++end) {
      for (const std::string& s : strings) {
        if (s.size() > end || text.compare(end - s.size(), s.size(), s) != 0) continue;
        if (s.size() > matched.size()) matched = s;
      }
      if (!matched.empty()) want = text.substr(0, end - matched.size());
    }
    const StopRules rules(Strings(strings), {});
    StopCondition stop(rules);
    std::string shown;
    StopCondition::Outcome outcome;
    for (size_t i = 0; i < pieces.size() && outcome.finish == FinishReason::kNone; ++i) {
      outcome = stop.OnToken(1, pieces[i], shown);
      ASSERT_EQ(want.compare(0, shown.size(), shown), 0) << "shown and taken back: " << shown;
    }
    if (outcome.finish == FinishReason::kNone) stop.Flush(shown);
    ASSERT_EQ(shown, want) << "round " << round << ", text " << text;
    ASSERT_EQ(outcome.matched, matched);
  }
}

TEST(StopConditionTest, BadFieldsAreNamed) {
  const auto field = [](const StopParams& params, bool has_tokenizer = true) {
    return FieldOf(ValidateStop(params, /*vocab=*/50, has_tokenizer)).value_or("ok");
  };
  EXPECT_EQ(field({}), "ok");
  EXPECT_EQ(field({.max_tokens = -1}), "stopping.max_tokens");
  EXPECT_EQ(field({.max_tokens = 3, .min_tokens = 4}), "stopping.min_tokens");
  EXPECT_EQ(field({.stop_token_ids = {50}}), "stopping.stop_token_ids");
  EXPECT_EQ(field({.stop_token_ids = std::vector<int32_t>(65, 1)}), "stopping.stop_token_ids");
  EXPECT_EQ(field({.stop_strings = {""}}), "stopping.stop_strings");
  EXPECT_EQ(field({.stop_strings = {std::string(257, 'x')}}), "stopping.stop_strings");
  EXPECT_EQ(field({.stop_strings = {"\xff"}}), "stopping.stop_strings");
  EXPECT_EQ(field({.stop_strings = std::vector<std::string>(17, "x")}), "stopping.stop_strings");
  EXPECT_EQ(field({.stop_strings = {"x"}}, /*has_tokenizer=*/false), "stopping.stop_strings");
}

}  // namespace
}  // namespace mneme
