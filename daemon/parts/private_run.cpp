#include "daemon/parts/private_run.h"

#include "common/base/file.h"
#include "common/manifest/manifest.h"

#include <algorithm>
#include <filesystem>
#include <unistd.h>

namespace nsa::parts {

namespace fs = std::filesystem;

namespace {

constexpr unsigned kOwnerOnly = 0600; // the texts may hold variables of the submitter

bool is_plain_name(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.find('/') == std::string::npos;
}

// "checkpoints/step-00000020" or "origin": the name must stay below the folder.
bool is_below(const std::string& name) {
  const fs::path path(name);
  return !name.empty() && path.is_relative() &&
         std::ranges::none_of(path, [](const fs::path& part) { return part == ".."; });
}

void delete_runs_that_are_over(const fs::path& folder, const std::vector<RunId>& open) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (std::ranges::find(open, it->path().filename().string()) == open.end())
      fs::remove_all(it->path(), ignored);
  }
}

// Only the offered checkpoint is needed, complete or partial.
void delete_other_checkpoints(const fs::path& folder, const std::vector<FolderOffer>& offers) {
  std::error_code error;
  for (fs::directory_iterator it(folder / "checkpoints", error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = "checkpoints/" + it->path().stem().string();
    std::error_code ignored;
    if (std::ranges::find(offers, name, &FolderOffer::name) == offers.end())
      fs::remove_all(it->path(), ignored);
  }
}

} // namespace

std::string private_folder(const std::string& state, const RunId& run) {
  return state + "/private/" + run;
}

Result<bool> sees_run_folder(const Preparation& wanted) {
  if (::access((wanted.run_folder + "/run.toml").c_str(), R_OK) != 0 ||
      ::access((wanted.run_folder + "/checkpoints").c_str(), W_OK) != 0)
    return false;
  if (!wanted.checkpoint_folder.empty())
    if (const auto read = manifest::read(wanted.checkpoint_folder); !read)
      return fail(Error(read.error()).within("the checkpoint"));
  return true;
}

Result<transfer::Received>
fill_private_folder(const std::string& state, const RunId& run, const Preparation& wanted,
                    const std::vector<std::shared_ptr<transfer::Source>>& sources) {
  const fs::path folder = private_folder(state, run);
  delete_runs_that_are_over(folder.parent_path(), wanted.open_runs);
  NSA_TRY(make_folder(folder / "checkpoints", 0700));
  delete_other_checkpoints(folder, wanted.offers);
  for (const auto& [name, text] : wanted.texts) {
    if (!is_plain_name(name))
      return fail(ErrorCode::kInvalidArgument, "the head names a file outside the run's folder");
    NSA_TRY(write_file_atomic(folder / name, text, kOwnerOnly, Survives::kProcessCrash));
  }
  transfer::Received all;
  for (size_t i = 0; i < wanted.offers.size(); ++i) {
    const FolderOffer& offer = wanted.offers[i];
    if (!is_below(offer.name))
      return fail(ErrorCode::kInvalidArgument, "the head names a folder outside the run's");
    auto received = transfer::receive(offer.files, folder / offer.name, *sources[i]);
    if (!received) {
      // It is this node's disk that is full, not the head's, so the head must not release its
      // reserve.
      if (received.error().code == ErrorCode::kExhausted)
        received.error().code = ErrorCode::kSystem;
      return fail(std::move(received).error().within("fetching " + offer.name));
    }
    all.bytes += received->bytes;
    all.fetched += received->fetched;
    all.damaged += received->damaged;
    all.seconds += received->seconds;
  }
  return all;
}

void replace_value(std::vector<std::string>& arguments, const char* name,
                   const std::string& value) {
  const auto at = std::ranges::find(arguments, name);
  if (at != arguments.end() && at + 1 != arguments.end()) *(at + 1) = value;
}

void use_private_folder(wire::LaunchPlan& plan, const std::string& folder) {
  const auto moved = [&, from = plan.run_folder + "/"](const std::string& path) {
    return path.starts_with(from) ? folder + "/" + path.substr(from.size()) : path;
  };
  plan.checkpoint_folder = moved(plan.checkpoint_folder);
  for (wire::RankLaunch& rank : plan.ranks) {
    replace_value(rank.arguments, "--run-folder", folder);
    if (!plan.checkpoint_folder.empty())
      replace_value(rank.arguments, "--resume", plan.checkpoint_folder);
    rank.working_folder = folder;
  }
  plan.run_folder = folder;
}

} // namespace nsa::parts
