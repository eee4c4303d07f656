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

// Additive and without upgrades: telemetry may be thrown away, so its schema has no migrations.
constexpr const char* kSchema = R"sql(
CREATE TABLE IF NOT EXISTS steps (
  run TEXT NOT NULL, step INTEGER NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL,
  tokens INTEGER NOT NULL, loss REAL, gradient_norm REAL, learning_rate REAL, step_seconds REAL,
  tokens_per_second REAL, data_wait_seconds REAL, resident_bytes INTEGER, allocated_bytes INTEGER,
  PRIMARY KEY (run, step, attempt, rank)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS evaluations (
  run TEXT NOT NULL, step INTEGER NOT NULL, attempt INTEGER NOT NULL, tokens INTEGER NOT NULL,
  loss REAL, seconds REAL, PRIMARY KEY (run, step, attempt)) STRICT, WITHOUT ROWID;
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
  return std::move(checked.database);
}

Status write_batch(Database& database, const std::deque<Record>& batch) {
  NSA_TRY(database.execute("BEGIN IMMEDIATE"));
  NSA_TRY_ASSIGN(Statement step, database.prepare("INSERT OR REPLACE INTO steps VALUES "
                                                  "(?,?,?,?,?,?,?,?,?,?,?,?,?)"));
  NSA_TRY_ASSIGN(Statement evaluation,
                 database.prepare("INSERT OR REPLACE INTO evaluations VALUES (?,?,?,?,?,?)"));
  for (const Record& r : batch) {
    if (const auto* s = std::get_if<wire::RankStep>(&r.body)) {
      NSA_TRY(step.bind(r.run, s->step, r.attempt, s->rank, s->tokens, s->loss, s->gradient_norm,
                        s->learning_rate, s->step_seconds, s->tokens_per_second,
                        s->data_wait_seconds, s->resident_bytes, s->allocated_bytes)
                  .run());
    } else if (const auto* e = std::get_if<wire::RankEvaluation>(&r.body)) {
      NSA_TRY(evaluation.bind(r.run, e->step, r.attempt, e->tokens, e->loss, e->seconds).run());
    } else {
      for (const char* table : {"steps", "evaluations"}) {
        NSA_TRY_ASSIGN(Statement erase,
                       database.prepare(std::string("DELETE FROM ") + table + " WHERE run=?"));
        NSA_TRY(erase.bind(r.run).run());
      }
    }
  }
  return database.execute("COMMIT");
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
        auto written = write_batch(database, batch);
        if (!written && database.in_transaction()) (void)database.execute("ROLLBACK");
        lock.lock();
        if (written) {
          counts.written += batch.size();
        } else {
          // Not tried again: a queue that grows against a full disk would end in memory.
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
  mutable std::mutex mutex;
  std::condition_variable wake;
  std::deque<Record> queue;
  TelemetryCounts counts;
  bool stopping = false;
  std::thread thread; // last: starts when all of the above is there
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
  writer_->add({run, attempt, step});
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

Result<std::vector<StepPoint>> Telemetry::read_losses(const std::filesystem::path& folder,
                                                      const RunId& run, int64_t newest) {
  NSA_TRY_ASSIGN(Database database, open_telemetry(folder));
  NSA_TRY_ASSIGN(Statement s,
                 database.prepare("SELECT step, loss, max(attempt) FROM steps WHERE run=? AND "
                                  "rank=0 GROUP BY step ORDER BY step DESC LIMIT ?"));
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

} // namespace nsa::store
