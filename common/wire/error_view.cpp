#include "common/wire/error_view.h"

#include <array>

namespace nsa::wire {

namespace {
struct Row {
  ErrorCode code;
  std::string_view name;
  int status;
};
constexpr std::array<Row, 10> kRows = {{
    {ErrorCode::kInvalidArgument, "invalid-argument", 400},
    {ErrorCode::kNotFound, "not-found", 404},
    {ErrorCode::kConflict, "conflict", 409},
    {ErrorCode::kPermission, "permission", 403},
    {ErrorCode::kUnavailable, "unavailable", 503},
    {ErrorCode::kExhausted, "exhausted", 507},
    {ErrorCode::kCorrupt, "corrupt", 500},
    {ErrorCode::kUnsupported, "unsupported", 501},
    {ErrorCode::kSystem, "system", 500},
    {ErrorCode::kInternal, "internal", 500},
}};

const Row& row_of(ErrorCode code) {
  for (const Row& row : kRows)
    if (row.code == code) return row;
  return kRows.back();
}
} // namespace

std::string_view error_code_name(ErrorCode code) {
  return row_of(code).name;
}

ErrorCode error_code_from_name(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.code;
  return ErrorCode::kInternal;
}

int http_status(ErrorCode code) {
  return row_of(code).status;
}

ErrorView to_view(const Error& error) {
  return {std::string(error_code_name(error.code)), error.what, error.next, {}, {}};
}

Error to_error(const ErrorView& view) {
  return {error_code_from_name(view.code), view.what, view.next};
}

} // namespace nsa::wire
