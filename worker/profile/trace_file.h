// A trace in Chrome's format. Events are written one at a time, because there may be a million. Use
// it from one thread.
#pragma once

#include "common/base/result.h"
#include "worker/profile/attribution.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

namespace nsa::profile {

class TraceFile {
public:
  struct Row {
    int64_t process = 0, thread = 0;
  };
  // Times are relative to `zero_ns`. The file gets its final name in close().
  static Result<TraceFile> create(const std::filesystem::path& path, int64_t zero_ns);

  void name_process(int64_t process, const std::string& name);
  void name_thread(Row row, const std::string& name);
  // The viewer shows `detail` for a selected span; it may be empty.
  void span(Row row, const std::string& name, const char* category, const PartSpan& span,
            const std::string& detail);
  Status close();

private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  TraceFile(std::filesystem::path path, std::unique_ptr<std::FILE, Closer> file, int64_t zero_ns)
      : path_(std::move(path)), file_(std::move(file)), zero_ns_(zero_ns) {}
  void begin_event();
  void metadata(const char* what, Row row, const std::string& name);

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Closer> file_;
  int64_t zero_ns_;
  bool first_ = true;
};

} // namespace nsa::profile
