#include "worker/profile/trace_file.h"

#include "common/base/json.h"

namespace nsa::profile {

namespace {

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::filesystem::path unfinished(const std::filesystem::path& path) {
  return path.string() + ".part";
}

} // namespace

Result<TraceFile> TraceFile::create(const std::filesystem::path& path, int64_t zero_ns) {
  std::unique_ptr<std::FILE, Closer> file(std::fopen(unfinished(path).c_str(), "we"));
  if (!file) return fail_errno("cannot write " + unfinished(path).string());
  std::fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", file.get());
  return TraceFile(path, std::move(file), zero_ns);
}

void TraceFile::begin_event() {
  std::fputs(first_ ? "\n" : ",\n", file_.get());
  first_ = false;
}

void TraceFile::metadata(const char* what, Row row, const std::string& name) {
  begin_event();
  std::fprintf(file_.get(),
               "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%lld,\"tid\":%lld,\"args\":{\"name\":%s}}",
               what, static_cast<long long>(row.process), static_cast<long long>(row.thread),
               quoted(name).c_str());
}

void TraceFile::name_process(int64_t process, const std::string& name) {
  metadata("process_name", {process, 0}, name);
}

void TraceFile::name_thread(Row row, const std::string& name) {
  metadata("thread_name", row, name);
}

void TraceFile::span(Row row, const std::string& name, const char* category, const PartSpan& span,
                     const std::string& detail) {
  begin_event();
  std::fprintf(file_.get(),
               "{\"ph\":\"X\",\"name\":%s,\"cat\":\"%s\",\"pid\":%lld,\"tid\":%lld,\"ts\":%.3f,"
               "\"dur\":%.3f",
               quoted(name).c_str(), category, static_cast<long long>(row.process),
               static_cast<long long>(row.thread),
               static_cast<double>(span.begin_ns - zero_ns_) * 1e-3,
               static_cast<double>(span.end_ns - span.begin_ns) * 1e-3);
  if (!detail.empty()) std::fprintf(file_.get(), ",\"args\":{\"of\":%s}", quoted(detail).c_str());
  std::fputs("}", file_.get());
}

Status TraceFile::close() {
  std::fputs("\n]}\n", file_.get());
  const bool failed = std::ferror(file_.get()) != 0;
  if (std::fclose(file_.release()) != 0 || failed)
    return fail_errno("cannot write " + path_.string());
  std::error_code error;
  std::filesystem::rename(unfinished(path_), path_, error);
  if (error)
    return fail(ErrorCode::kUnavailable, "cannot write " + path_.string() + ": " + error.message());
  return {};
}

} // namespace nsa::profile
