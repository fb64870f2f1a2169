// Texts of answers, from the engine's loop.
#include <string>
#include <vector>

#include "engine/engine_loop.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;

HarnessOptions WithText() {
  HarnessOptions options;
  options.byte_tokenizer = true;
  options.end_tokens = {257};
  return options;
}

TEST(EngineLoopTextTest, TextIsWhatTheTokensDecodeTo) {
  LoopHarness h(WithText());
  Request request = Greedy({72, 105}, 200);
  request.sampling.temperature = 1;
  request.stop.ignore_eos = true;
  request.logprobs = 0;
  const Answer answer = h.Generate(request);
  EXPECT_EQ(answer.text[0], h.tokenizer->Decode(answer.tokens[0]).value());
  ASSERT_EQ(answer.logprobs[0].size(), 200);
}

TEST(EngineLoopTextTest, EchoAndAnswerJoinCharacters) {
  LoopHarness h(WithText());
  Request request = Greedy({72, 0xC3}, 3);  // "H" and half of an umlaut
  request.echo = true;
  request.sampling.logit_bias = {{0xA9, 100.0f}};
  const Answer answer = h.Generate(request);
  EXPECT_EQ(answer.prompt_text + answer.text[0].substr(0, 2), "H\xC3\xA9");
  std::vector<int32_t> all = {72, 0xC3};
  all.insert(all.end(), answer.tokens[0].begin(), answer.tokens[0].end());
  EXPECT_EQ(answer.prompt_text + answer.text[0], h.tokenizer->Decode(all).value());
}

TEST(EngineLoopTextTest, AStopStringIsTrimmedAndWhatWasFedIsReported) {
  LoopHarness h(WithText());
  Request plain = Greedy({1}, 40, "plain");
  plain.sampling.logit_bias = {{'a', 12.0f}, {'b', 12.0f}, {'c', 12.0f}};
  const Answer whole = h.Generate(plain);
  const std::string text = whole.text[0];
  const std::string stop = text.substr(10, 4);
  const size_t cut = text.find(stop);
  Request request = plain;
  request.session.name = "s";
  request.stop.stop_strings = {stop};
  const Answer answer = h.Generate(request);
  EXPECT_EQ(answer.text[0], text.substr(0, cut));
  EXPECT_EQ(answer.stop_matched[0], stop);
  EXPECT_EQ(answer.tokens[0].size(), cut + 4) << "one byte a token";
  EXPECT_EQ(answer.last.session_position, 1 + static_cast<int64_t>(cut) + 4);
  request.stop.include_stop_in_output = true;
  request.session.name = "t";
  EXPECT_EQ(h.Generate(request).text[0], text.substr(0, cut + 4));
}

TEST(EngineLoopTextTest, AnEndTokenIsNotText) {
  LoopHarness h(WithText());
  Request request = Greedy({65}, 5);
  request.sampling.logit_bias = {{257, 100.0f}};
  request.skip_special_tokens = false;
  const Answer answer = h.Generate(request);
  EXPECT_THAT(answer.tokens[0], ElementsAre(257));
  EXPECT_EQ(answer.text[0], "");
  EXPECT_EQ(answer.stop_matched[0], "257");
}

TEST(EngineLoopTextTest, TextThatIsHeldBackComesWithACancellation) {
  LoopHarness h(WithText());
  Request request = Greedy({1}, 1000, "s");
  request.sampling.logit_bias = {{'a', 100.0f}};
  request.stop.stop_strings = {"aaaaaaaaaaaaaaaaaaaaab"};
  auto stream = h.Submit(request).value();
  for (int i = 0; i < 10; ++i) h.Turn();
  stream->Cancel();
  const Answer answer = h.Finish(*stream);
  EXPECT_TRUE(absl::IsCancelled(answer.status()));
  EXPECT_EQ(answer.text[0], std::string(answer.tokens[0].size(), 'a'));
}

}  // namespace
}  // namespace mneme
