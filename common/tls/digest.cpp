#include "common/tls/digest.h"

#include "common/tls/hex.h"
#include "common/tls/openssl.h"

#include <array>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <vector>

namespace nsa::tls {

std::string sha256_hex(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1)
    return {};
  return hex({digest.data(), size});
}

Result<std::string> random_hex(size_t bytes) {
  std::vector<unsigned char> drawn(bytes);
  if (RAND_bytes(drawn.data(), static_cast<int>(bytes)) != 1)
    return fail_openssl("the system gives no random numbers");
  return hex(drawn);
}

} // namespace nsa::tls
