#include "worker/telemetry/metrics_log.h"

#include "common/base/file.h"

#include <fcntl.h>
#include <unistd.h>

namespace nsa::train {

Result<std::unique_ptr<MetricsLog>> MetricsLog::open(const std::filesystem::path& path,
                                                     AttemptNumber attempt) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd) return fail_errno("cannot open " + path.string());
  // The last attempt may have been killed on a full disk, so its last line may lack a newline.
  char last = '\n';
  const off_t end = ::lseek(fd.get(), 0, SEEK_END);
  if (end > 0 && ::pread(fd.get(), &last, 1, end - 1) != 1)
    return fail_errno("cannot read " + path.string());
  if (last != '\n') NSA_TRY(write_all(fd.get(), "\n", 1));
  const int64_t size = end + (last != '\n' ? 1 : 0);
  return std::unique_ptr<MetricsLog>(
      new MetricsLog(telemetry::RecordFile(std::move(fd), "metrics.jsonl"), attempt, path, size));
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
  if (file_.append(line)) index_.add(body, line);
}

} // namespace nsa::train
