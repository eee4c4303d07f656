// The messages between nsad and nsa-starter. A request is one datagram: a fixed header, and
// descriptors. The first descriptor receives the answer. The second is a memory file with a job's
// body (JSON). Only the child that has become the submitter reads it. So the part of the starter
// that runs as root parses 16 bytes. An answer is a stream: descriptors with its first byte, and
// JSON up to its end. All functions are pure except those that read or write descriptors.
#pragma once

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <cstdint>
#include <span>
#include <sys/types.h>
#include <vector>

namespace nsa::privilege {

inline constexpr int kStarterSocketFd = 3; // descriptor number in nsa-starter
inline constexpr size_t kMaxDescriptors = 8;
inline constexpr size_t kMaxBody = size_t{16} << 20;
inline constexpr size_t kMaxAnswer = size_t{64} << 20;
inline constexpr size_t kMaxJobs = 64, kMaxJobsOfOne = 16;
inline constexpr uint64_t kMaxProcesses = 16'384;  // limit for a submitter, including threads
inline constexpr uint32_t kLongestJob = 24 * 3600; // seconds

enum class Verb : uint32_t {
  kProbe = 1, // checks, as nsad's account, that this host allows what the other verbs need
  kGive = 2,  // descriptor 1: a folder that nsad owns
  kJob = 3,   // descriptor 1: the body; from 2 on: the job's descriptors
  kKill = 4,  // descriptor 1: a pidfd
};

struct RequestHeader {
  uint32_t magic = 0x4e534153; // "NSAS"
  Verb verb = Verb::kProbe;
  uint32_t uid = 0;
  uint32_t seconds = 0; // the child is killed after this time
};
static_assert(sizeof(RequestHeader) == 16);

struct Answer {
  nlohmann::json value;
  std::vector<UniqueFd> descriptors;
};

// The content of a job's body.
struct JobBody {
  std::string call;
  nlohmann::json arguments;
};

// Parse text that the other side wrote. Error: kCorrupt if it is malformed. If an answer holds an
// error, parse_answer() returns that error.
Result<nlohmann::json> parse_answer(std::string_view text);
Result<JobBody> parse_body(std::string_view text);

// Error: kCorrupt if this is no answer. If the answer holds an error, that error is returned.
Result<Answer> read_answer(int socket, Duration limit);
void write_answer(int socket, const Result<Answer>& answer);

// Returns a memory file with this body, for descriptor 1 of a job.
Result<UniqueFd> make_body(const JobBody& body);
Result<JobBody> read_body(int fd);

} // namespace nsa::privilege
