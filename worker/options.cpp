#include "worker/options.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/spec/spec_json.h"
#include "common/wire/launch_plan.h"

#include <charconv>
#include <fcntl.h>
#include <map>
#include <sys/socket.h>

namespace nsa::worker {

namespace {

const std::vector<std::string> kNames = {"--spec",           "--run-folder",   "--attempt-folder",
                                         "--run-id",         "--attempt",      "--rank",
                                         "--world-size",     "--rendezvous",   "--resume",
                                         "--without-graphs", "--replaced-data"};
constexpr const char* kUsage =
    "usage: nsa-worker --spec FILE --run-folder FOLDER --attempt-folder FOLDER --run-id ID "
    "--attempt N --rank R --world-size W --rendezvous unix:FOLDER|tcp:HOST:PORT [--resume "
    "CHECKPOINT] "
    "[--without-graphs WHY] [--replaced-data DIGEST,...]";

using Values = std::map<std::string, std::string>;

Result<Values> parse_pairs(const std::vector<std::string>& arguments) {
  Values values;
  for (size_t i = 0; i < arguments.size(); i += 2) {
    const std::string& name = arguments[i];
    if (std::find(kNames.begin(), kNames.end(), name) == kNames.end()) {
      const auto nearest = nearest_name(name, kNames);
      return fail(ErrorCode::kInvalidArgument, "unknown argument " + name,
                  nearest ? "did you mean " + *nearest + "?" : kUsage);
    }
    if (i + 1 == arguments.size())
      return fail(ErrorCode::kInvalidArgument, name + " needs a value", kUsage);
    if (!values.emplace(name, arguments[i + 1]).second)
      return fail(ErrorCode::kInvalidArgument, name + " is given twice", kUsage);
  }
  return values;
}

Result<int> number(const Values& values, const std::string& name, int least, int most) {
  const auto found = values.find(name);
  if (found == values.end()) return fail(ErrorCode::kInvalidArgument, name + " is missing", kUsage);
  const std::string& text = found->second;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
    return fail(ErrorCode::kInvalidArgument, name + " is \"" + text + "\", a number from " +
                                                 std::to_string(least) + " to " +
                                                 std::to_string(most) + " was expected");
  return value;
}

Result<std::string> text(const Values& values, const std::string& name) {
  const auto found = values.find(name);
  if (found == values.end() || found->second.empty())
    return fail(ErrorCode::kInvalidArgument, name + " is missing", kUsage);
  return found->second;
}

// Descriptor 5 is used only if it is a listening socket of the right kind. If a user started the
// rank by hand, it may be anything.
bool is_listening_socket(int fd, bool tcp) {
  int listening = 0, domain = 0;
  socklen_t size = sizeof(int);
  if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0) return false;
  size = sizeof(int);
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && listening != 0 &&
         (domain == AF_UNIX) == !tcp;
}

} // namespace

Result<train::RankOptions> parse_options(const std::vector<std::string>& arguments) {
  NSA_TRY_ASSIGN(const Values values, parse_pairs(arguments));
  train::RankOptions o;
  NSA_TRY_ASSIGN(const std::string spec_path, text(values, "--spec"));
  NSA_TRY_ASSIGN(o.run_folder, text(values, "--run-folder"));
  NSA_TRY_ASSIGN(o.attempt_folder, text(values, "--attempt-folder"));
  NSA_TRY_ASSIGN(o.run_id, text(values, "--run-id"));
  NSA_TRY_ASSIGN(o.attempt, number(values, "--attempt", 1, 1 << 30));
  NSA_TRY_ASSIGN(o.world, number(values, "--world-size", 1, 4096));
  NSA_TRY_ASSIGN(o.rank, number(values, "--rank", 0, o.world - 1));
  o.local_rank = o.rank;
  if (const char* local = std::getenv("LOCAL_RANK")) {
    NSA_TRY_ASSIGN(o.local_rank, number({{"LOCAL_RANK", local}}, "LOCAL_RANK", 0, o.rank));
  }
  if (o.world > 1) {
    NSA_TRY_ASSIGN(const std::string where, text(values, "--rendezvous"));
    NSA_TRY_ASSIGN(o.rendezvous, comm::parse_rendezvous(where));
    if (const char* mark = std::getenv(wire::kAttemptMark); o.rendezvous.tcp && mark != nullptr)
      o.rendezvous.secret = mark; // the shims of an attempt give it only to its ranks
    if (o.rendezvous.tcp && o.rendezvous.secret.empty())
      return fail(ErrorCode::kInvalidArgument,
                  std::string("ranks that meet over TCP need a secret in ") + wire::kAttemptMark);
  }
  if (const auto resume = values.find("--resume"); resume != values.end())
    o.resume = resume->second;
  if (const auto why = values.find("--without-graphs"); why != values.end())
    o.without_graphs = why->second;
  if (const auto digests = values.find("--replaced-data"); digests != values.end())
    for (const std::string_view digest : split(digests->second, ','))
      o.replaced_data.emplace(digest);
  // Messages carry these paths to processes with other working folders.
  o.run_folder = std::filesystem::absolute(o.run_folder);
  o.attempt_folder = std::filesystem::absolute(o.attempt_folder);
  if (o.rank == 0 && is_listening_socket(wire::kRankStoreFd, o.rendezvous.tcp.has_value()))
    o.rendezvous.listen_fd = wire::kRankStoreFd;

  constexpr JsonLimits kLimits{};
  constexpr const char* kWriteSpec =
      "nsad writes this file; to write it yourself: nsactl config show run.toml -o json";
  const auto json = read_file(spec_path, kLimits.bytes);
  if (!json) return fail(json.error().code, json.error().what, kWriteSpec);
  const auto parsed = parse_json(*json, spec_path, kLimits);
  if (!parsed) return fail(ErrorCode::kInvalidArgument, parsed.error().what, kWriteSpec);
  auto spec = spec::from_json(*parsed);
  if (!spec) return fail(std::move(spec).error().within(spec_path));
  o.spec = std::move(*spec);
  if (o.spec.parallel.ranks != o.world)
    return fail(ErrorCode::kInvalidArgument, "--world-size is " + std::to_string(o.world) +
                                                 ", parallel.ranks in " + spec_path + " is " +
                                                 std::to_string(o.spec.parallel.ranks));
  return o;
}

} // namespace nsa::worker
