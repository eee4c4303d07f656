#include "worker/telemetry/tensorboard.h"

#include "common/base/clock.h"
#include "common/base/file.h"

#include <fcntl.h>
#include <unistd.h>

namespace nsa::telemetry {
namespace {

double now_seconds() {
  return WallTime::now().seconds();
}

std::string host_name() {
  char name[256] = "localhost";
  ::gethostname(name, sizeof name - 1);
  return name;
}

} // namespace

std::vector<Scalar> step_scalars(const wire::RankStep& step) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  std::vector<Scalar> scalars;
  for (const auto& row : wire::kStepMetrics) {
    const double value = row.of(step);
    if (row.metric.tensorboard.empty()) continue;
    if (row.metric.unit != wire::Unit::kBytes)
      scalars.emplace_back(std::string(row.metric.tensorboard), value);
    else if (value > 0)
      scalars.emplace_back(std::string(row.metric.tensorboard), value / kGiB);
  }
  for (const auto& [phase, seconds] : step.phase_seconds)
    scalars.emplace_back("time/" + phase + "_seconds", seconds);
  for (const auto& row : wire::kLayerMetrics)
    for (const auto& [key, value] : step.*row.at)
      scalars.emplace_back(std::string(row.layers.tensorboard) + "/" + key, value);
  return scalars;
}

std::vector<Parameter> parameters_of(const nlohmann::json& resolved) {
  std::vector<Parameter> parameters;
  for (const auto& [section, keys] : resolved.items()) {
    if (!keys.is_object() || section == "run") continue;
    for (const auto& [key, value] : keys.items()) {
      const std::string name = section + "." + key;
      if (value.is_boolean())
        parameters.emplace_back(name, value.get<bool>());
      else if (value.is_number())
        parameters.emplace_back(name, value.get<double>());
      else if (value.is_string() && !key.ends_with("path"))
        parameters.emplace_back(name, value.get<std::string>());
    }
  }
  return parameters;
}

std::map<std::string, std::vector<double>> gates_by_branch(const wire::RankStep& step) {
  std::map<std::string, std::vector<double>> branches;
  for (const auto& [name, weight] : step.gates) // "<layer>/<branch>"
    branches["gate_histogram/" + name.substr(name.find('/') + 1)].push_back(weight);
  return branches;
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, AttemptNumber attempt,
                                     int64_t first_step) {
  const double now = now_seconds();
  path_ = folder / ("events.out.tfevents." + std::to_string(static_cast<int64_t>(now)) + "." +
                    host_name() + "." + std::to_string(::getpid()) + "." + std::to_string(attempt));
  const auto open = [path = path_]() -> Result<UniqueFd> {
    NSA_TRY(make_folder(path.parent_path()));
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644));
    if (!fd) return fail_errno("cannot create it");
    return fd;
  };
  file_ = RecordFile(open, path_.string());
  file_.append(frame_record(encode_file_version(now)) +
               frame_record(encode_session_start(now, first_step)));
}

void TensorBoardWriter::step(const wire::RankStep& step) {
  const auto number = static_cast<int64_t>(step.step);
  scalars(number, step_scalars(step));
  for (const auto& [tag, weights] : gates_by_branch(step))
    append(encode_histogram(now_seconds(), number, tag, weights));
}

void TensorBoardWriter::run_file(std::string_view toml, const nlohmann::json& resolved,
                                 int64_t step) {
  text("run/file", toml, step);
  append(encode_parameters(now_seconds(), parameters_of(resolved)));
}

void TensorBoardWriter::evaluation(const wire::RankEvaluation& evaluation) {
  std::vector<Scalar> values = {{"eval/heldout_loss", evaluation.loss},
                                {"time/evaluation_seconds", evaluation.seconds}};
  for (const auto& [name, loss] : evaluation.sources)
    values.push_back({"eval/heldout_loss/" + name, loss});
  for (const wire::NeedleCell& cell : evaluation.needles)
    values.push_back({"eval/needles_found/" + std::to_string(cell.length) + "_bytes_depth_" +
                          std::to_string(cell.depth_from).substr(0, 3),
                      static_cast<double>(cell.found) / static_cast<double>(cell.asked)});
  scalars(static_cast<int64_t>(evaluation.step), values);
}

void TensorBoardWriter::non_finite(const wire::RankNonFinite& event) {
  text("train/non_finite", event.what + " is not finite: " + event.action.text(),
       static_cast<int64_t>(event.step));
}

void TensorBoardWriter::text(std::string_view tag, std::string_view content, int64_t step) {
  // Four leading spaces make a line a Markdown code block, in which no character is special.
  std::string block = "    ";
  for (const char c : content) {
    block.push_back(c);
    if (c == '\n') block += "    ";
  }
  append(encode_text(now_seconds(), step, tag, block));
}

void TensorBoardWriter::scalars(int64_t step, const std::vector<Scalar>& values) {
  append(encode_scalars(now_seconds(), step, values));
}

void TensorBoardWriter::append(const std::string& event) {
  file_.append(frame_record(event));
}

} // namespace nsa::telemetry
