// Errors as values. A function that can fail for a reason outside the program returns Result<T>.
// Exceptions are for programmer errors and third-party code, and the code that calls such code
// catches them.
//
// An Error says what failed, why if known, and what to do next. A person reads it in a terminal: it
// is a clause in lower case without a full stop, and names the file, key or id.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace nsa {

enum class ErrorCode {
  kInvalidArgument, // the caller's input is wrong; it must be fixed first
  kNotFound,        // the named thing does not exist
  kConflict,        // the thing exists, or its state forbids this
  kPermission,      // the caller lacks permission
  kUnavailable,     // the other side is not reachable (yet); a retry may help
  kExhausted,       // disk, memory, slots, budget or time are used up
  kCorrupt,         // stored data fails its check
  kUnsupported,     // valid, but not implemented; refused rather than ignored
  kSystem,          // a system call failed (errno text is in `what`)
  kInternal,        // a bug in this program
};

struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string what; // what failed and why
  std::string next; // what to do about it; may be empty

  // Adds context: "reading run.toml: permission denied".
  Error within(std::string_view doing) && {
    what = std::string(doing) + ": " + what;
    return std::move(*this);
  }
};

template <class T> using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> fail(ErrorCode code, std::string what, std::string next = {}) {
  return tl::unexpected<Error>(Error{code, std::move(what), std::move(next)});
}

inline tl::unexpected<Error> fail(Error error) {
  return tl::unexpected<Error>(std::move(error));
}

// Makes the error of a failed system call. It reads errno, so call it right after the failure.
inline tl::unexpected<Error> fail_errno(std::string doing, std::string next = {}) {
  const int saved = errno;
  const ErrorCode code = saved == ENOENT                      ? ErrorCode::kNotFound
                         : saved == EACCES || saved == EPERM  ? ErrorCode::kPermission
                         : saved == ENOSPC || saved == EDQUOT ? ErrorCode::kExhausted
                         : saved == EEXIST                    ? ErrorCode::kConflict
                                                              : ErrorCode::kSystem;
  return fail(code, std::move(doing) + ": " + std::strerror(saved), std::move(next));
}

} // namespace nsa

// NSA_TRY returns the error of `expression` to the caller. NSA_TRY_ASSIGN also binds the value.
#define NSA_TRY(expression)                                                                        \
  do {                                                                                             \
    auto nsa_try_status = (expression);                                                            \
    if (!nsa_try_status) return ::tl::unexpected(std::move(nsa_try_status).error());               \
  } while (false)
#define NSA_CONCAT_INNER(a, b) a##b
#define NSA_CONCAT(a, b) NSA_CONCAT_INNER(a, b)
#define NSA_TRY_ASSIGN_INNER(result, declaration, expression)                                      \
  auto result = (expression);                                                                      \
  if (!result) return ::tl::unexpected(std::move(result).error());                                 \
  declaration = std::move(*result)
#define NSA_TRY_ASSIGN(declaration, expression)                                                    \
  NSA_TRY_ASSIGN_INNER(NSA_CONCAT(nsa_try_result_, __LINE__), declaration, expression)
