// The progress page: one 4 KiB shared-memory page a rank (a memfd made by the shim), through which
// a rank says where it is without a system call, and through which nsad sees it without asking.
//
// The facts are watermarks of collectives, as in a flight recorder: how many the rank has enqueued
// (host record), started and completed (device words), and which the newest ones are (ring). Who
// waits for whom follows from them. Step and phase are labels beside them.
//
// The host record is what the rank last began. It is double-buffered: a writer that is stopped or
// killed in the middle of an update leaves the previous record readable. The device words are what
// has completed; on a GPU the device itself stores them in stream order (mapped pinned memory), on
// a CPU the worker does.
//
// Host records and ring slots carry a check word. A process of the same user can write garbage into
// the page; what does not match its check word is not read, so nobody is blamed for it.
//
// One writer thread a page; any number of readers in any process. Nothing blocks.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/progress/collective.h"
#include "common/progress/phase.h"

#include <algorithm>
#include <atomic>
#include <compare>
#include <cstdint>
#include <optional>

namespace nsa::progress {

inline constexpr uint64_t kPageMagic = 0x31'65'67'61'70'61'73'6eull; // "nsapage1" in memory
// Older versions are read, so that a newer nsad can adopt their ranks: version 2 had no check
// words, version 1 no watermarks but `enqueued` either.
inline constexpr uint32_t kPageVersion = 3, kVersionWithoutChecks = 2,
                          kVersionWithoutWatermarks = 1;
inline constexpr size_t kPageBytes = 4096;

// A point of a rank's program, which is the same on all ranks: the later one is greater.
struct StepPosition {
  uint64_t step = 0;
  uint32_t phase_number = 0; // phases entered since the step began
  Phase phase = Phase::kStartUp;
  bool operator==(const StepPosition&) const = default;
  auto operator<=>(const StepPosition& other) const {
    const auto steps = step <=> other.step;
    return steps != 0 ? steps : phase_number <=> other.phase_number;
  }
  // As one word, which a GPU can store.
  static constexpr uint32_t kMostPhases = 0xffff;
  uint64_t word() const {
    return step << 24 | uint64_t{std::min(phase_number, kMostPhases)} << 8 |
           static_cast<uint64_t>(phase);
  }
  static StepPosition of_word(uint64_t word) {
    return {word >> 24, static_cast<uint32_t>(word >> 8 & kMostPhases),
            static_cast<Phase>(word & 0xff)};
  }
};

// Times are CLOCK_MONOTONIC nanoseconds.
struct HostRecord {
  uint64_t step = 0;       // optimizer update in progress, counted from 1; 0 before the first
  uint64_t micro_step = 0; // micro-batch within the step, counted from 0
  Phase phase = Phase::kStartUp;
  int64_t phase_start_ns = 0; // when this phase began
  int64_t step_start_ns = 0;  // when this step began
  uint64_t tokens = 0;        // tokens of all ranks in completed steps of the whole run
  uint64_t enqueued = 0;      // collectives that this rank has called in this attempt
  uint64_t batch_index = 0;   // global index of the first sample of the current micro-batch
  uint32_t phase_number = 0;  // phases entered since the step began
  StepPosition position() const { return {step, phase_number, phase}; }
  bool operator==(const HostRecord&) const = default;
};

// Words of 64 bits, each stored on its own behind the work enqueued before it.
enum class DeviceWord : size_t {
  kCompletedStep, // last optimizer update whose work has completed
  kPosition,      // StepPosition::word of the last phase that has begun
  kStarted,       // number of the newest collective whose end is waited for: nothing else is left
  kCompleted,     // number of the newest collective that has ended for this rank
};
inline constexpr size_t kDeviceWords = 4;

struct DeviceRecord {
  uint64_t completed_step = 0;
  StepPosition position;
  uint64_t started = 0, completed = 0;
  bool operator==(const DeviceRecord&) const = default;
};

struct PageLayout {
  std::atomic<uint64_t> magic;
  std::atomic<uint32_t> version;
  std::atomic<int32_t> rank;
  std::atomic<int32_t> attempt;
  std::atomic<uint32_t> reserved;
  std::atomic<uint64_t> latest; // sequence number of the newest complete host record; 0 = none
  struct Copy {
    std::atomic<uint64_t> begin; // sequence number, stored before the fields
    std::atomic<uint64_t> words[8];
    std::atomic<uint64_t> check; // of the number and the fields, stored after them
  };
  alignas(64) Copy copies[2];
  struct Slot {
    std::atomic<uint64_t> number;            // 0 while the others are stored
    std::atomic<uint64_t> step, what, bytes; // what: check (24 bits), kind (8), index (32)
  };
  alignas(512) Slot collectives[CollectiveRing::kKept];
  alignas(2048) std::atomic<uint64_t> device[kDeviceWords]; // by DeviceWord
};
static_assert(sizeof(PageLayout) <= kPageBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// A mapping of one page. Movable, unmaps itself.
class Page {
public:
  // Makes the memfd (sealed against resizing) and its mapping; the shim does this, one a rank.
  static Result<Page> create(int32_t rank, int32_t attempt);
  // Maps an inherited or received memfd; takes the descriptor. kCorrupt if it is not such a page.
  static Result<Page> open(UniqueFd fd, bool writable);

  Page(Page&& other) noexcept;
  Page& operator=(Page&& other) noexcept;
  ~Page();

  int fd() const { return fd_.get(); }
  int32_t rank() const { return layout_->rank.load(std::memory_order_relaxed); }
  int32_t attempt() const { return layout_->attempt.load(std::memory_order_relaxed); }

  // Reader: the newest complete record, or nothing before the first. Never waits for the writer.
  std::optional<HostRecord> read_host() const;
  DeviceRecord read_device() const;
  CollectiveRing read_collectives() const; // without one that is being stored
  bool has_watermarks() const { return version_ != kVersionWithoutWatermarks; }

  // Writer (one thread). A few stores; no system call.
  void write_host(const HostRecord& record);
  void write_collective(const Collective& collective);
  void write_device(DeviceWord word, uint64_t value);
  // Address of the device words, for cudaHostRegister.
  void* device_words() const { return layout_->device; }

  // The test hook for torn writes: stores half of the next record, as a writer killed in the
  // middle.
  void write_host_torn_for_test(const HostRecord& record);

private:
  Page(UniqueFd fd, PageLayout* layout)
      : fd_(std::move(fd)), layout_(layout), version_(layout->version), sequence_(layout->latest) {}
  UniqueFd fd_;
  PageLayout* layout_ = nullptr;
  uint32_t version_ = kPageVersion;
  uint64_t sequence_ = 0; // writer: of the newest complete host record
};

// The writer's convenience: keeps the record and stamps phase changes. Single thread.
class Writer {
public:
  explicit Writer(Page page) : page_(std::move(page)) {}
  void begin_step(uint64_t step, uint64_t tokens);
  void enter(Phase phase, uint64_t micro_step = 0);
  uint64_t enqueue(CollectiveKind kind, uint32_t index, uint64_t bytes); // its number
  void set_batch_index(uint64_t index) { record_.batch_index = index; }
  const HostRecord& record() const { return record_; }
  Page& page() { return page_; }

private:
  Page page_;
  HostRecord record_;
};

} // namespace nsa::progress
