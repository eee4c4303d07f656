// Keys and X.509 certificates of a cluster's nodes. All are P-256, and one authority, which the
// head keeps, signs them. A certificate names its node in the subject's common name. It also has a
// DNS name, so that clients can check which node they reached.
//
// Values; usable from any thread. Only the files of this library use OpenSSL.
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
  static Result<PrivateKey> from_pem(std::string_view pem); // Error: kCorrupt.
  // Secret: store it only in a file of mode 0600.
  Result<std::string> to_pem() const;
  // Returns a PKCS #10 request (RFC 2986) for a certificate with this node's name. It proves to the
  // authority that the sender has the key.
  Result<std::string> request(std::string_view node) const;

  evp_pkey_st* native() const { return key_.get(); }

private:
  friend class Authority;
  explicit PrivateKey(evp_pkey_st* key);
  std::shared_ptr<evp_pkey_st> key_;
};

class Certificate {
public:
  static Result<Certificate> from_pem(std::string_view pem); // Error: kCorrupt.
  static Certificate share(x509_st* certificate);            // keeps a reference to it
  std::string to_pem() const;

  std::string node() const;        // the subject's common name; empty if it has none
  std::string serial() const;      // hexadecimal, 32 digits
  std::string fingerprint() const; // SHA-256 of the DER form, 64 hexadecimal digits
  WallTime expires() const;
  Duration lifetime() const; // time from notBefore to notAfter

  x509_st* native() const { return certificate_.get(); }

private:
  friend class Authority;
  explicit Certificate(x509_st* certificate);
  std::shared_ptr<x509_st> certificate_;
};

// The identity of a program on a link, and the authority that it trusts.
struct Identity {
  Certificate authority;
  Certificate certificate;
  PrivateKey key;
};

// The head's authority: a key and a self-signed certificate.
class Authority {
public:
  static constexpr Duration kLifetime = std::chrono::hours(24 * 3650);

  static Result<Authority> make(WallTime now);
  // Loads authority.key and authority.crt from this folder; makes them if both are missing. Error:
  // kCorrupt if only one is missing, or either is invalid. It then replaces nothing, because nodes
  // trust the authority.
  static Result<Authority> load_or_make(const std::filesystem::path& folder, WallTime now);

  const Certificate& certificate() const { return certificate_; }
  // Signs a certificate for the sender of this request. The caller gives the name, so that no node
  // chooses its own.
  Result<Certificate> sign(std::string_view request, std::string_view node, WallTime now,
                           Duration lifetime) const;

private:
  Authority(PrivateKey key, Certificate certificate)
      : key_(std::move(key)), certificate_(std::move(certificate)) {}
  PrivateKey key_;
  Certificate certificate_;
};

// Node names have 1 to 63 letters, digits, '.', '_' and '-', and begin with a letter or digit.
bool is_node_name(std::string_view name);

} // namespace nsa::tls
