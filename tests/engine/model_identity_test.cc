// Which stored sessions a model goes on with: its own, also those that it stored as another one.
#include "engine/model_identity.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/sessions/logged_facts.h"
#include "gtest/gtest.h"
#include "tests/engine/session_storage.h"
#include "tests/store/store_testing.h"
#include "tests/support/fake_model.h"

namespace mneme {
namespace {

// Two words; how text is cut into them is told by a number.
class WordTokenizer final : public Tokenizer {
 public:
  explicit WordTokenizer(uint64_t rules) : Tokenizer(VocabularyOf(rules)) {}
  absl::string_view kind() const override { return "words"; }

 protected:
  absl::Status AppendIds(absl::string_view, const TextOptions&, WorkMeter&,
                         std::vector<int32_t>&) const override {
    return absl::OkStatus();
  }

 private:
  static Vocabulary VocabularyOf(uint64_t rules) {
    Vocabulary vocabulary;
    vocabulary.entries = {{.piece = "a", .text = "a"}, {.piece = "b", .text = "b"}};
    vocabulary.entries.resize(FakeModelOptions().vocab, {.kind = TokenKind::kPadding});
    vocabulary.rules_digest = rules;
    return vocabulary;
  }
};

class ModelIdentityTest : public testing::Test {
 protected:
  ModelIdentityTest() { SetMinLogSeverity(LogSeverity::kError); }

  // Whether a server that cuts text by such rules goes on with the folder's session.
  bool GoesOn(uint64_t rules) {
    StoreReport report;
    auto engine = Engine::Create(std::make_unique<FaultyBackend>(), std::make_unique<FakeModel>(),
                                 std::make_unique<WordTokenizer>(rules), {},
                                 {.max_sessions = 2, .max_rows = 2, .max_tokens_per_step = 16},
                                 clock_, StorageIn(folder_.path(), report));
    EXPECT_TRUE(engine.ok()) << engine.status();
    EXPECT_TRUE(report.damage.empty());
    const auto session = (*engine)->GetSession({"owner", "s"});
    if (!session.ok()) {
      EXPECT_THAT(session.status(),
                  Fails(absl::StatusCode::kFailedPrecondition, "it is left alone"));
    }
    return session.ok();
  }

  void Store(uint64_t model) {
    StoreReport report;
    const SessionStorage storage = StorageIn(folder_.path(), report);
    SessionRecord session = NamedSession(*storage.store, "s");
    session.model = model;
    AddTurn turn = TurnOf(session.id, TokenTurn(0, {1, 2}));
    turn.turn.facts = LoggedFacts().Encode();
    ASSERT_EQ(storage.store->Apply({CreateSession{session}, turn}), absl::OkStatus());
  }

  const StoreFolder folder_;
  RealClock clock_;
  const FakeModel model_;
};

TEST_F(ModelIdentityTest, TextThatIsCutAnotherWayIsOfAnotherModel) {
  const WordTokenizer one(1);
  Store(ModelIdentity(model_, &one));
  EXPECT_FALSE(GoesOn(2));
  EXPECT_TRUE(GoesOn(1));
}

TEST_F(ModelIdentityTest, SessionsOfVersionsWithoutTheRulesAreTheFirstModels) {
  const WordTokenizer one(1), two(2);
  ASSERT_EQ(FirstModelIdentity(model_, &one), FirstModelIdentity(model_, &two));
  Store(FirstModelIdentity(model_, &one));
  EXPECT_TRUE(GoesOn(2));
  EXPECT_FALSE(GoesOn(1));
  EXPECT_TRUE(GoesOn(2));
}

}  // namespace
}  // namespace mneme
