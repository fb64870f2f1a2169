// TLS under HTTP: the bytes of a connection, encrypted with the certificate of the moment.
#pragma once

#include <memory>

#include "server/http/byte_stream.h"
#include "server/security/tls_files.h"

namespace mneme {

// ALPN offers http/1.1. PeerIdentity() is CertificateName() of the client's certificate. `files`
// must outlive the factory, and the factory the server.
std::shared_ptr<ByteStreamFactory> MakeTlsStreamFactory(const TlsFiles& files);

}  // namespace mneme
