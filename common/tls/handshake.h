// What each side of a link shows and checks: contexts of OpenSSL, and its errors in our words.
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

// TLS 1.3 alone. The head asks for a certificate, and lets those in that have none: they may join.
Result<Context> server_context(const Identity& head);
// Shows the node's certificate; whoever answers must have the head's, of the same authority.
Result<Context> client_context(const Identity& node);
// Shows none and checks nothing during the handshake: pinned_authority() does, before a byte is
// sent.
Result<Context> joining_context();

// The authority with this fingerprint among what the server has shown, if it signed the head's
// certificate that the server has the key of. kPermission otherwise.
Result<Certificate> pinned_authority(SSL* ssl, const std::string& fingerprint);
std::optional<Certificate> certificate_of_peer(SSL* ssl);
Error handshake_error(SSL* ssl, const boost::system::error_code& error, bool timed_out);

} // namespace nsa::tls
