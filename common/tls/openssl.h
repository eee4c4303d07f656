// Shared by the files of this library: owning handles for OpenSSL, and its errors as Error.
#pragma once

#include "common/base/result.h"

#include <memory>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <string>

namespace nsa::tls {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;

// Adds the reason that OpenSSL queued on this thread, and clears the queue.
inline tl::unexpected<Error> fail_openssl(std::string what, ErrorCode code = ErrorCode::kInternal) {
  if (const unsigned long error = ERR_get_error(); error != 0) {
    const char* reason = ERR_reason_error_string(error);
    what += std::string(": ") + (reason ? reason : "an unnamed error of OpenSSL");
  }
  ERR_clear_error();
  return fail(code, std::move(what));
}

} // namespace nsa::tls
