#include "fetch/source_list.h"

#include "common/base/checksum.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "fetch/read_ahead.h"
#include "fetch/s3.h"
#include "fetch/synthetic.h"
#include "fetch/url.h"

#include <algorithm>
#include <fcntl.h>
#include <filesystem>
#include <glob.h>
#include <set>
#include <sys/stat.h>

namespace nsa::fetch {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kHub = "hf://";
constexpr std::string_view kHubSets = "hf://datasets/";
constexpr size_t kListingBytes = size_t{64} << 20;

// Finds the end of the revision at the start of `text`. The hub's own references, refs/convert/NAME
// and refs/pr/N, contain slashes; any other revision writes a slash as %2F.
size_t end_of_revision(std::string_view text) {
  size_t begin = 0;
  for (const std::string_view reference : {"refs/convert/", "refs/pr/"})
    if (text.starts_with(reference)) begin = reference.size();
  return text.find('/', begin);
}

std::string without(std::string_view name, std::string_view end) {
  return std::string(name.substr(0, name.size() - end.size()));
}

// Sets format and compression from the name's suffix. False: the suffix is unknown.
bool tell_format(std::string_view path, PlannedFile& file) {
  if (path.starts_with(kSyntheticPrefix)) {
    file.format = Format::kSynthetic;
    return true;
  }
  std::string name(path);
  for (const auto& [end, compression] :
       {std::pair{".gz", Compression::kGzip}, {".zst", Compression::kZstd}})
    if (name.ends_with(end)) {
      name = without(name, end);
      file.compression = compression;
    }
  if (name.ends_with(".parquet") && file.compression == Compression::kNone)
    file.format = Format::kParquet;
  else if (name.ends_with(".jsonl") || name.ends_with(".ndjson"))
    file.format = Format::kJsonLines;
  else if (name.ends_with(".txt"))
    file.format = Format::kText;
  else
    return false;
  return true;
}

tl::unexpected<Error> no_format(const std::string& name) {
  return fail(ErrorCode::kInvalidArgument, "the name of " + name + " says no known format",
              "formats are .parquet, .jsonl and .txt, the last two also with .gz or .zst");
}

Result<std::string> resolve_revision(const HubSource& hub, Http& http) {
  const std::string url = http.options().hub + "/api/datasets/" + escaped_path(hub.name) +
                          // refs/pr/3 is a single part of the path.
                          "/revision/" + escaped_part(hub.revision);
  NSA_TRY_ASSIGN(const Http::Page page, http.get_page(url, kListingBytes));
  NSA_TRY_ASSIGN(const auto answer, parse_json(page.body, printable_url(url), {kListingBytes}));
  const auto sha = answer.is_object() ? answer.find("sha") : answer.end();
  if (!answer.is_object() || sha == answer.end() || !sha->is_string())
    return fail(ErrorCode::kCorrupt, printable_url(url) + " names no commit",
                "is HF_ENDPOINT a hub?");
  auto commit = sha->get<std::string>();
  if (commit.size() < 7 || commit.find_first_not_of("0123456789abcdef") != commit.npos)
    return fail(ErrorCode::kCorrupt, printable_url(url) + " names '" + commit + "' as a commit");
  return commit;
}

void add_hub_entry(const nlohmann::json& entry, const HubSource& hub, const std::string& commit,
                   std::vector<PlannedFile>& files) {
  if (entry.at("type").get<std::string>() != "file") return;
  const auto path = entry.at("path").get<std::string>();
  PlannedFile file;
  if (!matches_glob(hub.path, path) || !tell_format(path, file)) return;
  file.name = std::string(kHubSets) + hub.name + "@" + commit + "/" + path;
  file.bytes = entry.at("size").get<uint64_t>();
  const auto lfs = entry.find("lfs");
  if (lfs != entry.end() && lfs->is_object()) {
    file.bytes = lfs->at("size").get<uint64_t>();
    file.checksum = "sha256:" + lfs->at("oid").get<std::string>();
  } else if (entry.contains("oid")) {
    file.checksum = "git:" + entry.at("oid").get<std::string>();
  }
  files.push_back(std::move(file));
}

Result<std::vector<PlannedFile>> list_hub(const std::string& source, Http& http) {
  NSA_TRY_ASSIGN(const HubSource hub, hub_source(source));
  NSA_TRY_ASSIGN(const std::string commit, resolve_revision(hub, http));
  // Only the folder before the first wildcard is listed.
  const std::string fixed = hub.path.substr(0, hub.path.find_first_of("*?["));
  const size_t slash = fixed.find_last_of('/');
  const std::string folder = slash == fixed.npos ? "" : "/" + fixed.substr(0, slash);
  std::string url = http.options().hub + "/api/datasets/" + escaped_path(hub.name) + "/tree/" +
                    commit + escaped_path(folder) + "?recursive=true";
  std::vector<PlannedFile> files;
  std::set<std::string> seen;
  while (!url.empty()) {
    if (!seen.insert(url).second)
      return fail(ErrorCode::kCorrupt, printable_url(url) + " lists its pages in a circle");
    NSA_TRY_ASSIGN(const Http::Page page, http.get_page(url, kListingBytes));
    NSA_TRY_ASSIGN(const auto listing, parse_json(page.body, printable_url(url), {kListingBytes}));
    try {
      for (const auto& entry : listing)
        add_hub_entry(entry, hub, commit, files);
    } catch (const nlohmann::json::exception& error) {
      return fail(ErrorCode::kCorrupt, printable_url(url) + ": " + reason_of(error));
    }
    url = page.next;
  }
  if (files.empty())
    return fail(ErrorCode::kNotFound,
                "no .parquet, .jsonl or .txt file of " + hub.name + " matches " + hub.path,
                "look at the data set's page, tab 'Files', and mend the path");
  std::sort(files.begin(), files.end(),
            [](const PlannedFile& a, const PlannedFile& b) { return a.name < b.name; });
  return files;
}

Result<std::vector<PlannedFile>> list_url(const std::string& source, Http& http) {
  PlannedFile file;
  file.name = printable_url(source);
  if (!tell_format(file_name_of(source), file)) return no_format(file.name);
  Http::File remote(http, source, Http::Store::kPlain);
  NSA_TRY(remote.probe({}));
  file.bytes = remote.identity().bytes.value_or(0);
  file.identity = remote.identity().etag;
  file.checksum = file.identity.empty() ? "" : "etag:" + file.identity;
  return std::vector{file};
}

// A single object, of which only the name is known.
Result<std::vector<PlannedFile>> s3_object(const S3Place& place, Http& http) {
  PlannedFile file;
  file.name = std::string(kS3) + place.bucket + "/" + place.path;
  if (!tell_format(place.path, file)) return no_format(file.name);
  Http::File remote(http, s3_object_url(http.options().s3, place), Http::Store::kS3);
  NSA_TRY(remote.probe({}));
  file.bytes = remote.identity().bytes.value_or(0);
  file.identity = remote.identity().etag;
  file.checksum = file.identity.empty() ? "" : "etag:" + file.identity;
  return std::vector{file};
}

Result<std::vector<PlannedFile>> list_s3(const std::string& source, Http& http) {
  NSA_TRY_ASSIGN(const S3Place place, s3_place(source));
  const std::string prefix = place.path.substr(0, place.path.find_first_of("*?["));
  // Listing a bucket needs a permission of its own, which a named object does not require.
  if (prefix.size() == place.path.size()) return s3_object(place, http);
  std::vector<PlannedFile> files;
  std::string next;
  std::set<std::string> seen;
  do {
    const auto url = s3_listing_url(http.options().s3, place.bucket, prefix, next);
    NSA_TRY_ASSIGN(const Http::Page page, http.get_page(url, kListingBytes, Http::Store::kS3));
    NSA_TRY_ASSIGN(S3Listing listing, parse_s3_listing(page.body, printable_url(url)));
    for (S3Object& object : listing.objects) {
      PlannedFile file;
      // An empty object has no range to request.
      if (object.bytes == 0 || !matches_glob(place.path, object.key) ||
          !tell_format(object.key, file))
        continue;
      file.name = std::string(kS3) + place.bucket + "/" + object.key;
      file.bytes = object.bytes;
      file.checksum = object.etag.empty() ? "" : "etag:" + object.etag;
      file.identity = std::move(object.etag);
      files.push_back(std::move(file));
    }
    next = std::move(listing.continuation);
    if (!next.empty() && !seen.insert(next).second)
      return fail(ErrorCode::kCorrupt, printable_url(url) + " lists its pages in a circle");
  } while (!next.empty());
  if (files.empty())
    return fail(ErrorCode::kNotFound,
                "no .parquet, .jsonl or .txt object of bucket " + place.bucket + " matches " +
                    place.path,
                "look at the keys there and mend the glob: ** matches slashes, * does not");
  std::sort(files.begin(), files.end(),
            [](const PlannedFile& a, const PlannedFile& b) { return a.name < b.name; });
  return files;
}

Result<std::vector<PlannedFile>> list_synthetic(const std::string& source) {
  NSA_TRY_ASSIGN(const Synthetic set, parse_synthetic(source));
  PlannedFile file;
  file.name = set.name();
  file.bytes = static_cast<uint64_t>(set.length * set.documents);
  tell_format(file.name, file);
  return std::vector{file};
}

Result<std::string> last_change(const fs::path& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return fail_errno("cannot stat " + path.string());
  return std::to_string(info.st_mtim.tv_sec) + "." + std::to_string(info.st_mtim.tv_nsec);
}

Result<PlannedFile> local_file(const fs::path& path) {
  PlannedFile file;
  file.name = path.string();
  if (!tell_format(path.filename().string(), file)) return no_format(file.name);
  std::error_code error;
  file.bytes = fs::file_size(path, error);
  if (error) return fail(ErrorCode::kSystem, "cannot read " + file.name + ": " + error.message());
  NSA_TRY_ASSIGN(file.identity, last_change(path));
  NSA_TRY_ASSIGN(file.checksum, checksum_file_hex(path));
  return file;
}

Result<std::vector<PlannedFile>> list_local(const std::string& source) {
  std::vector<fs::path> paths;
  std::error_code error;
  const bool folder = fs::is_directory(source, error);
  if (folder) {
    for (fs::recursive_directory_iterator at(source, error), end; !error && at != end;
         at.increment(error)) {
      PlannedFile ignored;
      if (at->is_regular_file(error) && tell_format(at->path().filename().string(), ignored))
        paths.push_back(at->path());
    }
    if (error) return fail(ErrorCode::kSystem, "cannot walk " + source + ": " + error.message());
    std::sort(paths.begin(), paths.end());
  } else {
    glob_t found{};
    const int status = ::glob(source.c_str(), GLOB_BRACE | GLOB_TILDE, nullptr, &found);
    for (size_t i = 0; status == 0 && i < found.gl_pathc; ++i)
      paths.emplace_back(found.gl_pathv[i]);
    ::globfree(&found);
  }
  if (paths.empty())
    return fail(ErrorCode::kNotFound,
                folder ? source + " holds no .parquet, .jsonl or .txt file"
                       : "no file matches '" + source + "'",
                "name files, a folder, a quoted glob, a URL or hf://datasets/OWNER/NAME/GLOB");
  std::vector<PlannedFile> files;
  for (const fs::path& path : paths) {
    NSA_TRY_ASSIGN(PlannedFile file, local_file(path));
    files.push_back(std::move(file));
  }
  return files;
}

// Downloads the whole file beside the shards, for a server without ranges. The file is removed
// after reading.
Result<std::unique_ptr<ByteSource>> spool(Http::File& remote, const std::string& folder) {
  const std::string path = folder + "/whole-file.part";
  UniqueFd fd;
  NSA_TRY(remote.read_whole(
      [&]() -> Status {
        fd.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
        if (!fd) return fail_errno("cannot create " + path);
        return {};
      },
      [&](std::string_view bytes) { return write_all(fd.get(), bytes.data(), bytes.size()); }));
  return open_local(path, true);
}

} // namespace

Result<HubSource> hub_source(const std::string& source) {
  const char* const form = "write it as hf://datasets/OWNER/NAME[@REVISION]/GLOB";
  if (!source.starts_with(kHubSets))
    return fail(ErrorCode::kInvalidArgument, "'" + source + "' names no data set of the hub", form);
  const std::string rest = source.substr(kHubSets.size());
  const size_t owner = rest.find('/');
  const size_t name = owner == rest.npos ? rest.npos : rest.find_first_of("@/", owner + 1);
  const bool has_revision = name != rest.npos && rest[name] == '@';
  const std::string behind = name == rest.npos ? "" : rest.substr(name + 1);
  const size_t revision = has_revision ? end_of_revision(behind) : 0;
  HubSource hub;
  hub.name = rest.substr(0, name);
  if (revision != behind.npos) hub.path = behind.substr(has_revision ? revision + 1 : 0);
  if (owner == 0 || hub.path.empty())
    return fail(ErrorCode::kInvalidArgument, "'" + source + "' says no owner, name and path", form);
  if (has_revision) hub.revision = unescaped(behind.substr(0, revision));
  if (hub.revision.empty())
    return fail(ErrorCode::kInvalidArgument, "'" + source + "' has an empty revision", form);
  return hub;
}

Result<std::string> source_of_name(const std::string& name, const std::string& sample) {
  if (name != "fineweb-edu") {
    if (sample.empty()) return name;
    return fail(ErrorCode::kInvalidArgument, "--sample belongs to a data set's short name",
                "write: nsactl data fetch fineweb-edu --sample 10BT --out FOLDER");
  }
  if (sample != "10BT" && sample != "100BT" && sample != "350BT")
    return fail(ErrorCode::kInvalidArgument,
                sample.empty() ? "fineweb-edu has 1.3 trillion tokens"
                               : "fineweb-edu has no sample '" + sample + "'",
                "choose one: --sample 10BT, 100BT or 350BT; all of it is "
                "'hf://datasets/HuggingFaceFW/fineweb-edu/data/*/*.parquet'");
  return "hf://datasets/HuggingFaceFW/fineweb-edu/sample/" + sample + "/*.parquet";
}

std::string printable_source(const std::string& source) {
  return is_url(source) ? printable_url(source) : source;
}

Result<std::vector<PlannedFile>> list_files(const std::vector<std::string>& sources, Http& http) {
  std::vector<PlannedFile> files;
  std::set<std::string> names;
  for (const std::string& source : sources) {
    auto found = source.starts_with(kSyntheticPrefix) ? list_synthetic(source)
                 : source.starts_with(kHub)           ? list_hub(source, http)
                 : source.starts_with(kS3)            ? list_s3(source, http)
                 : is_url(source)                     ? list_url(source, http)
                                                      : list_local(source);
    if (!found) return fail(std::move(found).error());
    for (PlannedFile& file : *found) {
      if (!names.insert(file.name).second)
        return fail(ErrorCode::kInvalidArgument, file.name + " is given twice");
      if (file.format == Format::kParquet && !can_parquet())
        return fail(ErrorCode::kUnsupported,
                    file.name + " is a Parquet file, and this nsa-fetch was built without Arrow",
                    "run tools/fetch-arrow and build again");
      files.push_back(std::move(file));
    }
  }
  return files;
}

Result<std::string> address_of(const PlannedFile& file, const std::vector<std::string>& sources,
                               const HttpOptions& options) {
  if (file.name.starts_with(kHub)) {
    NSA_TRY_ASSIGN(const HubSource hub, hub_source(file.name));
    return options.hub + "/datasets/" + escaped_path(hub.name) + "/resolve/" + hub.revision + "/" +
           escaped_path(hub.path);
  }
  if (file.name.starts_with(kS3)) {
    NSA_TRY_ASSIGN(const S3Place place, s3_place(file.name));
    return s3_object_url(options.s3, place);
  }
  if (!is_url(file.name)) return file.name;
  for (const std::string& source : sources)
    if (is_url(source) && printable_url(source) == file.name) return source;
  return fail(ErrorCode::kInvalidArgument, file.name + " is not among the sources of this call");
}

Result<std::unique_ptr<ByteSource>> open_file(const PlannedFile& file, const std::string& address,
                                              Http& http, const std::string& folder,
                                              std::stop_token stop) {
  if (!is_url(address)) {
    NSA_TRY_ASSIGN(auto source, open_local(address));
    NSA_TRY_ASSIGN(const std::string changed, last_change(address));
    if (source->size() != file.bytes || changed != file.identity)
      return fail(ErrorCode::kConflict, address + " changed since this fetch began",
                  "fetch it again: --restart");
    return source;
  }
  const auto store = file.name.starts_with(kS3) ? Http::Store::kS3 : Http::Store::kPlain;
  auto remote = std::make_unique<Http::File>(http, address, store);
  FileIdentity expected{{}, file.identity};
  if (file.bytes > 0) expected.bytes = file.bytes;
  NSA_TRY(remote->probe(expected));
  if (!remote->has_ranges()) return spool(*remote, folder);
  return std::make_unique<ReadAhead>(std::move(remote), ReadAheadOptions{}, std::move(stop));
}

nlohmann::json to_json(const PlannedFile& file) {
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"identity", file.identity},
          {"checksum", file.checksum}};
}

PlannedFile planned_file_from(const nlohmann::json& value) {
  PlannedFile file;
  file.name = value.at("name").get<std::string>();
  file.bytes = value.at("bytes").get<uint64_t>();
  file.identity = value.at("identity").get<std::string>();
  file.checksum = value.at("checksum").get<std::string>();
  tell_format(file.name, file);
  return file;
}

bool matches_glob(std::string_view glob, std::string_view path) {
  if (glob.empty()) return path.empty();
  if (glob.starts_with("**")) {
    const std::string_view rest = glob.substr(2);
    // "**/" may match no folder at all.
    if (rest.starts_with('/') && matches_glob(rest.substr(1), path)) return true;
    for (size_t i = 0; i <= path.size(); ++i)
      if (matches_glob(rest, path.substr(i))) return true;
    return false;
  }
  if (glob.front() == '*') {
    for (size_t i = 0; i <= path.size(); ++i) {
      if (matches_glob(glob.substr(1), path.substr(i))) return true;
      if (i < path.size() && path[i] == '/') return false;
    }
    return false;
  }
  if (path.empty()) return false;
  if (glob.front() == '[') {
    const size_t end = glob.find(']', 2);
    if (end != glob.npos) {
      std::string_view set = glob.substr(1, end - 1);
      const bool negated = set.front() == '!';
      if (negated) set.remove_prefix(1);
      bool found = false;
      for (size_t i = 0; i < set.size(); ++i) {
        const bool range = i + 2 < set.size() && set[i + 1] == '-';
        found = found || (path.front() >= set[i] && path.front() <= (range ? set[i + 2] : set[i]));
        i += range ? 2 : 0;
      }
      return found != negated && path.front() != '/' &&
             matches_glob(glob.substr(end + 1), path.substr(1));
    }
  }
  const bool same = glob.front() == path.front() || (glob.front() == '?' && path.front() != '/');
  return same && matches_glob(glob.substr(1), path.substr(1));
}

} // namespace nsa::fetch
