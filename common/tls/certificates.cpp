#include "common/tls/certificates.h"

#include "common/base/file.h"
#include "common/tls/hex.h"
#include "common/tls/openssl.h"

#include <algorithm>
#include <array>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

namespace nsa::tls {

namespace {
constexpr size_t kSerialBytes = 16;
// A node whose clock is slow must not see a new certificate as not yet valid.
constexpr long kBackdatedSeconds = 300;

using Request = std::unique_ptr<X509_REQ, decltype(&X509_REQ_free)>;
using Extension = std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)>;

Bio reading(std::string_view text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free};
}

std::string written(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<size_t>(size)};
}

bool set_name(X509_NAME* name, std::string_view text) {
  return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(text.data()),
                                    static_cast<int>(text.size()), -1, 0) == 1;
}

bool add_extension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()),
                            X509_EXTENSION_free);
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// Serial numbers are random, so that two heads, or one with an older ledger, never use one twice.
bool set_serial(X509* certificate) {
  std::array<unsigned char, kSerialBytes> bytes{};
  if (RAND_bytes(bytes.data(), bytes.size()) != 1) return false;
  bytes[0] = static_cast<unsigned char>((bytes[0] & 0x7f) | 0x40); // positive, of full length
  const std::unique_ptr<BIGNUM, decltype(&BN_free)> number(
      BN_bin2bn(bytes.data(), static_cast<int>(bytes.size()), nullptr), BN_free);
  return number && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate));
}

bool set_lifetime(X509* certificate, WallTime now, Duration lifetime) {
  time_t start = now.nanoseconds / 1'000'000'000;
  const long seconds = std::chrono::duration_cast<std::chrono::seconds>(lifetime).count();
  return X509_time_adj(X509_getm_notBefore(certificate), -kBackdatedSeconds, &start) != nullptr &&
         X509_time_adj(X509_getm_notAfter(certificate), seconds, &start) != nullptr;
}

WallTime time_of(const ASN1_TIME* time) {
  tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return {};
  return {int64_t{timegm(&parts)} * 1'000'000'000};
}

// Fills in what every certificate has; returns nullptr if OpenSSL failed.
std::unique_ptr<X509, decltype(&X509_free)> draft(std::string_view name, EVP_PKEY* key,
                                                  WallTime now, Duration lifetime) {
  std::unique_ptr<X509, decltype(&X509_free)> made(X509_new(), X509_free);
  const bool good = made && X509_set_version(made.get(), X509_VERSION_3) == 1 &&
                    set_serial(made.get()) && set_lifetime(made.get(), now, lifetime) &&
                    X509_set_pubkey(made.get(), key) == 1 &&
                    set_name(X509_get_subject_name(made.get()), name);
  if (!good) made.reset();
  return made;
}
} // namespace

bool is_node_name(std::string_view name) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  return !name.empty() && name.size() <= 63 && letter(name[0]) &&
         std::ranges::all_of(name,
                             [&](char c) { return letter(c) || c == '.' || c == '_' || c == '-'; });
}

// ---- keys

PrivateKey::PrivateKey(evp_pkey_st* key) : key_(key, EVP_PKEY_free) {}

Result<PrivateKey> PrivateKey::make() {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  if (!key) return fail_openssl("cannot make a key");
  return PrivateKey(key);
}

Result<PrivateKey> PrivateKey::from_pem(std::string_view pem) {
  const Bio bio = reading(pem);
  // Gives no passphrase, because OpenSSL would otherwise ask on the terminal.
  EVP_PKEY* key = PEM_read_bio_PrivateKey(
      bio.get(), nullptr, [](char*, int, int, void*) { return -1; }, nullptr);
  if (!key) return fail_openssl("this is no private key in PEM form", ErrorCode::kCorrupt);
  return PrivateKey(key);
}

Result<std::string> PrivateKey::to_pem() const {
  const Bio bio(BIO_new(BIO_s_mem()), BIO_free);
  if (!bio || PEM_write_bio_PKCS8PrivateKey(bio.get(), key_.get(), nullptr, nullptr, 0, nullptr,
                                            nullptr) != 1)
    return fail_openssl("cannot write a key");
  return written(bio.get());
}

Result<std::string> PrivateKey::request(std::string_view node) const {
  const Request request(X509_REQ_new(), X509_REQ_free);
  const Bio bio(BIO_new(BIO_s_mem()), BIO_free);
  if (!request || !bio || !set_name(X509_REQ_get_subject_name(request.get()), node) ||
      X509_REQ_set_pubkey(request.get(), key_.get()) != 1 ||
      X509_REQ_sign(request.get(), key_.get(), EVP_sha256()) <= 0 ||
      PEM_write_bio_X509_REQ(bio.get(), request.get()) != 1)
    return fail_openssl("cannot make a request for a certificate");
  return written(bio.get());
}

// ---- certificates

Certificate::Certificate(x509_st* certificate) : certificate_(certificate, X509_free) {}

Certificate Certificate::share(x509_st* certificate) {
  X509_up_ref(certificate);
  return Certificate(certificate);
}

Result<Certificate> Certificate::from_pem(std::string_view pem) {
  const Bio bio = reading(pem);
  X509* read = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr);
  if (!read) return fail_openssl("this is no certificate in PEM form", ErrorCode::kCorrupt);
  return Certificate(read);
}

std::string Certificate::to_pem() const {
  const Bio bio(BIO_new(BIO_s_mem()), BIO_free);
  return bio && PEM_write_bio_X509(bio.get(), native()) == 1 ? written(bio.get()) : std::string();
}

std::string Certificate::node() const {
  X509_NAME* subject = X509_get_subject_name(native());
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at < 0) return {};
  const ASN1_STRING* text = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<size_t>(ASN1_STRING_length(text))};
}

std::string Certificate::serial() const {
  const ASN1_INTEGER* number = X509_get0_serialNumber(native());
  return hex({ASN1_STRING_get0_data(number), static_cast<size_t>(ASN1_STRING_length(number))});
}

std::string Certificate::fingerprint() const {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (X509_digest(native(), EVP_sha256(), digest.data(), &size) != 1) return {};
  return hex({digest.data(), size});
}

WallTime Certificate::expires() const {
  return time_of(X509_get0_notAfter(native()));
}

Duration Certificate::lifetime() const {
  return expires() - time_of(X509_get0_notBefore(native()));
}

// ---- the authority

Result<Authority> Authority::make(WallTime now) {
  NSA_TRY_ASSIGN(PrivateKey key, PrivateKey::make());
  auto made = draft("nsad authority", key.native(), now, kLifetime);
  if (!made || X509_set_issuer_name(made.get(), X509_get_subject_name(made.get())) != 1 ||
      !add_extension(made.get(), made.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !add_extension(made.get(), made.get(), NID_key_usage, "critical,keyCertSign") ||
      !add_extension(made.get(), made.get(), NID_subject_key_identifier, "hash") ||
      X509_sign(made.get(), key.native(), EVP_sha256()) <= 0)
    return fail_openssl("cannot make the authority's certificate");
  return Authority(std::move(key), Certificate(made.release()));
}

Result<Authority> Authority::load_or_make(const std::filesystem::path& folder, WallTime now) {
  const auto key_path = folder / "authority.key", certificate_path = folder / "authority.crt";
  const auto key_text = read_file(key_path, 1 << 16);
  const auto certificate_text = read_file(certificate_path, 1 << 16);
  const auto is_missing = [](const Result<std::string>& text) {
    return !text && text.error().code == ErrorCode::kNotFound;
  };
  if (is_missing(key_text) && is_missing(certificate_text)) {
    NSA_TRY(make_folder(folder, 0700));
    NSA_TRY_ASSIGN(Authority made, make(now));
    NSA_TRY_ASSIGN(const std::string pem, made.key_.to_pem());
    // Writes the key first. A crash in between is detected, and nobody trusts the key alone.
    NSA_TRY(write_file_atomic(key_path, pem, 0600));
    NSA_TRY(write_file_atomic(certificate_path, made.certificate_.to_pem(), 0644));
    return made;
  }
  const auto broken = [&](const Error& why) {
    return fail(ErrorCode::kCorrupt, "the cluster's authority cannot be read: " + why.what,
                "bring " + folder.string() +
                    " back from a copy; or remove it, and let every node join again");
  };
  if (!key_text) return broken(key_text.error());
  if (!certificate_text) return broken(certificate_text.error());
  auto key = PrivateKey::from_pem(*key_text);
  if (!key) return broken(std::move(key).error().within(key_path.string()));
  auto certificate = Certificate::from_pem(*certificate_text);
  if (!certificate) return broken(std::move(certificate).error().within(certificate_path.string()));
  if (X509_check_private_key(certificate->native(), key->native()) != 1)
    return broken(
        Error{ErrorCode::kCorrupt, "authority.key and authority.crt do not belong together", {}});
  return Authority(std::move(*key), std::move(*certificate));
}

Result<Certificate> Authority::sign(std::string_view request, std::string_view node, WallTime now,
                                    Duration lifetime) const {
  if (!is_node_name(node))
    return fail(ErrorCode::kInvalidArgument, "'" + std::string(node) + "' is no name of a node",
                "use 1 to 63 letters, digits, '.', '_' and '-', and a letter or digit first");
  const Bio bio = reading(request);
  const Request asked(PEM_read_bio_X509_REQ(bio.get(), nullptr, nullptr, nullptr), X509_REQ_free);
  if (!asked)
    return fail_openssl("this is no request for a certificate", ErrorCode::kInvalidArgument);
  EVP_PKEY* key = X509_REQ_get0_pubkey(asked.get());
  if (!key || X509_REQ_verify(asked.get(), key) != 1)
    return fail_openssl("the request for a certificate is not signed by its own key",
                        ErrorCode::kInvalidArgument);
  if (EVP_PKEY_get_base_id(key) != EVP_PKEY_EC)
    return fail(ErrorCode::kInvalidArgument,
                "the request for a certificate is not for a P-256 key");
  auto made = draft(node, key, now, lifetime);
  X509* issuer = certificate_.native();
  if (!made || X509_set_issuer_name(made.get(), X509_get_subject_name(issuer)) != 1 ||
      !add_extension(made.get(), issuer, NID_basic_constraints, "critical,CA:FALSE") ||
      !add_extension(made.get(), issuer, NID_key_usage, "critical,digitalSignature") ||
      !add_extension(made.get(), issuer, NID_ext_key_usage, "serverAuth,clientAuth") ||
      !add_extension(made.get(), issuer, NID_subject_alt_name, "DNS:" + std::string(node)) ||
      !add_extension(made.get(), issuer, NID_authority_key_identifier, "keyid") ||
      X509_sign(made.get(), key_.native(), EVP_sha256()) <= 0)
    return fail_openssl("cannot sign a certificate for " + std::string(node));
  return Certificate(made.release());
}

} // namespace nsa::tls
