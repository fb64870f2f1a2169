#include "server/grpc/grpc_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/security/auth_context.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "server/security/alpn.h"

namespace mneme {
namespace {

constexpr char kAuthorization[] = "authorization";

absl::string_view View(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

absl::string_view FirstProperty(const grpc_auth_context* context, const char* name) {
  grpc_auth_property_iterator it = grpc_auth_context_find_properties_by_name(context, name);
  const grpc_auth_property* property = grpc_auth_property_iterator_next(&it);
  if (property == nullptr) return {};
  return {property->value, property->value_length};
}

// Runs for each call, when its headers are there and before its message is read.
void RefuseStrangers(void* state, grpc_auth_context* context, const grpc_metadata* headers,
                     size_t header_count, grpc_process_auth_metadata_done_cb done,
                     void* user_data) {
  const auto& authenticator = static_cast<Security*>(state)->authenticator();
  absl::string_view path;
  Credentials credentials;
  for (size_t i = 0; i < header_count; ++i) {
    const absl::string_view name = View(headers[i].key);
    if (name == ":path") path = View(headers[i].value);
    if (name != kAuthorization) continue;
    ++credentials.authorizations;
    credentials.authorization = View(headers[i].value);
  }
  const std::string certificate =
      CertificateName(FirstProperty(context, GRPC_PEER_URI_PROPERTY_NAME),
                      FirstProperty(context, GRPC_X509_CN_PROPERTY_NAME),
                      FirstProperty(context, GRPC_PEER_DNS_PROPERTY_NAME));
  credentials.certificate = certificate;
  const absl::StatusOr<CallerRef> caller =
      authenticator.Authenticate(credentials, GrpcAccess(path));
  done(user_data, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(caller.status().code()),
       caller.ok() ? nullptr : std::string(caller.status().message()).c_str());
}

// gRPC asks this for a certificate at each handshake.
class CertificateSource {
 public:
  explicit CertificateSource(const TlsFiles& files) : files_(files) {}

  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<CertificateSource*>(self)->Fetch(config);
  }

 private:
  grpc_ssl_certificate_config_reload_status Fetch(grpc_ssl_server_certificate_config** config) {
    const std::shared_ptr<const TlsMaterial> material = files_.current();
    if (served_.exchange(material->version) == material->version) {
      return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    }
    const grpc_ssl_pem_key_cert_pair pair = {.private_key = material->private_key.c_str(),
                                             .cert_chain = material->certificate.c_str()};
    // gRPC asserts that there are authorities, also where it asks clients for nothing.
    const std::string& authorities =
        material->asks_clients() ? material->client_ca : material->certificate;
    *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const TlsFiles& files_;
  std::atomic<uint64_t> served_{0};
};

// gRPC's C++ classes know either certificates that stay, or files that they read themselves and
// serve whatever is in them. Its C interface, of which this is a thin cover, knows neither limit.
class CoveredCredentials final : public grpc::ServerCredentials {
 public:
  explicit CoveredCredentials(Security& security) {
    if (security.tls() != nullptr) {
      AgreeOnlyOnInOtherContexts(TlsProtocol::kHttp2);
      source_ = std::make_unique<CertificateSource>(*security.tls());
      const bool asks_clients = security.tls()->current()->asks_clients();
      credentials_ = grpc_ssl_server_credentials_create_with_options(
          grpc_ssl_server_credentials_create_options_using_config_fetcher(
              asks_clients ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                           : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
              &CertificateSource::Fetch, source_.get()));
    } else {
      credentials_ = grpc_insecure_server_credentials_create();
    }
    grpc_server_credentials_set_auth_metadata_processor(
        credentials_, {.process = &RefuseStrangers, .destroy = nullptr, .state = &security});
  }
  ~CoveredCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    LOG(FATAL) << "the credentials have their own";
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  std::unique_ptr<CertificateSource> source_;
  grpc_server_credentials* credentials_ = nullptr;
};

std::string FirstProperty(const grpc::AuthContext& context, const char* name) {
  const std::vector<grpc::string_ref> values = context.FindPropertyValues(name);
  return values.empty() ? "" : std::string(values[0].data(), values[0].size());
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> GuardedCredentials(Security& security) {
  return std::make_shared<CoveredCredentials>(security);
}

absl::StatusOr<CallerRef> CallerOf(const grpc::CallbackServerContext& context,
                                   const Security& security, Access access) {
  Credentials credentials;
  const auto [begin, end] = context.client_metadata().equal_range(kAuthorization);
  for (auto it = begin; it != end; ++it) {
    ++credentials.authorizations;
    credentials.authorization = absl::string_view(it->second.data(), it->second.size());
  }
  const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
  std::string certificate;
  if (peer != nullptr) {
    certificate = CertificateName(FirstProperty(*peer, GRPC_PEER_URI_PROPERTY_NAME),
                                  FirstProperty(*peer, GRPC_X509_CN_PROPERTY_NAME),
                                  FirstProperty(*peer, GRPC_PEER_DNS_PROPERTY_NAME));
  }
  credentials.certificate = certificate;
  absl::StatusOr<CallerRef> caller = security.authenticator().Authenticate(credentials, access);
  if (caller.ok()) security.grpc_peers().Mark(PeerText(context));
  return caller;
}

std::string PeerText(const grpc::CallbackServerContext& context) {
  const std::string peer = context.peer();
  absl::string_view address = peer;
  if (!absl::ConsumePrefix(&address, "ipv4:")) absl::ConsumePrefix(&address, "ipv6:");
  return absl::StrReplaceAll(address, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
}

}  // namespace mneme
