#include "worker/telemetry/metrics_log.h"

#include <fcntl.h>
#include <unistd.h>

namespace nsa::train {

namespace {

// The last attempt may have been killed on a full disk, so its last line may lack a newline.
bool is_torn(const std::filesystem::path& path, int64_t size) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char last = '\n';
  return fd && size > 0 && ::pread(fd.get(), &last, 1, size - 1) == 1 && last != '\n';
}

} // namespace

MetricsLog::MetricsLog(const std::filesystem::path& path, AttemptNumber attempt)
    : attempt_(attempt) {
  const auto open = [path]() -> Result<UniqueFd> {
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!fd) return fail_errno("cannot open it");
    return fd;
  };
  std::error_code missing;
  const auto bytes = std::filesystem::file_size(path, missing);
  const int64_t size = missing ? 0 : static_cast<int64_t>(bytes);
  const std::string_view newline = is_torn(path, size) ? "\n" : "";
  file_ = telemetry::RecordFile(open, path.filename().string());
  file_.append(newline);
  index_.emplace(path, size + static_cast<int64_t>(newline.size()));
}

void MetricsLog::step(const wire::RankStep& step) {
  append("step", step);
}

void MetricsLog::evaluation(const wire::RankEvaluation& evaluation) {
  append("evaluation", evaluation);
}

void MetricsLog::non_finite(const wire::RankNonFinite& event) {
  append("non_finite", event);
}

void MetricsLog::append(const char* kind, nlohmann::json body) {
  body["kind"] = kind;
  body["attempt"] = attempt_;
  body["time"] = format_rfc3339(WallTime::now());
  // nlohmann::json writes values that are not finite as null.
  const std::string line = body.dump() + "\n";
  if (file_.append(line)) index_->add(body, line);
}

} // namespace nsa::train
