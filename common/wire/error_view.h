// Errors as JSON: Error <-> ErrorView, code names and HTTP statuses, the same on both sides.
#pragma once

#include "common/base/result.h"
#include "common/wire/api_types.h"

#include <string_view>

namespace nsa::wire {

std::string_view error_code_name(ErrorCode code);      // for example "not-found"
ErrorCode error_code_from_name(std::string_view name); // kInternal for an unknown name
int http_status(ErrorCode code);                       // for example 404

ErrorView to_view(const Error& error);
// The caller shows the problems; the Error has the rest.
Error to_error(const ErrorView& view);

} // namespace nsa::wire
