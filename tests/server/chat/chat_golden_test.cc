// Chats of the goldens tokenizer_qwen3 and tokenizer_qwen35, whose templates use what released ones
// do: texts and errors are those of Python's jinja2.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "server/chat/chat_template.h"

namespace mneme {
namespace {

using ::testing::EndsWith;

class ChatGoldenTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ChatGoldenTest, RendersAsPythonDoes) {
  const std::string folder = std::string("tests/golden/tokenizer_") + GetParam();
  std::ifstream file(folder + "/chat_golden.json");
  const Json chats = Json::parse(file);
  ASSERT_GT(chats.size(), 20);
  const auto chat_template = ChatTemplate::Load(folder);
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  for (const Json& chat : chats) {
    SCOPED_TRACE(chat.dump());
    Json arguments = chat["options"];
    if (chat.contains("tools")) arguments["tools"] = chat["tools"];
    const bool add_generation_prompt = arguments["add_generation_prompt"];
    arguments.erase("add_generation_prompt");
    WorkMeter meter;
    const absl::StatusOr<std::string> text =
        (*chat_template)
            ->Render(chat["messages"], add_generation_prompt, arguments, absl::UnixEpoch(), meter);
    if (chat.contains("error")) {
      EXPECT_THAT(std::string(text.status().message()),
                  EndsWith(": " + chat["error"].get<std::string>()));
    } else {
      ASSERT_TRUE(text.ok()) << text.status();
      EXPECT_EQ(*text, chat["text"].get<std::string>());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Templates, ChatGoldenTest, ::testing::Values("qwen3", "qwen35"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace mneme
