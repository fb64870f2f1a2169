// Keys and TLS in front of HTTP.
#include "server/http/http_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <signal.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "server/security/api_keys.h"
#include "tests/server/security/test_certificates.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TestCertificates& Files() { return TestCertificates::Usual(); }

// A client's view of one connection.
struct Seen {
  bool connected = false;  // the handshake came to an end
  std::string version;
  std::string subject;  // of the server
  std::string text;     // of all answers
};

class HttpGuardTest : public ::testing::Test {
 protected:
  // The server may close while a client still writes.
  HttpGuardTest() { signal(SIGPIPE, SIG_IGN); }

  void Start(const v1::SecuritySection& config, absl::Duration header_timeout = absl::Minutes(10)) {
    SecurityFailure failure;
    auto security = Security::Create(config, clock_, failure);
    ASSERT_TRUE(security.ok()) << security.status();
    security_ = *std::move(security);
    HttpRoutes routes;
    const auto tell_owner = [](std::shared_ptr<HttpCall> call) {
      call->Send({.body = absl::StrCat("owner=", call->request().owner)});
    };
    routes.Add({.method = "GET", .pattern = "/health", .handler = tell_owner, .is_open = true});
    routes.Add({.method = "GET", .pattern = "/metrics", .handler = tell_owner});
    routes.Add({.method = "POST", .pattern = "/v1/completions", .handler = tell_owner});
    HttpServerOptions options;
    options.port = 0;
    options.header_timeout = header_timeout;
    GuardHttp(*security_, options);
    auto server = HttpServer::Start(options, routes);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  static v1::SecuritySection Tls(bool mutual) { return Files().Live(mutual); }
  static v1::SecuritySection Keys(v1::SecuritySection config = {}) {
    Files().Replace("keys",
                    absl::StrCat(ApiKeyLine("alice", "key-of-alice"), "\n",
                                 ApiKeyLine("prometheus", "key-of-prometheus"), ":monitor\n"));
    config.set_api_key_file(Files().Path("keys"));
    return config;
  }

  // Sends `request` over TLS, or plainly without `context`, and reads until the server closes.
  Seen Talk(const std::string& request, SSL_CTX* context) {
    Seen seen;
    const std::string target = absl::StrCat("127.0.0.1:", server_->port());
    BIO* bio = context == nullptr ? BIO_new_connect(target.c_str()) : BIO_new_ssl_connect(context);
    if (context != nullptr) BIO_set_conn_hostname(bio, target.c_str());
    SSL* ssl = nullptr;
    if (BIO_do_connect(bio) == 1 && (context == nullptr || BIO_do_handshake(bio) == 1)) {
      seen.connected = true;
      if (context != nullptr) {
        BIO_get_ssl(bio, &ssl);
        seen.version = SSL_get_version(ssl);
        X509* certificate = SSL_get1_peer_certificate(ssl);
        char name[100] = "";
        X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name,
                                  sizeof(name));
        seen.subject = name;
        X509_free(certificate);
      }
      BIO_write(bio, request.data(), static_cast<int>(request.size()));
      char buffer[4096];
      int bytes;
      while ((bytes = BIO_read(bio, buffer, sizeof(buffer))) > 0) seen.text.append(buffer, bytes);
    }
    BIO_free_all(bio);
    return seen;
  }
  // With the certificate of that name, if one is given.
  Seen TalkTls(const std::string& request, const std::string& name = "",
               int max_version = TLS1_3_VERSION, const std::string& alpn = "") {
    SSL_CTX* context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_security_level(context, 0);
    SSL_CTX_set_min_proto_version(context, TLS1_VERSION);
    SSL_CTX_set_max_proto_version(context, max_version);
    SSL_CTX_load_verify_locations(context, Files().Path("ca.pem").c_str(), nullptr);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    if (!name.empty()) {
      SSL_CTX_use_certificate_file(context, Files().Path(name + ".pem").c_str(), SSL_FILETYPE_PEM);
      SSL_CTX_use_PrivateKey_file(context, Files().Path(name + ".key").c_str(), SSL_FILETYPE_PEM);
    }
    if (!alpn.empty()) {
      const std::string wire = absl::StrCat(std::string(1, static_cast<char>(alpn.size())), alpn);
      SSL_CTX_set_alpn_protos(context, reinterpret_cast<const unsigned char*>(wire.data()),
                              static_cast<unsigned>(wire.size()));
    }
    Seen seen = Talk(request, context);
    SSL_CTX_free(context);
    return seen;
  }
  static std::string Get(const std::string& path, const std::string& fields = "") {
    return absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n", fields,
                        "\r\n");
  }
  static std::string Post(const std::string& fields = "") {
    return absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n", fields,
                        "Content-Length: 2\r\n\r\n{}");
  }
  std::string PlainText(const std::string& request) { return Talk(request, nullptr).text; }

  RealClock clock_;
  std::unique_ptr<Security> security_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpGuardTest, EverythingButOpenRoutesNeedsAKey) {
  Start(Keys());
  EXPECT_THAT(PlainText(Get("/health")), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("owner=")));
  for (const std::string& request : {Get("/metrics"), Post(), Get("/no/such/route")}) {
    EXPECT_THAT(PlainText(request),
                AllOf(StartsWith("HTTP/1.1 401"), HasSubstr("Bearer"), Not(HasSubstr("owner="))));
  }
  const std::string alice = "Authorization: Bearer key-of-alice\r\n";
  EXPECT_THAT(PlainText(Post(alice)), HasSubstr("owner=alice"));
  EXPECT_THAT(PlainText(Get("/metrics", alice)), HasSubstr("owner=alice"));
  EXPECT_THAT(PlainText(Get("/no/such/route", alice)), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(PlainText(Post("Authorization: Bearer nonsense\r\n")),
              AllOf(StartsWith("HTTP/1.1 401"), HasSubstr("unknown"), Not(HasSubstr("nonsense"))));
  EXPECT_THAT(PlainText(Post(alice + alice)), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(PlainText(Post("Authorization: Basic key-of-alice\r\n")), StartsWith("HTTP/1.1 401"));
}

TEST_F(HttpGuardTest, MonitorsSeeNumbersOnly) {
  Start(Keys());
  const std::string monitor = "Authorization: Bearer key-of-prometheus\r\n";
  EXPECT_THAT(PlainText(Get("/metrics", monitor)), HasSubstr("owner=prometheus"));
  EXPECT_THAT(PlainText(Post(monitor)), AllOf(StartsWith("HTTP/1.1 403"), HasSubstr("monitor")));
}

TEST_F(HttpGuardTest, WithoutKeysEverybodyIsAnonymous) {
  Start({});
  EXPECT_THAT(PlainText(Post()), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("owner=")));
}

TEST_F(HttpGuardTest, TlsIsOfTodayAndSpeaksHttp11) {
  Start(Tls(false));
  EXPECT_THAT(TalkTls(Get("/health")).text, StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(TalkTls(Get("/health"), "", TLS1_3_VERSION, "http/1.1").version, "TLSv1.3");
  EXPECT_EQ(TalkTls(Get("/health"), "", TLS1_2_VERSION).version, "TLSv1.2");
  EXPECT_FALSE(TalkTls(Get("/health"), "", TLS1_1_VERSION).connected);
  EXPECT_FALSE(TalkTls(Get("/health"), "", TLS1_3_VERSION, "h2").connected);
  EXPECT_EQ(PlainText(Get("/health")), "");  // without TLS there is nothing to say
}

TEST_F(HttpGuardTest, AClientThatGoesSilentInTheHandshakeIsCutOff) {
  Start(Tls(false), absl::Milliseconds(100));
  EXPECT_EQ(PlainText("\x16\x03\x01"), "");
}

TEST_F(HttpGuardTest, ARefusalReachesAClientThatSendsMore) {
  Start(Keys(Tls(false)));
  const std::string request =
      absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n",
                   std::string(200000, 'x'));
  EXPECT_THAT(TalkTls(request).text, StartsWith("HTTP/1.1 401"));
}

TEST_F(HttpGuardTest, ANewCertificateIsServedWithoutARestart) {
  Start(Tls(false));
  EXPECT_EQ(TalkTls(Get("/health")).subject, "server");
  Files().Replace("live.pem", Files().Read("server2.pem"));
  EXPECT_FALSE(security_->Reload().ok());
  EXPECT_EQ(TalkTls(Get("/health")).subject, "server");
  Files().Replace("live.key", Files().Read("server2.key"));
  EXPECT_TRUE(security_->Reload().ok());
  EXPECT_EQ(TalkTls(Get("/health")).subject, "server2");
}

TEST_F(HttpGuardTest, ClientCertificatesNameTheOwner) {
  Start(Tls(true));
  EXPECT_THAT(TalkTls(Post(), "alice").text, HasSubstr("owner=cert:alice"));
  EXPECT_THAT(TalkTls(Post(), "bob").text, HasSubstr("owner=cert:spiffe://example/bob"));
  // With TLS 1.3 a client hears of the refusal when it first reads.
  for (const char* name : {"", "foreign", "expired"}) {
    EXPECT_EQ(TalkTls(Post(), name).text, "") << name;
    EXPECT_FALSE(TalkTls(Post(), name, TLS1_2_VERSION).connected) << name;
  }
}

TEST_F(HttpGuardTest, OwnersAreFoundAgainByName) {
  Start(Keys());
  const Authenticator& authenticator = security_->authenticator();
  EXPECT_EQ(authenticator.CallerNamed("prometheus")->role, Role::kMonitor);
  EXPECT_EQ(authenticator.CallerNamed("cert:alice")->owner, "cert:alice");
  EXPECT_EQ(authenticator.CallerNamed("")->owner, "");
}

}  // namespace
}  // namespace mneme
