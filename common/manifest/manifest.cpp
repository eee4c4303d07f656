#include "common/manifest/manifest.h"

#include "common/base/checksum.h"
#include "common/base/file.h"
#include "common/base/json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace nsa::manifest {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int kFormat = 1;
constexpr size_t kMaxManifestBytes = size_t{4} << 20; // enough for thousands of files; a larger
                                                      // file is no manifest
constexpr size_t kMaxFiles = 65536;
constexpr const char* kFolderPrefix = "step-";
constexpr const char* kSelfChecksum = "manifest_checksum";

// JSON cannot represent NaN or infinity, so null means a loss that is not finite.
json number_or_null(double value) {
  return std::isfinite(value) ? json(value) : json(nullptr);
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.size() < 256 &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

bool is_checksum(const std::string& text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

json data_to_json(const DataState& data) {
  json j = {{"seed", data.seed},
            {"epoch", data.epoch},
            {"index", data.index},
            {"sequence_length", data.sequence_length},
            {"dataset_digest", data.dataset_digest}};
  for (const DataSource& source : data.sources)
    j["sources"].push_back({{"digest", source.digest}, {"weight", source.weight}});
  if (data.generations > 0)
    j["generations"] = {{"read", data.generations}, {"digest", data.generations_digest}};
  return j;
}

// Throws json::exception if the shape is wrong; the caller converts it to an Error.
Manifest parse_fields(const json& j) {
  Manifest m;
  j.at("format").get_to(m.format);
  j.at("run_id").get_to(m.run_id);
  j.at("attempt").get_to(m.attempt);
  j.at("step").get_to(m.step);
  j.at("tokens").get_to(m.tokens);
  j.at("world_size").get_to(m.world_size);
  j.at("threads").get_to(m.threads);
  j.at("device").get_to(m.device);
  j.at("precision").get_to(m.precision);
  j.at("compute").get_to(m.compute);
  j.at("deterministic").get_to(m.deterministic);
  m.shard_update = j.value("shard_update", false);
  j.at("finite").get_to(m.finite);
  const json& loss = j.at("loss");
  m.loss = loss.is_null() ? std::numeric_limits<double>::quiet_NaN() : loss.get<double>();
  const json& data = j.at("data");
  data.at("seed").get_to(m.data.seed);
  data.at("epoch").get_to(m.data.epoch);
  data.at("index").get_to(m.data.index);
  data.at("sequence_length").get_to(m.data.sequence_length);
  data.at("dataset_digest").get_to(m.data.dataset_digest);
  for (const json& source : data.value("sources", json::array()))
    m.data.sources.push_back(
        {source.at("digest").get<std::string>(), source.at("weight").get<int64_t>()});
  if (const auto read = data.find("generations"); read != data.end()) {
    read->at("read").get_to(m.data.generations);
    read->at("digest").get_to(m.data.generations_digest);
  }
  j.at("toggles").get_to(m.toggles);
  j.at("spec_digest").get_to(m.spec_digest);
  j.at("build").get_to(m.build);
  j.at("versions").get_to(m.versions);
  j.at("written_at").get_to(m.written_at);
  for (const json& f : j.at("files")) {
    File file;
    f.at("name").get_to(file.name);
    f.at("bytes").get_to(file.bytes);
    f.at("checksum").get_to(file.checksum);
    m.files.push_back(std::move(file));
  }
  return m;
}

Status check_files(const std::vector<File>& files) {
  if (files.empty()) return fail(ErrorCode::kCorrupt, "the manifest names no file");
  if (files.size() > kMaxFiles)
    return fail(ErrorCode::kCorrupt, "the manifest names " + std::to_string(files.size()) +
                                         " files, over the limit of " + std::to_string(kMaxFiles));
  std::vector<std::string> names;
  for (const File& file : files) {
    if (!is_plain_name(file.name))
      return fail(ErrorCode::kCorrupt, "the manifest names a file outside its folder");
    if (!is_checksum(file.checksum))
      return fail(ErrorCode::kCorrupt, "the manifest has no usable checksum for " + file.name);
    names.push_back(file.name);
  }
  std::sort(names.begin(), names.end());
  if (std::adjacent_find(names.begin(), names.end()) != names.end())
    return fail(ErrorCode::kCorrupt, "the manifest names a file twice");
  return {};
}

} // namespace

json to_json(const Manifest& m) {
  json files = json::array();
  for (const File& file : m.files)
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"checksum", file.checksum}});
  json j = {{"format", m.format},
            {"run_id", m.run_id},
            {"attempt", m.attempt},
            {"step", m.step},
            {"tokens", m.tokens},
            {"world_size", m.world_size},
            {"threads", m.threads},
            {"device", m.device},
            {"precision", m.precision},
            {"compute", m.compute},
            {"deterministic", m.deterministic},
            {"shard_update", m.shard_update},
            {"finite", m.finite},
            {"loss", number_or_null(m.loss)},
            {"data", data_to_json(m.data)},
            {"toggles", m.toggles},
            {"spec_digest", m.spec_digest},
            {"build", m.build},
            {"versions", m.versions},
            {"written_at", m.written_at},
            {"files", std::move(files)}};
  // The manifest's checksums protect the other files, so it has a checksum of itself. A flipped bit
  // could leave valid JSON with another step or seed.
  j[kSelfChecksum] = checksum_hex(j.dump());
  return j;
}

Result<Manifest> from_json(const json& j) {
  if (!j.is_object()) return fail(ErrorCode::kCorrupt, "the manifest is not a JSON object");
  try {
    const int format = j.at("format").get<int>();
    if (format > kFormat)
      return fail(ErrorCode::kUnsupported,
                  "the manifest has format " + std::to_string(format) + ", this build knows " +
                      std::to_string(kFormat),
                  "use the programs that wrote the checkpoint, or newer ones");
    json body = j;
    body.erase(kSelfChecksum);
    if (checksum_hex(body.dump()) != j.at(kSelfChecksum).get<std::string>())
      return fail(ErrorCode::kCorrupt, "the manifest does not match its own checksum");
    Manifest m = parse_fields(j);
    NSA_TRY(check_files(m.files));
    return m;
  } catch (const json::exception& e) {
    return fail(ErrorCode::kCorrupt, "the manifest has the wrong shape: " + reason_of(e));
  }
}

std::string folder_name(uint64_t step) {
  char text[40];
  std::snprintf(text, sizeof text, "%s%08llu", kFolderPrefix,
                static_cast<unsigned long long>(step));
  return text;
}

std::optional<uint64_t> step_of_folder(const std::string& name) {
  const std::string prefix = kFolderPrefix;
  if (name.rfind(prefix, 0) != 0) return std::nullopt;
  const std::string digits = name.substr(prefix.size());
  if (digits.size() < 8 || digits.size() > 19 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  const uint64_t step = std::stoull(digits);
  // Each step has exactly one name, so "step-000000001" is not a checkpoint.
  if (folder_name(step) != name) return std::nullopt;
  return step;
}

Result<Manifest> read(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  auto text = read_file(path, kMaxManifestBytes);
  if (!text) return fail(std::move(text).error());
  NSA_TRY_ASSIGN(const json j, parse_json(*text, path.string(), {.bytes = kMaxManifestBytes}));
  auto m = from_json(j);
  if (!m) return fail(std::move(m).error().within(path.string()));
  const auto named = step_of_folder(folder.filename().string());
  if (named && *named != m->step)
    return fail(ErrorCode::kCorrupt,
                folder.string() + " holds the manifest of step " + std::to_string(m->step));
  return m;
}

Status verify(const fs::path& folder, const Manifest& m) {
  for (const File& file : m.files) {
    const fs::path path = folder / file.name;
    std::error_code ec;
    const fs::file_status status = fs::symlink_status(path, ec);
    if (!fs::exists(status)) return fail(ErrorCode::kCorrupt, path.string() + " is missing");
    if (!fs::is_regular_file(status))
      return fail(ErrorCode::kCorrupt, path.string() + " is not a plain file");
    const uint64_t bytes = fs::file_size(path, ec);
    if (ec) return fail(ErrorCode::kCorrupt, "cannot size " + path.string() + ": " + ec.message());
    if (bytes != file.bytes)
      return fail(ErrorCode::kCorrupt, path.string() + " has " + std::to_string(bytes) +
                                           " bytes, the manifest says " +
                                           std::to_string(file.bytes));
    auto checksum = checksum_file_hex(path);
    if (!checksum)
      return fail(ErrorCode::kCorrupt,
                  "cannot read " + path.string() + ": " + checksum.error().what);
    if (*checksum != file.checksum)
      return fail(ErrorCode::kCorrupt, path.string() + " has checksum " + *checksum +
                                           ", the manifest says " + file.checksum);
  }
  return {};
}

namespace {

constexpr const char* kAsideSuffix = ".distrusted";

// Reads a checkpoint, and verifies it on request. Errors go into `problem`, because one bad
// checkpoint must not hide the others.
Found examine(const fs::path& folder, uint64_t step, bool verify_files) {
  Found found;
  found.folder = folder;
  found.step = step;
  auto m = read(folder);
  if (!m) {
    found.problem = m.error().what;
    return found;
  }
  found.manifest = std::move(*m);
  if (verify_files)
    if (auto good = verify(folder, *found.manifest); !good) found.problem = good.error().what;
  return found;
}

std::vector<std::pair<uint64_t, fs::path>> step_folders(const fs::path& checkpoints) {
  std::vector<std::pair<uint64_t, fs::path>> folders;
  std::error_code ec;
  for (fs::directory_iterator it(checkpoints, ec), end; !ec && it != end; it.increment(ec)) {
    const auto step = step_of_folder(it->path().filename().string());
    std::error_code ignored;
    if (step && it->is_directory(ignored)) folders.emplace_back(*step, it->path());
  }
  std::sort(folders.begin(), folders.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  return folders;
}

} // namespace

std::vector<Found> list(const fs::path& checkpoints_folder, bool verify_files) {
  std::vector<Found> all;
  for (const auto& [step, folder] : step_folders(checkpoints_folder))
    all.push_back(examine(folder, step, verify_files));
  return all;
}

Choice choose_newest_verified(const fs::path& checkpoints_folder,
                              const std::vector<Distrust>& distrusted) {
  Choice choice;
  // Newest first, up to the first good one; older ones are not read.
  for (const auto& [step, folder] : step_folders(checkpoints_folder)) {
    Found found = examine(folder, step, true);
    for (const Distrust& d : distrusted)
      if (found.problem.empty() && found.manifest->attempt == d.attempt && step >= d.step)
        found.problem = d.why;
    if (found.problem.empty()) {
      choice.chosen = std::move(found);
      break;
    }
    choice.rejected.push_back(std::move(found));
  }
  return choice;
}

std::map<uint64_t, fs::path> list_set_aside(const fs::path& checkpoints_folder) {
  std::map<uint64_t, fs::path> all;
  std::error_code ec;
  for (fs::directory_iterator it(checkpoints_folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->path().extension() != kAsideSuffix) continue;
    if (const auto step = step_of_folder(it->path().stem().string())) all[*step] = it->path();
  }
  return all;
}

void set_aside(Choice& choice, const std::vector<Distrust>& distrusted) {
  for (Found& found : choice.rejected)
    for (const Distrust& d : distrusted) {
      if (found.problem != d.why) continue;
      fs::path aside = found.folder;
      aside += kAsideSuffix;
      std::error_code error;
      fs::remove_all(aside, error); // left by an earlier attempt
      fs::rename(found.folder, aside, error);
      if (!error) found.folder = std::move(aside);
      break;
    }
}

} // namespace nsa::manifest
