#include "server/http/tls_stream.h"

#include <openssl/x509v3.h>

#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <cstring>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "server/security/alpn.h"
#include "server/security/authenticator.h"

namespace mneme {
namespace {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

absl::string_view Text(const ASN1_STRING* text) {
  if (text == nullptr) return {};
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<size_t>(ASN1_STRING_length(text))};
}

std::string NameOf(X509* certificate) {
  std::string uri;
  std::string dns;
  auto* names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, i);
    if (name->type == GEN_URI && uri.empty())
      uri = std::string(Text(name->d.uniformResourceIdentifier));
    if (name->type == GEN_DNS && dns.empty()) dns = std::string(Text(name->d.dNSName));
  }
  GENERAL_NAMES_free(names);
  const X509_NAME* subject = X509_get_subject_name(certificate);
  const int index = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  const absl::string_view common_name =
      index < 0 ? absl::string_view()
                : Text(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, index)));
  return CertificateName(uri, common_name, dns);
}

class TlsStream final : public ByteStream {
 public:
  TlsStream(asio::ip::tcp::socket socket, std::shared_ptr<asio::ssl::context> context)
      : context_(std::move(context)), stream_(std::move(socket), *context_) {}

  void Handshake(Done done) override {
    stream_.async_handshake(asio::ssl::stream_base::server, std::move(done));
  }
  void ReadSome(asio::mutable_buffer buffer, ReadDone done) override {
    stream_.async_read_some(asio::mutable_buffers_1(buffer), std::move(done));
  }
  void Write(asio::const_buffer data, Done done) override {
    asio::async_write(stream_, asio::const_buffers_1(data),
                      [done = std::move(done)](ErrorCode error, size_t) { done(error); });
  }
  // The client may take its time to answer: its answer is the end that the next read finds.
  void CloseSend(Done done) override {
    stream_.async_shutdown([done = std::move(done)](ErrorCode error) {
      done(error == asio::error::eof ? ErrorCode() : error);
    });
  }
  void Close() override {
    ErrorCode ignored;
    stream_.next_layer().close(ignored);
  }
  std::string PeerIdentity() const override {
    X509* certificate = SSL_get1_peer_certificate(
        const_cast<asio::ssl::stream<asio::ip::tcp::socket>&>(stream_).native_handle());
    if (certificate == nullptr) return "";
    std::string name = NameOf(certificate);
    X509_free(certificate);
    return name;
  }

 private:
  const std::shared_ptr<asio::ssl::context> context_;  // of the certificate at the time
  asio::ssl::stream<asio::ip::tcp::socket> stream_;
};

class TlsStreamFactory final : public ByteStreamFactory {
 public:
  explicit TlsStreamFactory(const TlsFiles& files) : files_(files) {}

  std::unique_ptr<ByteStream> Wrap(asio::ip::tcp::socket socket) override {
    return std::make_unique<TlsStream>(std::move(socket), Current());
  }

 private:
  // Made anew when the files have changed.
  std::shared_ptr<asio::ssl::context> Current() ABSL_LOCKS_EXCLUDED(mu_) {
    const std::shared_ptr<const TlsMaterial> material = files_.current();
    absl::MutexLock lock(&mu_);
    if (version_ == material->version) return context_;
    auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
    const absl::Status applied = ApplyTlsMaterial(*material, context->native_handle());
    CHECK(applied.ok()) << "files that were tried are refused: " << applied;
    AgreeOnlyOn(TlsProtocol::kHttp11, context->native_handle());
    version_ = material->version;
    context_ = std::move(context);
    return context_;
  }

  const TlsFiles& files_;
  absl::Mutex mu_;
  uint64_t version_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<asio::ssl::context> context_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::shared_ptr<ByteStreamFactory> MakeTlsStreamFactory(const TlsFiles& files) {
  return std::make_shared<TlsStreamFactory>(files);
}

}  // namespace mneme
