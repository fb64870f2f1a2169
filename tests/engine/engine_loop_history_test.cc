// Whole conversations sent to sessions: those that go on, those that were edited, and answers that
// are to be given anew.
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/engine_loop.h"
#include "engine/sessions/logged_facts.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"
#include "tests/store/power_loss_fs.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

HarnessOptions HistoryOptions(int prefix_states = 64) {
  HarnessOptions options;
  options.vocab = 1000;
  options.prefix_states = prefix_states;
  options.engine.max_tokens_per_step = 64;
  return options;
}

// Messages as tokens; those of users end with 1, behind which 2 asks for an answer.
struct Chat {
  std::vector<int32_t> tokens;
  std::vector<int64_t> ends;

  void Say(int count, int which) {
    for (int i = 0; i < count - 1; ++i) tokens.push_back(10 + (which * 131 + i * 7) % 900);
    tokens.push_back(1);
    ends.push_back(static_cast<int64_t>(tokens.size()));
    tokens.push_back(2);
  }
  void Answer(const std::vector<int32_t>& answer) {
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    ends.push_back(static_cast<int64_t>(tokens.size()));
  }
};

Request Ask(const Chat& chat, int max_tokens, std::string session = "",
            OnMismatch on_mismatch = OnMismatch::kRewind) {
  Request request = Greedy(chat.tokens, max_tokens, std::move(session));
  request.prompt.continued.clear();
  request.prompt.same_everywhere = true;
  request.prompt.source = PromptSource::kMessages;
  request.prompt.message_ends = chat.ends;
  request.whole_history = true;
  request.on_mismatch = on_mismatch;
  // What is generated counts, what was sent does not.
  request.sampling.frequency_penalty = 0.5f;
  return request;
}

// What a server says that never heard of it.
std::vector<int32_t> Alone(const Chat& chat, int max_tokens, int history_tokens = 1024) {
  HarnessOptions options = HistoryOptions(/*prefix_states=*/0);
  options.engine.history_tokens = history_tokens;
  return LoopHarness(options).Generate(Ask(chat, max_tokens)).tokens.at(0);
}

// Asks, and goes on with the answer. Returns it.
Answer Turn(LoopHarness& h, Chat& chat, int max_tokens, const std::string& session) {
  Answer answer = h.Generate(Ask(chat, max_tokens, session));
  EXPECT_EQ(answer.status(), absl::OkStatus());
  if (answer.status().ok()) chat.Answer(answer.tokens[0]);
  return answer;
}

constexpr int kUserTokens = 48, kAnswerTokens = 50;

// `turns` messages with their answers; what was sent with each is in `sent`.
Chat Talk(LoopHarness& h, int turns, const std::string& session,
          std::vector<Chat>* sent = nullptr) {
  Chat chat;
  for (int turn = 0; turn < turns; ++turn) {
    chat.Say(kUserTokens, turn);
    if (sent != nullptr) sent->push_back(chat);
    Turn(h, chat, kAnswerTokens, session);
  }
  return chat;
}

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

// --- Where sessions are stored ---

struct OnDisk {
  explicit OnDisk(int prefix_states = 64) : options(HistoryOptions(prefix_states)) {
    options.disk = &disk;
    Start();
  }
  void Start() {
    h.reset();
    h = std::make_unique<LoopHarness>(options);
  }
  PowerLossFileSystem disk;
  HarnessOptions options;
  std::unique_ptr<LoopHarness> h;
};

TEST(EngineLoopHistoryTest, AStoredConversationIsTheEditedOneAfterARestart) {
  for (const bool comes_back_first : {false, true}) {
    OnDisk server;
    std::vector<Chat> sent;
    Talk(*server.h, 5, "s", &sent);
    if (comes_back_first) server.Start();
    Chat edited = sent[2];
    Answer answer = Turn(*server.h, edited, kAnswerTokens, "s");
    EXPECT_GT(answer.last.usage.rewound_from, 0);
    EXPECT_EQ(answer.tokens[0], Alone(sent[2], kAnswerTokens));
    server.Start();
    EXPECT_EQ(ListSessions(*server.h->loop, "", "").size(), 1u);
    EXPECT_EQ(server.h->loop->commands().Get({"", "s"})->position, answer.last.session_position);
    edited.Say(kUserTokens, 3);
    const Answer next = server.h->Generate(Ask(edited, kAnswerTokens, "s"));
    ASSERT_EQ(next.status(), absl::OkStatus());
    EXPECT_EQ(next.last.usage.resumed_tokens, answer.last.session_position - 1);
  }
}

TEST(EngineLoopHistoryTest, WhatAnEditTookBackIsNeitherAnsweredNorFedAgain) {
  OnDisk server;
  std::vector<Chat> sent;
  Talk(*server.h, 2, "s", &sent);
  Chat chat = sent[1];
  Request early = Ask(chat, kAnswerTokens, "s");
  early.idempotency_key = "early";
  const Answer first = server.h->Generate(early);
  ASSERT_EQ(first.status(), absl::OkStatus());
  chat.tokens[kUserTokens + 60] ^= 1;
  Request edit = Ask(chat, kAnswerTokens, "s");
  edit.idempotency_key = "edit";
  const Answer edited = server.h->Generate(edit);
  ASSERT_EQ(edited.status(), absl::OkStatus());
  const int64_t position = server.h->loop->commands().Get({"", "s"})->position;
  for (const bool restarted : {false, true}) {
    if (restarted) server.Start();
    const Answer undone = server.h->Generate(early);
    EXPECT_EQ(ReasonOf(undone.status()), kReasonKeyUndone) << restarted;
    EXPECT_EQ(PositionOf(undone.status()), position);
    const Answer again = server.h->Generate(edit);
    EXPECT_TRUE(again.last.replayed && !again.last.session_gone) << restarted;
    EXPECT_EQ(again.tokens, edited.tokens);
    EXPECT_EQ(server.h->loop->commands().Get({"", "s"})->position, position);
  }
}

// Nobody waits for what the store is told of it, so one edit is on its way when the next one comes.
TEST(EngineLoopHistoryTest, EditsOfWhatIsNotDurableFollowEachOther) {
  OnDisk server;
  server.options.engine.durability = Durability::kNone;
  server.options.store.lazy = absl::Seconds(1);
  server.Start();
  Chat chat;
  chat.Say(kUserTokens, 1);
  Turn(*server.h, chat, kAnswerTokens, "s");
  std::vector<int32_t> said;
  for (int edit = 2; edit < 6; ++edit) {
    Chat edited = chat;
    edited.Say(kUserTokens, edit);
    said = Turn(*server.h, edited, kAnswerTokens, "s").tokens[0];
    if (edit == 5) chat = edited;
  }
  const int64_t position = server.h->loop->commands().Get({"", "s"})->position;
  server.h->TurnUntilStored();
  while (server.h->loop->SaveSessions()) server.h->Turn();
  server.Start();
  EXPECT_EQ(ListSessions(*server.h->loop, "", "").size(), 1u);
  EXPECT_EQ(server.h->loop->commands().Get({"", "s"})->position, position);
  chat.Say(kUserTokens, 9);
  const Answer next = server.h->Generate(Ask(chat, kAnswerTokens, "s", OnMismatch::kRefuse));
  ASSERT_EQ(next.status(), absl::OkStatus());
  EXPECT_EQ(next.last.usage.resumed_tokens, position - 1);
}

TEST(EngineLoopHistoryTest, AStoredSessionThatDoesNotGetToGoBackIsAsItWas) {
  OnDisk server;
  std::vector<Chat> sent;
  Talk(*server.h, 3, "s", &sent);
  const int64_t position = server.h->loop->commands().Get({"", "s"})->position;
  server.h->backend.FailNext(absl::InternalError("ECC"));
  const Answer failed = server.h->Generate(Ask(sent[1], kAnswerTokens, "s"));
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(failed.last.session_position, position);
  server.Start();
  EXPECT_EQ(server.h->loop->commands().Get({"", "s"})->position, position);
  Chat on = sent[2];
  EXPECT_EQ(server.h->Generate(Ask(on, 2, "s", OnMismatch::kRefuse)).status().code(),
            absl::StatusCode::kFailedPrecondition)
      << "it still has the last answer";
}

TEST(EngineLoopHistoryTest, WhatMayBeCommonIsKnownAfterARestart) {
  OnDisk server(/*prefix_states=*/0);
  std::vector<Chat> sent;
  Talk(*server.h, 3, "s", &sent);
  server.Start();
  Chat other;
  other.Say(kUserTokens, 50);
  EXPECT_EQ(ReasonOf(server.h->Generate(Ask(other, 3, "s")).status()), kReasonHistory);
  EXPECT_EQ(server.h->Generate(Ask(sent[1], 3, "s")).status(), absl::OkStatus());
}

TEST(EngineLoopHistoryTest, FactsOfEachVersionAreReadAsTheyWereStored) {
  using Ranges = std::vector<std::pair<int64_t, int64_t>>;
  // Each version's bytes behind those of the one before.
  constexpr absl::string_view kParts[] = {
      "0e0900000000000000"   // fed
      "0104"                 // has_text, evictions
      "0300000000000000"     // arithmetic
      "080001",              // prompted, fed_pending, dropped_pending
      "0a0600000000000000",  // opening
      "01",                  // sent_before
      "ac020114283c",        // engram_capacity, may_have_evicted, forgotten
      "0202041428",          // forgotten.all
  };
  std::string values;
  for (int version = 1; version <= 5; ++version) {
    values += absl::HexStringToBytes(kParts[version - 1]);
    const std::string stored = std::string(1, static_cast<char>(version)) + values;
    const auto facts = LoggedFacts::Decode(stored);
    ASSERT_EQ(facts.status(), absl::OkStatus()) << version;
    EXPECT_EQ(facts->fed, (ConversationDigest{7, 9}));
    EXPECT_TRUE(facts->has_text);
    EXPECT_EQ(facts->evictions, 2);
    EXPECT_EQ(facts->arithmetic, 3u);
    EXPECT_EQ(facts->prompted, 4);
    EXPECT_FALSE(facts->fed_pending);
    EXPECT_TRUE(facts->dropped_pending);
    EXPECT_EQ(facts->opening, version >= 2 ? (ConversationDigest{5, 6}) : ConversationDigest());
    EXPECT_EQ(facts->sent_before, version >= 3);
    EXPECT_EQ(facts->engram_capacity, version >= 4 ? 300 : 0);
    EXPECT_EQ(facts->may_have_evicted, version >= 4);
    EXPECT_EQ(facts->forgotten.begin, version >= 4 ? 10 : 0);
    EXPECT_EQ(facts->forgotten.end, version >= 4 ? 20 : 0);
    EXPECT_EQ(facts->forgotten.at, version >= 4 ? 30 : 0);
    EXPECT_EQ(facts->forgotten.all, version >= 5   ? (Ranges{{1, 2}, {10, 20}})
                                    : version == 4 ? (Ranges{{10, 20}})
                                                   : Ranges());
    if (version == 5) {
      EXPECT_EQ(facts->Encode(), stored) << "or it is another version";
    }
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(LoggedFacts::Decode("\x06" + values).status()));
}

// --- What is not to be remembered ---

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
