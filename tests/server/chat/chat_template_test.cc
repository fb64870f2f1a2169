// Which of several chat templates a folder has: what the transformers package takes.
#include "server/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace mneme {
namespace {

using ::testing::HasSubstr;

class ChatTemplateTest : public ::testing::Test {
 protected:
  ChatTemplateTest() {
    std::string path = ::testing::TempDir() + "/mneme_chat_template_XXXXXX";
    folder_ = mkdtemp(path.data());
  }
  ~ChatTemplateTest() override { std::filesystem::remove_all(folder_); }

  // The prompts of a chat without tools and of one with tools, by a folder with these files.
  std::string Chats(const std::map<std::string, std::string>& files) {
    std::filesystem::remove_all(folder_);
    for (const auto& [name, text] : files) {
      const std::filesystem::path path = std::filesystem::path(folder_) / name;
      std::filesystem::create_directories(path.parent_path());
      std::ofstream(path, std::ios::binary) << text;
    }
    const auto loaded = ChatTemplate::Load(folder_);
    if (!loaded.ok()) return std::string(loaded.status().message());
    std::string texts;
    for (const Json& arguments : {Json::object(), Json{{"tools", Json::array()}}}) {
      WorkMeter meter;
      texts += (*loaded)->Render(Json::array(), true, arguments, absl::UnixEpoch(), meter).value();
      texts += ' ';
    }
    return texts;
  }
  std::string Config(const std::string& value) {
    return Chats({{"tokenizer_config.json", "{\"chat_template\": " + value + "}"}});
  }

  std::string folder_;
};

TEST_F(ChatTemplateTest, FilesWinOverTheConfiguration) {
  const std::string config = R"({"chat_template": [{"name": "default", "template": "C"},
                                                    {"name": "tool_use", "template": "CT"}]})";
  EXPECT_EQ(Chats({{"tokenizer_config.json", config}}), "C CT ");
  EXPECT_EQ(Chats({{"tokenizer_config.json", config}, {"chat_template.jinja", "J"}}), "J J ");
  EXPECT_EQ(Chats({{"tokenizer_config.json", config},
                   {"chat_template.jinja", "J"},
                   {"additional_chat_templates/tool_use.jinja", "JT"}}),
            "J JT ");
  EXPECT_EQ(Chats({{"chat_template.jinja", "J"}, {"additional_chat_templates/default.jinja", "A"}}),
            "A A ");
  EXPECT_THAT(Chats({{"tokenizer_config.json", config},
                     {"additional_chat_templates/tool_use.jinja", "JT"}}),
              HasSubstr("no chat template"));
}

TEST_F(ChatTemplateTest, OfSeveralOnesTheNamesDecide) {
  EXPECT_EQ(Config(R"("C")"), "C C ");
  EXPECT_EQ(Config(R"([{"name": "rag", "template": "R"}, {"name": "default", "template": "C"}])"),
            "C C ");
  EXPECT_EQ(
      Config(R"([{"name": "default", "template": "A"}, {"name": "default", "template": "B"}])"),
      "B B ");
  EXPECT_EQ(Config(R"({"default": "C", "tool_use": "T"})"), "C T ");
  for (const char* none : {R"([{"name": "rag", "template": "R"}])", "[]", "null", R"("")", "{}"}) {
    EXPECT_THAT(Config(none), HasSubstr("no chat template")) << none;
  }
}

TEST_F(ChatTemplateTest, LinesOfFilesEndAlike) {
  EXPECT_EQ(Chats({{"chat_template.jinja", "{% if true %}\r\na\r\nb{% endif %}\r\n"}}),
            "a\nb a\nb ");
}

TEST_F(ChatTemplateTest, ErrorsNameTheFile) {
  EXPECT_THAT(Chats({{"chat_template.jinja", "J"},
                     {"additional_chat_templates/tool_use.jinja", "\n{% import 'x' %}"}}),
              HasSubstr("tool_use.jinja: line 2: the block {% import %}"));
}

TEST_F(ChatTemplateTest, NamedTokensAreVariables) {
  EXPECT_EQ(Chats({{"tokenizer_config.json",
                    R"({"bos_token": "<s>", "cls_token": {"content": "[CLS]"}, "sep_token": null,
                        "chat_template": "{{ bos_token }}{{ cls_token }}{{ sep_token is defined }}"})"}}),
            "<s>[CLS]False <s>[CLS]False ");
}

}  // namespace
}  // namespace mneme
