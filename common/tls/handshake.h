// What each side of a link presents and checks: OpenSSL contexts, and messages for its errors.
#pragma once

#include "common/base/result.h"
#include "common/tls/certificates.h"

#include <boost/asio/ssl/context.hpp>
#include <boost/system/error_code.hpp>
#include <memory>
#include <optional>
#include <string>

namespace nsa::tls {

using Context = std::shared_ptr<boost::asio::ssl::context>;

// TLS 1.3 only. The head asks for a certificate, and also accepts clients without one, which may
// join.
Result<Context> server_context(const Identity& head);
// Presents the node's certificate. The server must have the head's, of the same authority.
Result<Context> client_context(const Identity& node);
// Presents no certificate and checks nothing during the handshake. pinned_authority() checks the
// server before any byte is sent.
Result<Context> joining_context();

// Returns the authority with this fingerprint from the certificates that the server presented. It
// must have signed the head's certificate whose key the server has. Error: kPermission otherwise.
Result<Certificate> pinned_authority(SSL* ssl, const std::string& fingerprint);
std::optional<Certificate> certificate_of_peer(SSL* ssl);
Error handshake_error(SSL* ssl, const boost::system::error_code& error, bool timed_out);

} // namespace nsa::tls
