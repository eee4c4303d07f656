// What travels between nsad and nsa-starter. A request is one datagram: a fixed header, and
// descriptors. The first descriptor is where the answer goes. A job's body (JSON) lies in the
// second, a memory file, and is read by the child that has become the submitter: the part of the
// starter that is root parses 16 bytes. An answer is a stream: descriptors with its first byte,
// JSON up to its end. Pure but for read_answer() and write_answer().
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

inline constexpr int kStarterSocketFd = 3; // in nsa-starter
inline constexpr size_t kMaxDescriptors = 8;
inline constexpr size_t kMaxBody = size_t{16} << 20;
inline constexpr size_t kMaxAnswer = size_t{64} << 20;
inline constexpr size_t kMaxJobs = 64, kMaxJobsOfOne = 16;
inline constexpr uint64_t kMaxProcesses = 16'384;  // and threads, of a submitter
inline constexpr uint32_t kLongestJob = 24 * 3600; // seconds

enum class Verb : uint32_t {
  kProbe = 1, // can this host do what the others need? as the account of nsad
  kGive = 2,  // descriptor 1: a folder of nsad's
  kJob = 3,   // descriptor 1: the body; 2 and on: what the job takes
  kKill = 4,  // descriptor 1: a pidfd
};

struct RequestHeader {
  uint32_t magic = 0x4e534153; // "NSAS"
  Verb verb = Verb::kProbe;
  uint32_t uid = 0;
  uint32_t seconds = 0; // the child is killed when it takes longer
};
static_assert(sizeof(RequestHeader) == 16);

struct Answer {
  nlohmann::json value;
  std::vector<UniqueFd> descriptors;
};

// The body of a job.
struct JobBody {
  std::string call;
  nlohmann::json arguments;
};

// Text that the other side wrote, parsed. kCorrupt: it is not what it should be. An error that an
// answer tells comes out as that error.
Result<nlohmann::json> parse_answer(std::string_view text);
Result<JobBody> parse_body(std::string_view text);

// kCorrupt: not an answer. The Error in an answer comes out as the error.
Result<Answer> read_answer(int socket, Duration limit);
void write_answer(int socket, const Result<Answer>& answer);

// A memory file with this text, for descriptor 1 of a job.
Result<UniqueFd> make_body(const JobBody& body);
Result<JobBody> read_body(int fd);

} // namespace nsa::privilege
