// Errors on the wire: Error <-> ErrorView, code names and HTTP statuses, the same on both sides.
#pragma once

#include "common/base/result.h"
#include "common/wire/api_types.h"

#include <string_view>

namespace nsa::wire {

std::string_view error_code_name(ErrorCode code);      // "not-found"
ErrorCode error_code_from_name(std::string_view name); // unknown: kInternal
int http_status(ErrorCode code);                       // 404

ErrorView to_view(const Error& error);
// The problems are the caller's to show; the Error holds the rest.
Error to_error(const ErrorView& view);

} // namespace nsa::wire
