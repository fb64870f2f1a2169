// Certificates and keys as files: what is wrong with them, and how they change.
#include "server/security/tls_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/security/small_file.h"
#include "tests/server/security/test_certificates.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TlsFilesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    files_ = new TestCertificates();
    files_->MakeAuthority("ca");
    files_->Make("server", "ca", "/O=Example/CN=server", "DNS:localhost");
    files_->Make("other", "ca", "/CN=other");
    files_->Make("expired", "ca", "/CN=expired", "", -1);
    files_->OpenSsl("pkey -in server.key -aes256 -passout pass:secret -out encrypted.key");
    files_->OpenSsl(
        "req -x509 -newkey rsa:512 -nodes -subj /CN=weak -keyout weak.key -out weak.pem");
    std::ofstream(files_->Path("empty.pem"));
    std::ofstream(files_->Path("damaged.pem"))
        << files_->Read("server.pem").replace(100, 20, "AAAAAAAAAAAAAAAAAAAA");
  }
  static void TearDownTestSuite() { delete files_; }

  static TlsPaths Paths(const std::string& certificate, const std::string& key,
                        const std::string& ca = "") {
    return {.certificate = files_->Path(certificate),
            .private_key = files_->Path(key),
            .client_ca = ca.empty() ? "" : files_->Path(ca)};
  }
  static std::string ErrorOf(const TlsPaths& paths, absl::Time now = absl::Now()) {
    const absl::Status status = ReadTlsMaterial(paths, now).status();
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(status.message().find('\n'), absl::string_view::npos);
    return std::string(status.message());
  }

  static TestCertificates* files_;
};
TestCertificates* TlsFilesTest::files_ = nullptr;

TEST_F(TlsFilesTest, AChainAndItsKeyAreTaken) {
  files_->Replace("chain.pem", files_->Read("server.pem") + files_->Read("ca.pem"));
  const absl::StatusOr<TlsMaterial> material =
      ReadTlsMaterial(Paths("chain.pem", "server.key", "ca.pem"), absl::Now());
  ASSERT_TRUE(material.ok()) << material.status();
  EXPECT_EQ(material->subject, "CN=server,O=Example");
  EXPECT_GT(material->expires, absl::Now() + absl::Hours(9 * 24));
  EXPECT_LT(material->expires, absl::Now() + absl::Hours(11 * 24));
  EXPECT_TRUE(material->asks_clients());
}

TEST_F(TlsFilesTest, WhatIsWrongIsSaidWithFlagAndFile) {
  EXPECT_THAT(ErrorOf(Paths("none.pem", "server.key")),
              AllOf(HasSubstr("--ssl-certfile"), HasSubstr("none.pem"), HasSubstr("No such file")));
  EXPECT_THAT(ErrorOf(Paths("server.pem", "none.key")),
              AllOf(HasSubstr("--ssl-keyfile"), HasSubstr("none.key"), HasSubstr("No such file")));
  EXPECT_THAT(ErrorOf(Paths("server.pem", "server.key", "none.pem")), HasSubstr("--ssl-ca-certs"));
  EXPECT_THAT(ErrorOf({.certificate = "/", .private_key = "/"}), HasSubstr("is not a file"));
  EXPECT_THAT(ErrorOf(Paths("server.pem", "other.key")),
              AllOf(HasSubstr("--ssl-keyfile"), HasSubstr("other.key"), HasSubstr("server.pem"),
                    HasSubstr("is not the key")));
  EXPECT_THAT(ErrorOf(Paths("server.key", "server.key")), HasSubstr("has no certificate"));
  EXPECT_THAT(ErrorOf(Paths("empty.pem", "server.key")), HasSubstr("has no certificate"));
  EXPECT_THAT(ErrorOf(Paths("damaged.pem", "server.key")), HasSubstr("damaged"));
  EXPECT_THAT(ErrorOf(Paths("server.pem", "server.pem")), HasSubstr("has no private key"));
  EXPECT_THAT(ErrorOf(Paths("server.pem", "encrypted.key")), HasSubstr("is encrypted"));
  EXPECT_THAT(ErrorOf(Paths("server.pem", "server.key", "empty.pem")),
              AllOf(HasSubstr("--ssl-ca-certs"), HasSubstr("has no certificate")));
  EXPECT_THAT(ErrorOf(Paths("weak.pem", "weak.key")), HasSubstr("key too small"));
}

TEST_F(TlsFilesTest, CertificatesHaveTheirTime) {
  EXPECT_THAT(ErrorOf(Paths("expired.pem", "expired.key")),
              AllOf(HasSubstr("expired.pem"), HasSubstr("the certificate expired 20")));
  const TlsPaths good = Paths("server.pem", "server.key");
  EXPECT_EQ(ErrorOf(good), "");
  EXPECT_THAT(ErrorOf(good, absl::Now() + absl::Hours(24 * 11)), HasSubstr("expired"));
  EXPECT_THAT(ErrorOf(good, absl::Now() - absl::Hours(24)), HasSubstr("is not valid before"));
}

TEST_F(TlsFilesTest, AReloadTakesWhatIsInOrderAndKeepsWhatWas) {
  files_->Replace("live.pem", files_->Read("server.pem"));
  files_->Replace("live.key", files_->Read("server.key"));
  auto tls = TlsFiles::Create(Paths("live.pem", "live.key"), absl::Now());
  ASSERT_TRUE(tls.ok()) << tls.status();
  const auto first = (*tls)->current();
  files_->Replace("live.pem", files_->Read("other.pem"));  // and the key not yet
  EXPECT_FALSE((*tls)->Reload(absl::Now()).ok());
  EXPECT_EQ((*tls)->current(), first);
  files_->Replace("live.key", files_->Read("other.key"));
  EXPECT_TRUE((*tls)->Reload(absl::Now()).ok());
  EXPECT_EQ((*tls)->current()->subject, "CN=other");
  EXPECT_NE((*tls)->current()->version, first->version);
  files_->Replace("live.pem", "");
  EXPECT_FALSE((*tls)->Reload(absl::Now()).ok());
  EXPECT_EQ((*tls)->current()->subject, "CN=other");
}

TEST_F(TlsFilesTest, AChangeIsNoticedOnceAndWhenItIsOver) {
  files_->Replace("a", "1");
  files_->Replace("b", "1");
  FileChanges changes({files_->Path("a"), files_->Path("b")});
  EXPECT_FALSE(changes.Poll());
  files_->Replace("a", "2");
  EXPECT_FALSE(changes.Poll());  // may not be over
  files_->Replace("b", "2");
  EXPECT_FALSE(changes.Poll());
  EXPECT_TRUE(changes.Poll());
  EXPECT_FALSE(changes.Poll());
  EXPECT_EQ(unlink(files_->Path("a").c_str()), 0);
  EXPECT_FALSE(changes.Poll());
  EXPECT_TRUE(changes.Poll());
  EXPECT_FALSE(changes.Poll());
}

}  // namespace
}  // namespace mneme
