#include "common/base/log.h"

#include "common/base/clock.h"

#include <atomic>
#include <unistd.h>

namespace nsa::log {

namespace {
std::atomic<Level> minimum_level{Level::kInfo};
std::atomic<int> sink_fd{STDERR_FILENO};

const char* name(Level level) {
  switch (level) {
  case Level::kDebug:
    return "DEBUG";
  case Level::kInfo:
    return "INFO";
  case Level::kWarning:
    return "WARNING";
  case Level::kError:
    return "ERROR";
  }
  return "?";
}

// Quotes values with blanks, quotes or control characters, so that an event stays on one line.
void append_value(std::string& line, std::string_view value) {
  const bool plain = !value.empty() && value.find_first_of(" \"\\=") == std::string_view::npos &&
                     value.find_first_of("\n\r\t") == std::string_view::npos;
  if (plain) {
    line += value;
    return;
  }
  line += '"';
  for (const char c : value) {
    if (c == '"' || c == '\\') line += '\\';
    if (c == '\n')
      line += "\\n";
    else if (c == '\r')
      line += "\\r";
    else if (c == '\t')
      line += "\\t";
    else
      line += c;
  }
  line += '"';
}
} // namespace

void set_level(Level minimum) {
  minimum_level = minimum;
}
void set_fd(int fd) {
  sink_fd = fd;
}

void write(Level level, std::string_view component, std::string_view message,
           std::initializer_list<Field> fields) {
  if (level < minimum_level.load()) return;
  std::string line = format_rfc3339(WallTime::now());
  line += ' ';
  line += name(level);
  line += ' ';
  line += component;
  line += ' ';
  line += message;
  for (const auto& [key, value] : fields) {
    line += ' ';
    line += key;
    line += '=';
    append_value(line, value);
  }
  line += '\n';
  // A log that cannot be written must not stop the program, and there is no place to report it.
  [[maybe_unused]] const ssize_t put = ::write(sink_fd.load(), line.data(), line.size());
}

} // namespace nsa::log
