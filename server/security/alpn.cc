#include "server/security/alpn.h"

#include <openssl/crypto.h>
#include <openssl/ssl.h>

#include "absl/base/attributes.h"
#include "absl/base/const_init.h"
#include "absl/synchronization/mutex.h"
#include "base/log.h"

namespace mneme {
namespace {

// In the form of ALPN: a length and the name.
struct Name {
  unsigned char bytes[9];
  unsigned size;
};
constexpr Name kHttp11 = {{8, 'h', 't', 't', 'p', '/', '1', '.', '1'}, 9};
constexpr Name kHttp2 = {{2, 'h', '2'}, 3};

void* NameOf(TlsProtocol protocol) {
  return const_cast<Name*>(protocol == TlsProtocol::kHttp2 ? &kHttp2 : &kHttp11);
}

int Choose(SSL*, const unsigned char** out, unsigned char* out_length, const unsigned char* offered,
           unsigned offered_length, void* name) {
  const Name& own = *static_cast<const Name*>(name);
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_length, own.bytes, own.size, offered, offered_length) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

// The index, in the extra data of a context, of the protocol that it has been told.
int ContextIndex() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  CHECK(index >= 0) << "OpenSSL has no room for extra data";
  return index;
}

void Tell(SSL_CTX* context, void* name) {
  CHECK(SSL_CTX_set_ex_data(context, ContextIndex(), name) == 1) << "out of memory";
  SSL_CTX_set_alpn_select_cb(context, &Choose, name);
}

// OpenSSL calls it for each new connection, before the handshake: whoever made the context has set
// its own callback by then, and later connections only read it.
void BeforeConnection(void* ssl, void*, CRYPTO_EX_DATA*, int, long, void* name) {  // NOLINT
  ABSL_CONST_INIT static absl::Mutex mu(absl::kConstInit);
  SSL_CTX* const context = SSL_get_SSL_CTX(static_cast<SSL*>(ssl));
  if (context == nullptr) return;
  absl::MutexLock lock(&mu);
  if (SSL_CTX_get_ex_data(context, ContextIndex()) == nullptr) Tell(context, name);
}

}  // namespace

void AgreeOnlyOn(TlsProtocol protocol, SSL_CTX* context) { Tell(context, NameOf(protocol)); }

void AgreeOnlyOnInOtherContexts(TlsProtocol protocol) {
  // For the life of the process, as OpenSSL knows no other.
  static const int index =
      SSL_get_ex_new_index(0, NameOf(protocol), &BeforeConnection, nullptr, nullptr);
  CHECK(index >= 0) << "OpenSSL has no room for extra data";
}

}  // namespace mneme
