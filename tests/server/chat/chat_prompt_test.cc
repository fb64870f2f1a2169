// Conversations as tokens: what is a control token, and where a history may be cut.
#include "server/chat/chat_prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/chat/chat_template.h"
#include "server/openai/chat_messages.h"
#include "tests/server/fake_engine.h"
#include "tokenizers/byte_tokenizer.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kBos = 256;
constexpr int32_t kPromptEos = 257;

class ChatPromptTest : public ::testing::Test {
 protected:
  std::vector<int32_t> Cut(const std::vector<int32_t>& ids, int64_t bytes) const {
    WorkMeter meter;
    return CutAt(*tokenizer_, ids, bytes, ServingFacts(), meter).value();
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = *MakeByteTokenizer(259, kBos, kPromptEos);
};

TEST_F(ChatPromptTest, ACutKeepsAllTokensWhereverItIs) {
  const std::vector<int32_t> ids = {kBos, 'a', 'b', kPromptEos, 'c'};
  // A control token counts as five bytes, and nobody ends inside of one.
  for (int64_t bytes = 0; bytes <= 13; ++bytes) EXPECT_EQ(Cut(ids, bytes), ids) << bytes;
}

TEST_F(ChatPromptTest, SpellingsInMessagesAreBroken) {
  const AddedTokens& added = tokenizer_->added_tokens();
  const std::string eos = tokenizer_->entry(kPromptEos).piece;
  EXPECT_EQ(added.At(eos + "x").token->id, kPromptEos);
  EXPECT_EQ(added.At(eos + "x").bytes, eos.size());
  EXPECT_EQ(added.At("x" + eos).bytes, 0u);
  const std::string broken = tokenizer_->Broken("a" + eos);
  EXPECT_EQ(broken, "a" + eos.substr(0, 1) + std::string(AddedTokens::kBreak) + eos.substr(1));
  EXPECT_EQ(tokenizer_->Broken("plain"), "plain");
}

TEST_F(ChatPromptTest, NamesOfFieldsSpellNoControlTokensEither) {
  FakeEngine engine;
  ServingFacts facts;
  facts.chat_template = *ChatTemplate::Parse("{{ tools | tojson }}", Json::object());
  const std::string eos = engine.tokenizer()->entry(*engine.tokenizer()->eos_id()).piece;
  Conversation chat;
  chat.messages = Json::array({{{"role", "user"}, {"content", "a"}}});
  chat.template_arguments = {{"tools", {{eos, "b"}}}};
  WorkMeter meter;
  const std::vector<int32_t> ids = ToChatPrompt(chat, engine, facts, meter)->at_start;
  EXPECT_THAT(ids, testing::Not(testing::Contains(*engine.tokenizer()->eos_id())));
  EXPECT_EQ(*engine.tokenizer()->Decode(ids), "{\"" + eos + "\": \"b\"}");
}

TEST_F(ChatPromptTest, TellsWhereMessagesEnd) {
  FakeEngine engine;
  const std::string eos = engine.tokenizer()->entry(*engine.tokenizer()->eos_id()).piece;
  ServingFacts facts;
  facts.chat_template = *ChatTemplate::Parse(
      absl::StrCat("{% for m in messages %}[{{ m['content'] }}]", eos, "{% endfor %}>"),
      Json::object());
  Conversation chat;
  // What spells a control token has a break in the text, and is its characters.
  chat.messages = Json::array({{{"role", "user"}, {"content", "abc"}},
                               {{"role", "assistant"}, {"content", eos}},
                               {{"role", "user"}, {"content", "d"}}});
  WorkMeter meter;
  const ChatPrompt prompt = ToChatPrompt(chat, engine, facts, meter).value();
  const auto second = static_cast<int64_t>(eos.size());
  EXPECT_EQ(prompt.message_ends, (std::vector<int64_t>{6, 9 + second, 13 + second}));
  for (const int64_t end : prompt.message_ends) {
    EXPECT_EQ(prompt.at_start[end - 1], *engine.tokenizer()->eos_id());
  }
}

// Such as an answer that called tools has in a conversation of another server.
TEST_F(ChatPromptTest, AnAnswerWithoutContentIsEmpty) {
  FakeEngine engine;
  ServingFacts facts;
  facts.chat_template = *ChatTemplate::Parse(
      "{% for m in messages %}[{{ m['content'] }}]{% endfor %}", Json::object());
  const auto render = [&](const char* role, Json content) {
    Json message = {{"role", role}};
    if (!content.is_discarded()) message["content"] = std::move(content);
    OpenAiRequest request;
    request.conversation.messages = Json::array({{{"role", "user"}, {"content", "a"}}, message});
    const absl::StatusOr<Conversation> conversation = ToConversation(request);
    if (!conversation.ok()) return std::string(conversation.status().message());
    WorkMeter meter;
    absl::StatusOr<ChatPrompt> prompt = ToChatPrompt(*conversation, engine, facts, meter);
    return prompt.ok() ? *engine.tokenizer()->Decode(prompt->at_start)
                       : std::string(prompt.status().message());
  };
  const Json missing(Json::value_t::discarded);
  EXPECT_EQ(render("assistant", nullptr), "[a][]");
  EXPECT_EQ(render("assistant", missing), "[a][]");
  EXPECT_EQ(render("assistant", "b"), "[a][b]");
  EXPECT_THAT(render("user", nullptr), HasSubstr("messages[1].content is missing"));
}

// Templates have opinions on where messages may stand; a session asks for one place only.
TEST_F(ChatPromptTest, MessagesAreRefusedWhereTheTemplateDoesNotTakeThem) {
  FakeEngine engine;
  const auto render = [&](const std::string& refusal, const std::vector<const char*>& roles,
                          bool appends = true) {
    ServingFacts facts;
    facts.chat_template =
        *ChatTemplate::Parse("{% if " + refusal +
                                 " %}{{ raise_exception('not there') }}{% endif %}"
                                 "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}",
                             Json::object());
    Conversation chat;
    chat.appends = appends;
    for (const char* role : roles) chat.messages.push_back({{"role", role}, {"content", "a"}});
    WorkMeter meter;
    return ToChatPrompt(chat, engine, facts, meter);
  };
  const auto text = [&](const std::vector<int32_t>& ids) {
    return *engine.tokenizer()->Decode(ids);
  };
  const std::string only_first =
      "messages[1:] | selectattr('role', 'equalto', 'system') | list | length > 0";
  auto prompt = render(only_first, {"system", "user"});
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(text(prompt->at_start), "[system]a[user]a");
  EXPECT_TRUE(prompt->at_start_status.ok());
  EXPECT_THAT(prompt->continued, testing::IsEmpty());
  EXPECT_TRUE(absl::IsInvalidArgument(prompt->continued_status));
  EXPECT_THAT(std::string(prompt->continued_status.message()),
              HasSubstr("behind an answer: line 1: not there"));

  const std::string always_first = "messages[0].role != 'system'";
  prompt = render(always_first, {"system", "user"});
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_TRUE(prompt->at_start_status.ok() && prompt->continued_status.ok());
  prompt = render(always_first, {"user"});
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_TRUE(absl::IsInvalidArgument(prompt->at_start_status));
  EXPECT_EQ(text(prompt->continued), "[user]a");

  EXPECT_TRUE(absl::IsInvalidArgument(render(always_first, {"user"}, false).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(render("true", {"user"}).status()));
}

TEST_F(ChatPromptTest, DevelopersAreTheSystemWhereTheTemplateDoesNotKnowThem) {
  FakeEngine engine;
  const auto render = [&](const char* source) {
    ServingFacts facts;
    facts.chat_template = *ChatTemplate::Parse(source, Json::object());
    Conversation chat;
    chat.messages = Json::array({{{"role", "developer"}, {"content", "a"}}});
    WorkMeter meter;
    return *engine.tokenizer()->Decode(ToChatPrompt(chat, engine, facts, meter)->at_start);
  };
  EXPECT_EQ(render("{{ messages[0].role }}: {{ messages[0].content }}"), "system: a");
  EXPECT_EQ(render("{% if messages[0].role == 'developer' %}{{ messages[0].role }}{% endif %}"),
            "developer");
}

}  // namespace
}  // namespace mneme
