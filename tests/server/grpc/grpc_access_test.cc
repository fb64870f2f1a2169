// Keys, roles, ownership and limits, seen from gRPC.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "clients/cpp/error_details.h"
#include "server/security/api_keys.h"
#include "tests/server/grpc/server_fixture.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A key file with a user, another one with limits, a monitor and an admin.
class KeyFile {
 public:
  KeyFile() : path_(testing::TempDir() + "mneme_keys_XXXXXX") {
    EXPECT_GE(mkstemp(path_.data()), 0);
    Write(absl::StrCat(ApiKeyLine("alice", "key-of-alice"), "\n", ApiKeyLine("bob", "key-of-bob"),
                       ":streams=1,tokens-per-minute=600\n",
                       ApiKeyLine("prometheus", "key-of-prometheus"), ":monitor\n",
                       ApiKeyLine("ops", "key-of-ops"), ":admin\n"));
  }
  ~KeyFile() { std::remove(path_.c_str()); }
  void Write(const std::string& text) { std::ofstream(path_) << text; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

v1::SecuritySection WithKeys(const KeyFile& file) {
  v1::SecuritySection security;
  security.set_api_key_file(file.path());
  return security;
}

class GrpcAccessTest : private KeyFile, public ServerTest {
 protected:
  GrpcAccessTest() : ServerTest(true, WithKeys(*this)) {}

  KeyFile& key_file() { return *this; }
  std::unique_ptr<Client> ClientOf(const std::string& key) {
    return std::make_unique<Client>(ClientOptions{.target = target(), .api_key = key});
  }

  // Calls any method with raw bytes and headers.
  grpc::Status Call(const std::string& method,
                    const std::vector<std::pair<std::string, std::string>>& headers,
                    const std::string& bytes = "") {
    return CallRaw(grpc::CreateChannel(target(), grpc::InsecureChannelCredentials()), method, bytes,
                   headers);
  }
  grpc::StatusCode CodeOf(const std::string& method, const std::string& key) {
    return Call(method, {{"authorization", "Bearer " + key}}).error_code();
  }

  // A stream that the engine has and that has not ended.
  static void Begin(Client& client, const v1::GenerateRequest& request, absl::Status& status,
                    absl::Notification& done) {
    client.GenerateAsync(
        request, [](const v1::GenerateResponse&) {},
        [&](const absl::Status& ended) {
          status = ended;
          done.Notify();
        });
  }
  static v1::GenerateRequest Ask(int max_tokens = 10) {
    v1::GenerateRequest request;
    request.set_text("abc");
    request.mutable_stopping()->set_max_tokens(max_tokens);
    return request;
  }
};

constexpr const char* kUseMethods[] = {
    "/mneme.v1.Inference/Generate",     "/mneme.v1.Inference/Tokenize",
    "/mneme.v1.Inference/Detokenize",   "/mneme.v1.Sessions/Create",
    "/mneme.v1.Sessions/Get",           "/mneme.v1.Sessions/List",
    "/mneme.v1.Sessions/Fork",          "/mneme.v1.Sessions/Delete",
    "/mneme.v1.Sessions/ForgetSegments"};
constexpr const char* kMonitorMethods[] = {
    "/mneme.v1.Inference/GetInfo", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"};
constexpr const char* kAdminMethods[] = {"/mneme.v1.Admin/SetLogLevel", "/mneme.v1.Admin/Reload",
                                         "/mneme.v1.Admin/ListSessions",
                                         "/mneme.v1.Admin/DeleteSession"};

TEST_F(GrpcAccessTest, EveryCallButHealthNeedsAKey) {
  std::vector<std::string> methods(std::begin(kUseMethods), std::end(kUseMethods));
  methods.insert(methods.end(), std::begin(kMonitorMethods), std::end(kMonitorMethods));
  methods.insert(methods.end(), std::begin(kAdminMethods), std::end(kAdminMethods));
  methods.emplace_back("/mneme.v1.Inference/NoSuchMethod");
  methods.emplace_back("/no.such.Service/Method");
  const int64_t refused = security_->authenticator().unauthenticated();
  for (const std::string& method : methods) {
    const grpc::Status none = Call(method, {});
    EXPECT_EQ(none.error_code(), grpc::StatusCode::UNAUTHENTICATED) << method;
    EXPECT_THAT(none.error_message(), HasSubstr("authorization: Bearer KEY"));
    const grpc::Status unknown = Call(method, {{"authorization", "Bearer key-of-mallory"}});
    EXPECT_EQ(unknown.error_code(), grpc::StatusCode::UNAUTHENTICATED) << method;
    EXPECT_EQ(unknown.error_message(), "the API key is unknown");
  }
  EXPECT_EQ(security_->authenticator().unauthenticated() - refused,
            static_cast<int64_t>(2 * methods.size()));
  EXPECT_TRUE(Call("/grpc.health.v1.Health/Check", {}).ok());
  EXPECT_TRUE(*client_->IsServing());
  EXPECT_EQ(CodeOf("/grpc.health.v1.Health/Check", "key-of-mallory"), grpc::StatusCode::OK);
}

TEST_F(GrpcAccessTest, TheHeaderIsReadAsItsStandardHasIt) {
  const std::string method = "/mneme.v1.Inference/GetInfo";
  const auto code = [&](std::vector<std::pair<std::string, std::string>> headers) {
    return Call(method, headers).error_code();
  };
  EXPECT_EQ(code({{"authorization", "Bearer key-of-alice"}}), grpc::StatusCode::OK);
  EXPECT_EQ(code({{"authorization", "bearer  key-of-alice"}}), grpc::StatusCode::OK);
  for (const char* wrong :
       {"key-of-alice", "Basic key-of-alice", "Bearer", "Bearer ", "Bearer key-of-alice2",
        "Bearer key-of-alic", "Bearer KEY-OF-ALICE", "Bearer alice"}) {
    EXPECT_EQ(code({{"authorization", wrong}}), grpc::StatusCode::UNAUTHENTICATED) << wrong;
  }
  EXPECT_EQ(code({{"authorization", "Bearer key-of-bob"}, {"authorization", "Bearer key-of-ops"}}),
            grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(GrpcAccessTest, RolesMayDoWhatTheyAreFor) {
  for (const char* method : kUseMethods) {
    EXPECT_EQ(CodeOf(method, "key-of-prometheus"), grpc::StatusCode::PERMISSION_DENIED) << method;
  }
  for (const char* method : kAdminMethods) {
    EXPECT_EQ(CodeOf(method, "key-of-prometheus"), grpc::StatusCode::PERMISSION_DENIED) << method;
    const grpc::Status user = Call(method, {{"authorization", "Bearer key-of-alice"}});
    EXPECT_EQ(user.error_code(), grpc::StatusCode::PERMISSION_DENIED) << method;
    EXPECT_THAT(user.error_message(), HasSubstr("marked admin"));
  }
  EXPECT_TRUE(ClientOf("key-of-prometheus")->GetInfo().ok());
  EXPECT_TRUE(ClientOf("key-of-alice")->GetInfo().ok());
  EXPECT_TRUE(ClientOf("key-of-ops")->CreateSession({}).ok());
  EXPECT_TRUE(ClientOf("key-of-ops")->Reload().ok());
  for (const char* key : {"key-of-prometheus", "key-of-alice"}) {
    EXPECT_EQ(CodeOf(kMonitorMethods[1], key), grpc::StatusCode::OK) << key;
  }
}

TEST_F(GrpcAccessTest, TheEngineIsToldWhoseSessionItIs) {
  const auto alice = ClientOf("key-of-alice");
  absl::Status status;
  absl::Notification done;
  v1::GenerateRequest request = Ask();
  request.mutable_session()->set_name("s");
  request.set_idempotency_key("k");
  Begin(*alice, request, status, done);
  EXPECT_EQ(engine_.WaitForRequest(0).request.session, (SessionKey{"alice", "s"}));
  engine_.WaitForRequest(0).PushEnd();
  done.WaitForNotification();
  // Without a session's name, too: idempotency keys belong to somebody.
  const auto ops = ClientOf("key-of-ops");
  absl::Notification other_done;
  Begin(*ops, Ask(), status, other_done);
  EXPECT_EQ(engine_.WaitForRequest(1).request.session, (SessionKey{"ops", ""}));
  engine_.WaitForRequest(1).PushEnd();
  other_done.WaitForNotification();
}

TEST_F(GrpcAccessTest, AnotherKeysSessionIsNotFound) {
  const auto alice = ClientOf("key-of-alice");
  const auto bob = ClientOf("key-of-bob");
  v1::CreateSessionRequest create;
  create.set_name("s");
  EXPECT_TRUE(alice->CreateSession(create).ok());
  EXPECT_TRUE(absl::IsNotFound(bob->GetSession("s").status()));
  EXPECT_TRUE(absl::IsNotFound(bob->DeleteSession("s")));
  v1::ForkSessionRequest fork;
  fork.set_source_name("s");
  fork.set_target_name("t");
  EXPECT_TRUE(absl::IsNotFound(bob->ForkSession(fork).status()));
  EXPECT_EQ(bob->ListSessions({})->total_count(), 0);
  EXPECT_EQ(ClientOf("key-of-ops")->ListSessions({})->total_count(), 0);  // nor for operators
  EXPECT_TRUE(bob->CreateSession(create).ok());  // the name is free for others
  EXPECT_TRUE(alice->ForkSession(fork).ok());
  EXPECT_EQ(alice->ListSessions({})->total_count(), 2);
  EXPECT_EQ(bob->ListSessions({})->total_count(), 1);
}

TEST_F(GrpcAccessTest, AdminsListSessionsOfAllOwners) {
  for (const char* who : {"bob", "alice", "ops"}) {
    for (const char* name : {"z", "a", "m"}) {
      v1::CreateSessionRequest create;
      create.set_name(name);
      ASSERT_TRUE(ClientOf(absl::StrCat("key-of-", who))->CreateSession(create).ok());
    }
  }
  const auto ops = ClientOf("key-of-ops");
  std::vector<std::string> seen;
  v1::AdminListSessionsRequest request;
  request.set_page_size(2);
  do {
    const auto page = ops->ListAllSessions(request);
    ASSERT_TRUE(page.ok()) << page.status();
    EXPECT_EQ(page->total_count(), 9);
    for (const v1::Session& s : page->sessions()) seen.push_back(s.owner() + "/" + s.name());
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  EXPECT_THAT(seen, ElementsAre("alice/a", "alice/m", "alice/z", "bob/a", "bob/m", "bob/z", "ops/a",
                                "ops/m", "ops/z"));

  request.Clear();
  request.set_owner("bob");
  request.set_name_prefix("m");
  EXPECT_EQ(ops->ListAllSessions(request)->total_count(), 1);
  request.set_page_token("nonsense");
  EXPECT_TRUE(absl::IsInvalidArgument(ops->ListAllSessions(request).status()));
  EXPECT_EQ(ops->ListSessions({})->total_count(), 3) << "its own";
  EXPECT_EQ(ops->ListSessions({})->sessions(0).owner(), "");
  EXPECT_TRUE(absl::IsPermissionDenied(ClientOf("key-of-alice")->ListAllSessions({}).status()));
}

TEST_F(GrpcAccessTest, AdminsEndSessionsOfOthersAndTheLogSaysSo) {
  v1::CreateSessionRequest create;
  create.set_name("s");
  ASSERT_TRUE(ClientOf("key-of-alice")->CreateSession(create).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(ClientOf("key-of-bob")->DeleteSessionOf("alice", "s")));
  const auto ops = ClientOf("key-of-ops");
  EXPECT_TRUE(absl::IsNotFound(ops->DeleteSessionOf("bob", "s")));
  EXPECT_TRUE(ClientOf("key-of-alice")->GetSession("s").ok());
  testing::internal::CaptureStderr();
  EXPECT_TRUE(ops->DeleteSessionOf("alice", "s").ok());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr(" W session_ended_by_admin owner=alice session=s by=ops\n"));
  EXPECT_TRUE(absl::IsNotFound(ClientOf("key-of-alice")->GetSession("s").status()));
}

TEST_F(GrpcAccessTest, InfoCountsWhatTheServerRefusedAsTheMetricsDo) {
  const auto bob = ClientOf("key-of-bob");  // 600 tokens a minute
  absl::Status status;
  absl::Notification done;
  Begin(*bob, Ask(/*max_tokens=*/100000), status, done);
  done.WaitForNotification();
  ASSERT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(bob->GetInfo()->statistics().requests_rejected(), 1);
  EXPECT_EQ(engine_.stats_.rejected_by(absl::StatusCode::kInvalidArgument).value(), 0);
}

TEST_F(GrpcAccessTest, StreamsAtOnceAreLimited) {
  const auto bob = ClientOf("key-of-bob");
  // One after the other, however fast.
  for (int i = 0; i < 50; ++i) {
    absl::Status status;
    absl::Notification done;
    Begin(*bob, Ask(), status, done);
    engine_.WaitForRequest(i).PushEnd();
    done.WaitForNotification();
    ASSERT_EQ(status, absl::OkStatus()) << i;
  }
  absl::Status first;
  absl::Notification first_done;
  Begin(*bob, Ask(), first, first_done);
  engine_.WaitForRequest(50);
  absl::Status second;
  absl::Notification second_done;
  Begin(*bob, Ask(), second, second_done);
  second_done.WaitForNotification();
  EXPECT_TRUE(absl::IsResourceExhausted(second)) << second;
  EXPECT_EQ(DetailsOf(second).reason, "KEY_STREAM_LIMIT");
  EXPECT_TRUE(DetailsOf(second).retry_after.has_value());
  // Others go on.
  const auto alice = ClientOf("key-of-alice");
  absl::Status other;
  absl::Notification other_done;
  Begin(*alice, Ask(), other, other_done);
  engine_.WaitForRequest(51).PushEnd();
  other_done.WaitForNotification();
  EXPECT_EQ(other, absl::OkStatus());
  engine_.WaitForRequest(50).PushEnd(absl::AbortedError("x"));
  first_done.WaitForNotification();
  EXPECT_EQ(security_->quotas().streams("bob"), 0);
}

TEST_F(GrpcAccessTest, AStreamWhoseClientLeftCountsWhileTheEngineHasIt) {
  CancelToken cancel;
  const auto bob = ClientOf("key-of-bob");
  std::thread reader([&] {
    EXPECT_TRUE(absl::IsCancelled(bob->Generate(
        Ask(), [](const v1::GenerateResponse&) {}, &cancel)));
  });
  FakeRequest& fake = engine_.WaitForRequest(0);
  cancel.Cancel();
  reader.join();
  engine_.WaitForCancel(0);
  EXPECT_EQ(security_->quotas().streams("bob"), 1);
  fake.PushEnd(absl::CancelledError(""));
  // The thread that sent the answer may still be at it.
  while (security_->quotas().streams("bob") > 0) absl::SleepFor(absl::Milliseconds(1));
}

TEST_F(GrpcAccessTest, TokensPerMinuteAreLimited) {
  const auto bob = ClientOf("key-of-bob");
  const auto generate = [&](int max_tokens) {
    return bob->Generate(Ask(max_tokens), [](const v1::GenerateResponse&) {});
  };
  const absl::Status never = generate(10000);
  EXPECT_TRUE(absl::IsInvalidArgument(never)) << never;
  EXPECT_EQ(DetailsOf(never).reason, "KEY_TOKEN_LIMIT");
  absl::Status status;
  absl::Notification done;
  Begin(*bob, Ask(590), status, done);
  // "abc" is three tokens and BOS, of which the engine says that all were used, and no more.
  engine_.WaitForRequest(0).PushEnd();
  done.WaitForNotification();
  absl::Notification again_done;
  Begin(*bob, Ask(590), status, again_done);
  engine_.WaitForRequest(1);
  EXPECT_EQ(security_->quotas().streams("bob"), 1);
  TokenEvent last{.finish = FinishReason::kLength, .is_last = true};
  last.usage = {.prompt_tokens = 4, .completion_tokens = 590};
  FakeRequest& fake = engine_.WaitForRequest(1);
  std::exchange(fake.request.on_end, nullptr)(last.usage);
  fake.Push(last);
  again_done.WaitForNotification();
  const absl::Status refused = generate(300);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(DetailsOf(refused).reason, "KEY_TOKEN_LIMIT");
  EXPECT_GT(DetailsOf(refused).retry_after.value(), absl::Seconds(20));
  EXPECT_LT(DetailsOf(refused).retry_after.value(), absl::Seconds(31));
}

TEST_F(GrpcAccessTest, AReloadTakesAndGivesKeys) {
  const auto alice = ClientOf("key-of-alice");
  const auto ops = ClientOf("key-of-ops");
  EXPECT_TRUE(alice->GetInfo().ok());
  key_file().Write(ApiKeyLine("ops", "key-of-ops") + ":admin\n" +
                   ApiKeyLine("alice", "her-new-key") + "\n");
  EXPECT_EQ(ops->Reload()->api_keys(), 2);
  EXPECT_TRUE(absl::IsUnauthenticated(alice->GetInfo().status()));
  EXPECT_TRUE(ClientOf("her-new-key")->GetInfo().ok());
  // A file that is wrong leaves the keys as they are.
  key_file().Write("ops\n");
  const absl::Status failed = ops->Reload().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(failed));
  EXPECT_THAT(std::string(failed.message()), AllOf(HasSubstr(key_file().path()), HasSubstr(":1:")));
  key_file().Write("\n");
  EXPECT_THAT(std::string(ops->Reload().status().message()), HasSubstr("has no key"));
  EXPECT_TRUE(ClientOf("her-new-key")->GetInfo().ok());
  // A change is noticed by itself as well.
  key_file().Write(ApiKeyLine("carol", "key-of-carol"));
  security_->Poll();
  security_->Poll();
  EXPECT_TRUE(ClientOf("key-of-carol")->GetInfo().ok());
  EXPECT_TRUE(absl::IsUnauthenticated(ClientOf("her-new-key")->GetInfo().status()));
}

TEST_F(GrpcAccessTest, AdminsChangeTheLogLevel) {
  const LogSeverity before = MinLogSeverity();
  const auto ops = ClientOf("key-of-ops");
  EXPECT_TRUE(ops->SetLogLevel(v1::LOG_LEVEL_WARNING).ok());
  EXPECT_EQ(MinLogSeverity(), LogSeverity::kWarning);
  testing::internal::CaptureStderr();
  EXPECT_EQ(ops->SetLogLevel(v1::LOG_LEVEL_ERROR)->previous(), v1::LOG_LEVEL_WARNING);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr(" I log_level_changed level=error by=ops\n"));
  EXPECT_TRUE(absl::IsInvalidArgument(ops->SetLogLevel(v1::LOG_LEVEL_UNSPECIFIED).status()));
  SetMinLogSeverity(before);
}

TEST_F(GrpcAccessTest, AClientRefusesAKeyThatIsNoHeader) {
  EXPECT_TRUE(absl::IsInvalidArgument(ClientOf("two\nlines")->GetInfo().status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      ClientOf("two words")->Generate(Ask(), [](const v1::GenerateResponse&) {})));
}

class NoKeysTest : public ServerTest {};

TEST_F(NoKeysTest, WithoutKeysEverythingButAdminIsOpen) {
  EXPECT_TRUE(client_->GetInfo().ok());
  EXPECT_TRUE(client_->CreateSession({}).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(client_->Reload().status()));
  // A key that nobody asks for does no harm.
  Client with_key({.target = target(), .api_key = "some-key"});
  EXPECT_EQ(with_key.ListSessions({})->total_count(), 1);
}

}  // namespace
}  // namespace mneme
