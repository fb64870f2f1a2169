// The protocol that a TLS port speaks (ALPN, RFC 7301): one, whatever else a client offers.
#pragma once

#include <openssl/types.h>

namespace mneme {

enum class TlsProtocol { kHttp11, kHttp2 };

// Handshakes of `context` agree on `protocol`, or fail where the client offers others only, with
// the alert no_application_protocol, which it is the connection's business to send (gRPC's do not).
// To a client that offers none, none is said. Before the first handshake.
void AgreeOnlyOn(TlsProtocol protocol, SSL_CTX* context);

// The same for all other contexts of the process, as soon as one of them begins a connection. For
// gRPC, which makes contexts of its own that nobody else gets to see, agrees on "grpc-exp" as well,
// lets a client in that offers neither, and has no setting. Thread-safe; once is enough.
void AgreeOnlyOnInOtherContexts(TlsProtocol protocol);

}  // namespace mneme
