// The model that comes with Mneme, served as it is without arguments: what it says, what it
// remembers, and the tokens of its turns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "clients/cpp/client.h"
#include "clients/cpp/client_session.h"
#include "tests/integration/programs.h"

namespace mneme {
namespace {

using ::testing::Gt;

constexpr char kTranscript[] = "tests/integration/demo_transcript.txt";
constexpr char kFlood[] = "demo/flood.txt";

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

class DemoModelTest : public testing::Test {
 protected:
  DemoModelTest() {
    EXPECT_TRUE(server_.WaitForText("listening on ", &address_));
    EXPECT_TRUE(server_.WaitForText("ready"));
    client_ = std::make_unique<Client>(ClientOptions{.target = address_});
  }

  // Turns of `mneme chat` in a session, a line each; what it shows.
  std::string Chat(const std::string& session, const std::string& turns,
                   const std::vector<std::string>& flags = {}) {
    std::vector<std::string> command = {
        kClient, "chat", "--session", session, "--max-tokens=160", "--temperature=0"};
    command.insert(command.end(), flags.begin(), flags.end());
    ChildProcess chat(command, turns, {"MNEME_SERVER=" + address_});
    EXPECT_EQ(chat.Wait(), 0) << chat.err();
    return chat.out();
  }

  void Fork(const std::string& source, const std::string& target) {
    v1::ForkSessionRequest request;
    request.set_source_name(source);
    request.set_target_name(target);
    EXPECT_TRUE(client_->ForkSession(request).ok());
  }

  v1::Session InfoOf(const std::string& session) {
    const absl::StatusOr<v1::Session> info = client_->GetSession(session);
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? *info : v1::Session();
  }

  std::vector<int32_t> Encode(const std::string& text) {
    v1::TokenizeRequest request;
    request.set_text(text);
    request.set_continuation(true);
    const absl::StatusOr<v1::TokenizeResponse> tokens = client_->Tokenize(request);
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    if (!tokens.ok()) return {};
    return {tokens->token_ids().begin(), tokens->token_ids().end()};
  }

  ChildProcess server_{
      {kServer}, "", {"MNEME_GRPC_PORT=0", "MNEME_HTTP_PORT=0", "MNEME_STATE_MEMORY=256MiB"}};
  std::string address_;
  std::unique_ptr<Client> client_;
};

TEST_F(DemoModelTest, SaysWhatTheTranscriptHas) {
  std::string said, session = "none";
  const std::string expected = ReadText(kTranscript);
  for (const absl::string_view line : absl::StrSplit(expected, '\n')) {
    absl::string_view word = line;
    if (absl::ConsumePrefix(&word, "> ")) {
      absl::StrAppend(&said, line, "\n", Chat(session, absl::StrCat(word, "\n")));
    } else if (absl::ConsumePrefix(&word, "[in ")) {
      session = std::string(absl::StripSuffix(word, "]"));
      absl::StrAppend(&said, line, "\n");
    } else if (absl::ConsumePrefix(&word, "[fork ")) {
      const std::string parent = std::exchange(session, std::string(absl::StripSuffix(word, "]")));
      Fork(parent, session);
      absl::StrAppend(&said, line, "\n");
    } else if (absl::StartsWith(line, "#")) {
      absl::StrAppend(&said, line, "\n");
    }
  }
  if (std::getenv("MNEME_WRITE_TRANSCRIPT") != nullptr) {
    std::ofstream(kTranscript, std::ios::binary) << said;
    GTEST_SKIP() << "written: " << kTranscript;
  }
  EXPECT_EQ(said, expected);
}

struct Question {
  const char* told;
  const char* asked;
  const char* value;
};

constexpr Question kQuestions[] = {
    {"My name is Clara.", "What is my name?", "Clara"},
    {"My code is 7281.", "What is my code?", "7281"},
    {"My room is 38.", "Please tell me my room.", "38"},
    {"Anna's city is Rome.", "What is Anna's city?", "Rome"},
    {"Ben's city is Oslo.", "What is Ben's city?", "Oslo"},
    {"Anna's colour is green.", "Do you still know Anna's colour?", "green"},
    {"Ben's colour is purple.", "What is Ben's colour?", "purple"},
    {"Please remember that Anna's code is 1905.", "What is Anna's code?", "1905"},
    {"Please remember that Ben's code is 4417.", "Can you tell me Ben's code?", "4417"},
    {"Keep in mind that Paul's pet is Biscuit.", "What is Paul's pet?", "Biscuit"},
    {"Remember: Laura's dish is risotto.", "What is Laura's dish?", "risotto"},
    {"Laura's drink is cocoa.", "What was Laura's drink again?", "cocoa"},
    {"By the way, Peter's hobby is chess.", "Do you remember Peter's hobby?", "chess"},
    {"Peter's sport is tennis.", "What is Peter's sport?", "tennis"},
    {"For later: Emma's password is falcon.", "What is Emma's password?", "falcon"},
    {"Emma's language is Latin.", "What is Emma's language?", "Latin"},
    {"Emma's seat is 64.", "What is Emma's seat?", "64"},
    {"David's country is Norway.", "Tell me David's country, please.", "Norway"},
    {"David's spice is ginger.", "What is David's spice?", "ginger"},
    {"David's trade is carpentry.", "What is David's trade?", "carpentry"},
    {"The lantern's shelf is 42.", "What is the lantern's shelf?", "42"},
    {"The clock's price is 75.", "What is the clock's price?", "75"},
    {"The piano's material is ebony.", "What is the piano's material?", "ebony"},
    {"The piano's origin is Poland.", "I forgot the piano's origin. What is it?", "Poland"},
};
// Right answers, of 24; a guess is right once in twenty times or less.
constexpr int kLeastRight = 22;

TEST_F(DemoModelTest, RemembersFactsBehindAFlood) {
  std::string told;
  for (const Question& question : kQuestions) absl::StrAppend(&told, question.told, "\n");
  Chat("clara", told);
  const v1::Session before = InfoOf("clara");
  Chat("clara", ReadText(kFlood));
  const v1::Session after = InfoOf("clara");
  EXPECT_THAT(after.position() - before.position(), Gt(3000));
  EXPECT_EQ(after.state_bytes(), before.state_bytes());

  std::vector<std::string> wrong;
  for (const Question& question : kQuestions) {
    Fork("clara", "fork");  // each is asked as the first one behind the flood
    const std::string answer = Chat("fork", absl::StrCat(question.asked, "\n"));
    if (!absl::StrContains(answer, absl::StrCat(" is ", question.value, "."))) {
      wrong.push_back(absl::StrCat(question.asked, " ", answer));
    }
    EXPECT_TRUE(client_->DeleteSession("fork").ok());
  }
  const int right = static_cast<int>(std::size(kQuestions) - wrong.size());
  RecordProperty("right", right);
  EXPECT_GE(right, kLeastRight) << absl::StrJoin(wrong, "");
}

// As `mneme chat`, without a command line.
TEST_F(DemoModelTest, AnswersMessagesInASession) {
  ClientSession session(*client_, "anna");
  session.request().mutable_sampling()->set_temperature(0);
  const auto say = [&](absl::string_view text) {
    const absl::StatusOr<Answer> answer = session.Chat(text);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? answer->text : "";
  };
  say("Hello! My name is Anna.");
  say("Please remember that my code is 7281.");
  EXPECT_EQ(say("What is my code?"), "Your code is 7281.");
  session.request().mutable_session()->set_must_exist(true);
  EXPECT_TRUE(client_->DeleteSession("anna").ok());
  const absl::StatusOr<Answer> gone = session.Chat("What is my code?");
  EXPECT_EQ(gone.status().code(), absl::StatusCode::kNotFound) << "no invented code";
}

TEST_F(DemoModelTest, ACommandLineSpellsSpecialTokensUnlessToldNotTo) {
  const auto run = [this](std::vector<std::string> words) {
    words.insert(words.begin(), kClient);
    ChildProcess client(words, "", {"MNEME_SERVER=" + address_});
    EXPECT_EQ(client.Wait(), 0) << client.err();
    return client.out();
  };
  EXPECT_EQ(run({"tokenize", "</s>"}), "1 2\n");
  EXPECT_EQ(run({"tokenize", "--no-add-special-tokens", "</s>"}), "2\n");
  EXPECT_THAT(run({"tokenize", "--no-parse-special", "--pieces", "</s>"}),
              testing::Not(testing::HasSubstr("2\t")));
  // A template that was applied by hand.
  const std::string answer =
      run({"generate", "--no-add-special-tokens", "--temperature=0",
           "<s>User: My code is 7281.\nAssistant: Noted. Your code is 7281.</s>\n"
           "User: What is my code?\nAssistant:"});
  EXPECT_EQ(answer, " Your code is 7281.\n");
}

// The greedy continuation by one token, with all digits of its probability.
std::string Probe(Client& client, v1::GenerateRequest request) {
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(1);
  request.mutable_response()->set_logprobs(5);
  std::string digits;
  const absl::Status status = client.Generate(request, [&](const v1::GenerateResponse& response) {
    for (const v1::Output& output : response.outputs()) {
      for (const v1::TokenLogprob& token : output.logprobs()) {
        absl::StrAppend(&digits, token.ShortDebugString());
      }
    }
  });
  EXPECT_TRUE(status.ok()) << status;
  return digits;
}

// <s>User: ...\nAssistant: ...</s>\nUser: ...: what the model was trained with.
TEST_F(DemoModelTest, TurnsAreTheTokensOfItsTraining) {
  const absl::StatusOr<v1::GetInfoResponse> info = client_->GetInfo();
  ASSERT_TRUE(info.ok());
  const std::vector<int32_t> begin = {info->model().bos_token_id()};
  const std::vector<int32_t> end = {info->model().eos_token_id()};
  // Words of the format are tokens of their own, wherever a text is cut.
  EXPECT_EQ(Encode("\nUser:").size(), 2);
  EXPECT_EQ(Encode("\nAssistant:").size(), 2);

  const std::string first = Chat("s", "My name is Clara.\n");
  const std::string second = Chat("s", "What is my name?\n");
  std::vector<int32_t> expected;
  for (const std::vector<int32_t>& part :
       {begin, Encode("User: My name is Clara.\nAssistant:"),
        Encode(absl::StrCat(" ", absl::StripSuffix(first, "\n"))), end,
        Encode("\nUser: What is my name?\nAssistant:"),
        Encode(absl::StrCat(" ", absl::StripSuffix(second, "\n"))), end}) {
    expected.insert(expected.end(), part.begin(), part.end());
  }
  EXPECT_EQ(InfoOf("s").position(), static_cast<int64_t>(expected.size()));

  v1::GenerateRequest goes_on;
  goes_on.mutable_session()->set_name("s");
  goes_on.set_text("\nUser:");
  v1::GenerateRequest at_once;
  for (const int32_t token : Encode("\nUser:")) expected.push_back(token);
  at_once.mutable_token_ids()->mutable_ids()->Add(expected.begin(), expected.end());
  EXPECT_EQ(Probe(*client_, goes_on), Probe(*client_, at_once));
}

}  // namespace
}  // namespace mneme
