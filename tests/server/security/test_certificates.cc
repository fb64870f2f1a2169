#include "tests/server/security/test_certificates.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace mneme {

TestCertificates::TestCertificates() : folder_(testing::TempDir() + "mneme_tls_XXXXXX") {
  EXPECT_NE(mkdtemp(folder_.data()), nullptr);
}

TestCertificates::~TestCertificates() { std::filesystem::remove_all(folder_); }

void TestCertificates::OpenSsl(const std::string& arguments) {
  const std::string command =
      absl::StrCat("cd ", folder_, " && openssl ", arguments, " > openssl.log 2>&1");
  EXPECT_EQ(std::system(command.c_str()), 0) << command << "\n" << Read("openssl.log");
}

void TestCertificates::MakeAuthority(const std::string& name) {
  OpenSsl(absl::StrCat("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 10",
                       " -subj '/CN=", name, "' -keyout ", name, ".key -out ", name, ".pem"));
}

void TestCertificates::Make(const std::string& name, const std::string& authority,
                            const std::string& subject, const std::string& alternative_names,
                            int days) {
  OpenSsl(
      absl::StrCat("req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '", subject,
                   "' -keyout ", name, ".key -out ", name, ".csr",
                   alternative_names.empty() ? "" : " -addext subjectAltName=", alternative_names));
  OpenSsl(absl::StrCat("x509 -req -in ", name, ".csr -CA ", authority, ".pem -CAkey ", authority,
                       ".key -days ", days, " -copy_extensions copy -out ", name, ".pem"));
}

std::string TestCertificates::Read(const std::string& file) const {
  std::ifstream in(Path(file), std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

void TestCertificates::Replace(const std::string& file, const std::string& text) {
  const std::string next = Path(file + ".next");
  std::ofstream(next, std::ios::binary) << text;
  std::filesystem::rename(next, Path(file));
}

TestCertificates& TestCertificates::Usual() {
  static TestCertificates* const files = [] {
    auto* made = new TestCertificates();
    made->MakeAuthority("ca");
    made->MakeAuthority("stranger");
    made->Make("server", "ca", "/CN=server", "DNS:localhost,IP:127.0.0.1");
    made->Make("server2", "ca", "/CN=server2", "DNS:localhost,IP:127.0.0.1");
    made->Make("alice", "ca", "/CN=alice");
    made->Make("bob", "ca", "/CN=ignored", "DNS:ignored,URI:spiffe://example/bob");
    made->Make("nobody", "ca", "/O=Example");
    made->Make("expired", "ca", "/CN=alice", "", -1);
    made->Make("foreign", "stranger", "/CN=alice");
    return made;
  }();
  return *files;
}

v1::SecuritySection TestCertificates::Live(bool mutual) {
  Replace("live.pem", Read("server.pem"));
  Replace("live.key", Read("server.key"));
  v1::SecuritySection security;
  security.set_ssl_certfile(Path("live.pem"));
  security.set_ssl_keyfile(Path("live.key"));
  if (mutual) security.set_ssl_ca_certs(Path("ca.pem"));
  return security;
}

}  // namespace mneme
