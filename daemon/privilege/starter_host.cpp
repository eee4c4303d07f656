#include "daemon/privilege/starter_host.h"

#include "common/base/json.h"
#include "common/base/pass_descriptors.h"
#include "daemon/privilege/direct_host.h"
#include "daemon/privilege/job.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nsa::privilege {

namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr Duration kShort = 10s; // for calls that take milliseconds
constexpr Duration kVerification = std::chrono::seconds(kLongestJob);
constexpr Duration kAnswerGrace = 2s; // the starter kills the child first, so that the answer
                                      // holds the reason

template <class T> Result<T> value_as(Result<Answer> answer) {
  if (!answer) return fail(std::move(answer.error()));
  try {
    return answer->value.template get<T>();
  } catch (const json::exception& e) {
    return fail(ErrorCode::kCorrupt, "the starter's answer: " + reason_of(e));
  }
}

Status status_of(Result<Answer> answer) {
  if (!answer) return fail(std::move(answer.error()));
  return {};
}

Result<UniqueFd> descriptor_of(Result<Answer> answer) {
  if (!answer) return fail(std::move(answer.error()));
  if (answer->descriptors.size() != 1)
    return fail(ErrorCode::kCorrupt, "the starter's answer has no descriptor");
  return std::move(answer->descriptors.front());
}

// For decoders that use at() and get(), which throw.
template <class Decode>
auto decode_answer(Result<Answer> answer, Decode decode) -> decltype(decode(answer->value)) {
  if (!answer) return fail(std::move(answer.error()));
  try {
    return decode(answer->value);
  } catch (const json::exception& e) {
    return fail(ErrorCode::kCorrupt, "the starter's answer: " + reason_of(e));
  }
}

} // namespace

Result<Answer> StarterHost::request(Verb verb, uid_t as, Duration limit,
                                    std::vector<int> descriptors) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return fail_errno("cannot make a socket");
  const UniqueFd mine(ends[0]);
  UniqueFd theirs(ends[1]);
  descriptors.insert(descriptors.begin(), theirs.get());
  RequestHeader header;
  header.verb = verb;
  header.uid = as;
  header.seconds = static_cast<uint32_t>(to_seconds(limit));
  const std::string_view bytes(reinterpret_cast<const char*>(&header), sizeof header);
  if (send_with_descriptors(socket_.get(), bytes, descriptors) != sizeof header)
    return fail(ErrorCode::kUnavailable, "nsa-starter has gone",
                "start nsad again: systemctl restart nsad");
  theirs.reset();
  return read_answer(mine.get(), limit + kAnswerGrace);
}

Result<Answer> StarterHost::job(uid_t as, const std::string& call, json arguments, Duration limit,
                                int descriptor) {
  NSA_TRY_ASSIGN(const UniqueFd body, make_body({call, std::move(arguments)}));
  std::vector<int> descriptors = {body.get()};
  if (descriptor >= 0) descriptors.push_back(descriptor);
  return request(Verb::kJob, as, limit, std::move(descriptors));
}

Status StarterHost::probe() {
  return status_of(request(Verb::kProbe, 0, kShort, {}));
}

Result<UniqueFd> StarterHost::open_file(uid_t as, const std::string& path) {
  return descriptor_of(job(as, "open_file", {{"path", path}}, kShort));
}

Status StarterHost::write_files(uid_t as, const std::string& folder,
                                const std::vector<NewFile>& files) {
  return status_of(job(as, "write_files", {{"folder", folder}, {"files", files}}));
}

// nsad makes the folder, because it owns runs/. The starter then gives the folder to the submitter.
Status StarterHost::make_run_folder(uid_t as, const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return fail_errno("cannot make folder " + folder);
  const UniqueFd opened(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info{};
  if (!opened || ::fstat(opened.get(), &info) != 0) return fail_errno("cannot open " + folder);
  if (info.st_uid != as) {
    if (info.st_uid != ::geteuid())
      return fail(ErrorCode::kConflict, folder + " belongs to somebody else");
    const UniqueFd mine(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!mine) return fail_errno("cannot open " + folder);
    NSA_TRY(status_of(request(Verb::kGive, as, kShort, {mine.get()})));
  }
  return write_files(as, folder + "/checkpoints", {});
}

// The submitter may empty the folder, but only nsad may remove it from runs/.
Status StarterHost::remove_run_folder(uid_t as, const std::string& folder) {
  const Status emptied = status_of(job(as, "remove_run_folder", {{"folder", folder}}));
  if (::rmdir(folder.c_str()) == 0 || errno == ENOENT) return {};
  const auto left = fail_errno("cannot remove " + folder);
  return emptied ? Status(left) : emptied;
}

Status StarterHost::write_summary(uid_t as, const std::string& run_folder, json summary) {
  return status_of(
      job(as, "write_summary", {{"folder", run_folder}, {"summary", std::move(summary)}}));
}

Result<std::vector<manifest::Found>>
StarterHost::list_checkpoints(uid_t as, const std::string& run_folder, bool verify) {
  return decode_answer(job(as, "list_checkpoints", {{"folder", run_folder}, {"verify", verify}},
                           verify ? kVerification : 60s),
                       found_from);
}

Result<manifest::Choice>
StarterHost::choose_checkpoint(uid_t as, const std::string& run_folder,
                               const std::vector<manifest::Distrust>& distrusted) {
  return decode_answer(
      job(as, "choose_checkpoint",
          {{"folder", run_folder}, {"distrusted", distrust_json(distrusted)}}, kVerification),
      [](const json& value) -> Result<manifest::Choice> {
        manifest::Choice choice;
        NSA_TRY_ASSIGN(std::vector<manifest::Found> chosen, found_from(value.at("chosen")));
        if (!chosen.empty()) choice.chosen = std::move(chosen.front());
        NSA_TRY_ASSIGN(choice.rejected, found_from(value.at("rejected")));
        return choice;
      });
}

Status StarterHost::share_checkpoint(uid_t as, const std::string& checkpoint,
                                     const std::string& folder, bool with_optimizer) {
  return status_of(
      job(as, "share_checkpoint",
          {{"checkpoint", checkpoint}, {"folder", folder}, {"with_optimizer", with_optimizer}},
          kVerification));
}

Result<shim::StartedShim> StarterHost::start_attempt(uid_t as, AttemptStart start) {
  auto answer = job(as, "start_attempt",
                    {{"plan", start.plan},
                     {"spec", std::move(start.spec)},
                     {"options", options_json(start.options)}},
                    60s);
  if (!answer) return fail(std::move(answer.error()));
  shim::StartedShim started;
  try {
    started.identity = identity_from(answer->value);
  } catch (const json::exception& e) {
    return fail(ErrorCode::kCorrupt, "the starter's answer: " + reason_of(e));
  }
  if (!answer->descriptors.empty()) started.pidfd = std::move(answer->descriptors.front());
  return started;
}

Result<UniqueFd> StarterHost::connect_shim(uid_t as, const std::string& attempt_folder) {
  return descriptor_of(job(as, "connect_shim", {{"folder", attempt_folder}}, kShort));
}

Result<shim::StartedAttempt> StarterHost::read_started(uid_t as,
                                                       const std::string& attempt_folder) {
  return value_as<shim::StartedAttempt>(
      job(as, "read_started", {{"folder", attempt_folder}}, kShort));
}

Result<std::vector<wire::RankExited>>
StarterHost::read_exits(uid_t as, const std::string& attempt_folder, int ranks) {
  return value_as<std::vector<wire::RankExited>>(
      job(as, "read_exits", {{"folder", attempt_folder}, {"ranks", ranks}}, kShort));
}

Result<int> StarterHost::end_leftovers(uid_t as, const std::string& attempt_folder) {
  return value_as<int>(job(as, "end_leftovers", {{"folder", attempt_folder}}, kShort));
}

Status StarterHost::kill_shim(uid_t as, int pidfd) {
  return status_of(request(Verb::kKill, as, kShort, {pidfd}));
}

// Leaves out the variables that identify nsad's user or nsad's own folders.
std::map<std::string, std::string> StarterHost::node_environment() {
  auto variables = environment_of_this_process();
  for (const char* name : {"HOME", "USER", "LOGNAME", "XDG_RUNTIME_DIR", "TMPDIR"})
    variables.erase(name);
  return variables;
}

} // namespace nsa::privilege
