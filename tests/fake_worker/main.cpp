// nsa-fake-worker is a rank without a model, for tests of nsad and the shim. It uses the rank's
// side of common/wire and common/progress exactly as nsa-worker does, and writes real checkpoint
// manifests. On request it fails in many ways (options.h).
#include "common/base/build_info.h"
#include "common/base/checksum.h"
#include "common/base/file.h"
#include "common/manifest/manifest.h"
#include "common/progress/page.h"
#include "common/wire/exit_code.h"
#include "common/wire/launch_plan.h"
#include "tests/fake_worker/collective.h"
#include "tests/fake_worker/faults.h"
#include "tests/fake_worker/options.h"
#include "tests/fake_worker/shim_link.h"

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <time.h>
#include <unistd.h>

namespace nsa::fake {

namespace {

using progress::CollectiveKind;
using progress::DeviceWord;
using progress::Phase;
using wire::MessageType;

constexpr uint64_t kTokensPerStep = 1024;

void pause_ms(double milliseconds) {
  const auto nanoseconds = static_cast<int64_t>(milliseconds * 1e6);
  timespec left{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  while (::nanosleep(&left, &left) != 0) {
  }
}

// Leaves a process outside the session and the process group, as a faulty library's helper might.
void leave_orphan() {
  const pid_t between = ::fork();
  if (between != 0) return;
  if (::fork() != 0) ::_exit(0);
  ::setsid();
  while (true)
    ::pause();
}

// Does for the rank what a GPU does: executes the enqueued work in order and stores its position in
// the page. Its thread never ends; the process does.
class Device {
public:
  Device(progress::Page& page, uint64_t completed_step)
      : page_(page), completed_step_(completed_step) {
    std::thread([this] { work(); }).detach();
  }

  // `collective` is the number of the collective, or 0 if the work is not one.
  void enqueue(const progress::StepPosition& position, std::function<void()> work,
               uint64_t collective = 0) {
    const std::lock_guard lock(mutex_);
    queue_.push_back({position, collective, std::move(work)});
    changed_.notify_all();
  }
  void wait_for_step(uint64_t step) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return completed_step_ >= step; });
  }

private:
  struct Work {
    progress::StepPosition position;
    uint64_t collective;
    std::function<void()> act;
  };

  [[noreturn]] void work() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !queue_.empty(); });
      const Work next = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      page_.write_device(DeviceWord::kPosition, next.position.word());
      if (next.collective != 0) page_.write_device(DeviceWord::kStarted, next.collective);
      next.act();
      if (next.collective != 0) page_.write_device(DeviceWord::kCompleted, next.collective);
      if (next.position.phase != Phase::kOptimizer) continue;
      page_.write_device(DeviceWord::kCompletedStep, next.position.step);
      lock.lock();
      completed_step_ = next.position.step;
      changed_.notify_all();
    }
  }

  progress::Page& page_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  uint64_t completed_step_;
};

class FakeRank {
public:
  FakeRank(Options options, progress::Writer writer, std::optional<Collective> collective)
      : o_(std::move(options)), writer_(std::move(writer)), collective_(std::move(collective)) {}

  int run() {
    writer_.enter(Phase::kStartUp);
    say_hello();
    for (int i = 0; i < o_.orphans; ++i)
      leave_orphan();
    pause_ms(static_cast<double>(o_.start_ms));
    Collective::Wish wish;
    uint64_t step = first_step_;
    if (o_.async) device_.emplace(writer_.page(), first_step_);
    for (++step; step <= o_.steps && !wish.stop; ++step)
      wish = device_ ? train_ahead(step) : train(step);
    writer_.enter(Phase::kShutDown);
    writer_.enqueue(CollectiveKind::kEnd, 0);
    const uint64_t done = step - 1;
    if (wish.stop && wish.with_checkpoint) checkpoint(done);
    link_.send(MessageType::kRankFinished,
               wire::RankFinished{o_.rank, done, done * kTokensPerStep,
                                  wish.stop ? wire::FinishReason::kStopped
                                            : wire::FinishReason::kCompleted});
    return static_cast<int>(wire::RankExit::kDone);
  }

  Status resume() {
    if (o_.resume.empty()) return {};
    NSA_TRY_ASSIGN(const manifest::Manifest found, manifest::read(o_.resume));
    first_step_ = found.step;
    return {};
  }

private:
  void say_hello() {
    wire::RankHello hello;
    hello.rank = o_.rank;
    hello.pid = ::getpid();
    hello.build = build_info().version + "+" + build_info().commit;
    hello.device = "cpu";
    hello.compute_precision = "fp32";
    hello.precision_note = "nothing is computed: a fake rank";
    hello.resumed_from_step = first_step_;
    link_.send(MessageType::kRankHello, hello);
    link_.send(MessageType::kRankToggles, toggles());
    link_.send(MessageType::kRankMemory, wire::RankMemory{o_.rank, "boot", 1 << 20, 0, 0, 0, 0});
  }

  wire::RankToggles toggles() const {
    wire::RankToggles report{o_.rank, {}, {}};
    if (o_.fault != "graphs") return report;
    const bool off = !o_.without_graphs.empty();
    report.toggles = {{"cuda.graphs", "auto", off ? "off" : "on"}};
    report.kernels = {{"graphs", off ? "off (" + o_.without_graphs + ")" : "on"}};
    return report;
  }

  [[noreturn]] void leave(int code, const std::string& why) {
    link_.send(MessageType::kRankError, wire::RankError{o_.rank, code, why, "", {}});
    ::_exit(code);
  }

  bool fault_due(uint64_t step, std::string_view kind) const {
    return o_.fault == kind && step == o_.fault_step &&
           (o_.fault_rank < 0 || o_.fault_rank == o_.rank) &&
           (o_.fault_attempt < 0 || o_.fault_attempt == o_.attempt);
  }

  bool inject(uint64_t step, std::string_view kind) {
    if (!fault_due(step, kind)) return false;
    link_.send(MessageType::kRankInjected, wire::RankInjected{o_.rank, step, o_.fault});
    return true;
  }

  // Trains one step. Returns what the ranks have agreed to do after it.
  [[gnu::noinline]] Collective::Wish train(uint64_t step) {
    const MonotonicTime began = MonotonicTime::now();
    const double slice = static_cast<double>(o_.step_ms) / 4;
    if (!o_.deaf) link_.poll();
    writer_.begin_step(step, (step - 1) * kTokensPerStep);
    writer_.set_batch_index(step * 8);
    writer_.enter(Phase::kData);
    write_log(step);
    if (inject(step, "data_stall")) wait_for_data_forever();
    writer_.enter(Phase::kForward);
    pause_ms(slice);
    if (inject(step, "spin")) spin_in_user_space();
    if (inject(step, "slow_step")) pause_ms(static_cast<double>(o_.step_ms) * 20);
    writer_.enter(Phase::kBackward);
    pause_ms(slice * 2);
    if (inject(step, "mutex_deadlock")) deadlock_on_mutexes();
    if (inject(step, "stop_signal")) ::raise(SIGSTOP);
    if (inject(step, "kill")) ::raise(SIGKILL);
    if (inject(step, "segfault")) {
      ::signal(SIGSEGV, SIG_DFL);
      ::raise(SIGSEGV);
    }
    if (inject(step, "abort")) std::abort();
    if (inject(step, "exit")) leave(o_.exit_code, "a fault was injected");
    if (o_.without_graphs.empty() && inject(step, "graphs"))
      leave(static_cast<int>(wire::RankExit::kGraphs), "a step cannot be recorded");
    Collective::Wish wish = link_.wish();
    wish.checkpoint = link_.take_checkpoint_request();
    if (collective_ && !inject(step, "skip_collective")) {
      writer_.enter(Phase::kAllReduce);
      const uint64_t number = writer_.enqueue(CollectiveKind::kGradient, 0);
      writer_.page().write_device(DeviceWord::kStarted, number);
      wish = collective_->reduce(step, wish);
      writer_.page().write_device(DeviceWord::kCompleted, number);
    }
    writer_.enter(Phase::kOptimizer);
    pause_ms(slice);
    writer_.page().write_device(DeviceWord::kCompletedStep, step);
    report(step, to_seconds(MonotonicTime::now() - began));
    misbehave(step);
    if (wish.checkpoint || (o_.checkpoint_every > 0 && step % o_.checkpoint_every == 0))
      checkpoint(step);
    return wish;
  }

  // The same with a device. The rank waits only for the step before the last one.
  Collective::Wish train_ahead(uint64_t step) {
    const double slice = static_cast<double>(o_.step_ms) / 4;
    link_.poll();
    writer_.begin_step(step, (step - 1) * kTokensPerStep);
    writer_.set_batch_index(step * 8);
    writer_.enter(Phase::kData);
    write_log(step);
    writer_.enter(Phase::kForward);
    device_->enqueue(position(), [=] { pause_ms(slice); });
    writer_.enter(Phase::kBackward);
    device_->enqueue(position(), [] {}); // a rank marks each phase on its device when it enters it
    if (inject(step, "mutex_deadlock")) deadlock_on_mutexes();
    device_->enqueue(position(), [=] { pause_ms(2 * slice); });
    writer_.enter(Phase::kAllReduce);
    if (!inject(step, "skip_collective")) {
      const uint64_t number = writer_.enqueue(CollectiveKind::kGradient, 0);
      device_->enqueue(
          position(),
          [this, number, own = link_.wish()] {
            const Collective::Wish all = collective_->reduce(number, own);
            if (all.stop) stop_ = true;
          },
          number);
    }
    writer_.enter(Phase::kOptimizer);
    device_->enqueue(position(), [=] { pause_ms(slice); });
    const bool boundary =
        step == o_.steps || stop_ || (o_.checkpoint_every > 0 && step % o_.checkpoint_every == 0);
    device_->wait_for_step(boundary ? step : step - 1);
    report(step, static_cast<double>(o_.step_ms) / 1e3);
    if (boundary && step < o_.steps && !stop_) checkpoint(step);
    return {stop_, stop_};
  }

  progress::StepPosition position() const { return writer_.record().position(); }

  void write_log(uint64_t step) {
    for (int64_t i = 0; i < o_.log_lines; ++i) {
      std::string line = "rank " + std::to_string(o_.rank) + " step " + std::to_string(step) +
                         " line " + std::to_string(i);
      if (line.size() < static_cast<size_t>(o_.log_bytes))
        line.resize(static_cast<size_t>(o_.log_bytes), '.');
      std::puts(line.c_str());
    }
    if (step == first_step_ + 1 && o_.flood_mb > 0) {
      std::string line(1023, 'x');
      line += '\n';
      for (int64_t i = 0; i < o_.flood_mb * 1024; ++i)
        std::fwrite(line.data(), 1, line.size(), stdout);
    }
    std::fflush(stdout);
  }

  void report(uint64_t step, double seconds) {
    wire::RankStep s;
    s.rank = o_.rank;
    s.step = step;
    s.tokens = step * kTokensPerStep;
    s.loss = 2.0 + 4.0 * std::exp(-static_cast<double>(step) / 20.0);
    if (o_.diverge_at > 0 && step >= o_.diverge_at) s.loss = 158;
    s.gradient_norm = 1.0;
    s.learning_rate = 1e-3;
    s.step_seconds = seconds;
    s.tokens_per_second = static_cast<double>(kTokensPerStep) / seconds;
    link_.send_droppable(MessageType::kRankStep, s);
  }

  // Sends far too many messages, some of them in the names of ranks that do not exist.
  void misbehave(uint64_t step) {
    if (o_.rank != 0) return;
    for (int64_t i = 0; i < o_.evaluations; ++i)
      link_.send(MessageType::kRankEvaluation, wire::RankEvaluation{o_.rank, step, 0, 3.0, 0.01});
    for (int64_t i = 0; i < o_.other_ranks; ++i) {
      wire::RankStep other;
      other.rank = static_cast<Rank>(1000 + i);
      other.step = step;
      link_.send(MessageType::kRankStep, other);
    }
  }

  // Rank 0 writes a checkpoint as a real rank does: a folder with a manifest, renamed when it is
  // complete.
  void checkpoint(uint64_t step) {
    if (o_.rank != 0 || o_.run_folder.empty() || step == first_step_) return;
    writer_.enter(Phase::kCheckpoint);
    wire::RankCheckpoint told;
    told.rank = o_.rank;
    told.step = step;
    told.tokens = step * kTokensPerStep;
    const auto folder =
        std::filesystem::path(o_.run_folder) / "checkpoints" / manifest::folder_name(step);
    told.folder = folder.string();
    if (auto written = write_checkpoint(folder, step); written) {
      told.manifest_checksum = *written;
      told.bytes = 64;
    } else {
      told.error = written.error().what;
    }
    link_.send(MessageType::kRankCheckpoint, told);
  }

  Result<std::string> write_checkpoint(const std::filesystem::path& folder, uint64_t step) {
    const std::filesystem::path temporary = folder.string() + ".tmp";
    NSA_TRY(make_folder(temporary));
    const std::string weights(64, static_cast<char>('a' + step % 26));
    NSA_TRY(write_file_atomic(temporary / "weights.safetensors", weights));
    manifest::Manifest m;
    m.run_id = o_.run_id;
    m.attempt = o_.attempt;
    m.step = step;
    m.tokens = step * kTokensPerStep;
    m.world_size = o_.world_size;
    m.device = "cpu";
    m.precision = m.compute = "fp32";
    m.written_at = format_rfc3339(WallTime::now());
    m.files = {{"weights.safetensors", weights.size(), checksum_hex(weights)}};
    const std::string text = manifest::to_json(m).dump(1);
    NSA_TRY(write_file_atomic(temporary / manifest::kManifestName, text));
    std::error_code error;
    std::filesystem::rename(temporary, folder, error);
    if (error) return fail(ErrorCode::kSystem, "cannot rename: " + error.message());
    NSA_TRY(sync_folder(folder.parent_path()));
    return checksum_hex(text);
  }

  Options o_;
  progress::Writer writer_;
  std::optional<Collective> collective_;
  ShimLink link_;
  uint64_t first_step_ = 0;
  std::optional<Device> device_;
  std::atomic<bool> stop_ = false;
};

int usage(const Error& error) {
  std::fprintf(stderr, "nsa-fake-worker: %s\n", error.what.c_str());
  return static_cast<int>(wire::RankExit::kUsage);
}

int run(int argc, char** argv) {
  auto options = parse_options(argc, argv);
  if (!options) return usage(options.error());
  auto page = progress::Page::open(UniqueFd(wire::kRankPageFd), true);
  if (!page) return usage(page.error());
  std::optional<Collective> collective;
  if (options->peers && options->world_size > 1) {
    auto opened = Collective::open(options->attempt_folder, options->world_size);
    if (!opened) return usage(opened.error());
    collective = *opened;
  }
  FakeRank rank(std::move(*options), progress::Writer(std::move(*page)), collective);
  if (auto resumed = rank.resume(); !resumed) return usage(resumed.error());
  const int code = rank.run();
  std::fflush(nullptr);
  ::_exit(code); // a device's thread never ends
}

} // namespace

} // namespace nsa::fake

int main(int argc, char** argv) {
  return nsa::fake::run(argc, argv);
}
