#include "daemon/queries/run_files.h"

#include "common/base/json.h"

#include <algorithm>

namespace nsa::control {

namespace {

// Fills in, from the manifest and the folder, a checkpoint whose message never came.
void fill_in(store::CheckpointRow& row, const manifest::Found& found) {
  if (row.written_at != 0) return;
  row.written_at = found.written_at;
  if (!found.manifest || row.bytes != 0) return;
  row.tokens = found.manifest->tokens;
  row.attempt = found.manifest->attempt;
  row.finite = found.manifest->finite;
  for (const manifest::File& file : found.manifest->files)
    row.bytes += file.bytes;
}

} // namespace

std::vector<store::CheckpointRow> checkpoints_on_disk(std::vector<store::CheckpointRow> rows,
                                                      const RunId& run,
                                                      const std::vector<manifest::Found>& on_disk,
                                                      bool verified) {
  for (store::CheckpointRow& row : rows) {
    const auto found = std::find_if(on_disk.begin(), on_disk.end(),
                                    [&](const manifest::Found& f) { return f.step == row.step; });
    if (found == on_disk.end()) {
      row.state = wire::CheckpointState::kDeleted;
    } else if (!found->problem.empty()) {
      row.state = wire::CheckpointState::kCorrupt;
      row.problem = found->problem;
    } else if (verified) {
      row.state = wire::CheckpointState::kVerified;
    }
  }
  for (const manifest::Found& f : on_disk) {
    const auto known = std::find_if(rows.begin(), rows.end(), [&](const store::CheckpointRow& row) {
      return row.step == f.step;
    });
    if (known != rows.end()) {
      fill_in(*known, f);
      continue;
    }
    store::CheckpointRow row; // the checkpoint was written, but its message never came
    row.run = run;
    row.step = f.step;
    row.folder = f.folder.string();
    row.state = !f.problem.empty() ? wire::CheckpointState::kCorrupt
                : verified         ? wire::CheckpointState::kVerified
                                   : wire::CheckpointState::kUnverified;
    row.problem = f.problem;
    fill_in(row, f);
    rows.push_back(std::move(row));
  }
  std::sort(
      rows.begin(), rows.end(),
      [](const store::CheckpointRow& a, const store::CheckpointRow& b) { return a.step > b.step; });
  return rows;
}

nlohmann::json read_came(const std::string& folder, const FileOpener& open) {
  const std::string path = folder + "/summary.json";
  constexpr JsonLimits kLimits{};
  const auto text = read_file(path, kLimits.bytes, open);
  if (!text && text.error().code == ErrorCode::kNotFound) return {};
  const auto json = text ? parse_json(*text, path, kLimits) : fail(text.error());
  // The rest of the run's detail is still shown.
  if (!json) return {{"damaged", json.error().what}};
  return json->is_object() ? json->value("came", nlohmann::json()) : nlohmann::json();
}

Result<nlohmann::json> read_attempt_spec(const std::string& attempt_folder,
                                         const FileOpener& open) {
  const std::string path = attempt_folder + "/spec.json";
  constexpr JsonLimits kLimits{};
  NSA_TRY_ASSIGN(const std::string text, read_file(path, kLimits.bytes, open));
  return parse_json(text, path, kLimits);
}

} // namespace nsa::control
