#include "common/tls/handshake.h"

#include "common/tls/link.h"
#include "common/tls/openssl.h"

#include <openssl/ssl.h>
#include <openssl/x509v3.h>

namespace nsa::tls {

namespace {
using boost::asio::ssl::context;

Context new_context(context::method method) {
  auto made = std::make_shared<context>(method);
  SSL_CTX* native = made->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_3_VERSION);
  SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(native, 0);
  // A peer that closes without close_notify is reported as such, and frames have their own
  // checksums.
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION);
  return made;
}

Status show(context& shown, const Identity& self) {
  SSL_CTX* native = shown.native_handle();
  if (SSL_CTX_use_certificate(native, self.certificate.native()) != 1 ||
      SSL_CTX_use_PrivateKey(native, self.key.native()) != 1 ||
      SSL_CTX_check_private_key(native) != 1)
    return fail_openssl("the node's certificate and key do not belong together",
                        ErrorCode::kCorrupt);
  // Sends the authority, too, because a joining node compares its fingerprint.
  if (SSL_CTX_add1_chain_cert(native, self.authority.native()) != 1 ||
      X509_STORE_add_cert(SSL_CTX_get_cert_store(native), self.authority.native()) != 1)
    return fail_openssl("cannot take the cluster's authority");
  return {};
}

// The name is set before the handshake, so that OpenSSL itself rejects any name but the head's.
Status expect_head(context& client) {
  X509_VERIFY_PARAM* rules = SSL_CTX_get0_param(client.native_handle());
  if (X509_VERIFY_PARAM_set1_host(rules, kHeadName, 0) != 1)
    return fail_openssl("cannot name the head");
  return {};
}

Error not_the_head(const std::string& why) {
  return {ErrorCode::kPermission,
          "the program that answered is not the head of this cluster: " + why,
          "compare address and token; make a new token on the head: nsactl node token"};
}
} // namespace

Result<Context> server_context(const Identity& head) {
  Context made = new_context(context::tls_server);
  NSA_TRY(show(*made, head));
  SSL_CTX_set_verify(made->native_handle(), SSL_VERIFY_PEER, nullptr);
  return made;
}

Result<Context> client_context(const Identity& node) {
  Context made = new_context(context::tls_client);
  NSA_TRY(show(*made, node));
  NSA_TRY(expect_head(*made));
  SSL_CTX_set_verify(made->native_handle(), SSL_VERIFY_PEER, nullptr);
  return made;
}

Result<Context> joining_context() {
  Context made = new_context(context::tls_client);
  SSL_CTX_set_verify(made->native_handle(), SSL_VERIFY_NONE, nullptr);
  return made;
}

Result<Certificate> pinned_authority(SSL* ssl, const std::string& fingerprint) {
  const auto leaf = certificate_of_peer(ssl);
  if (!leaf) return fail(not_the_head("it shows no certificate"));
  const STACK_OF(X509)* chain = SSL_get_peer_cert_chain(ssl);
  for (int i = 0; chain && i < sk_X509_num(chain); ++i) {
    Certificate authority = Certificate::share(sk_X509_value(chain, i));
    if (authority.fingerprint() != fingerprint) continue;
    const std::unique_ptr<X509_STORE, decltype(&X509_STORE_free)> store(X509_STORE_new(),
                                                                        X509_STORE_free);
    const std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> check(
        X509_STORE_CTX_new(), X509_STORE_CTX_free);
    if (!store || !check || X509_STORE_add_cert(store.get(), authority.native()) != 1 ||
        X509_STORE_CTX_init(check.get(), store.get(), leaf->native(), nullptr) != 1 ||
        X509_STORE_CTX_set_default(check.get(), "ssl_server") != 1 ||
        X509_VERIFY_PARAM_set1_host(X509_STORE_CTX_get0_param(check.get()), kHeadName, 0) != 1)
      return fail_openssl("cannot check the head's certificate");
    if (X509_verify_cert(check.get()) != 1)
      return fail(
          not_the_head(X509_verify_cert_error_string(X509_STORE_CTX_get_error(check.get()))));
    return authority;
  }
  return fail(not_the_head("its authority has another fingerprint than the token"));
}

std::optional<Certificate> certificate_of_peer(SSL* ssl) {
  X509* shown = SSL_get0_peer_certificate(ssl);
  if (!shown) return std::nullopt;
  return Certificate::share(shown);
}

Error handshake_error(SSL* ssl, const boost::system::error_code& error, bool timed_out) {
  ERR_clear_error();
  if (timed_out) return {ErrorCode::kUnavailable, "the TLS handshake was not finished in time", {}};
  if (const long verdict = SSL_get_verify_result(ssl); verdict != X509_V_OK)
    return {ErrorCode::kPermission,
            std::string("the certificate is refused: ") + X509_verify_cert_error_string(verdict),
            {}};
  return {ErrorCode::kPermission, "no TLS handshake: " + error.message(), {}};
}

} // namespace nsa::tls
