// Authorities and certificates for tests, made by the openssl command.
#pragma once

#include <string>

#include "mneme/v1/config.pb.h"

namespace mneme {

// A folder of PEM files that goes with this object. Keys are P-256, certificates last ten days.
class TestCertificates {
 public:
  TestCertificates();
  ~TestCertificates();
  TestCertificates(const TestCertificates&) = delete;
  TestCertificates& operator=(const TestCertificates&) = delete;

  // Made once for all tests of a program: the authorities ca and stranger; server and server2 for
  // this machine; the clients alice, bob (by URI), nobody (without a name), expired, and foreign,
  // who is the stranger's alice.
  static TestCertificates& Usual();

  // An authority: NAME.pem and NAME.key.
  void MakeAuthority(const std::string& name);
  // A certificate of `authority` for `subject` ("/CN=alice"), NAME.pem and NAME.key.
  // `alternative_names`: "DNS:localhost,IP:127.0.0.1". Negative `days`: expired.
  void Make(const std::string& name, const std::string& authority, const std::string& subject,
            const std::string& alternative_names = "", int days = 10);
  // Runs openssl with these arguments in the folder; fails the test if that fails.
  void OpenSsl(const std::string& arguments);

  std::string Path(const std::string& file) const { return folder_ + "/" + file; }
  std::string Read(const std::string& file) const;
  // In one piece, as a careful operator does it.
  void Replace(const std::string& file, const std::string& text);
  // TLS with live.pem and live.key, which begin as copies of the server's and may be replaced.
  // `mutual`: clients need a certificate of ca.
  v1::SecuritySection Live(bool mutual);

 private:
  std::string folder_;
};

}  // namespace mneme
