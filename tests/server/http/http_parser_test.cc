// Requests in pieces: where they are cut changes nothing, as the network cuts where it likes.
#include "server/http/http_parser.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

using State = HttpParser::State;

// `pieces` as they arrive, one after the other.
State Feed(HttpParser& parser, const std::vector<std::string>& pieces) {
  std::string in;
  for (const std::string& piece : pieces) {
    in += piece;
    for (State before = parser.state(); parser.Feed(in) != before;) before = parser.state();
  }
  return parser.state();
}

// Calls `check` with the parser of `text`, whole, cut in two at each place, and byte by byte.
void ForAllCuts(const std::string& text, void (*check)(HttpParser&)) {
  const auto run = [check](const std::vector<std::string>& pieces) {
    HttpParser parser((HttpParserLimits()));
    Feed(parser, pieces);
    check(parser);
  };
  run({text});
  std::vector<std::string> bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("cut at ", i));
    run({text.substr(0, i), text.substr(i)});
    bytes.push_back(text.substr(i, 1));
  }
  SCOPED_TRACE("byte by byte");
  run(bytes);
}

constexpr char kHead[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";

TEST(HttpParserTest, ALineOfTheHeaderThatBeginsWithWhiteSpaceIsRefusedWhereverItIsCut) {
  for (const char* folded :
       {"X-A: a\r\n b\r\nContent-Length: 2\r\n", "X-A: a\r\n\tb\r\nContent-Length: 2\r\n",
        "X-A:\r\n b\r\nContent-Length: 2\r\n", "Content-Length: 2\r\nX-A: a\r\n \r\n",
        "Transfer-Encoding:\r\n chunked\r\n", "X-A: a\r\n b\r\nX-B: c\r\nContent-Length: 2\r\n"}) {
    SCOPED_TRACE(folded);
    ForAllCuts(absl::StrCat(kHead, folded, "\r\n{}"), [](HttpParser& parser) {
      EXPECT_EQ(parser.state(), State::kFailed);
      EXPECT_EQ(parser.error_status(), 400);
      EXPECT_THAT(parser.error_message(), HasSubstr("begins with white space"));
    });
  }
}

TEST(HttpParserTest, ALineOfTheTrailersThatBeginsWithWhiteSpaceIsRefusedWhereverItIsCut) {
  for (const char* trailers :
       {"X-A: a\r\n b\r\n", "X-A: a\r\nX-B: b\r\n\tc\r\n", "X-A:\r\n b\r\n"}) {
    SCOPED_TRACE(trailers);
    ForAllCuts(
        absl::StrCat(kHead, "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", trailers, "\r\n"),
        [](HttpParser& parser) {
          EXPECT_EQ(parser.state(), State::kFailed);
          EXPECT_EQ(parser.error_status(), 400);
          EXPECT_THAT(parser.error_message(), HasSubstr("begins with white space"));
        });
  }
}

TEST(HttpParserTest, WhiteSpaceAtTheBeginningOfLinesOfABodyIsTheBodys) {
  static constexpr char kBody[] = "{\r\n  \"prompt\":\r\n\t\"a\"\r\n}\r\n ";
  static_assert(sizeof(kBody) - 1 == 26);
  const auto is_whole = [](HttpParser& parser) {
    EXPECT_EQ(parser.state(), State::kDone) << parser.error_message();
    EXPECT_EQ(parser.request().body, kBody);
  };
  ForAllCuts(absl::StrCat(kHead, "Content-Length: 26\r\n\r\n", kBody), is_whole);
  ForAllCuts(absl::StrCat(kHead, "Transfer-Encoding: chunked\r\n\r\n1a\r\n", kBody,
                          "\r\n0\r\nX-A: a  b \r\n\r\n"),
             is_whole);
  ForAllCuts(absl::StrCat(kHead, "Transfer-Encoding: chunked\r\n\r\n3\r\n{\r\n\r\n17\r\n",
                          absl::string_view(kBody).substr(3), "\r\n0\r\n\r\n"),
             is_whole);
}

}  // namespace
}  // namespace mneme
