// Conversations that tests send whole, message by message.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"

namespace mneme {

inline HarnessOptions HistoryOptions(int prefix_states = 64) {
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

inline Request Ask(const Chat& chat, int max_tokens, std::string session = "",
                   OnMismatch on_mismatch = OnMismatch::kRewind) {
  Request request = Greedy(chat.tokens, max_tokens, std::move(session));
  request.prompt.continued.clear();
  request.prompt.same_everywhere = true;
  request.prompt.source = PromptSource::kMessages;
  request.prompt.message_ends = chat.ends;
  request.whole_history = true;
  request.on_mismatch = on_mismatch;
  // The penalty counts generated tokens, not those of messages that were sent.
  request.sampling.frequency_penalty = 0.5f;
  return request;
}

// The answer of a server that has never seen the chat.
inline std::vector<int32_t> Alone(const Chat& chat, int max_tokens, int history_tokens = 1024) {
  HarnessOptions options = HistoryOptions(/*prefix_states=*/0);
  options.engine.history_tokens = history_tokens;
  return LoopHarness(options).Generate(Ask(chat, max_tokens)).tokens.at(0);
}

// Asks, and goes on with the answer. Returns it.
inline Answer Turn(LoopHarness& h, Chat& chat, int max_tokens, const std::string& session) {
  Answer answer = h.Generate(Ask(chat, max_tokens, session));
  EXPECT_EQ(answer.status(), absl::OkStatus());
  if (answer.status().ok()) chat.Answer(answer.tokens[0]);
  return answer;
}

inline constexpr int kUserTokens = 48, kAnswerTokens = 50;

// `turns` messages with their answers; what was sent with each is in `sent`.
inline Chat Talk(LoopHarness& h, int turns, const std::string& session,
                 std::vector<Chat>* sent = nullptr) {
  Chat chat;
  for (int turn = 0; turn < turns; ++turn) {
    chat.Say(kUserTokens, turn);
    if (sent != nullptr) sent->push_back(chat);
    Turn(h, chat, kAnswerTokens, session);
  }
  return chat;
}

}  // namespace mneme
