// What the files of this library share about OpenSSL: owning handles, and its errors as ours.
#pragma once

#include "common/base/result.h"

#include <memory>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <string>

namespace nsa::tls {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;

// With what OpenSSL queued on this thread as the reason. The queue is empty afterwards.
inline tl::unexpected<Error> fail_openssl(std::string what, ErrorCode code = ErrorCode::kInternal) {
  if (const unsigned long error = ERR_get_error(); error != 0) {
    const char* reason = ERR_reason_error_string(error);
    what += std::string(": ") + (reason ? reason : "an unnamed error of OpenSSL");
  }
  ERR_clear_error();
  return fail(code, std::move(what));
}

} // namespace nsa::tls
