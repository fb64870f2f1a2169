#include "server/security/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

constexpr KeyLimits kDefaults = {.max_streams = 3, .max_sessions = 4, .tokens_per_minute = 5};

std::string KeysErrorOf(const std::string& text) {
  return std::string(ApiKeys::Parse(text, "keys", kDefaults).status().message());
}

TEST(ApiKeysTest, NewKeysAreLongAndNeverTheSame) {
  std::set<std::string> keys;
  for (int i = 0; i < 1000; ++i) {
    const std::string key = NewApiKey();
    EXPECT_THAT(key, MatchesRegex("mneme-[A-Za-z0-9_-]{43}"));
    EXPECT_TRUE(keys.insert(key).second);
  }
}

TEST(ApiKeysTest, TheHashIsSha256) {
  // FIPS 180-2, appendix B.1.
  EXPECT_EQ(ApiKeyLine("alice", "abc"),
            "alice:sha256-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(ApiKeysTest, AFileHasALineForEachKey) {
  const std::string text = absl::StrCat(
      "# who may call\n\n", ApiKeyLine("alice", "key-a"), "\r\n  ", ApiKeyLine("bob", "key-b"),
      ":streams=8,sessions=100,tokens-per-minute=60000,priority=10\n", ApiKeyLine("ops", "key-o"),
      ":admin\n", ApiKeyLine("prometheus", "key-p"), ":monitor,streams=0\n");
  const absl::StatusOr<ApiKeys> keys = ApiKeys::Parse(text, "keys", kDefaults);
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->size(), 4u);
  EXPECT_EQ(keys->Find("key-a")->owner, "alice");
  EXPECT_EQ(keys->Find("key-a")->role, Role::kUser);
  EXPECT_EQ(keys->Find("key-a")->limits, kDefaults);
  EXPECT_EQ(
      keys->Find("key-b")->limits,
      (KeyLimits{
          .max_streams = 8, .max_sessions = 100, .tokens_per_minute = 60000, .max_priority = 10}));
  EXPECT_EQ(keys->Find("key-o")->role, Role::kAdmin);
  EXPECT_EQ(keys->Find("key-p")->role, Role::kMonitor);
  EXPECT_EQ(keys->Find("key-p")->limits.max_streams, 0);
  for (const char* other : {"", "key", "key-a ", "key-c", "alice"}) {
    EXPECT_EQ(keys->Find(other), nullptr) << other;
  }
  EXPECT_EQ(keys->Named("bob")->limits.max_sessions, 100);
  EXPECT_EQ(keys->Named("carol"), nullptr);
}

TEST(ApiKeysTest, TwoKeysOfOneNameAreOneClient) {
  const std::string text = absl::StrCat(ApiKeyLine("alice", "old"), ":streams=2\n",
                                        ApiKeyLine("alice", "new"), ":streams=2\n");
  const absl::StatusOr<ApiKeys> keys = ApiKeys::Parse(text, "keys", kDefaults);
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->Find("old"), keys->Find("new"));
  EXPECT_THAT(KeysErrorOf(absl::StrCat(ApiKeyLine("alice", "old"), "\n", ApiKeyLine("alice", "new"),
                                       ":admin")),
              AllOf(HasSubstr("keys:2: "), HasSubstr("other options")));
  EXPECT_THAT(KeysErrorOf(absl::StrCat(ApiKeyLine("alice", "k"), "\n", ApiKeyLine("bob", "k"))),
              HasSubstr("on a line before"));
}

TEST(ApiKeysTest, ErrorsNameTheLineAndNoSecret) {
  const std::string good = ApiKeyLine("alice", "key-a");
  EXPECT_THAT(KeysErrorOf(absl::StrCat(good, "\n\nbob\n")),
              AllOf(HasSubstr("keys:3: "), HasSubstr("name:hash")));
  // A key that somebody wrote instead of its hash must not be found in a log.
  const std::string key = NewApiKey();
  EXPECT_THAT(KeysErrorOf(absl::StrCat("bob:", key)),
              AllOf(HasSubstr("keys:1: "), HasSubstr("--hash-api-key"), Not(HasSubstr(key))));
  // Nor a hash, wherever a line break is too few or too many.
  const std::string hash = good.substr(good.find("sha256-") + 7);
  for (const std::string& text :
       {absl::StrCat(good, ":streams=1", good), absl::StrCat(hash, ":", hash),
        absl::StrCat(hash, ":sha256-", hash, ":x"), absl::StrCat(good, ":", hash)}) {
    EXPECT_THAT(KeysErrorOf(text), AllOf(HasSubstr("keys:1: "), Not(HasSubstr(hash)))) << text;
  }
  EXPECT_THAT(KeysErrorOf(good.substr(0, good.size() - 1)), HasSubstr("64 hexadecimal digits"));
  EXPECT_THAT(KeysErrorOf(absl::StrCat("two words", good.substr(5))),
              HasSubstr("no name of a key"));
  EXPECT_THAT(KeysErrorOf(good.substr(5)), HasSubstr("no name of a key"));
  EXPECT_THAT(KeysErrorOf(absl::StrCat(good, ":stream=3")),
              AllOf(HasSubstr("\"stream\""), HasSubstr("streams=N")));
  EXPECT_THAT(KeysErrorOf(absl::StrCat(good, ":streams=many")), HasSubstr("\"many\""));
  EXPECT_THAT(KeysErrorOf(absl::StrCat(good, ":streams=-1")), HasSubstr("\"-1\""));
  EXPECT_THAT(KeysErrorOf(absl::StrCat(good, ":admin=1")), HasSubstr("takes no value"));
  EXPECT_THAT(KeysErrorOf(absl::StrCat(good, ":admin,monitor")), HasSubstr("exclude"));
  EXPECT_THAT(KeysErrorOf(absl::StrCat(good, ":")), HasSubstr("unknown option"));
}

TEST(ApiKeysTest, APlainKeyNeedsANameOfItsOwn) {
  absl::StatusOr<ApiKeys> keys = ApiKeys::Parse(ApiKeyLine("alice", "key-a"), "keys", kDefaults);
  ASSERT_TRUE(keys.ok());
  EXPECT_TRUE(keys->Add("plain", {.owner = "other"}).ok());
  EXPECT_EQ(keys->Find("plain")->owner, "other");
  EXPECT_TRUE(absl::IsAlreadyExists(keys->Add("plain2", {.owner = "alice"})));
}

}  // namespace
}  // namespace mneme
