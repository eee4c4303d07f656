#include "daemon/engines/engine.h"

namespace nsa::engines {

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text)
    out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string node_name(const RunId& run, int node) {
  return run + "." + std::to_string(node);
}

std::string token_path(const std::string& folder, int node) {
  return folder + "/token-" + std::to_string(node);
}

std::string agent_script_path(const JobRequest& request) {
  return request.folder + "/agent.sh";
}

// bash handles a signal while it waits for a background child, but not while it runs a foreground
// one. A second SIGTERM does an agent no harm. The agent's state lies on the node's own disk,
// because it contains sockets.
std::string agent_script(const JobRequest& request) {
  return "#!/bin/bash\n"
         "# One agent of run " +
         request.run + ": $1 is its number. nsad wrote this.\n" +
         "folder=$(mktemp -d \"${TMPDIR:-/tmp}/nsad-XXXXXXXX\") || exit 1\n"
         "printf 'schema = 1\\n[resources]\\ncpu_slots = " +
         std::to_string(request.ranks_per_node) + "\\ngpus = \"" + (request.gpus ? "all" : "none") +
         "\"\\n' > \"$folder/nsad.toml\"\n"
         "agent=\n"
         "left=\n"
         "trap 'left=1; kill -TERM $agent' TERM\n" +
         quoted(request.program) + " --join " + quoted(request.head) + " --token-file " +
         quoted(request.folder) + "/token-\"$1\" --name " + request.run + ".\"$1\" --run " +
         request.run +
         " \\\n"
         "  --state-folder \"$folder/state\" --socket \"$folder/nsad.sock\" --config "
         "\"$folder/nsad.toml\" &\n"
         "agent=$!\n"
         "while kill -0 $agent 2>/dev/null; do wait $agent; code=$?; done\n"
         "[ \"$code\" = 0 ] && rm -rf \"$folder\"\n"
         "[ \"$code\" = 0 ] && [ \"$left\" ] && exit " +
         std::to_string(request.left_code) + "\nexit \"$code\"\n";
}

} // namespace nsa::engines
