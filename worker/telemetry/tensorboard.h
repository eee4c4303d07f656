// A run's curves for TensorBoard: <folder>/events.out.tfevents.<seconds>.<host>.<pid>.<attempt>.
//
// Every attempt writes a file of its own: a file that an earlier attempt left torn stays readable
// up to the tear. The file begins with the step at which the attempt goes on, and readers forget
// what earlier attempts wrote at or past it: no step shows twice. Written by rank 0's training
// thread into the page cache; nothing is synced.
#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/wire/messages.h"
#include "worker/telemetry/event_record.h"
#include "worker/telemetry/record_file.h"

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace nsa::telemetry {

class TensorBoardWriter {
public:
  // Makes the folder if need be. first_step: the first that this attempt will compute.
  static Result<TensorBoardWriter> open(const std::filesystem::path& folder, AttemptNumber attempt,
                                        int64_t first_step);

  void step(const wire::RankStep& step);
  void evaluation(const wire::RankEvaluation& evaluation);
  void non_finite(const wire::RankNonFinite& event);
  // What was asked for: the run file as text, and its resolved keys as hyperparameters. `step`: the
  // last one before this attempt, so that readers forget neither. Of hyperparameters they keep
  // those of the first attempt.
  void run_file(std::string_view toml, const nlohmann::json& resolved, int64_t step);
  // A page of text under `tag`. Shown as code.
  void text(std::string_view tag, std::string_view content, int64_t step);

  const std::filesystem::path& path() const { return path_; }
  const RecordFile& file() const { return file_; }

private:
  TensorBoardWriter() = default;
  void scalars(int64_t step, const std::vector<Scalar>& values);
  void append(const std::string& event);

  std::filesystem::path path_;
  RecordFile file_;
};

// Numbers, switches and texts of a resolved run file by their keys ("train.learning_rate"), but for
// [run], which says how the run is called, and paths.
std::vector<Parameter> parameters_of(const nlohmann::json& resolved);
// Of each branch, the mean gates of all layers: "gate_histogram/selected" -> values.
std::map<std::string, std::vector<double>> gates_by_branch(const wire::RankStep& step);

// The curves of one step, in TensorBoard's order of groups: train/, perf/, time/, memory/, gate/.
// Values that are not there (device memory on a CPU, gates of most steps) have no curve.
std::vector<Scalar> step_scalars(const wire::RankStep& step);

} // namespace nsa::telemetry
