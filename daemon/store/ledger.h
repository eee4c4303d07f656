// The ledger owns the only connection to ledger.db. All calls come from one thread, the one that
// opened it. A commit is on disk when it returns. To stop it, destroy it.
//
// Full disk: open() allocates pages for some thousand events inside the database and its log, where
// no other program can take them. A reserve file is deleted if even they run out, or if the caller
// needs space for files of its own.
#pragma once

#include "common/base/clock.h"
#include "daemon/store/reserve.h"
#include "daemon/store/run_ledger.h"
#include "daemon/store/sqlite.h"

#include <filesystem>
#include <optional>
#include <set>

namespace nsa::store {

struct LedgerOptions {
  std::filesystem::path folder;
  uint64_t reserve_bytes = uint64_t{64} << 20;
};

struct Opened {
  int schema_from = 0, schema_to = 0;
  std::string backup;      // made before an upgrade
  std::string moved_aside; // a corrupt database, kept for inspection
  std::string restored;    // the backup that replaced it; empty: started empty
};

struct StoredRun {
  RunRow row;
  RunProgressRow progress;
  std::string damage; // why not all of it could be read
};

// Runs that match a text, newest first: at least one, and more if a name or a prefix of an id
// matches several.
struct Found {
  struct Owned {
    RunId id;
    int64_t uid = -1;
  };
  std::vector<Owned> runs;
  bool by_prefix = false;
};

// An ended run of a list, newest first, with the uid that owns it. Its time and row are its place
// in the list: the next page begins after it.
struct ListedRow {
  int64_t submitted_at = INT64_MAX; // INT64_MAX means the list's beginning
  std::string text;                 // RunProgressRow::list_row
  int64_t uid = -1;
  std::optional<std::string> stored = {}; // the ledger's own text, if `text` replaces it
  const std::string& place() const { return stored ? *stored : text; }
};
struct ListedRun {
  ListedRow place;
  RunId run;
  ChoiceOrText<wire::RunState> state;
  nlohmann::json shown;
  std::string damage; // why `shown` could not be read
};

class Ledger final : public RunLedger {
public:
  // Opens or makes <folder>/ledger.db, checks it, and upgrades its schema. A corrupt database is
  // moved aside, and its newest backup that passes the check is restored. Fails with kUnsupported
  // if the database is from a newer nsad, or if the folder is on NFS.
  static Result<Ledger> open(const LedgerOptions& options, WallTime now);
  const Opened& opened() const { return opened_; }

  // Writes one transaction, durable on return, and fills in the events' sequence numbers. On a full
  // disk it releases the reserve and tries once more; kExhausted if that was not enough.
  Status commit(Batch& batch) override;

  // The state machine's events of a run, oldest first.
  Result<std::vector<EventRow>> replayable(const RunId& run);
  Result<std::vector<RunId>> open_runs();
  Result<int64_t> run_count();
  Result<uint64_t> shim_sequence(const RunId& run, AttemptNumber attempt) override;
  Result<uint64_t> part_sequence(const RunId& run, AttemptNumber attempt, size_t part) override;

  Result<std::optional<StoredRun>> run(const RunId& id);
  // At most `limit` ended runs after a place of the list, newest first.
  Result<std::vector<ListedRun>> ended_runs(int64_t limit, const ListedRow& behind = {});
  // The same as row texts.
  Result<std::vector<ListedRow>> rows(int64_t limit, const ListedRow& behind = {});
  Result<RunId> run_of(const ListedRow& row); // empty: no run has this row any more
  Result<std::optional<RunLabel>> label(const RunId& run);
  // Finds runs by id, name, prefix of an id, or "@last". A name and "@last" prefer runs of `uid`,
  // and match anybody's if the user has none. Without `uid` they match anybody's.
  Result<Found> find(const std::string& text, std::optional<int64_t> uid = {});
  // Runs that began with its weights, oldest first.
  Result<std::vector<DescendantRow>> descendants(const RunId& run);
  Result<std::vector<AttemptRow>> attempts(const RunId& run);
  Result<std::string> token(const RunId& run, AttemptNumber attempt) override;
  Result<std::vector<RankRow>> ranks(const RunId& run, AttemptNumber attempt);
  Result<std::vector<ToggleRow>> toggles(const RunId& run);
  Result<std::vector<CheckpointRow>> checkpoints(const RunId& run);
  // Events after `after`, oldest first; an empty `run` means all runs. A negative limit gives the
  // newest -limit ones.
  Result<std::vector<EventRow>> events(const RunId& run, int64_t after, int limit);
  // Events after `after`, oldest first: at most `limit`, and about 64 KiB of text.
  struct EventPage {
    std::vector<EventRow> events;
    int64_t next = 0; // `after` of the next page
    bool more = false;
  };
  Result<EventPage> event_page(const RunId& run, int64_t after, int limit);
  // The sequence number before the last `count` events; `count` is at most kMostEventsBack.
  Result<int64_t> events_before_last(const RunId& run, int64_t count);
  static constexpr int64_t kMostEventsBack = 100'000;
  // note_damage() records a run whose rows or documents could not be read. take_damaged() returns
  // each such run once, so that it is set aside and reported.
  void note_damage(const RunId& run, const std::string& why);
  std::vector<DamagedRun> take_damaged();
  // Whether a query or a commit has found the file itself damaged. Then no answer is reliable, and
  // open() restores the backup.
  bool damaged() const { return database_.damaged(); }
  // Whether the file has been deleted or moved.
  bool gone() const { return database_.moved(); }
  // Newest last. An empty `run` means all runs. `uid` limits the result to requests of this user
  // and requests about the user's runs.
  Result<std::vector<AuditRow>> audit(const RunId& run, std::optional<int64_t> uid, int limit);
  // Nodes of the cluster whose head this nsad is, by name.
  Result<std::vector<ClusterNodeRow>> cluster_nodes();
  Result<std::optional<JoinTokenRow>> join_token(const std::string& digest);
  Result<std::vector<GpuQuarantineRow>> gpu_quarantine(); // by UUID
  Result<int64_t> drained_at(const std::string& node);    // for this node; 0: it is not drained
  Result<std::vector<JobRow>> jobs();                     // by run
  Result<std::vector<NetworkLinkRow>> network_links();
  Result<std::vector<DrainRow>> drained_nodes(); // of joined nodes
  Status note_node(const std::string& name, const std::string& boot_id, const std::string& build,
                   WallTime now);

  // Writes a copy from which the next start can restore. Called daily and before the daemon ends.
  Status back_up();
  SpaceReserve& reserve() { return reserve_; }
  bool release_reserve() override { return reserve_.release(); }
  uint64_t wal_bytes() const;
  const std::filesystem::path& path() const { return path_; }

private:
  Ledger(Database database, SpaceReserve reserve, std::filesystem::path path, Opened opened)
      : database_(std::move(database)), reserve_(std::move(reserve)), path_(std::move(path)),
        opened_(std::move(opened)) {}
  Status write(Batch& batch);
  Status set_aside(const DamagedRun& damaged);
  Result<Statement*> cached(const char* sql);

  Database database_;
  SpaceReserve reserve_;
  std::filesystem::path path_;
  Opened opened_;
  std::vector<std::pair<const char*, std::unique_ptr<Statement>>> statements_;
  std::vector<DamagedRun> damaged_; // not taken yet
  std::set<RunId> told_;
};

} // namespace nsa::store
