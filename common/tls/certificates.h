// Keys and X.509 certificates of the nodes of a cluster, all of P-256 and signed by one authority,
// which the head keeps. A certificate names its node in the subject's common name and, so that
// clients can check whom they reached, in a DNS name.
//
// Values; any thread. The only files of ours that see OpenSSL are those of this library.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

struct evp_pkey_st;
struct x509_st;

namespace nsa::tls {

// A private key. Copies share it.
class PrivateKey {
public:
  static Result<PrivateKey> make();
  static Result<PrivateKey> from_pem(std::string_view pem); // kCorrupt
  // Secret: for a file of mode 0600, and nothing else.
  Result<std::string> to_pem() const;
  // A PKCS #10 request (RFC 2986) for a certificate with this node's name. The authority can tell
  // from it that the asker has the key.
  Result<std::string> request(std::string_view node) const;

  evp_pkey_st* native() const { return key_.get(); }

private:
  friend class Authority;
  explicit PrivateKey(evp_pkey_st* key);
  std::shared_ptr<evp_pkey_st> key_;
};

class Certificate {
public:
  static Result<Certificate> from_pem(std::string_view pem); // kCorrupt
  static Certificate share(x509_st* certificate);            // keeps a reference to it
  std::string to_pem() const;

  std::string node() const;        // the subject's common name; empty where there is none
  std::string serial() const;      // hexadecimal, 32 digits
  std::string fingerprint() const; // SHA-256 of its DER form, 64 hexadecimal digits
  WallTime expires() const;
  Duration lifetime() const; // from its begin to its end

  x509_st* native() const { return certificate_.get(); }

private:
  friend class Authority;
  explicit Certificate(x509_st* certificate);
  std::shared_ptr<x509_st> certificate_;
};

// Who a program is on a link, and whom it trusts.
struct Identity {
  Certificate authority;
  Certificate certificate;
  PrivateKey key;
};

// The head's authority: a key, and a certificate that it signed itself.
class Authority {
public:
  static constexpr Duration kLifetime = std::chrono::hours(24 * 3650);

  static Result<Authority> make(WallTime now);
  // authority.key and authority.crt of this folder; made where there are none. kCorrupt: one of the
  // two is missing or is not what it should be. Nothing is replaced then, since nodes trust it.
  static Result<Authority> load_or_make(const std::filesystem::path& folder, WallTime now);

  const Certificate& certificate() const { return certificate_; }
  // For whoever sent this request. The name is the caller's, so that nobody chooses his own.
  Result<Certificate> sign(std::string_view request, std::string_view node, WallTime now,
                           Duration lifetime) const;

private:
  Authority(PrivateKey key, Certificate certificate)
      : key_(std::move(key)), certificate_(std::move(certificate)) {}
  PrivateKey key_;
  Certificate certificate_;
};

// Names of nodes: 1 to 63 letters, digits, '.', '_' and '-', the first a letter or digit.
bool is_node_name(std::string_view name);

} // namespace nsa::tls
