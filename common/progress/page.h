// The progress page: one 4 KiB shared-memory page a rank (a memfd made by the shim), through which
// a rank says where it is without a system call, and through which nsad sees it without asking.
//
// Two tracks. The host track is what the rank last began (step, micro-step, phase, since when). It
// is double-buffered: a writer that is stopped or killed in the middle of an update leaves the
// previous record readable. The device track is what has completed; on a GPU the device itself
// stores it (Page::device is mapped pinned memory then), on a CPU the worker does after the work is
// done.
//
// One writer thread a page; any number of readers in any process. Nothing blocks.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/progress/phase.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

namespace nsa::progress {

inline constexpr uint64_t kPageMagic = 0x31'65'67'61'70'61'73'6eull; // "nsapage1" in memory
inline constexpr uint32_t kPageVersion = 1;
inline constexpr size_t kPageBytes = 4096;

// What the host track says. Times are CLOCK_MONOTONIC nanoseconds.
struct HostRecord {
  uint64_t step = 0;             // optimizer update in progress, counted from 1; 0 before the first
  uint64_t micro_step = 0;       // micro-batch within the step, counted from 0
  Phase phase = Phase::kStartUp; //
  int64_t phase_start_ns = 0;    // when this phase began
  int64_t step_start_ns = 0;     // when this step began
  uint64_t tokens = 0;           // tokens of all ranks in completed steps of the whole run
  uint64_t collective_sequence = 0;  // collectives this rank has entered in this attempt
  uint64_t batch_index = 0;          // global index of the first sample of the current micro-batch
  uint32_t collectives_in_phase = 0; // of the collectives, entered since this phase began
  bool operator==(const HostRecord&) const = default;
};

// How many collectives the rank had entered when it began a step: the same on all ranks, whatever
// their hosts and devices are doing, unless one of them left a collective out.
struct StepMark {
  uint64_t step = 0; // 0: none
  uint32_t collectives = 0;
  bool operator==(const StepMark&) const = default;
};
inline constexpr size_t kStepMarks = 16;            // the newest ones are kept
using StepMarks = std::array<StepMark, kStepMarks>; // of step s: at s % kStepMarks

// Completed work. Words of 64 bits because a GPU stores each on its own.
struct DeviceRecord {
  uint64_t completed_step = 0; // last optimizer update whose work has completed
  uint64_t phase_mark = 0;     // (step << 8) | phase of the last completed phase mark
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
    std::atomic<uint64_t> end; // the same number, stored after them
  };
  alignas(64) Copy copies[2];
  // (step << 32) | collectives. All zero where the rank is of a build that did not know it.
  alignas(1024) std::atomic<uint64_t> step_marks[kStepMarks];
  alignas(2048) std::atomic<uint64_t> device[2]; // completed_step, phase_mark
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
  StepMarks read_step_marks() const;

  // Writer (one thread). A few stores; no system call.
  void write_host(const HostRecord& record);
  void write_device(const DeviceRecord& record);
  void write_step_mark(const StepMark& mark);
  // Address of the device track, for cudaHostRegister: two 64-bit words.
  void* device_words() const { return layout_->device; }

  // The test hook for torn writes: stores half of the next record, as a writer killed in the
  // middle.
  void write_host_torn_for_test(const HostRecord& record);

private:
  Page(UniqueFd fd, PageLayout* layout) : fd_(std::move(fd)), layout_(layout) {}
  UniqueFd fd_;
  PageLayout* layout_ = nullptr;
};

// The writer's convenience: keeps the record and stamps phase changes. Single thread.
class Writer {
public:
  explicit Writer(Page page) : page_(std::move(page)) {}
  void begin_step(uint64_t step, uint64_t tokens);
  void enter(Phase phase, uint64_t micro_step = 0);
  void count_collective();
  void set_batch_index(uint64_t index) { record_.batch_index = index; }
  void complete_step(uint64_t step); // device track, where the host is the device
  const HostRecord& record() const { return record_; }
  Page& page() { return page_; }

private:
  Page page_;
  HostRecord record_;
};

} // namespace nsa::progress
