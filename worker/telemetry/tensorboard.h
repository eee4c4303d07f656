// Writes a run's curves for TensorBoard:
// <folder>/events.out.tfevents.<seconds>.<host>.<pid>.<attempt>.
//
// Every attempt writes its own file. A file that an earlier attempt left incomplete stays readable
// up to that point. The file begins with the step at which the attempt continues. Readers drop what
// earlier attempts wrote at or after it, so no step shows twice. Rank 0's training thread writes
// into the page cache, without fsync.
#pragma once

#include "common/base/ids.h"
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
  // Makes the folder if needed. `first_step` is the first one that this attempt will compute. If
  // the folder or file cannot be made, the curves wait in memory (record_file.h).
  TensorBoardWriter(const std::filesystem::path& folder, AttemptNumber attempt, int64_t first_step);

  void step(const wire::RankStep& step);
  void evaluation(const wire::RankEvaluation& evaluation);
  void non_finite(const wire::RankNonFinite& event);
  // Writes the run file as text, and its resolved keys as hyperparameters. `step` is the last one
  // before this attempt, so that readers drop neither. Readers keep the hyperparameters of the
  // first attempt.
  void run_file(std::string_view toml, const nlohmann::json& resolved, int64_t step);
  // Writes a page of text under `tag`, shown as code.
  void text(std::string_view tag, std::string_view content, int64_t step);
  void flush() { file_.flush(); }

  const std::filesystem::path& path() const { return path_; }
  const RecordFile& file() const { return file_; }

private:
  void scalars(int64_t step, const std::vector<Scalar>& values);
  void append(const std::string& event);

  std::filesystem::path path_;
  RecordFile file_;
};

// Returns numbers, switches and texts of a resolved run file by key ("train.learning_rate"), except
// paths and [run], which only identifies the run.
std::vector<Parameter> parameters_of(const nlohmann::json& resolved);
// Returns each branch's mean gates of all layers: "gate_histogram/selected" -> values.
std::map<std::string, std::vector<double>> gates_by_branch(const wire::RankStep& step);

// Returns the curves of one step, in TensorBoard's order of groups: train/, perf/, time/, memory/,
// gate/. Missing values (device memory on a CPU, gates of most steps) have no curve.
std::vector<Scalar> step_scalars(const wire::RankStep& step);

} // namespace nsa::telemetry
