#include "daemon/store/open_database.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/unique_fd.h"

#include <algorithm>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <vector>

namespace nsa::store {

namespace {

namespace fs = std::filesystem;

constexpr long kNfsMagic = 0x6969;
constexpr const char* kSuffixes[] = {"", "-wal", "-shm"};

Status refuse_nfs(const fs::path& folder) {
  struct statfs info{};
  if (::statfs(folder.c_str(), &info) != 0) return fail_errno("cannot inspect " + folder.string());
  if (info.f_type == kNfsMagic)
    return fail(ErrorCode::kUnsupported, "the state folder " + folder.string() + " is on NFS",
                "SQLite's locks are not safe there; choose a local folder with --state-folder");
  return {};
}

// The file is made before SQLite makes it, because the log gets the mode of the database.
Status make_private_file(const fs::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return fail_errno("cannot open " + path.string());
  return {};
}

// Covers files of an older nsad, including logs and backups.
Status close_to_others(const fs::path& path) {
  const std::string prefix = path.filename().string();
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path.parent_path(), error)) {
    if (!entry.path().filename().string().starts_with(prefix) || !entry.is_regular_file(error))
      continue;
    if (::chmod(entry.path().c_str(), 0600) != 0)
      return fail_errno("cannot set the mode of " + entry.path().string());
  }
  return {};
}

// Checks that the disk returns every byte of the database and its log.
Status read_through(const fs::path& path) {
  std::vector<char> chunk(size_t{1} << 20);
  for (const char* suffix : kSuffixes) {
    const std::string file = path.string() + suffix;
    const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!fd && errno == ENOENT) continue;
    ssize_t got = fd ? 1 : -1;
    for (off_t at = 0; got > 0; at += got)
      got = ::pread(fd.get(), chunk.data(), chunk.size(), at);
    if (got < 0)
      return fail_errno(
          "the disk does not give all of " + file,
          "start nsad again; if it stays so, move the file away, and nsad takes its backup");
  }
  return {};
}

Result<Database> open_and_check(const fs::path& path, const char* synchronous) {
  NSA_TRY(make_private_file(path));
  NSA_TRY_ASSIGN(Database database, Database::open(path.string()));
  // Only this process opens the database. Without shared memory it can be opened on a full disk.
  NSA_TRY(database.execute("PRAGMA locking_mode = EXCLUSIVE"));
  NSA_TRY(database.execute("PRAGMA journal_mode = WAL"));
  NSA_TRY(database.execute(std::string("PRAGMA synchronous = ") + synchronous));
  NSA_TRY(database.execute("PRAGMA foreign_keys = ON"));
  // A removed run leaves no readable data in the file.
  NSA_TRY(database.execute("PRAGMA secure_delete = ON"));
  NSA_TRY_ASSIGN(const std::string verdict, database.text("PRAGMA quick_check(1)"));
  if (verdict != "ok") return fail(ErrorCode::kCorrupt, path.string() + ": " + verdict);
  return database;
}

// Moves the log too; SQLite would otherwise apply the old log to the restored file.
Result<std::string> move_aside(const fs::path& path) {
  for (int i = 1; i < 1000; ++i) {
    std::string target = path.string() + ".corrupt-" + std::to_string(i);
    if (fs::exists(target)) continue;
    for (const char* suffix : kSuffixes) {
      std::error_code error;
      if (!fs::exists(path.string() + suffix)) continue;
      fs::rename(path.string() + suffix, target + suffix, error);
      if (error)
        return fail(ErrorCode::kSystem,
                    "cannot move " + path.string() + suffix + " aside: " + error.message());
    }
    return target;
  }
  return fail(ErrorCode::kConflict, "too many damaged databases beside " + path.string(),
              "examine them, then delete them");
}

// Newest first: the regular backup, and those made before upgrades.
std::vector<fs::path> backups_of(const fs::path& path) {
  std::vector<fs::path> found;
  const std::string prefix = path.filename().string() + ".backup";
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path.parent_path(), error))
    if (entry.path().filename().string().starts_with(prefix) && entry.path().extension() != ".tmp")
      found.push_back(entry.path());
  std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
    std::error_code e;
    return fs::last_write_time(a, e) > fs::last_write_time(b, e);
  });
  return found;
}

// The database is missing or empty, but it has backups.
bool is_lost(const fs::path& path) {
  std::error_code missing;
  const uintmax_t bytes = fs::file_size(path, missing);
  return (missing == std::errc::no_such_file_or_directory || (!missing && bytes == 0)) &&
         !backups_of(path).empty();
}

} // namespace

Result<Checked> open_checked(const fs::path& path, const char* synchronous) {
  NSA_TRY(refuse_nfs(path.parent_path()));
  NSA_TRY(close_to_others(path));
  const bool lost = is_lost(path);
  Result<Database> first = lost ? fail(ErrorCode::kCorrupt, path.string() + " has gone")
                                : open_and_check(path, synchronous);
  if (!lost && !first && first.error().code == ErrorCode::kCorrupt) {
    // SQLite also reports an unreadable page as damage.
    NSA_TRY(read_through(path));
    first = open_and_check(path, synchronous);
  }
  if (first) return Checked{std::move(*first), "", ""};
  if (first.error().code != ErrorCode::kCorrupt) return fail(std::move(first.error()));

  log::error("store", lost ? "database is lost" : "database is damaged",
             {{"file", path.string()}, {"why", first.error().what}});
  NSA_TRY_ASSIGN(std::string aside, move_aside(path));
  if (lost) aside.clear(); // at most its log existed
  for (const fs::path& backup : backups_of(path)) {
    std::error_code error;
    fs::copy_file(backup, path, fs::copy_options::overwrite_existing, error);
    if (error) continue;
    auto restored = open_and_check(path, synchronous);
    if (restored) return Checked{std::move(*restored), aside, backup.string()};
    fs::remove(path, error);
  }
  NSA_TRY_ASSIGN(Database fresh, open_and_check(path, synchronous));
  return Checked{std::move(fresh), aside, ""};
}

Status preallocate(Database& database, uint64_t bytes) {
  // The log keeps its size when SQLite overwrites it from the start, and the database keeps free
  // pages. So one transaction of that size, undone by another, reserves both.
  NSA_TRY(database.execute("BEGIN IMMEDIATE; DROP TABLE IF EXISTS nsa_reserve; "
                           "CREATE TABLE nsa_reserve (filler BLOB)"));
  NSA_TRY_ASSIGN(Statement fill, database.prepare("INSERT INTO nsa_reserve VALUES (zeroblob(?))"));
  NSA_TRY(fill.bind(bytes).run());
  NSA_TRY(database.execute("COMMIT; DROP TABLE nsa_reserve; PRAGMA wal_checkpoint(RESTART)"));
  return {};
}

Status copy_database(Database& database, const fs::path& target) {
  std::error_code ignored;
  fs::remove(target, ignored);
  NSA_TRY(make_private_file(target));
  NSA_TRY_ASSIGN(Statement copy, database.prepare("VACUUM INTO ?"));
  return copy.bind(target.string()).run();
}

Status back_up(Database& database, const fs::path& path) {
  const std::string target = path.string() + ".backup", temporary = target + ".tmp";
  std::error_code error;
  if (auto copied = copy_database(database, temporary); !copied) {
    fs::remove(temporary, error);
    return copied;
  }
  fs::rename(temporary, target, error);
  if (error) return fail(ErrorCode::kSystem, "cannot rename " + temporary + ": " + error.message());
  return sync_folder(path.parent_path());
}

} // namespace nsa::store
