// Shared by all fuzz targets. A target aborts if a parser does not do what it promises; the
// sanitizers find other errors.
#pragma once

#include "common/base/result.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace nsa::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Ends the program if `holds` is false.
inline void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

// An error is for people: it names its subject, and quotes no long input.
template <class T> void expect_error(const Result<T>& result, std::string_view subject) {
  expect(result.error().what.find(subject) != std::string::npos, "an error names its subject");
  expect(result.error().what.size() < 1000, "an error is short");
}

} // namespace nsa::fuzz
