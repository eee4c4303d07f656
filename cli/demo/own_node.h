// A node of the demo's own, beside the user's: state, socket, configuration and nsad live in one
// folder, and one demo at a time uses it. Changes this process's environment.
#pragma once

#include "cli/demo/command.h"
#include "common/base/json.h"

#include <filesystem>
#include <string_view>

namespace nsa::demo {

class OwnNode {
public:
  // `nsactl`: the program. kConflict: another demo uses the folder.
  static Result<OwnNode> make(const std::filesystem::path& folder, std::string nsactl,
                              Signals& signals);

  const std::filesystem::path& folder() const { return folder_; }

  // Runs a command that people see; its exit code.
  Result<int> show(const std::vector<std::string>& words, Streams streams);
  // What a command says with -o json; an error when it fails.
  Result<nlohmann::json> ask(std::vector<std::string> words);

  // Ends what still runs here, of this demo or of one that was killed, and then nsad.
  void end();
  // Removes the folder; call end() before. Refuses a folder that no demo made.
  Status remove();

private:
  OwnNode(std::filesystem::path folder, std::string nsactl, UniqueFd lock, Signals& signals)
      : folder_(std::move(folder)), nsactl_(std::move(nsactl)), lock_(std::move(lock)),
        signals_(&signals) {}
  nlohmann::json ask_quietly(std::vector<std::string> words); // null when it fails
  std::vector<std::string> live_runs();
  std::filesystem::path folder_;
  std::string nsactl_;
  UniqueFd lock_;
  Signals* signals_;
};

bool is_of_a_demo(const std::filesystem::path& folder);

// configs/quickstart.toml, as it is built into nsactl.
std::string_view run_file();

// What stands there; null where the tree has no such place.
nlohmann::json at(const nlohmann::json& tree, const char* place);

} // namespace nsa::demo
