// Whole conversations sent to sessions that are stored: what a restart finds of them and their
// edits.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "engine/engine_loop.h"
#include "engine/sessions/logged_facts.h"
#include "engine/status_payload.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"
#include "tests/engine/whole_chat.h"
#include "tests/store/power_loss_fs.h"

namespace mneme {
namespace {

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

TEST(StoredHistoryTest, AStoredConversationIsTheEditedOneAfterARestart) {
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

TEST(StoredHistoryTest, WhatAnEditTookBackIsNeitherAnsweredNorFedAgain) {
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
TEST(StoredHistoryTest, EditsOfWhatIsNotDurableFollowEachOther) {
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

TEST(StoredHistoryTest, AStoredSessionThatDoesNotGetToGoBackIsAsItWas) {
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

TEST(StoredHistoryTest, WhatMayBeCommonIsKnownAfterARestart) {
  OnDisk server(/*prefix_states=*/0);
  std::vector<Chat> sent;
  Talk(*server.h, 3, "s", &sent);
  server.Start();
  Chat other;
  other.Say(kUserTokens, 50);
  EXPECT_EQ(ReasonOf(server.h->Generate(Ask(other, 3, "s")).status()), kReasonHistory);
  EXPECT_EQ(server.h->Generate(Ask(sent[1], 3, "s")).status(), absl::OkStatus());
}

TEST(StoredHistoryTest, FactsOfEachVersionAreReadAsTheyWereStored) {
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

}  // namespace
}  // namespace mneme
