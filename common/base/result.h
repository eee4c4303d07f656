// Errors as values. A function that can fail for a reason outside the program returns Result<T>;
// exceptions are for programmer errors and for foreign code, and stop at the edge that calls it.
//
// An Error says what went wrong, why if known, and what to do next. It is written for the person
// who reads it in a terminal: a whole clause, lower case, no full stop, naming the file, key or id.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace nsa {

enum class ErrorCode {
  kInvalidArgument, // the caller's input is wrong: fix it and call again
  kNotFound,        // the named thing does not exist
  kConflict,        // the thing exists, or is in a state that forbids this
  kPermission,      // the caller may not
  kUnavailable,     // the other side is not there (yet): trying again may help
  kExhausted,       // disk, memory, slots, budget or time are used up
  kCorrupt,         // stored data fails its check
  kUnsupported,     // valid, but not built: refused rather than ignored
  kSystem,          // the operating system said no (errno text is in `what`)
  kInternal,        // a bug of ours
};

struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string what; // what failed and why
  std::string next; // what to do about it; may be empty

  // The same error seen from one level up: "reading run.toml: permission denied".
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

// For a failed system call; reads errno at once, so call it first thing.
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

// Returns the error of `expression` to the caller, or yields nothing (Status) / binds the value.
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
