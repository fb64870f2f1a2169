// Prompts that begin alike: what is shared, with whom, and that nobody can tell but by the time it
// takes.
#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_loop.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

HarnessOptions PrefixOptions(int prefix_states = 64, int slots = 8) {
  HarnessOptions options;
  options.slots = slots;
  options.vocab = 1000;
  options.prefix_states = prefix_states;
  options.engine.max_rows = 8;
  options.engine.max_tokens_per_step = 64;
  return options;
}

// `common` tokens that all such prompts have, then `own` ones of number `which`.
std::vector<int32_t> Prompt(int common, int own, int which = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(common + own));
  std::iota(tokens.begin(), tokens.begin() + common, 0);
  for (int i = 0; i < own; ++i) tokens[common + i] = 500 + (which * 37 + i) % 500;
  return tokens;
}

Answer Alone(Request request) {
  HarnessOptions options = PrefixOptions(/*prefix_states=*/0);
  return LoopHarness(options).Generate(std::move(request));
}

int64_t Cached(const Answer& answer) {
  EXPECT_EQ(answer.status(), absl::OkStatus());
  EXPECT_EQ(answer.start->usage.cached_tokens, answer.last.usage.cached_tokens);
  return answer.last.usage.cached_tokens;
}

TEST(EngineLoopPrefixTest, AThirdPromptBeginsWhereTheSecondParted) {
  LoopHarness h(PrefixOptions());
  std::vector<int64_t> cached;
  for (int i = 0; i < 3; ++i) {
    const Request request = Greedy(Prompt(200, 20, i), 5);
    const Answer answer = h.Generate(request);
    EXPECT_EQ(answer.tokens, Alone(request).tokens);
    cached.push_back(Cached(answer));
    EXPECT_EQ(answer.last.usage.prompt_tokens, 220 - cached.back());
    EXPECT_EQ(answer.last.usage.fed_tokens, 220 - cached.back() + 4);
  }
  EXPECT_EQ(cached, (std::vector<int64_t>{0, 128, 200})) << "nothing, a power of two, all";
  EXPECT_EQ(h.stats.prefix.hits.value(), 2);
  EXPECT_EQ(h.stats.prefix.misses.value(), 1);
  EXPECT_EQ(h.stats.prefix.queried_tokens.value(), 3 * 220);
  EXPECT_EQ(h.stats.prefix.hit_tokens.value(), 328);
  EXPECT_EQ(h.stats.prompt_tokens.value(), 3 * 220 - 328);
}

TEST(EngineLoopPrefixTest, APromptThatComesAgainIsFedItsLastToken) {
  LoopHarness h(PrefixOptions());
  const Request request = Greedy(Prompt(100, 0), 5);
  EXPECT_EQ(Cached(h.Generate(request)), 0);
  EXPECT_EQ(Cached(h.Generate(request)), 64);
  const Answer third = h.Generate(request);
  EXPECT_EQ(Cached(third), 99);
  EXPECT_EQ(third.tokens, Alone(request).tokens);
}

TEST(EngineLoopPrefixTest, PromptsThatComeAtOnceAreFedTheirCommonTokensOnce) {
  constexpr int kPrompts = 8;
  LoopHarness h(PrefixOptions());
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < kPrompts; ++i) {
    streams.push_back(h.Submit(Greedy(Prompt(300, 10, i), 2)).value());
  }
  int64_t fed = 0;
  for (int i = 0; i < kPrompts; ++i) {
    const Answer answer = h.Finish(*streams[i]);
    EXPECT_EQ(answer.tokens, Alone(Greedy(Prompt(300, 10, i), 2)).tokens) << i;
    EXPECT_EQ(Cached(answer), i == 0 ? 0 : 300);
    fed += answer.last.usage.fed_tokens;
  }
  EXPECT_EQ(fed, 300 + kPrompts * 11);
  EXPECT_EQ(h.stats.prefix.waits.value(), kPrompts - 1);
}

TEST(EngineLoopPrefixTest, WhereTheFirstOneEndsAnotherGoesOnForThoseThatWait) {
  LoopHarness h(PrefixOptions());
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(h.Submit(Greedy(Prompt(600, 10, i), 2)).value());
  for (int turn = 0; turn < 4; ++turn) h.Turn();
  EXPECT_EQ(h.stats.requests_running.value(), 4);
  streams[0]->Cancel();
  h.Turn();
  streams[1]->Cancel();  // that one goes on now
  int64_t fed = 0;
  for (int i = 2; i < 4; ++i) {
    const Answer answer = h.Finish(*streams[i]);
    EXPECT_EQ(answer.tokens, Alone(Greedy(Prompt(600, 10, i), 2)).tokens) << i;
    fed += answer.last.usage.fed_tokens;
  }
  EXPECT_LT(fed, 700) << "of 1,220, as one waited for the other";
  Answer first;
  LoopHarness::Read(*streams[0], first);
  EXPECT_EQ(first.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(h.loop->CheckIntegrity(), absl::OkStatus());
}

TEST(EngineLoopPrefixTest, NobodyWaitsForARequestWhoseReaderIsSlow) {
  HarnessOptions options = PrefixOptions();
  options.engine.stream_capacity_events = 1;
  LoopHarness h(options);
  auto slow = h.Submit(Greedy(Prompt(600, 10, 0), 2)).value();  // does not read even its start
  auto other = h.Submit(Greedy(Prompt(600, 10, 1), 2)).value();
  const Answer answer = h.Finish(*other);
  EXPECT_EQ(answer.tokens, Alone(Greedy(Prompt(600, 10, 1), 2)).tokens);
  EXPECT_EQ(h.Finish(*slow).status(), absl::OkStatus());
}

TEST(EngineLoopPrefixTest, AWaitingRequestThatIsCancelledHasItsStartAndFedNothing) {
  LoopHarness h(PrefixOptions());
  auto first = h.Submit(Greedy(Prompt(600, 10, 0), 2)).value();
  auto second = h.Submit(Greedy(Prompt(600, 10, 1), 2, "named")).value();
  h.Turn();
  second->Cancel();
  const Answer cancelled = h.Finish(*second);
  EXPECT_TRUE(cancelled.start.has_value());
  EXPECT_EQ(cancelled.last.usage.fed_tokens, 0);
  EXPECT_FALSE(h.loop->commands().Get({"", "named"}).ok()) << "it never came to be";
  EXPECT_EQ(h.Finish(*first).status(), absl::OkStatus());
}

TEST(EngineLoopPrefixTest, ASlabIsNotWrittenWhileItIsCopied) {
  HarnessOptions options = PrefixOptions();
  options.asynchronous = true;
  LoopHarness h(options);
  const Request first = Greedy(Prompt(200, 20, 0), 3), second = Greedy(Prompt(200, 20, 1), 3);
  auto a = h.Submit(first).value();
  auto neighbour = h.Submit(Greedy({7}, 200)).value();
  h.backend.HoldTransfers();
  for (int turn = 0; turn < 40; ++turn) h.Turn();
  EXPECT_EQ(h.backend.held_transfers(), 1) << "it waits behind its 64th token";
  EXPECT_GT(h.stats.generated_tokens.value(), 30) << "and its neighbour does not";
  h.backend.FinishTransfers();
  EXPECT_EQ(h.Finish(*a).tokens, Alone(first).tokens);
  h.backend.HoldTransfers();
  auto b = h.Submit(second).value();
  for (int turn = 0; turn < 10; ++turn) h.Turn();
  EXPECT_EQ(h.backend.held_transfers(), 1) << "the state is on its way to its slab";
  h.backend.FinishTransfers();
  const Answer answer = h.Finish(*b);
  EXPECT_EQ(answer.tokens, Alone(second).tokens);
  EXPECT_EQ(Cached(answer), 128);
  EXPECT_EQ(h.Finish(*neighbour).status(), absl::OkStatus());
}

TEST(EngineLoopPrefixTest, GuessesWaitForNoOtherCopy) {
  HarnessOptions options = PrefixOptions();
  options.asynchronous = true;
  LoopHarness h(options);
  auto a = h.Submit(Greedy(Prompt(200, 20, 0), 3)).value();
  h.backend.HoldTransfers();
  for (int turn = 0; turn < 40; ++turn) h.Turn();
  ASSERT_EQ(h.backend.held_transfers(), 1);
  const Request second = Greedy(Prompt(0, 300, 1), 3);
  EXPECT_EQ(h.Generate(second).tokens, Alone(second).tokens) << "it leaves none behind";
  h.backend.FinishTransfers();
  EXPECT_EQ(h.Finish(*a).status(), absl::OkStatus());
}

TEST(EngineLoopPrefixTest, ARequestMayEndWhileItsStateMoves) {
  HarnessOptions options = PrefixOptions();
  options.asynchronous = true;
  LoopHarness h(options);
  h.backend.HoldTransfers();
  auto saved = h.Submit(Greedy(Prompt(200, 20, 0), 3)).value();
  for (int turn = 0; turn < 5; ++turn) h.Turn();
  saved->Cancel();
  h.Turn();
  EXPECT_EQ(h.backend.held_transfers(), 0) << "its slab is another's from now on";
  auto loaded = h.Submit(Greedy(Prompt(200, 20, 1), 3)).value();
  for (int turn = 0; turn < 5; ++turn) h.Turn();
  EXPECT_EQ(h.backend.held_transfers(), 1);
  loaded->Cancel();
  h.Turn();
  EXPECT_EQ(h.pool->used_slots(), 0);
  h.backend.FinishTransfers();
  const Request again = Greedy(Prompt(200, 20, 2), 3);
  const Answer answer = h.Generate(again);
  EXPECT_EQ(answer.tokens, Alone(again).tokens);
  EXPECT_EQ(Cached(answer), 64);
}

TEST(EngineLoopPrefixTest, AStateIsBroughtOnceForAllThatWantIt) {
  HarnessOptions options = PrefixOptions();
  options.asynchronous = true;
  LoopHarness h(options);
  ASSERT_EQ(h.Generate(Greedy(Prompt(200, 20, 0), 3)).status(), absl::OkStatus());
  constexpr int kPrompts = 6;
  std::vector<std::shared_ptr<TokenStream>> streams;
  h.backend.HoldTransfers();
  for (int i = 1; i <= kPrompts; ++i) {
    streams.push_back(h.Submit(Greedy(Prompt(150, 20, i), 3)).value());
  }
  for (int turn = 0; turn < 10; ++turn) h.Turn();
  EXPECT_EQ(h.backend.held_transfers(), 1);
  h.backend.FinishTransfers();
  for (int i = 1; i <= kPrompts; ++i) {
    const Answer answer = h.Finish(*streams[i - 1]);
    EXPECT_EQ(answer.tokens, Alone(Greedy(Prompt(150, 20, i), 3)).tokens) << i;
    EXPECT_GE(Cached(answer), 128) << i;
  }
  EXPECT_LT(h.stats.prefix.loads.value(), kPrompts);
  EXPECT_EQ(h.stats.prefix.hits.value(), kPrompts);
}

TEST(EngineLoopPrefixTest, WhoBringsAStateMayGoAndTheOthersHaveIt) {
  HarnessOptions options = PrefixOptions();
  options.asynchronous = true;
  LoopHarness h(options);
  ASSERT_EQ(h.Generate(Greedy(Prompt(200, 20, 0), 3)).status(), absl::OkStatus());
  h.backend.HoldTransfers();
  auto bringing = h.Submit(Greedy(Prompt(150, 20, 1), 3)).value();
  const Request request = Greedy(Prompt(150, 20, 2), 3);
  auto waiting = h.Submit(request).value();
  auto leaving = h.Submit(Greedy(Prompt(150, 20, 3), 3)).value();
  for (int turn = 0; turn < 5; ++turn) h.Turn();
  ASSERT_EQ(h.backend.held_transfers(), 1);
  leaving->Cancel();
  h.Turn();
  EXPECT_EQ(h.backend.held_transfers(), 1) << "nobody waits for the one that waited";
  bringing->Cancel();
  h.Turn();
  EXPECT_EQ(h.backend.held_transfers(), 0);
  const Answer answer = h.Finish(*waiting);
  EXPECT_EQ(answer.tokens, Alone(request).tokens);
  EXPECT_GE(Cached(answer), 128);
  EXPECT_EQ(h.pool->used_slots(), 0);
}

TEST(EngineLoopPrefixTest, OwnersAndSaltsAreKeptApart) {
  LoopHarness h(PrefixOptions());
  const auto ask = [&](std::string owner, std::string salt, bool bypass = false) {
    Request request = Greedy(Prompt(100, 0), 1);
    request.session.owner = std::move(owner);
    request.prefix_cache.salt = std::move(salt);
    request.prefix_cache.bypass = bypass;
    return Cached(h.Generate(std::move(request)));
  };
  EXPECT_EQ(ask("a", ""), 0);
  EXPECT_EQ(ask("a", "", /*bypass=*/true), 0);
  EXPECT_EQ(ask("a", ""), 64);
  EXPECT_EQ(ask("b", ""), 0);
  EXPECT_EQ(ask("a", "s"), 0);
  EXPECT_EQ(ask("b", "s"), 0);
  EXPECT_EQ(ask("a", "s"), 64);
}

TEST(EngineLoopPrefixTest, OwnersShareWhereTheyAreToldTo) {
  HarnessOptions options = PrefixOptions();
  options.engine.prefix_cache_shared = true;
  LoopHarness h(options);
  for (const char* owner : {"a", "b"}) {
    Request request = Greedy(Prompt(100, 0), 1);
    request.session.owner = owner;
    EXPECT_EQ(Cached(h.Generate(std::move(request))), *owner == 'a' ? 0 : 64);
  }
}

TEST(EngineLoopPrefixTest, MessagesEndsAndMarksAreKept) {
  LoopHarness h(PrefixOptions());
  Request request = Greedy(Prompt(50, 40, 0), 1);
  request.prompt.message_ends = {10, 50};  // the first one is too little
  request.prefix_cache.marks = {5};
  EXPECT_EQ(Cached(h.Generate(std::move(request))), 0);
  EXPECT_EQ(Cached(h.Generate(Greedy(Prompt(50, 40, 1), 1))), 50);
  EXPECT_EQ(Cached(h.Generate(Greedy(Prompt(5, 40, 2), 1))), 5);
}

TEST(EngineLoopPrefixTest, NamedSessionsBeginSoAndGoOnAsEver) {
  LoopHarness h(PrefixOptions());
  h.Generate(Greedy(Prompt(100, 5, 0), 1));
  ASSERT_EQ(h.loop->commands().Create({"", "created"}, absl::ZeroDuration()).status(),
            absl::OkStatus());
  for (const char* name : {"new", "created"}) {
    const Answer first = h.Generate(Greedy(Prompt(100, 5, 1), 4, name));
    EXPECT_EQ(Cached(first), *name == 'n' ? 64 : 100);
    EXPECT_EQ(first.last.session_position, 109);
    const Answer second = h.Generate(Greedy({9}, 4, name));
    EXPECT_EQ(Cached(second), 0);
    EXPECT_EQ(second.last.usage.resumed_tokens, 108);
    LoopHarness alone(PrefixOptions(/*prefix_states=*/0));
    alone.Generate(Greedy(Prompt(100, 5, 1), 4, name));
    EXPECT_EQ(second.tokens, alone.Generate(Greedy({9}, 4, name)).tokens);
  }
}

TEST(EngineLoopPrefixTest, ChoicesAndPenaltiesSeeTheWholePrompt) {
  LoopHarness h(PrefixOptions());
  Request request = Greedy(Prompt(100, 3), 6);
  request.n = 3;
  request.sampling.temperature = 1;
  request.sampling.seed = 5;
  request.sampling.repetition_penalty = 1.7f;
  request.logprobs = 2;
  for (int i = 0; i < 3; ++i) {
    const Answer answer = h.Generate(request);
    EXPECT_EQ(Cached(answer), (std::vector<int64_t>{0, 64, 102})[i]);
    EXPECT_EQ(answer.tokens, Alone(request).tokens);
  }
}

TEST(EngineLoopPrefixTest, WhatNeedsTheWholePromptHasItFed) {
  LoopHarness h(PrefixOptions());
  h.Generate(Greedy(Prompt(100, 5, 0), 1));
  Request echo = Greedy(Prompt(100, 5, 1), 1);
  echo.echo = true;
  EXPECT_EQ(Cached(h.Generate(std::move(echo))), 0);
  Request scores = Greedy(Prompt(100, 5, 1), 1);
  scores.prompt_logprobs = 0;
  const Answer answer = h.Generate(std::move(scores));
  EXPECT_EQ(Cached(answer), 0);
  EXPECT_EQ(answer.prompt_logprobs.size(), 105);
}

TEST(EngineLoopPrefixTest, TheLeastRecentlyUsedStateGoesAndUnusedGuessesBefore) {
  LoopHarness h(PrefixOptions(/*prefix_states=*/2));
  const auto ask = [&](int32_t first, int length) {
    std::vector<int32_t> prompt = Prompt(length, 0);
    prompt[0] = first;
    return Cached(h.Generate(Greedy(prompt, 1)));
  };
  EXPECT_EQ(ask(1, 40), 0);
  EXPECT_EQ(ask(1, 40), 0) << "it comes again, and its state is kept";
  EXPECT_EQ(ask(2, 40), 0);
  EXPECT_EQ(ask(2, 40), 0);
  EXPECT_EQ(ask(1, 40), 39);
  EXPECT_EQ(ask(3, 1000), 0) << "64, 128, ... 512 tokens: each takes the place of the one before";
  EXPECT_EQ(ask(1, 40), 39) << "used last";
  EXPECT_EQ(ask(2, 40), 0) << "the room of guesses";
  EXPECT_EQ(h.prefixes->free_pages(), 0);
  EXPECT_GT(h.stats.prefix.evictions.value(), 3);
}

TEST(EngineLoopPrefixTest, TokensOfPromptsAreBounded) {
  LoopHarness h(PrefixOptions());
  for (int i = 0; i < 2000; ++i) {
    std::vector<int32_t> prompt(1000, i % 900);
    prompt[1] = i / 900;
    ASSERT_EQ(h.Generate(Greedy(prompt, 0)).status(), absl::OkStatus());
  }
  EXPECT_LE(h.stats.prefix.snapshots.value() - h.stats.prefix.evictions.value(), 64);
  EXPECT_EQ(h.loop->CheckIntegrity(), absl::OkStatus());
}

TEST(EngineLoopPrefixTest, BadMarksAndSaltsAreRefused) {
  LoopHarness h(PrefixOptions());
  const auto refuse = [&](PrefixCacheParams params) {
    Request request = Greedy({1, 2, 3}, 1);
    request.prefix_cache = std::move(params);
    const absl::Status status = h.Generate(std::move(request)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refuse({.marks = {4}}), HasSubstr("is 4, expected 1 to 3"));
  EXPECT_THAT(refuse({.marks = {0}}), HasSubstr("is 0, expected 1 to 3"));
  EXPECT_THAT(refuse({.marks = std::vector<int64_t>(65, 1)}), HasSubstr("65 entries"));
  EXPECT_THAT(refuse({.salt = std::string(129, 'x')}), HasSubstr("129 bytes"));
}

}  // namespace
}  // namespace mneme
