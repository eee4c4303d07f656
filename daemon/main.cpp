// nsad: one per node; keeps training runs going. Without arguments it serves the user who starts
// it.
#include "common/base/build_info.h"
#include "common/base/log.h"
#include "common/base/unique_fd.h"
#include "daemon/control/daemon.h"
#include "daemon/privilege/direct_host.h"
#include "daemon/privilege/system_mode.h"

#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <unistd.h>

namespace {

constexpr int kUsage = 2, kBadConfig = 78; // 78: EX_CONFIG, which service managers do not restart

constexpr const char* kHelp = R"(nsad: supervises training runs on this node

usage: nsad [--system] [--state-folder DIR] [--socket PATH] [--config FILE] [--log FILE]

  --system            for all members of the group nsa: started by root, becomes the account nsad,
                      starts ranks as their submitters; state in /var/lib/nsa, socket in /run/nsa
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

// Programs by their real path: what was checked is what is executed.
std::string real_path(const std::string& path) {
  std::error_code error;
  const auto real = std::filesystem::canonical(path, error);
  return error ? path : real.string();
}

// Whom the daemon works for. In system mode this process is another account's afterwards.
nsa::Status choose_host(nsa::control::DaemonOptions& options) {
  if (!options.system_mode) {
    options.host = std::make_shared<nsa::privilege::DirectHost>();
    return {};
  }
  const std::string folder = std::filesystem::path(options.program).parent_path().string();
  nsa::spec::NodeProgramsSection& programs = options.config.programs;
  programs.worker = real_path(programs.worker.empty() ? folder + "/nsa-worker" : programs.worker);
  programs.shim = real_path(programs.shim.empty() ? folder + "/nsa-shim" : programs.shim);
  nsa::privilege::SystemOptions system;
  system.user = options.config.system.user;
  system.group = options.config.system.group;
  system.minimum_uid = static_cast<uid_t>(options.config.system.minimum_uid);
  system.state_folder = options.paths.state;
  system.socket_folder = std::filesystem::path(options.paths.socket).parent_path().string();
  system.starter = folder + "/nsa-starter";
  system.programs = {options.program, programs.shim, programs.worker};
  NSA_TRY_ASSIGN(auto host, nsa::privilege::enter_system_mode(system));
  options.starter_socket = host->socket();
  options.host = std::move(host);
  return {};
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
  const std::string node_file = config.empty() ? options.paths.config : config;
  // Root reads what only root has written.
  if (options.system_mode && ::access(node_file.c_str(), F_OK) == 0)
    if (auto trusted = nsa::privilege::check_trusted(node_file); !trusted)
      return report(trusted.error(), kBadConfig);
  auto node = nsa::control::read_node_file(node_file, !config.empty());
  if (!node) return report(node.error(), kBadConfig);
  options.config = std::move(*node);
  options.program = std::filesystem::read_symlink("/proc/self/exe").string();
  if (auto chosen = choose_host(options); !chosen) return report(chosen.error(), kBadConfig);
  const auto done = nsa::control::run_daemon(options);
  return done ? 0 : report(done.error(), 1);
}
