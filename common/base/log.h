// Log lines of our programs: "2026-01-31T09:12:01.123Z INFO component message key=value ...". Each
// line is one write(2), so lines of several threads and processes do not mix. Ids always have the
// same keys: run, attempt, rank, step, node. Callable from any thread. The default sink is standard
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
void set_fd(int fd); // does not take ownership

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
