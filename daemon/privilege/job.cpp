#include "daemon/privilege/job.h"

#include "common/base/json.h"

#include <map>

namespace nsa::privilege {

using nlohmann::json;

void to_json(json& to, const NewFile& file) {
  to = {{"name", file.name}, {"content", file.content}, {"mode", file.mode}};
}

void from_json(const json& from, NewFile& file) {
  from.at("name").get_to(file.name);
  from.at("content").get_to(file.content);
  from.at("mode").get_to(file.mode);
}

json found_json(const std::vector<manifest::Found>& found) {
  json list = json::array();
  for (const manifest::Found& f : found)
    list.push_back({{"folder", f.folder.string()},
                    {"step", f.step},
                    {"problem", f.problem},
                    {"written_at", f.written_at},
                    {"manifest", f.manifest ? manifest::to_json(*f.manifest) : json()}});
  return list;
}

Result<std::vector<manifest::Found>> found_from(const json& list) {
  std::vector<manifest::Found> found;
  for (const json& entry : list) {
    manifest::Found& f = found.emplace_back();
    f.folder = entry.at("folder").get<std::string>();
    entry.at("step").get_to(f.step);
    entry.at("problem").get_to(f.problem);
    entry.at("written_at").get_to(f.written_at);
    if (entry.at("manifest").is_null()) continue;
    NSA_TRY_ASSIGN(f.manifest, manifest::from_json(entry["manifest"]));
  }
  return found;
}

json distrust_json(const std::vector<manifest::Distrust>& distrusted) {
  json list = json::array();
  for (const manifest::Distrust& d : distrusted)
    list.push_back({{"attempt", d.attempt}, {"step", d.step}, {"why", d.why}});
  return list;
}

std::vector<manifest::Distrust> distrust_from(const json& list) {
  std::vector<manifest::Distrust> distrusted;
  for (const json& entry : list)
    distrusted.push_back({entry.at("attempt").get<int>(), entry.at("step").get<uint64_t>(),
                          entry.at("why").get<std::string>()});
  return distrusted;
}

json identity_json(const proc::ProcessIdentity& identity) {
  return {{"boot_id", identity.boot_id},
          {"pid", identity.pid},
          {"start_time_ticks", identity.start_time_ticks}};
}

proc::ProcessIdentity identity_from(const json& from) {
  return {from.at("boot_id").get<std::string>(), from.at("pid").get<pid_t>(),
          from.at("start_time_ticks").get<uint64_t>()};
}

json options_json(const shim::StartOptions& options) {
  return {{"program", options.program},
          {"cgroup_root", options.cgroup_root},
          {"linger_seconds", options.linger_seconds}};
}

namespace {

using Descriptors = std::vector<UniqueFd>;
using Call = Result<Answer> (*)(Host&, const json&, Descriptors&&);

constexpr uid_t kSelf = 0; // DirectHost ignores it

template <class T> Result<Answer> value_of(Result<T> result) {
  if (!result) return fail(std::move(result.error()));
  return Answer{json(std::move(*result)), {}};
}

Result<Answer> nothing_of(Status status) {
  if (!status) return fail(std::move(status.error()));
  return Answer{};
}

Result<Answer> descriptor_of(Result<UniqueFd> result) {
  if (!result) return fail(std::move(result.error()));
  Answer answer;
  answer.descriptors.push_back(std::move(*result));
  return answer;
}

Result<Answer> start_attempt(Host& host, const json& a, Descriptors&&) {
  AttemptStart start;
  start.plan = a.at("plan").get<wire::LaunchPlan>();
  start.spec = a.at("spec").get<std::string>();
  const json& options = a.at("options");
  start.options.program = options.at("program").get<std::string>();
  start.options.cgroup_root = options.at("cgroup_root").get<std::string>();
  start.options.linger_seconds = options.at("linger_seconds").get<double>();
  NSA_TRY_ASSIGN(shim::StartedShim started, host.start_attempt(kSelf, std::move(start)));
  Answer answer{identity_json(started.identity), {}};
  if (started.pidfd) answer.descriptors.push_back(std::move(started.pidfd));
  return answer;
}

Result<Answer> choose_checkpoint(Host& host, const json& a, Descriptors&&) {
  NSA_TRY_ASSIGN(const manifest::Choice choice,
                 host.choose_checkpoint(kSelf, a.at("folder").get<std::string>(),
                                        distrust_from(a.at("distrusted"))));
  std::vector<manifest::Found> chosen;
  if (choice.chosen) chosen.push_back(*choice.chosen);
  return Answer{{{"chosen", found_json(chosen)}, {"rejected", found_json(choice.rejected)}}, {}};
}

std::string text(const json& arguments, const char* key) {
  return arguments.at(key).get<std::string>();
}

const std::map<std::string, Call, std::less<>>& calls() {
  static const std::map<std::string, Call, std::less<>> kCalls = {
      {"open_file",
       [](Host& h, const json& a, Descriptors&&) {
         return descriptor_of(h.open_file(kSelf, text(a, "path")));
       }},
      {"write_files",
       [](Host& h, const json& a, Descriptors&&) {
         return nothing_of(
             h.write_files(kSelf, text(a, "folder"), a.at("files").get<std::vector<NewFile>>()));
       }},
      {"remove_run_folder",
       [](Host& h, const json& a, Descriptors&&) {
         return nothing_of(h.remove_run_folder(kSelf, text(a, "folder")));
       }},
      {"write_summary",
       [](Host& h, const json& a, Descriptors&&) {
         return nothing_of(h.write_summary(kSelf, text(a, "folder"), a.at("summary")));
       }},
      {"list_checkpoints",
       [](Host& h, const json& a, Descriptors&&) -> Result<Answer> {
         NSA_TRY_ASSIGN(const auto found,
                        h.list_checkpoints(kSelf, text(a, "folder"), a.at("verify").get<bool>()));
         return Answer{found_json(found), {}};
       }},
      {"choose_checkpoint", choose_checkpoint},
      {"share_checkpoint",
       [](Host& h, const json& a, Descriptors&&) {
         return nothing_of(h.share_checkpoint(kSelf, text(a, "checkpoint"), text(a, "folder"),
                                              a.at("with_optimizer").get<bool>()));
       }},
      {"start_attempt", start_attempt},
      {"connect_shim",
       [](Host& h, const json& a, Descriptors&&) {
         return descriptor_of(h.connect_shim(kSelf, text(a, "folder")));
       }},
      {"read_started",
       [](Host& h, const json& a, Descriptors&&) {
         return value_of(h.read_started(kSelf, text(a, "folder")));
       }},
      {"read_exits",
       [](Host& h, const json& a, Descriptors&&) {
         return value_of(h.read_exits(kSelf, text(a, "folder"), a.at("ranks").get<int>()));
       }},
      {"end_leftovers",
       [](Host& h, const json& a, Descriptors&&) {
         return value_of(h.end_leftovers(kSelf, text(a, "folder")));
       }},
  };
  return kCalls;
}

} // namespace

Result<Answer> do_job(Host& host, const JobBody& job, std::vector<UniqueFd> descriptors) {
  const auto call = calls().find(job.call);
  if (call == calls().end())
    return fail(ErrorCode::kUnsupported, "nsa-starter does not know the job " + job.call,
                "nsad and nsa-starter are of different versions: install both again");
  try {
    return call->second(host, job.arguments, std::move(descriptors));
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kCorrupt, "the job " + job.call + ": " + reason_of(e));
  }
}

} // namespace nsa::privilege
