// What a person names becomes a list of files, in a fixed order, each with what identifies its
// content. The list is stored as a plan: a fetch that goes on later reads the same files.
#pragma once

#include "common/base/result.h"
#include "fetch/http.h"
#include "fetch/rows.h"

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace nsa::fetch {

struct PlannedFile {
  // As the manifest records it, without secrets: hf://datasets/OWNER/NAME@COMMIT/PATH,
  // s3://BUCKET/KEY, a URL, a path.
  std::string name;
  uint64_t bytes = 0;   // 0: unknown
  std::string identity; // what must not change: an ETag, or the time of a local file's last change
  std::string checksum; // for the manifest: "sha256:..." of the hub, XXH3-128 of a local file
  Format format = Format::kParquet;
  Compression compression = Compression::kNone;
};

// hf://datasets/OWNER/NAME[@REVISION]/GLOB; the revision without escapes.
struct HubSource {
  std::string name, revision = "main", path;
};
Result<HubSource> hub_source(const std::string& source);

// A data set by a short name: "fineweb-edu" with sample "10BT".
Result<std::string> source_of_name(const std::string& name, const std::string& sample);

// What of a source may be stored and shown.
std::string printable_source(const std::string& source);

// Asks the hub, the servers and the file system. kInvalidArgument when nothing is found, when a
// name's end says no format, or a file comes up twice.
Result<std::vector<PlannedFile>> list_files(const std::vector<std::string>& sources, Http& http);

// Where the file's bytes are now. `sources` are those of this call: a signed URL is never stored.
Result<std::string> address_of(const PlannedFile& file, const std::vector<std::string>& sources,
                               const HttpOptions& options);

// Its bytes, held against what was planned. `folder` takes the file of a server without ranges.
Result<std::unique_ptr<ByteSource>> open_file(const PlannedFile& file, const std::string& address,
                                              Http& http, const std::string& folder,
                                              std::stop_token stop);

nlohmann::json to_json(const PlannedFile& file);
PlannedFile planned_file_from(const nlohmann::json& value); // throws json::exception

// '*' and '?' stay within a folder, '**' does not; '[a-c]' and '[!a]' are sets.
bool matches_glob(std::string_view glob, std::string_view path);

} // namespace nsa::fetch
