#include "daemon/parts/remote_host.h"

namespace nsa::parts {

namespace {
tl::unexpected<Error> not_there() {
  return fail(ErrorCode::kUnsupported, "files of a run are not reached over another node");
}
} // namespace

Result<UniqueFd> RemoteHost::connect_shim(uid_t, const std::string&) {
  return nodes_.connect(node_, key_);
}

Result<shim::StartedAttempt> RemoteHost::read_started(uid_t, const std::string&) {
  return fail(ErrorCode::kNotFound, "the shim on node " + node_ + " has ended");
}

Result<std::vector<wire::RankExited>> RemoteHost::read_exits(uid_t, const std::string&, int ranks) {
  auto answer = nodes_.ask(node_, CallKind::kExits, key_, {{"ranks", ranks}});
  if (!answer) return fail(std::move(answer).error());
  std::vector<wire::RankExited> exits;
  for (const nlohmann::json& one : *answer) {
    NSA_TRY_ASSIGN(wire::RankExited exited, wire::body_as<wire::RankExited>(one));
    exits.push_back(exited);
  }
  return exits;
}

Result<int> RemoteHost::end_leftovers(uid_t, const std::string&) {
  auto answer = nodes_.ask(node_, CallKind::kLeftovers, key_, nullptr);
  if (!answer && answer.error().code == ErrorCode::kUnavailable) return 0;
  if (!answer) return fail(std::move(answer).error());
  return integer_of<int>(*answer).value_or(0);
}

Status RemoteHost::kill_shim(uid_t, int) {
  auto answer = nodes_.ask(node_, CallKind::kEnd, key_, nullptr);
  if (!answer) return fail(std::move(answer).error());
  return {};
}

Result<shim::StartedShim> RemoteHost::start_attempt(uid_t, privilege::AttemptStart) {
  return not_there();
}
Result<UniqueFd> RemoteHost::open_file(uid_t, const std::string&) {
  return not_there();
}
Status RemoteHost::write_files(uid_t, const std::string&, const std::vector<privilege::NewFile>&) {
  return not_there();
}
Status RemoteHost::make_run_folder(uid_t, const std::string&) {
  return not_there();
}
Status RemoteHost::remove_run_folder(uid_t, const std::string&) {
  return not_there();
}
Status RemoteHost::write_summary(uid_t, const std::string&, nlohmann::json) {
  return not_there();
}
Result<std::vector<manifest::Found>> RemoteHost::list_checkpoints(uid_t, const std::string&, bool) {
  return not_there();
}
Result<manifest::Choice> RemoteHost::choose_checkpoint(uid_t, const std::string&,
                                                       const std::vector<manifest::Distrust>&) {
  return not_there();
}
Status RemoteHost::share_checkpoint(uid_t, const std::string&, const std::string&, bool) {
  return not_there();
}

} // namespace nsa::parts
