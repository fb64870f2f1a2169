// Whole conversations sent to sessions: those that go on, those that were edited, answers that are
// to be given anew, and those that are not to be remembered.
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine_loop.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"
#include "tests/engine/whole_chat.h"
#include "tests/store/power_loss_fs.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

TEST(EngineLoopHistoryTest, AnEditedMessageCostsOnlyWhatFollowsTheEdit) {
  LoopHarness h(HistoryOptions());
  std::vector<Chat> sent;
  Talk(h, 20, "s", &sent);
  Chat edited = sent[8];  // nine messages, and what the ninth one was answered
  edited.Answer({sent[9].tokens.begin() + static_cast<int64_t>(edited.tokens.size()),
                 sent[9].tokens.begin() + sent[9].ends[17]});
  ASSERT_EQ(edited.ends, (std::vector<int64_t>{sent[9].ends.begin(), sent[9].ends.begin() + 18}));
  edited.Say(kUserTokens, 99);
  const int64_t before = h.loop->commands().Get({"", "s"})->position;
  const Answer answer = h.Generate(Ask(edited, 1, "s"));
  ASSERT_EQ(answer.status(), absl::OkStatus());
  EXPECT_EQ(answer.tokens[0], Alone(edited, 1));
  const Usage& usage = answer.last.usage;
  const auto history = static_cast<int64_t>(edited.tokens.size());
  EXPECT_EQ(usage.rewound_from, before);
  EXPECT_EQ(usage.cached_tokens + usage.prompt_tokens, history);
  EXPECT_EQ(usage.resumed_tokens, 0);
  EXPECT_EQ(usage.fed_tokens, usage.prompt_tokens);
  EXPECT_EQ(usage.fed_tokens, 1 + kUserTokens + 1)
      << "the last token of the answer, and the message";
  EXPECT_GE(history, 10 * usage.fed_tokens) << "the mark: at least 8 times fewer, the aim: 10";
  EXPECT_EQ(answer.last.session_position, history + 1);
  EXPECT_EQ(h.stats.prefix.answer_hits.value(), 1);
  EXPECT_EQ(h.stats.resumes[static_cast<size_t>(ResumeOutcome::kRewound)].value(), 1);
  EXPECT_EQ(h.loop->CheckIntegrity(), absl::OkStatus());
}

TEST(EngineLoopHistoryTest, AnAnswerThatIsGivenAnewCostsItsQuestionsEnd) {
  LoopHarness h(HistoryOptions());
  std::vector<Chat> sent;
  Talk(h, 4, "s", &sent);
  Request again = Ask(sent.back(), kAnswerTokens, "s");
  again.sampling.seed = 7;
  again.sampling.temperature = 1;
  const Answer answer = h.Generate(again);
  again.session.name.clear();
  EXPECT_EQ(answer.tokens, LoopHarness(HistoryOptions(0)).Generate(again).tokens);
  EXPECT_EQ(answer.last.usage.fed_tokens - answer.last.usage.completion_tokens + 1, 1)
      << "what asks for an answer";
  Chat on = sent.back();
  on.Answer(answer.tokens[0]);
  on.Say(kUserTokens, 5);
  const Answer next = Turn(h, on, kAnswerTokens, "s");
  EXPECT_EQ(next.last.usage.rewound_from, 0);
  EXPECT_GT(next.last.usage.resumed_tokens, 0) << "it goes on from the new answer";
}

TEST(EngineLoopHistoryTest, WithoutAPrefixCacheTheSessionBeginsAnew) {
  LoopHarness h(HistoryOptions(/*prefix_states=*/0));
  std::vector<Chat> sent;
  Talk(h, 4, "s", &sent);
  Chat edited = sent[1];
  edited.tokens[kUserTokens + 60] ^= 1;
  const Answer answer = h.Generate(Ask(edited, kAnswerTokens, "s"));
  EXPECT_EQ(answer.tokens[0], Alone(edited, kAnswerTokens));
  EXPECT_EQ(answer.last.usage.prompt_tokens, static_cast<int64_t>(edited.tokens.size()));
  EXPECT_EQ(h.stats.sessions_created.value(), 1);
  EXPECT_EQ(h.stats.slabs_used.value(), 1);
}

TEST(EngineLoopHistoryTest, ConversationsThatAreOthersAreLeftAlone) {
  LoopHarness h(HistoryOptions());
  Talk(h, 2, "s");
  const int64_t position = h.loop->commands().Get({"", "s"})->position;
  Chat other;
  other.Say(kUserTokens, 50);
  const Answer refused = h.Generate(Ask(other, 3, "s"));
  EXPECT_EQ(ReasonOf(refused.status()), kReasonHistory);
  EXPECT_EQ(PositionOf(refused.status()), position);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("up to the first message of a user"));
  EXPECT_EQ(h.loop->commands().Get({"", "s"})->position, position);
  const Answer replaced = h.Generate(Ask(other, 3, "s", OnMismatch::kReplace));
  EXPECT_EQ(replaced.tokens[0], Alone(other, 3));
  EXPECT_EQ(replaced.last.usage.rewound_from, position);
}

TEST(EngineLoopHistoryTest, MessagesThatAllConversationsBeginWithMakeNoneTheSame) {
  LoopHarness h(HistoryOptions());
  const auto conversation = [](int which) {
    Chat chat;
    chat.Say(kUserTokens, 7);  // a system prompt
    chat.Say(kUserTokens, which);
    Request request = Ask(chat, 3, "s");
    request.prompt.opening_end = chat.ends[1];
    return request;
  };
  EXPECT_EQ(h.Generate(conversation(1)).status(), absl::OkStatus());
  EXPECT_EQ(ReasonOf(h.Generate(conversation(2)).status()), kReasonHistory);
  EXPECT_EQ(h.Generate(conversation(1)).status(), absl::OkStatus()) << "asked anew";
}

TEST(EngineLoopHistoryTest, WhoDoesNotAskForItIsRefused) {
  LoopHarness h(HistoryOptions());
  std::vector<Chat> sent;
  Talk(h, 3, "s", &sent);
  const int64_t position = h.loop->commands().Get({"", "s"})->position;
  EXPECT_EQ(ReasonOf(h.Generate(Ask(sent[1], 3, "s", OnMismatch::kRefuse)).status()),
            kReasonHistory);
  Request elsewhere = Ask(sent[1], 3, "s");
  elsewhere.expected_position = position - 1;
  EXPECT_EQ(ReasonOf(h.Generate(elsewhere).status()), kReasonPosition);
  EXPECT_EQ(h.loop->commands().Get({"", "s"})->position, position);
  elsewhere.expected_position = position;
  EXPECT_EQ(h.Generate(elsewhere).last.usage.rewound_from, position);
}

TEST(EngineLoopHistoryTest, AMessageThatWasAppendedIsPartOfTheWay) {
  LoopHarness h(HistoryOptions());
  Chat chat;
  chat.Say(kUserTokens, 0);
  Turn(h, chat, kAnswerTokens, "s");
  for (int turn = 1; turn < 4; ++turn) {  // without the history
    const size_t known = chat.tokens.size();
    chat.Say(kUserTokens, turn);
    Request request = Greedy({chat.tokens.begin() + static_cast<int64_t>(known), chat.tokens.end()},
                             kAnswerTokens, "s");
    chat.Answer(h.Generate(request).tokens.at(0));
  }
  chat.tokens.resize(chat.ends[5]);  // three turns
  chat.ends.resize(6);
  chat.Say(kUserTokens, 77);
  const Answer answer = h.Generate(Ask(chat, 4, "s"));
  EXPECT_EQ(answer.tokens[0], Alone(chat, 4));
  EXPECT_EQ(answer.last.usage.prompt_tokens, 1 + kUserTokens + 1);
}

TEST(EngineLoopHistoryTest, ConversationsWithoutASessionGoOnBehindTheirAnswers) {
  LoopHarness h(HistoryOptions());
  Chat chat;
  chat.Say(kUserTokens, 0);
  Turn(h, chat, kAnswerTokens, "");
  chat.Say(kUserTokens, 1);
  const Answer second = Turn(h, chat, kAnswerTokens, "");
  EXPECT_EQ(second.last.usage.prompt_tokens, 1 + kUserTokens + 1);
  EXPECT_EQ(h.stats.slabs_used.value(), 0);
  Request other_salt = Ask(chat, 2);
  other_salt.prefix_cache.salt = "mine";
  EXPECT_EQ(h.Generate(other_salt).last.usage.cached_tokens, 0);
}

TEST(EngineLoopHistoryTest, AParkedSessionNeedNotComeBackToBeginAnew) {
  HarnessOptions options = HistoryOptions();
  options.slots = 2;
  options.host_states = 4;
  LoopHarness h(options);
  std::vector<Chat> sent;
  Talk(h, 3, "s", &sent);
  for (const char* name : {"a", "b"}) h.Generate(Greedy({5}, 1, name));
  ASSERT_EQ(h.loop->commands().Get({"", "s"})->residence, Residence::kParked);
  const Answer answer = h.Generate(Ask(sent[1], kAnswerTokens, "s"));
  EXPECT_EQ(answer.tokens[0], Alone(sent[1], kAnswerTokens));
  EXPECT_EQ(h.stats.fetch_seconds.count(), 0);
  EXPECT_EQ(h.loop->CheckIntegrity(), absl::OkStatus());
}

// States are copied while the device computes, and a session is its client's when they were.
TEST(EngineLoopHistoryTest, OnDevicesThatCopyAsideItIsTheSame) {
  HarnessOptions options = HistoryOptions();
  options.asynchronous = true;
  LoopHarness h(options);
  std::vector<Chat> sent;
  Talk(h, 6, "s", &sent);
  const Answer answer = h.Generate(Ask(sent[3], kAnswerTokens, "s"));
  EXPECT_EQ(answer.tokens[0], Alone(sent[3], kAnswerTokens));
  EXPECT_LT(answer.last.usage.prompt_tokens, kUserTokens);
  h.TurnUntilQuiet();
  EXPECT_EQ(h.loop->CheckIntegrity(), absl::OkStatus());
}

TEST(EngineLoopHistoryTest, RandomEditsSayWhatANewConversationWould) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    std::mt19937_64 random(seed);
    HarnessOptions options = HistoryOptions(/*prefix_states=*/seed % 3 == 0 ? 3 : 64);
    options.asynchronous = seed % 2 == 1;
    options.slots = 3;
    options.host_states = seed % 4 == 3 ? 3 : 0;
    options.engine.history_tokens = seed % 5 == 4 ? 16 : 1024;
    LoopHarness h(options);
    std::vector<Chat> chats(3);
    for (int step = 0; step < 40; ++step) {
      const size_t which = random() % chats.size();
      Chat& chat = chats[which];
      // Back to the end of an earlier turn, and on from there with something else, or the same.
      if (random() % 3 == 0 && chat.ends.size() >= 4) {
        const size_t keep = 2 * (1 + random() % (chat.ends.size() / 2 - 1));
        chat.tokens.resize(chat.ends[keep - 1]);
        chat.ends.resize(keep);
      }
      chat.Say(static_cast<int>(8 + random() % 60), static_cast<int>(random() % 4));
      const int tokens = static_cast<int>(1 + random() % 50);
      const std::string session = which == 2 ? "" : absl::StrCat("s", which);
      Request request = Ask(chat, tokens, session, OnMismatch::kReplace);
      request.prefix_cache.bypass = random() % 8 == 0;
      const Answer answer = h.Generate(request);
      ASSERT_EQ(answer.status(), absl::OkStatus()) << "seed " << seed << ", step " << step;
      ASSERT_TRUE(answer.start.has_value());
      if (answer.last.usage.resumed_tokens == 0) {
        ASSERT_EQ(answer.tokens[0], Alone(chat, tokens, options.engine.history_tokens))
            << "seed " << seed << ", step " << step;
      }
      chat.Answer(answer.tokens[0]);
    }
    h.TurnUntilQuiet();
    ASSERT_EQ(h.loop->CheckIntegrity(), absl::OkStatus());
  }
}

TEST(EngineLoopHistoryTest, AnAnswerThatIsNotRememberedLeavesNoTrace) {
  for (const bool stored : {false, true}) {
    PowerLossFileSystem disk;
    HarnessOptions options = HistoryOptions();
    if (stored) options.disk = &disk;
    LoopHarness h(options), reference(HistoryOptions());
    Chat chat;
    chat.Say(kUserTokens, 0);
    Turn(h, chat, kAnswerTokens, "s");
    const SessionInfo before = h.loop->commands().Get({"", "s"}).value();
    const int64_t kept = h.stats.prefix.snapshots.value();
    h.clock.Advance(absl::Seconds(5));
    Chat aside = chat;
    aside.Say(kUserTokens, 9);
    Request request = Ask(aside, kAnswerTokens, "s");
    request.remember = false;
    request.n = 2;
    const Answer answer = h.Generate(request);
    ASSERT_EQ(answer.status(), absl::OkStatus());
    Chat same = aside;
    Talk(reference, 0, "");
    EXPECT_EQ(answer.tokens[0], [&] {
      Chat first;
      first.Say(kUserTokens, 0);
      Turn(reference, first, kAnswerTokens, "s");
      return reference.Generate(Ask(same, kAnswerTokens, "s")).tokens.at(0);
    }()) << "what the session itself would have said";
    EXPECT_EQ(answer.last.usage.resumed_tokens, before.position - 1);
    EXPECT_EQ(answer.last.session_position, 0);
    const SessionInfo after = h.loop->commands().Get({"", "s"}).value();
    EXPECT_EQ(after.position, before.position);
    EXPECT_EQ(after.last_used, before.last_used);
    EXPECT_EQ(h.stats.prefix.snapshots.value(), kept);
    EXPECT_EQ(h.stats.slabs_used.value(), 1);
    // As if it had never been asked.
    chat.Say(kUserTokens, 1);
    EXPECT_EQ(Turn(h, chat, kAnswerTokens, "s").last.usage.resumed_tokens, before.position - 1);
    EXPECT_EQ(h.loop->CheckIntegrity(), absl::OkStatus());
  }
}

TEST(EngineLoopHistoryTest, WhatIsNotRememberedBeginsNoSession) {
  LoopHarness h(HistoryOptions());
  Chat chat;
  chat.Say(kUserTokens, 0);
  Request request = Ask(chat, kAnswerTokens, "s");
  request.remember = false;
  request.idempotency_key = "k";
  const Answer answer = h.Generate(request);
  EXPECT_EQ(answer.tokens[0], Alone(chat, kAnswerTokens));
  EXPECT_FALSE(h.loop->commands().Get({"", "s"}).ok());
  EXPECT_EQ(h.stats.prefix.snapshots.value(), 0);
  const Answer again = h.Generate(request);
  EXPECT_TRUE(again.last.replayed);
  EXPECT_FALSE(again.last.session_gone);
  request.create_session = false;
  request.idempotency_key.clear();
  EXPECT_EQ(ReasonOf(h.Generate(request).status()), kReasonNoSession);
  request.session.name.clear();
  EXPECT_EQ(FieldOf(h.Generate(request).status()), "session.remember");
}

TEST(EngineLoopHistoryTest, ACopyOfAParkedSessionAnswers) {
  HarnessOptions options = HistoryOptions();
  options.slots = 2;
  options.host_states = 4;
  LoopHarness h(options);
  Chat chat;
  chat.Say(kUserTokens, 0);
  Turn(h, chat, kAnswerTokens, "s");
  for (const char* name : {"a", "b"}) h.Generate(Greedy({5}, 1, name));
  ASSERT_EQ(h.loop->commands().Get({"", "s"})->residence, Residence::kParked);
  chat.Say(kUserTokens, 1);
  Request request = Ask(chat, kAnswerTokens, "s");
  request.remember = false;
  const Answer aside = h.Generate(request);
  ASSERT_EQ(aside.status(), absl::OkStatus());
  request.remember = true;
  EXPECT_EQ(h.Generate(request).tokens, aside.tokens);
  EXPECT_EQ(h.loop->CheckIntegrity(), absl::OkStatus());
}

}  // namespace
}  // namespace mneme
