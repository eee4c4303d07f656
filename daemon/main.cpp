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
#include <unistd.h>

namespace {

constexpr int kUsage = 2, kBadConfig = 78; // 78: EX_CONFIG, which service managers do not restart

constexpr const char* kHelp = R"(nsad: supervises training runs on this node

usage: nsad [--system] [--state-folder DIR] [--socket PATH] [--config FILE] [--log FILE]

  --system            state in /var/lib/nsa, socket in /run/nsa for the group nsa
  --state-folder DIR  ledger and runs (default: $XDG_STATE_HOME/nsa)
  --socket PATH       where to listen (default: $XDG_RUNTIME_DIR/nsa/nsad.sock)
  --config FILE       nsad.toml (default: $XDG_CONFIG_HOME/nsa/nsad.toml; may be missing)
  --log FILE          write log lines there (default: standard error; nsad.log beside the ledger
                      when a shim starts nsad again)
  --version, --help
)";

// All that this program writes goes there, a runtime's last words among it.
nsa::Status write_to(const std::string& path) {
  const nsa::UniqueFd fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd || ::dup2(fd.get(), STDOUT_FILENO) < 0 || ::dup2(fd.get(), STDERR_FILENO) < 0)
    return nsa::fail_errno("cannot open the log " + path);
  return {};
}

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
  if (!log.empty())
    if (const auto opened = write_to(log); !opened) return report(opened.error(), kBadConfig);
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
