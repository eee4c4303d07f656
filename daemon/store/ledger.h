// The ledger owns the only connection to ledger.db. All calls come from one thread, the one that
// opened it; a commit is on disk when it returns. It stops by being destroyed.
//
// Full disk: the pages of some thousand events are allocated inside the database and its log when
// the ledger is opened, where no other program can take them; and a reserve file is given up when
// even they run out, or when the caller needs room for files of its own.
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
  std::string restored;    // the backup that took its place; empty: started empty
};

struct StoredRun {
  RunRow row;
  RunProgressRow progress;
  std::string damage; // why not all of it could be read
};

// Runs that a text means, newest first: one at least, more where a name or the beginning of an id
// fits several.
struct Found {
  struct Owned {
    RunId id;
    int64_t uid = -1;
  };
  std::vector<Owned> runs;
  bool by_prefix = false;
};

// An ended run of a list, newest first, with the uid that it belongs to. Its time and row are its
// place in the list: the next page begins behind it.
struct ListedRow {
  int64_t submitted_at = INT64_MAX; // of no run: the list's beginning
  std::string text;                 // RunProgressRow::list_row
  int64_t uid = -1;
  std::optional<std::string> stored = {}; // what the ledger holds in the place of `text`
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
  // Opens or makes <folder>/ledger.db: checks it (a corrupt one is moved aside and its newest
  // backup that passes the check restored), upgrades its schema. kUnsupported: it is of a newer
  // nsad, or the folder is on NFS.
  static Result<Ledger> open(const LedgerOptions& options, WallTime now);
  const Opened& opened() const { return opened_; }

  // One transaction, durable on return; the events' sequence numbers are filled in. On a full disk
  // the reserve is released and the write tried once more; kExhausted if that was not enough.
  Status commit(Batch& batch) override;

  // The state machine's events of a run, oldest first.
  Result<std::vector<EventRow>> replayable(const RunId& run);
  Result<std::vector<RunId>> open_runs();
  Result<int64_t> run_count();
  Result<uint64_t> shim_sequence(const RunId& run, AttemptNumber attempt) override;
  Result<uint64_t> part_sequence(const RunId& run, AttemptNumber attempt, size_t part) override;

  Result<std::optional<StoredRun>> run(const RunId& id);
  // Newest first; `limit` of those that have ended and lie behind a place.
  Result<std::vector<ListedRun>> ended_runs(int64_t limit, const ListedRow& behind = {});
  // The same as rows alone.
  Result<std::vector<ListedRow>> rows(int64_t limit, const ListedRow& behind = {});
  Result<RunId> run_of(const ListedRow& row); // empty: no run has it any more
  Result<std::optional<RunLabel>> label(const RunId& run);
  // By id, name, prefix of an id, or "@last". A name and "@last" mean runs of `uid` first, and
  // anybody's where it has none; without `uid`, anybody's.
  Result<Found> find(const std::string& text, std::optional<int64_t> uid = {});
  // Runs that began with its weights, oldest first.
  Result<std::vector<DescendantRow>> descendants(const RunId& run);
  Result<std::vector<AttemptRow>> attempts(const RunId& run);
  Result<std::string> token(const RunId& run, AttemptNumber attempt) override;
  Result<std::vector<RankRow>> ranks(const RunId& run, AttemptNumber attempt);
  Result<std::vector<ToggleRow>> toggles(const RunId& run);
  Result<std::vector<CheckpointRow>> checkpoints(const RunId& run);
  // `run` empty: of all. Oldest first, after `after`; a negative limit gives the newest -limit
  // ones.
  Result<std::vector<EventRow>> events(const RunId& run, int64_t after, int limit);
  // Those after `after`, oldest first: at most `limit`, and no more than make some hundred KiB.
  struct EventPage {
    std::vector<EventRow> events;
    int64_t next = 0; // `after` of the page behind it
    bool more = false;
  };
  Result<EventPage> event_page(const RunId& run, int64_t after, int limit);
  // The sequence number after which the last `count` come; of at most kMostEventsBack.
  Result<int64_t> events_before_last(const RunId& run, int64_t count);
  static constexpr int64_t kMostEventsBack = 100'000;
  // Runs whose rows a query above could not read, or whose documents a reader of them could not,
  // each once: to be set aside, and told.
  void note_damage(const RunId& run, const std::string& why);
  std::vector<DamagedRun> take_damaged();
  // Whether the file itself is damaged, as a query or a commit has found: no answer can be relied
  // on, and open() restores the backup.
  bool damaged() const { return database_.damaged(); }
  // Whether the file has gone from its place.
  bool gone() const { return database_.moved(); }
  // Newest last. `run` empty: of all; `uid`: only what this user asked for, or others of its runs.
  Result<std::vector<AuditRow>> audit(const RunId& run, std::optional<int64_t> uid, int limit);
  // Of the cluster whose head this nsad is; by name.
  Result<std::vector<ClusterNodeRow>> cluster_nodes();
  Result<std::optional<JoinTokenRow>> join_token(const std::string& digest);
  Result<std::vector<GpuQuarantineRow>> gpu_quarantine(); // by UUID
  Result<int64_t> drained_at(const std::string& node);    // of this node; 0: it is not
  Result<std::vector<JobRow>> jobs();                     // by run
  Result<std::vector<NetworkLinkRow>> network_links();
  Result<std::vector<DrainRow>> drained_nodes(); // of those that have joined
  Status note_node(const std::string& name, const std::string& boot_id, const std::string& build,
                   WallTime now);

  // A copy for the next start's restore; called daily and before the daemon leaves.
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
