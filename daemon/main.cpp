// nsad: one per node; keeps training runs going. Without arguments it serves the user who starts
// it.
#include "common/base/build_info.h"
#include "common/base/log.h"
#include "common/base/unique_fd.h"
#include "daemon/control/daemon.h"

#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <string>

namespace {

constexpr int kUsage = 2, kBadConfig = 78; // 78: EX_CONFIG, which service managers do not restart

constexpr const char* kHelp = R"(nsad: supervises training runs on this node

usage: nsad [--system] [--state-folder DIR] [--socket PATH] [--config FILE] [--log FILE]

  --system            state in /var/lib/nsa, socket in /run/nsa for the group nsa
  --state-folder DIR  ledger and runs (default: $XDG_STATE_HOME/nsa)
  --socket PATH       where to listen (default: $XDG_RUNTIME_DIR/nsa/nsad.sock)
  --config FILE       nsad.toml (default: $XDG_CONFIG_HOME/nsa/nsad.toml; may be missing)
  --log FILE          write log lines there (default: standard error)
  --version, --help
)";

int report(const nsa::Error& error, int code) {
  std::fprintf(stderr, "nsad: %s\n", error.what.c_str());
  if (!error.next.empty()) std::fprintf(stderr, "  hint: %s\n", error.next.c_str());
  return code;
}

} // namespace

int main(int argc, char** argv) {
  nsa::control::DaemonOptions options;
  std::string state, socket, config, log;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    std::string* value = name == "--state-folder" ? &state
                         : name == "--socket"     ? &socket
                         : name == "--config"     ? &config
                         : name == "--log"        ? &log
                                                  : nullptr;
    options.arguments.push_back(name);
    if (name == "--help") return std::fputs(kHelp, stdout) < 0;
    if (name == "--version")
      return std::printf("nsad %s (%s)\n", nsa::build_info().version.c_str(),
                         nsa::build_info().commit.c_str()) < 0;
    if (name == "--system") {
      options.system_mode = true;
    } else if (value == nullptr || i + 1 == argc) {
      std::fprintf(stderr, "nsad: %s %s\n\n%s", name.c_str(),
                   value == nullptr ? "is no option" : "needs a value", kHelp);
      return kUsage;
    } else {
      // Absolute, so that a shim can start nsad again from anywhere.
      *value = std::filesystem::absolute(argv[++i]).string();
      options.arguments.push_back(*value);
    }
  }
  auto paths = options.system_mode ? nsa::Result<nsa::net::NodePaths>(nsa::net::system_paths())
                                   : nsa::net::user_paths();
  if (!paths) return report(paths.error(), kBadConfig);
  options.paths = std::move(*paths);
  if (!state.empty()) options.paths.state = state;
  if (!state.empty()) options.paths.log = state + "/nsad.log";
  if (!socket.empty()) options.paths.socket = socket;
  auto node =
      nsa::control::read_node_file(config.empty() ? options.paths.config : config, !config.empty());
  if (!node) return report(node.error(), kBadConfig);
  options.config = std::move(*node);
  options.program = std::filesystem::read_symlink("/proc/self/exe").string();
  const auto done = nsa::control::run_daemon(options);
  return done ? 0 : report(done.error(), 1);
}
