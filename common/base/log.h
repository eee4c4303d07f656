// Log lines of our own programs: "2026-01-31T09:12:01.123Z INFO component message key=value ...".
// One write(2) a line, so lines of several threads and processes do not mix. Ids always go under
// the same keys: run, attempt, rank, step, node. Any thread may call it. Default sink: standard
// error.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace nsa::log {

enum class Level { kDebug, kInfo, kWarning, kError };

using Field = std::pair<std::string_view, std::string>;

void set_level(Level minimum);
void set_fd(int fd); // not owned

void write(Level level, std::string_view component, std::string_view message,
           std::initializer_list<Field> fields = {});

inline void debug(std::string_view component, std::string_view message,
                  std::initializer_list<Field> fields = {}) {
  write(Level::kDebug, component, message, fields);
}
inline void info(std::string_view component, std::string_view message,
                 std::initializer_list<Field> fields = {}) {
  write(Level::kInfo, component, message, fields);
}
inline void warning(std::string_view component, std::string_view message,
                    std::initializer_list<Field> fields = {}) {
  write(Level::kWarning, component, message, fields);
}
inline void error(std::string_view component, std::string_view message,
                  std::initializer_list<Field> fields = {}) {
  write(Level::kError, component, message, fields);
}

} // namespace nsa::log
