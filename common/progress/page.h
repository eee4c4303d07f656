// The progress page is a 4 KiB shared-memory page for each rank (a memfd that the shim makes). A
// rank writes its position there without a system call, and nsad reads it without a request.
//
// It holds watermarks of collectives, as a flight recorder does. They say how many the rank has
// enqueued (host record), started and completed (device words). The ring has the newest
// collectives. Together they show which rank waits for which. Step and phase are additional labels.
//
// The host record is what the rank began last. It is double-buffered: if a writer is stopped or
// killed during an update, the previous record stays readable. The device words are what has
// completed. On a GPU the device itself stores them in stream order (mapped pinned memory); on a
// CPU the worker does.
//
// Host records and ring slots have a check word. It does not match a half-written value, nor
// garbage, which any process of the same user can write. nsad blames no rank for such a value.
//
// One writer thread for each page; any number of readers in any process. Nothing blocks.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/progress/collective.h"
#include "common/progress/phase.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>

namespace nsa::progress {

inline constexpr uint64_t kPageMagic = 0x31'65'67'61'70'61'73'6eull; // "nsapage1" in memory
// From pages of older versions, 1 to 3, only the host record is read. So a newer nsad adopts their
// ranks, and detects hangs from the next attempt on.
inline constexpr uint32_t kPageVersion = 4;
inline constexpr size_t kPageBytes = 4096;

// Times are CLOCK_MONOTONIC nanoseconds.
struct HostRecord {        // stored on the page in this layout
  uint64_t step = 0;       // optimizer update in progress, counted from 1; 0 before the first
  uint64_t micro_step = 0; // micro-batch within the step, counted from 0
  Phase phase = Phase::kStartUp;
  uint32_t phase_number = 0;  // phase changes since the step began
  int64_t phase_start_ns = 0; // when this phase began
  int64_t step_start_ns = 0;  // when this step began
  uint64_t tokens = 0;        // tokens of all ranks in completed steps of the whole run
  uint64_t enqueued = 0;      // collectives that this rank has called in this attempt
  uint64_t batch_index = 0;   // global index of the first sample of the current micro-batch
  StepPosition position() const { return {step, phase_number, phase}; }
  bool operator==(const HostRecord&) const = default;
};

// 64-bit words. Each is stored separately, after the work that was enqueued before it.
enum class DeviceWord : size_t {
  kCompletedStep, // last optimizer update that has completed
  kPosition,      // StepPosition::word of the last phase that has begun
  kStarted,       // newest collective that the device waits for, with no other work left
  kCompleted,     // newest collective that has completed on this rank
};
inline constexpr size_t kDeviceWords = 4;

struct DeviceRecord {
  uint64_t completed_step = 0;
  StepPosition position;
  uint64_t started = 0, completed = 0;
  bool operator==(const DeviceRecord&) const = default;
};

// A value of 64-bit words that one process stores while others load it at any time.
template <class T> struct Cell {
  struct Numbered {
    uint64_t number; // counts the values that the writer has stored
    T value;
  };
  using Words = std::array<uint64_t, sizeof(Numbered) / sizeof(uint64_t)>;
  std::atomic<uint64_t> words[std::tuple_size_v<Words>]; // the words of a Numbered
  std::atomic<uint64_t> check; // checksum of the words; in versions 1 and 2 the number itself

  void store(uint64_t number, const T& value);
  // Returns nullopt if the value is being stored, or is garbage.
  std::optional<Numbered> load(bool is_older) const;
};

struct PageLayout {
  std::atomic<uint64_t> magic;
  std::atomic<uint32_t> version;
  std::atomic<int32_t> rank;
  std::atomic<int32_t> attempt;
  std::atomic<uint32_t> reserved;
  std::atomic<uint64_t> latest; // number of the newest complete host record; 0: none
  alignas(64) Cell<HostRecord> copies[2];
  alignas(512) Cell<Collective> collectives[CollectiveRing::kKept];
  alignas(512) std::atomic<uint64_t> device[kDeviceWords]; // indexed by DeviceWord
};
static_assert(sizeof(PageLayout) <= kPageBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// A mapping of one page.
class Page {
public:
  // Makes the memfd (sealed against resizing) and its mapping. The shim calls it for each rank.
  static Result<Page> create(int32_t rank, int32_t attempt);
  // Maps an inherited or received memfd and owns it. Error: kCorrupt if it is no such page.
  static Result<Page> open(UniqueFd fd, bool writable);

  int fd() const { return fd_.get(); }
  int32_t rank() const { return layout_->rank.load(std::memory_order_relaxed); }
  int32_t attempt() const { return layout_->attempt.load(std::memory_order_relaxed); }

  // Reader: returns the newest complete record, or nullopt before the first. Never waits for the
  // writer.
  std::optional<HostRecord> read_host() const;
  DeviceRecord read_device() const;
  CollectiveRing read_collectives() const; // leaves out a slot that is being stored
  bool has_watermarks() const { return version_ == kPageVersion; }

  // Writer (one thread): a few stores; no system call.
  void write_host(const HostRecord& record);
  void write_collective(const Collective& collective);
  void write_device(DeviceWord word, uint64_t value);
  // Address of the device words, for cudaHostRegister.
  void* device_words() const { return layout_->device; }

private:
  using Mapping = std::unique_ptr<PageLayout, void (*)(PageLayout*)>;
  static Result<Mapping> map(int fd, bool writable);
  Page(UniqueFd fd, Mapping layout)
      : fd_(std::move(fd)), layout_(std::move(layout)), version_(layout_->version),
        number_(layout_->latest) {}

  UniqueFd fd_;
  Mapping layout_;
  uint32_t version_;
  uint64_t number_; // writer: number of the newest complete host record
};

// Helper of the writer: it keeps the record and timestamps phase changes. Use it from one thread.
class Writer {
public:
  explicit Writer(Page page) : page_(std::move(page)) {}
  void begin_step(uint64_t step, uint64_t tokens);
  // Entering the current phase again shows progress, but does not change the position.
  void enter(Phase phase, uint64_t micro_step = 0);
  uint64_t enqueue(CollectiveKind kind, uint32_t index); // returns the collective's number
  void set_batch_index(uint64_t index) { record_.batch_index = index; }
  const HostRecord& record() const { return record_; }
  Page& page() { return page_; }

private:
  Page page_;
  HostRecord record_;
};

} // namespace nsa::progress
