// The demo's own node, beside the user's. Its state, socket, configuration and nsad live in one
// folder, which only one demo at a time uses. The class changes this process's environment.
#pragma once

#include "cli/demo/command.h"
#include "common/base/json.h"

#include <filesystem>
#include <string_view>

namespace nsa::demo {

class OwnNode {
public:
  // `nsactl` is the program's path. Error: kConflict if another demo uses the folder.
  static Result<OwnNode> make(const std::filesystem::path& folder, std::string nsactl,
                              Signals& signals);

  const std::filesystem::path& folder() const { return folder_; }

  // Runs a command whose output people see. Returns its exit code.
  Result<int> show(const std::vector<std::string>& words, Streams streams);
  // Returns the output of a command with -o json. Fails if the command fails.
  Result<nlohmann::json> ask(std::vector<std::string> words);

  // Ends the runs that this demo or a killed one left here, and then nsad.
  void end();
  // Removes the folder after end(). Refuses a folder that no demo made.
  Status remove();

private:
  OwnNode(std::filesystem::path folder, std::string nsactl, UniqueFd lock, Signals& signals)
      : folder_(std::move(folder)), nsactl_(std::move(nsactl)), lock_(std::move(lock)),
        signals_(&signals) {}
  nlohmann::json ask_quietly(std::vector<std::string> words); // null if the command fails
  std::vector<std::string> live_runs();
  std::filesystem::path folder_;
  std::string nsactl_;
  UniqueFd lock_;
  Signals* signals_;
};

bool is_of_a_demo(const std::filesystem::path& folder);

// Returns configs/quickstart.toml, which is built into nsactl.
std::string_view run_file();

// Returns the value at that place of the tree, or null if the tree has no such place.
nlohmann::json at(const nlohmann::json& tree, const char* place);

} // namespace nsa::demo
