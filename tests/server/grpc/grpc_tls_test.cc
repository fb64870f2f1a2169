// TLS and client certificates, seen from gRPC clients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "clients/cpp/client.h"
#include "tests/server/grpc/server_fixture.h"
#include "tests/server/security/test_certificates.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

TestCertificates& TlsFilesOfTests() { return TestCertificates::Usual(); }

v1::SecuritySection WithTls(bool mutual, const std::string& api_key = "") {
  v1::SecuritySection security = TlsFilesOfTests().Live(mutual);
  security.set_api_key(api_key);
  return security;
}

class TlsTest : public ServerTest {
 protected:
  explicit TlsTest(bool mutual = false, const std::string& api_key = "")
      : ServerTest(true, WithTls(mutual, api_key)) {}

  // With the certificate of that name, if one is given.
  std::unique_ptr<Client> Connect(const std::string& name = "", const std::string& ca = "ca",
                                  const std::string& api_key = "") {
    ClientTls tls{.authorities = TlsFilesOfTests().Read(ca + ".pem")};
    if (!name.empty()) {
      tls.certificate = TlsFilesOfTests().Read(name + ".pem");
      tls.private_key = TlsFilesOfTests().Read(name + ".key");
    }
    return std::make_unique<Client>(ClientOptions{
        .target = target(), .tls = tls, .api_key = api_key, .timeout = absl::Seconds(10)});
  }

  // A bare handshake that offers the protocols of `alpn`: the version agreed on, and the protocol
  // of ALPN and the peer's subject; empty if it fails.
  std::string Handshake(int max_version, const std::vector<std::string>& alpn,
                        std::string* subject = nullptr) {
    SSL_CTX* context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_security_level(context, 0);  // so that old versions could be had at all
    SSL_CTX_set_min_proto_version(context, TLS1_VERSION);
    SSL_CTX_set_max_proto_version(context, max_version);
    std::string wire;
    for (const std::string& protocol : alpn) {
      absl::StrAppend(&wire, std::string(1, static_cast<char>(protocol.size())), protocol);
    }
    SSL_CTX_set_alpn_protos(context, reinterpret_cast<const unsigned char*>(wire.data()),
                            static_cast<unsigned>(wire.size()));
    BIO* bio = BIO_new_ssl_connect(context);
    BIO_set_conn_hostname(bio, target().c_str());
    std::string result;
    if (BIO_do_connect(bio) == 1 && BIO_do_handshake(bio) == 1) {
      SSL* ssl = nullptr;
      BIO_get_ssl(bio, &ssl);
      const unsigned char* protocol = nullptr;
      unsigned length = 0;
      SSL_get0_alpn_selected(ssl, &protocol, &length);
      result = absl::StrCat(SSL_get_version(ssl), " ",
                            std::string(reinterpret_cast<const char*>(protocol), length));
      if (subject != nullptr) {
        X509* certificate = SSL_get1_peer_certificate(ssl);
        char name[100];
        X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name,
                                  sizeof(name));
        *subject = name;
        X509_free(certificate);
      }
    }
    BIO_free_all(bio);
    SSL_CTX_free(context);
    return result;
  }
};

TEST_F(TlsTest, OnlyThoseWhoTrustTheAuthorityConnect) {
  EXPECT_TRUE(Connect()->GetInfo().ok()) << Connect()->GetInfo().status();
  EXPECT_TRUE(absl::IsUnavailable(Connect("", "stranger")->GetInfo().status()));
  Client plain({.target = target(), .timeout = absl::Seconds(10)});
  EXPECT_TRUE(absl::IsUnavailable(plain.GetInfo().status()));
}

TEST_F(TlsTest, TheNameInTheCertificateCounts) {
  ClientTls tls{.authorities = TlsFilesOfTests().Read("ca.pem"), .server_name = "localhost"};
  Client right({.target = target(), .tls = tls});
  EXPECT_TRUE(right.GetInfo().ok());
  tls.server_name = "elsewhere.example";
  Client wrong({.target = target(), .tls = tls});
  EXPECT_TRUE(absl::IsUnavailable(wrong.GetInfo().status()));
}

TEST_F(TlsTest, OldVersionsAreRefused) {
  EXPECT_EQ(Handshake(TLS1_3_VERSION, {"h2"}), "TLSv1.3 h2");
  EXPECT_EQ(Handshake(TLS1_2_VERSION, {"h2"}), "TLSv1.2 h2");
  EXPECT_EQ(Handshake(TLS1_1_VERSION, {"h2"}), "");
  EXPECT_EQ(Handshake(TLS1_VERSION, {"h2"}), "");
}

// Also with clients that would rather have one of gRPC's experiments, as its own older ones.
TEST_F(TlsTest, Http2IsTheOnlyProtocolThatIsAgreedOn) {
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    const std::string name = version == TLS1_2_VERSION ? "TLSv1.2" : "TLSv1.3";
    EXPECT_EQ(Handshake(version, {"grpc-exp", "h2"}), name + " h2");
    EXPECT_EQ(Handshake(version, {"h2", "grpc-exp"}), name + " h2");
    EXPECT_EQ(Handshake(version, {"http/1.1", "h2"}), name + " h2");
    EXPECT_EQ(Handshake(version, {"grpc-exp"}), "");
    EXPECT_EQ(Handshake(version, {"http/1.1"}), "");
  }
  EXPECT_TRUE(Connect()->GetInfo().ok());
}

TEST_F(TlsTest, ANewCertificateIsServedWithoutARestart) {
  std::string subject;
  Handshake(TLS1_3_VERSION, {"h2"}, &subject);
  EXPECT_EQ(subject, "server");
  TlsFilesOfTests().Replace("live.pem", TlsFilesOfTests().Read("server2.pem"));
  security_->Poll();
  security_->Poll();  // the key is the old one: the certificate stays
  Handshake(TLS1_3_VERSION, {"h2"}, &subject);
  EXPECT_EQ(subject, "server");
  EXPECT_TRUE(Connect()->GetInfo().ok());
  TlsFilesOfTests().Replace("live.key", TlsFilesOfTests().Read("server2.key"));
  security_->Poll();
  security_->Poll();
  Handshake(TLS1_3_VERSION, {"h2"}, &subject);
  EXPECT_EQ(subject, "server2");
  EXPECT_TRUE(Connect()->GetInfo().ok());
}

TEST_F(TlsTest, ConnectionsAndCallsSurviveRotationsUnderLoad) {
  std::atomic<bool> stop{false};
  std::atomic<int> calls{0};
  absl::Mutex mu;
  std::vector<absl::Status> failures;
  std::vector<std::thread> threads;
  const std::shared_ptr<Client> kept = Connect();  // one connection for all the time
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      while (!stop) {
        const absl::Status status =
            (i == 0 ? kept : std::shared_ptr<Client>(Connect()))->GetInfo().status();
        ++calls;
        absl::MutexLock lock(&mu);
        if (!status.ok()) failures.push_back(status);
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    const std::string name = i % 2 == 0 ? "server2" : "server";
    TlsFilesOfTests().Replace("live.pem", TlsFilesOfTests().Read(name + ".pem"));
    (void)security_->Reload();  // too early: refused, and without effect
    TlsFilesOfTests().Replace("live.key", TlsFilesOfTests().Read(name + ".key"));
    EXPECT_TRUE(security_->Reload().ok());
    const int before = calls;
    while (calls < before + 8) absl::SleepFor(absl::Milliseconds(1));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(failures, ::testing::IsEmpty()) << "of " << calls;
}

class MutualTlsTest : public TlsTest {
 protected:
  MutualTlsTest() : TlsTest(true) {}
};

TEST_F(MutualTlsTest, ClientsNeedACertificateOfTheAuthority) {
  EXPECT_TRUE(Connect("alice")->GetInfo().ok());
  for (const char* name : {"", "foreign", "expired"}) {
    const absl::Status status = Connect(name)->GetInfo().status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << name << ": " << status;
  }
}

TEST_F(MutualTlsTest, SessionsBelongToTheNameInTheCertificate) {
  v1::CreateSessionRequest create;
  create.set_name("s");
  EXPECT_TRUE(Connect("alice")->CreateSession(create).ok());
  EXPECT_TRUE(Connect("alice")->GetSession("s").ok());  // another connection of hers
  EXPECT_TRUE(absl::IsNotFound(Connect("bob")->GetSession("s").status()));
  EXPECT_EQ(engine_.ListSessions({.owner = "cert:alice"})->total, 1u);
  EXPECT_TRUE(Connect("bob")->CreateSession(create).ok());
  EXPECT_EQ(engine_.ListSessions({.owner = "cert:spiffe://example/bob"})->total, 1u);
  const absl::Status nobody = Connect("nobody")->GetInfo().status();
  EXPECT_TRUE(absl::IsUnauthenticated(nobody)) << nobody;
  EXPECT_THAT(std::string(nobody.message()), HasSubstr("has no name"));
  EXPECT_TRUE(absl::IsPermissionDenied(Connect("alice")->Reload().status()));
}

class MutualTlsAndKeysTest : public TlsTest {
 protected:
  MutualTlsAndKeysTest() : TlsTest(true, "the-only-key") {}
};

TEST_F(MutualTlsAndKeysTest, BothAreAskedFor) {
  EXPECT_TRUE(Connect("alice", "ca", "the-only-key")->GetInfo().ok());
  EXPECT_TRUE(absl::IsUnauthenticated(Connect("alice")->GetInfo().status()));
  EXPECT_TRUE(absl::IsUnavailable(Connect("", "ca", "the-only-key")->GetInfo().status()));
  EXPECT_TRUE(Connect("alice", "ca", "the-only-key")->CreateSession({}).ok());
  EXPECT_EQ(engine_.ListSessions({.owner = "api-key"})->total, 1u);
}

}  // namespace
}  // namespace mneme
