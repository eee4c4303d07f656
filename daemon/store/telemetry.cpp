#include "daemon/store/telemetry.h"

#include "common/base/log.h"
#include "daemon/store/open_database.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <variant>

namespace nsa::store {

namespace {

constexpr auto kBatchEvery = std::chrono::milliseconds(200);

// Telemetry may be deleted, so its schema has no migrations.
constexpr const char* kSchema = R"sql(
CREATE TABLE IF NOT EXISTS losses (
  run TEXT NOT NULL, step INTEGER NOT NULL, attempt INTEGER NOT NULL, loss REAL,
  PRIMARY KEY (run, step, attempt)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS heldout_losses (
  run TEXT NOT NULL, step INTEGER NOT NULL, attempt INTEGER NOT NULL, loss REAL,
  PRIMARY KEY (run, step, attempt)) STRICT, WITHOUT ROWID;
)sql";

// Moves the losses out of the tables of an older nsad, which stored every figure of every rank.
constexpr const char* kFromOlder = R"sql(
INSERT OR IGNORE INTO losses SELECT run, step, attempt, loss FROM steps WHERE rank = 0;
INSERT OR IGNORE INTO heldout_losses SELECT run, step, attempt, loss FROM evaluations;
DROP TABLE steps;
DROP TABLE evaluations;
)sql";

struct Removal {};
struct Record {
  RunId run;
  AttemptNumber attempt = 0;
  std::variant<wire::RankStep, wire::RankEvaluation, Removal> body;
};

Result<Database> open_telemetry(const std::filesystem::path& folder) {
  NSA_TRY_ASSIGN(Checked checked, open_checked(folder / "telemetry.db", "NORMAL"));
  NSA_TRY(checked.database.execute(kSchema));
  NSA_TRY_ASSIGN(const int64_t older,
                 checked.database.integer("SELECT count(*) FROM sqlite_schema WHERE name IN "
                                          "('steps','evaluations')"));
  if (older == 2) {
    NSA_TRY(checked.database.execute("BEGIN IMMEDIATE"));
    NSA_TRY(checked.database.execute(kFromOlder));
    NSA_TRY(checked.database.execute("COMMIT"));
  }
  return std::move(checked.database);
}

Status write_batch(Database& database, const std::deque<Record>& batch) {
  NSA_TRY(database.execute("BEGIN IMMEDIATE"));
  NSA_TRY_ASSIGN(Statement step,
                 database.prepare("INSERT OR REPLACE INTO losses VALUES (?,?,?,?)"));
  NSA_TRY_ASSIGN(Statement evaluation,
                 database.prepare("INSERT OR REPLACE INTO heldout_losses VALUES (?,?,?,?)"));
  for (const Record& r : batch) {
    if (const auto* s = std::get_if<wire::RankStep>(&r.body)) {
      NSA_TRY(step.bind(r.run, s->step, r.attempt, s->loss).run());
    } else if (const auto* e = std::get_if<wire::RankEvaluation>(&r.body)) {
      NSA_TRY(evaluation.bind(r.run, e->step, r.attempt, e->loss).run());
    } else {
      for (const char* table : {"losses", "heldout_losses"}) {
        NSA_TRY_ASSIGN(Statement erase,
                       database.prepare(std::string("DELETE FROM ") + table + " WHERE run=?"));
        NSA_TRY(erase.bind(r.run).run());
      }
    }
  }
  return database.execute("COMMIT");
}

Result<std::vector<StepPoint>> read_points(Database& database, const char* table, const RunId& run,
                                           int64_t newest) {
  NSA_TRY_ASSIGN(Statement s,
                 database.prepare("SELECT step, loss, max(attempt) FROM " + std::string(table) +
                                  " WHERE run=? AND loss IS NOT NULL GROUP BY step ORDER BY step "
                                  "DESC LIMIT ?"));
  s.bind(run, newest);
  std::vector<StepPoint> points;
  while (true) {
    NSA_TRY_ASSIGN(const bool row, s.step());
    if (!row) break;
    points.push_back({static_cast<uint64_t>(s.integer(0)), s.real(1)});
  }
  std::reverse(points.begin(), points.end());
  return points;
}

} // namespace

struct Telemetry::Writer {
  explicit Writer(Database d) : database(std::move(d)), thread([this] { work(); }) {}
  ~Writer() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    wake.notify_one();
    thread.join();
  }

  void add(Record record) {
    const std::lock_guard lock(mutex);
    if (queue.size() >= kMaxQueued) {
      queue.pop_front();
      ++counts.dropped;
    }
    queue.push_back(std::move(record));
  }

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait_for(lock, kBatchEvery, [this] { return stopping; });
      if (!queue.empty()) {
        std::deque<Record> batch;
        batch.swap(queue);
        lock.unlock();
        Status written;
        {
          const std::lock_guard use(database_mutex);
          written = write_batch(database, batch);
          if (!written && database.in_transaction()) (void)database.execute("ROLLBACK");
        }
        lock.lock();
        if (written) {
          counts.written += batch.size();
        } else {
          // A failed batch is not retried, because the queue would grow in memory while the disk is
          // full.
          if (counts.failures++ == 0)
            log::warning("store", "telemetry is lost", {{"why", written.error().what}});
          counts.dropped += batch.size();
          counts.last_error = written.error().what;
        }
      }
      if (stopping && queue.empty()) return;
    }
  }

  Database database;
  std::mutex database_mutex;
  mutable std::mutex mutex;
  std::condition_variable wake;
  std::deque<Record> queue;
  TelemetryCounts counts;
  bool stopping = false;
  std::thread thread; // last, so that it starts after all other members exist
};

Telemetry::Telemetry(std::unique_ptr<Writer> writer) : writer_(std::move(writer)) {}
Telemetry::Telemetry(Telemetry&&) noexcept = default;
Telemetry& Telemetry::operator=(Telemetry&&) noexcept = default;
Telemetry::~Telemetry() = default;

Result<Telemetry> Telemetry::open(const std::filesystem::path& folder) {
  NSA_TRY_ASSIGN(Database database, open_telemetry(folder));
  return Telemetry(std::make_unique<Writer>(std::move(database)));
}

void Telemetry::add(const RunId& run, AttemptNumber attempt, const wire::RankStep& step) {
  if (step.rank == 0) writer_->add({run, attempt, step});
}

void Telemetry::add(const RunId& run, AttemptNumber attempt,
                    const wire::RankEvaluation& evaluation) {
  writer_->add({run, attempt, evaluation});
}

void Telemetry::remove(const RunId& run) {
  writer_->add({run, 0, Removal{}});
}

TelemetryCounts Telemetry::counts() const {
  const std::lock_guard lock(writer_->mutex);
  return writer_->counts;
}

Result<std::vector<StepPoint>> Telemetry::losses(const RunId& run, int64_t newest) {
  const std::lock_guard use(writer_->database_mutex);
  return read_points(writer_->database, "losses", run, newest);
}

Result<std::vector<StepPoint>> Telemetry::heldout_losses(const RunId& run, int64_t newest) {
  const std::lock_guard use(writer_->database_mutex);
  return read_points(writer_->database, "heldout_losses", run, newest);
}

} // namespace nsa::store
