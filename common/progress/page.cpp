#include "common/progress/page.h"

#include <array>
#include <fcntl.h>
#include <initializer_list>
#include <span>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <type_traits>
#include <unistd.h>
#include <utility>

namespace nsa::progress {

namespace {

constexpr size_t kRecordWords = std::extent_v<decltype(PageLayout::Copy::words)>;
using RecordWords = std::array<uint64_t, kRecordWords>;

// Mixes every bit of each word into the result (the constant is 2^64 over the golden ratio).
uint64_t check_of(std::initializer_list<uint64_t> head, std::span<const uint64_t> words) {
  uint64_t check = kPageMagic;
  const auto mix = [&check](uint64_t word) {
    check = (check ^ word) * 0x9e37'79b9'7f4a'7c15ull;
    check ^= check >> 32;
  };
  for (const uint64_t word : head)
    mix(word);
  for (const uint64_t word : words)
    mix(word);
  return check;
}

RecordWords words_of(const HostRecord& r) {
  return {r.step,
          r.micro_step,
          uint64_t{r.phase_number} << 32 | static_cast<uint64_t>(r.phase),
          static_cast<uint64_t>(r.phase_start_ns),
          static_cast<uint64_t>(r.step_start_ns),
          r.tokens,
          r.enqueued,
          r.batch_index};
}

HostRecord record_of(const RecordWords& words) {
  HostRecord r;
  r.step = words[0];
  r.micro_step = words[1];
  r.phase = static_cast<Phase>(words[2] & UINT32_MAX);
  r.phase_number = static_cast<uint32_t>(words[2] >> 32);
  r.phase_start_ns = static_cast<int64_t>(words[3]);
  r.step_start_ns = static_cast<int64_t>(words[4]);
  r.tokens = words[5];
  r.enqueued = words[6];
  r.batch_index = words[7];
  return r;
}

void begin_copy(PageLayout::Copy& copy, uint64_t sequence, const RecordWords& words, size_t count) {
  copy.begin.store(sequence, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (size_t i = 0; i < count; ++i)
    copy.words[i].store(words[i], std::memory_order_relaxed);
}

// The record of sequence number `sequence`, if that copy is whole and was not rewritten meanwhile
// (sequence lock; Boehm, "Can seqlocks get along with programming language memory models?", 2012).
std::optional<HostRecord> load_copy(const PageLayout::Copy& copy, uint64_t sequence,
                                    uint32_t version) {
  const uint64_t check = copy.check.load(std::memory_order_acquire);
  RecordWords words;
  for (size_t i = 0; i < kRecordWords; ++i)
    words[i] = copy.words[i].load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (copy.begin.load(std::memory_order_relaxed) != sequence) return std::nullopt;
  const uint64_t expected =
      version <= kVersionWithoutChecks ? sequence : check_of({sequence}, words);
  if (check != expected) return std::nullopt;
  return record_of(words);
}

// What a slot says a collective is, with the check of the whole slot above it.
uint64_t what_of(const Collective& c) {
  const uint64_t what = static_cast<uint64_t>(c.kind) << 32 | c.index;
  const uint64_t check = check_of({c.number, c.step, what, c.bytes}, {}) >> 40;
  return check << 40 | what;
}

Result<PageLayout*> map_page(int fd, bool writable) {
  void* at =
      ::mmap(nullptr, kPageBytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return fail_errno("cannot map a progress page");
  return static_cast<PageLayout*>(at);
}

} // namespace

Result<Page> Page::create(int32_t rank, int32_t attempt) {
  UniqueFd fd(::memfd_create("nsa-progress", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return fail_errno("cannot make a progress page");
  if (::ftruncate(fd.get(), kPageBytes) != 0) return fail_errno("cannot size a progress page");
  // A worker must not be able to shrink the page under a reader's feet (SIGBUS in nsad).
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return fail_errno("cannot seal a progress page");
  NSA_TRY_ASSIGN(PageLayout * layout, map_page(fd.get(), true));
  layout->version = kPageVersion;
  layout->rank = rank;
  layout->attempt = attempt;
  layout->magic = kPageMagic;
  return Page(std::move(fd), layout);
}

Result<Page> Page::open(UniqueFd fd, bool writable) {
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return fail_errno("cannot stat a progress page");
  if (info.st_size != static_cast<off_t>(kPageBytes))
    return fail(ErrorCode::kCorrupt, "a progress page has " + std::to_string(info.st_size) +
                                         " bytes, " + std::to_string(kPageBytes) + " expected");
  // Of a file that can shrink, or that lies on somebody's file system, a read may end the reader.
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return fail(ErrorCode::kCorrupt, "the progress page is not a sealed memory file");
  NSA_TRY_ASSIGN(PageLayout * layout, map_page(fd.get(), writable));
  Page page(std::move(fd), layout);
  const bool older = !writable && (page.version_ == kVersionWithoutWatermarks ||
                                   page.version_ == kVersionWithoutChecks);
  if (layout->magic != kPageMagic || (page.version_ != kPageVersion && !older))
    return fail(ErrorCode::kCorrupt,
                "not a progress page of version " + std::to_string(kPageVersion),
                "the programs are of different versions; restart the run with one installation");
  return page;
}

Page::Page(Page&& other) noexcept
    : fd_(std::move(other.fd_)), layout_(std::exchange(other.layout_, nullptr)),
      version_(other.version_), sequence_(other.sequence_) {}

Page& Page::operator=(Page&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(layout_, other.layout_);
  std::swap(version_, other.version_);
  std::swap(sequence_, other.sequence_);
  return *this;
}

Page::~Page() {
  if (layout_ != nullptr) ::munmap(layout_, kPageBytes);
}

std::optional<HostRecord> Page::read_host() const {
  // Two tries a copy: the writer can overtake a reader, but not forever, since each overtaking is a
  // whole new record; after that the older copy is as good an answer.
  for (int attempt = 0; attempt < 4; ++attempt) {
    const uint64_t latest = layout_->latest.load(std::memory_order_acquire);
    if (latest == 0) return std::nullopt;
    if (auto record = load_copy(layout_->copies[latest % 2], latest, version_)) return record;
  }
  const uint64_t latest = layout_->latest.load(std::memory_order_acquire);
  return latest > 1 ? load_copy(layout_->copies[(latest - 1) % 2], latest - 1, version_)
                    : std::nullopt;
}

DeviceRecord Page::read_device() const {
  const auto word = [this](DeviceWord w) {
    return layout_->device[static_cast<size_t>(w)].load(std::memory_order_acquire);
  };
  if (!has_watermarks()) return {word(DeviceWord::kCompletedStep), {}, 0, 0};
  // The older word first: a collective that completes in between has been started.
  const uint64_t completed = word(DeviceWord::kCompleted);
  return {word(DeviceWord::kCompletedStep), StepPosition::of_word(word(DeviceWord::kPosition)),
          word(DeviceWord::kStarted), completed};
}

CollectiveRing Page::read_collectives() const {
  CollectiveRing ring;
  if (!has_watermarks()) return ring;
  for (size_t i = 0; i < CollectiveRing::kKept; ++i) {
    const PageLayout::Slot& slot = layout_->collectives[i];
    const uint64_t number = slot.number.load(std::memory_order_acquire);
    const uint64_t what = slot.what.load(std::memory_order_relaxed);
    const Collective read{number, slot.step.load(std::memory_order_relaxed),
                          static_cast<CollectiveKind>(what >> 32 & 0xff),
                          static_cast<uint32_t>(what), slot.bytes.load(std::memory_order_relaxed)};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (slot.number.load(std::memory_order_relaxed) != number) continue; // being stored
    if (version_ <= kVersionWithoutChecks || what == what_of(read)) ring.slots[i] = read;
  }
  return ring;
}

void Page::write_host(const HostRecord& record) {
  PageLayout::Copy& copy = layout_->copies[++sequence_ % 2];
  const RecordWords words = words_of(record);
  begin_copy(copy, sequence_, words, kRecordWords);
  copy.check.store(check_of({sequence_}, words), std::memory_order_release);
  layout_->latest.store(sequence_, std::memory_order_release);
}

void Page::write_collective(const Collective& c) {
  PageLayout::Slot& slot = layout_->collectives[c.number % CollectiveRing::kKept];
  slot.number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  slot.step.store(c.step, std::memory_order_relaxed);
  slot.what.store(what_of(c), std::memory_order_relaxed);
  slot.bytes.store(c.bytes, std::memory_order_relaxed);
  slot.number.store(c.number, std::memory_order_release);
}

void Page::write_device(DeviceWord word, uint64_t value) {
  layout_->device[static_cast<size_t>(word)].store(value, std::memory_order_release);
}

void Page::write_host_torn_for_test(const HostRecord& record) {
  begin_copy(layout_->copies[(sequence_ + 1) % 2], sequence_ + 1, words_of(record),
             kRecordWords / 2);
}

void Writer::begin_step(uint64_t step, uint64_t tokens) {
  record_.step = step;
  record_.phase_number = 0;
  record_.tokens = tokens;
  record_.step_start_ns = MonotonicTime::now().nanoseconds;
}

// To enter the phase that the rank is in shows that it moves, and is not one more phase.
void Writer::enter(Phase phase, uint64_t micro_step) {
  if (record_.phase != phase || record_.phase_number == 0) ++record_.phase_number;
  record_.phase = phase;
  record_.micro_step = micro_step;
  record_.phase_start_ns = MonotonicTime::now().nanoseconds;
  page_.write_host(record_);
}

uint64_t Writer::enqueue(CollectiveKind kind, uint32_t index, uint64_t bytes) {
  ++record_.enqueued;
  page_.write_collective({record_.enqueued, record_.step, kind, index, bytes});
  page_.write_host(record_);
  return record_.enqueued;
}

} // namespace nsa::progress
