#include "server/security/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/security/small_file.h"

namespace mneme {
namespace {

constexpr int64_t kMaxPemBytes = int64_t{4} << 20;
constexpr char kOldestVersion[] = "TLS 1.2";

template <typename T, void (*Free)(T*)>
struct Freer {
  void operator()(T* object) const { Free(object); }
};
using X509Ptr = std::unique_ptr<X509, Freer<X509, X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY, EVP_PKEY_free>>;
using ContextPtr = std::unique_ptr<SSL_CTX, Freer<SSL_CTX, SSL_CTX_free>>;
using BioPtr = std::unique_ptr<BIO, Freer<BIO, BIO_free_all>>;

BioPtr Reader(const std::string& pem) {
  return BioPtr(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// OpenSSL's own reason for its last failure.
std::string LastError() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(error);
  return reason == nullptr ? "unknown reason" : reason;
}

absl::Status Wrong(absl::string_view what, absl::string_view path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(what, " \"", path, "\": ", why));
}

// All certificates of a PEM text; INVALID_ARGUMENT if there is none or one is damaged.
absl::StatusOr<std::vector<X509Ptr>> ReadCertificates(const std::string& pem) {
  ERR_clear_error();
  const BioPtr bio = Reader(pem);
  std::vector<X509Ptr> certificates;
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(certificate);
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  if (at_end && !certificates.empty()) {
    ERR_clear_error();
    return certificates;
  }
  const std::string reason = LastError();
  return absl::InvalidArgumentError(at_end ? "has no certificate in PEM form"
                                           : absl::StrCat("has a damaged certificate: ", reason));
}

// Called for an encrypted key only; nobody is there to be asked.
int NoPassphrase(char*, int, int, void* was_asked) {
  *static_cast<bool*>(was_asked) = true;
  return -1;
}

absl::StatusOr<KeyPtr> ReadKey(const std::string& pem) {
  ERR_clear_error();
  bool is_encrypted = false;
  KeyPtr key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, &NoPassphrase, &is_encrypted));
  if (key != nullptr) return key;
  const std::string reason = LastError();
  if (is_encrypted) {
    return absl::InvalidArgumentError("is encrypted; the server cannot ask for its passphrase");
  }
  return absl::InvalidArgumentError(absl::StrCat("has no private key in PEM form (", reason, ")"));
}

absl::Time ToTime(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

std::string TimeText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

std::string SubjectOf(const X509* certificate) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(bio.get(), X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

}  // namespace

absl::Status ApplyTlsMaterial(const TlsMaterial& material, SSL_CTX* context) {
  const auto failed = [](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", LastError()));
  };
  ERR_clear_error();
  if (SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1) return failed(kOldestVersion);
  // Sessions are not resumed, so that each connection is judged by the files of now.
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET |
                                   SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);

  MNEME_ASSIGN_OR_RETURN(const std::vector<X509Ptr> chain, ReadCertificates(material.certificate));
  if (SSL_CTX_use_certificate(context, chain[0].get()) != 1) return failed("the certificate");
  SSL_CTX_clear_chain_certs(context);
  for (size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context, chain[i].get()) != 1) return failed("its chain");
  }
  MNEME_ASSIGN_OR_RETURN(const KeyPtr key, ReadKey(material.private_key));
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1) return failed("the private key");
  if (!material.asks_clients()) return absl::OkStatus();

  MNEME_ASSIGN_OR_RETURN(const std::vector<X509Ptr> authorities,
                         ReadCertificates(material.client_ca));
  X509_STORE* store = SSL_CTX_get_cert_store(context);
  for (const X509Ptr& authority : authorities) {
    if (X509_STORE_add_cert(store, authority.get()) != 1) return failed("an authority");
    if (SSL_CTX_add_client_CA(context, authority.get()) != 1) return failed("an authority");
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return absl::OkStatus();
}

absl::StatusOr<TlsMaterial> ReadTlsMaterial(const TlsPaths& paths, absl::Time now) {
  TlsMaterial material;
  MNEME_ASSIGN_OR_RETURN(material.certificate,
                         ReadSmallFile("--ssl-certfile", paths.certificate, kMaxPemBytes));
  MNEME_ASSIGN_OR_RETURN(material.private_key,
                         ReadSmallFile("--ssl-keyfile", paths.private_key, kMaxPemBytes));

  const absl::StatusOr<std::vector<X509Ptr>> chain = ReadCertificates(material.certificate);
  if (!chain.ok()) return Wrong("--ssl-certfile", paths.certificate, chain.status().message());
  const X509* own = (*chain)[0].get();
  material.subject = SubjectOf(own);
  material.expires = ToTime(X509_get0_notAfter(own));
  if (const absl::Time from = ToTime(X509_get0_notBefore(own)); from > now) {
    return Wrong("--ssl-certfile", paths.certificate,
                 absl::StrCat("the certificate is not valid before ", TimeText(from)));
  }
  if (material.expires <= now) {
    return Wrong("--ssl-certfile", paths.certificate,
                 absl::StrCat("the certificate expired ", TimeText(material.expires)));
  }
  const absl::StatusOr<KeyPtr> key = ReadKey(material.private_key);
  if (!key.ok()) return Wrong("--ssl-keyfile", paths.private_key, key.status().message());
  if (X509_check_private_key(own, key->get()) != 1) {
    ERR_clear_error();
    return Wrong("--ssl-keyfile", paths.private_key,
                 absl::StrCat("is not the key of the certificate in \"", paths.certificate, "\""));
  }
  if (!paths.client_ca.empty()) {
    MNEME_ASSIGN_OR_RETURN(material.client_ca,
                           ReadSmallFile("--ssl-ca-certs", paths.client_ca, kMaxPemBytes));
    const absl::Status authorities = ReadCertificates(material.client_ca).status();
    if (!authorities.ok()) return Wrong("--ssl-ca-certs", paths.client_ca, authorities.message());
  }
  // The rest is OpenSSL's to judge: sizes of keys, kinds of signatures.
  const ContextPtr trial(SSL_CTX_new(TLS_server_method()));
  if (const absl::Status applied = ApplyTlsMaterial(material, trial.get()); !applied.ok()) {
    return Wrong("--ssl-certfile", paths.certificate, applied.message());
  }
  return material;
}

absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Create(TlsPaths paths, absl::Time now) {
  MNEME_ASSIGN_OR_RETURN(TlsMaterial material, ReadTlsMaterial(paths, now));
  return std::unique_ptr<TlsFiles>(new TlsFiles(std::move(paths), std::move(material)));
}

TlsFiles::TlsFiles(TlsPaths paths, TlsMaterial material) : paths_(std::move(paths)) {
  material.version = 1;
  current_ = std::make_shared<const TlsMaterial>(std::move(material));
}

std::shared_ptr<const TlsMaterial> TlsFiles::current() const {
  absl::MutexLock lock(&mu_);
  return current_;
}

absl::Status TlsFiles::Reload(absl::Time now) {
  MNEME_ASSIGN_OR_RETURN(TlsMaterial material, ReadTlsMaterial(paths_, now));
  absl::MutexLock lock(&mu_);
  material.version = current_->version + 1;
  current_ = std::make_shared<const TlsMaterial>(std::move(material));
  return absl::OkStatus();
}

std::vector<std::string> TlsFiles::paths() const {
  std::vector<std::string> all = {paths_.certificate, paths_.private_key};
  if (!paths_.client_ca.empty()) all.push_back(paths_.client_ca);
  return all;
}

}  // namespace mneme
