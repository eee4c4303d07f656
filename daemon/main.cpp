// nsad, one per node: starts and supervises training runs. Without arguments it serves the user who
// starts it.
#include "common/base/build_info.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/base/unique_fd.h"
#include "daemon/control/agent_daemon.h"
#include "daemon/control/daemon.h"
#include "daemon/privilege/direct_host.h"
#include "daemon/privilege/system_mode.h"

#include <cctype>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

// 78 is EX_CONFIG; service managers do not restart after it.
constexpr int kUsage = 2, kBadConfig = 78;

constexpr const char* kHelp = R"(nsad: supervises training runs on this node

usage: nsad [--system] [--state-folder DIR] [--socket PATH] [--config FILE] [--log FILE]
       nsad --join HOST:PORT [--token TOKEN | --token-file FILE] [--name NAME] ...

  --system            for all members of the group nsa: started by root, becomes the account nsad,
                      starts ranks as their submitters; state in /var/lib/nsa, socket in /run/nsa
  --state-folder DIR  ledger and runs (default: $XDG_STATE_HOME/nsa)
  --socket PATH       where to listen (default: $XDG_RUNTIME_DIR/nsa/nsad.sock)
  --config FILE       nsad.toml (default: $XDG_CONFIG_HOME/nsa/nsad.toml; may be missing)
  --log FILE          write log lines there (default: standard error; nsad.log beside the ledger
                      when a shim starts nsad again)
  --join HOST:PORT    be an agent of the nsad there, the head: docs/several-nodes.md
  --token TOKEN       for the first start with --join: what `nsactl node token` printed on the head
  --token-file FILE   the same, from a file: other accounts can read a command line
  --name NAME         with --join: this node's name in the cluster (default: the host's)
  --run RUN           with --join: it is part of this run's job; SIGTERM ends the job's ranks behind
                      a checkpoint, and then nsad
  --version, --help
)";

// Sends all output of this program to a file, also what a runtime prints when it aborts.
nsa::Status write_to(const std::string& path) {
  const nsa::UniqueFd fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd || ::dup2(fd.get(), STDOUT_FILENO) < 0 || ::dup2(fd.get(), STDERR_FILENO) < 0)
    return nsa::fail_errno("cannot open the log " + path,
                           "name a file that can be written: --log FILE");
  return {};
}

int report(const nsa::Error& error, int code) {
  std::fprintf(stderr, "nsad: %s\n", error.what.c_str());
  if (!error.next.empty()) std::fprintf(stderr, "  hint: %s\n", error.next.c_str());
  return code;
}

// Resolves symbolic links, so that the program that was checked is the one that is executed.
std::string real_path(const std::string& path) {
  std::error_code error;
  const auto real = std::filesystem::canonical(path, error);
  return error ? path : real.string();
}

// Chooses the accounts that the daemon serves. In system mode this process changes to another
// account.
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

// The options that take a value, by name.
struct Values {
  std::string state, socket, config, log, join, token, token_file, name, run;
  const std::vector<std::pair<std::string, std::string*>> known = {{"--state-folder", &state},
                                                                   {"--socket", &socket},
                                                                   {"--config", &config},
                                                                   {"--log", &log},
                                                                   {"--join", &join},
                                                                   {"--token", &token},
                                                                   {"--token-file", &token_file},
                                                                   {"--name", &name},
                                                                   {"--run", &run}};
  std::string* find(const std::string& option) const {
    for (const auto& [text, value] : known)
      if (option == text) return value;
    return nullptr;
  }
};

// The error for an unknown option, or for a last option without its value.
nsa::Error bad_option(const std::string& name, const Values& values) {
  constexpr const char* kAll = "nsad --help lists the options";
  if (values.find(name) != nullptr)
    return {nsa::ErrorCode::kInvalidArgument, name + " needs a value", kAll};
  std::vector<std::string> names = {"--system", "--version", "--help"};
  for (const auto& [text, value] : values.known)
    names.push_back(text);
  const auto near = nsa::nearest_name(name, names);
  return {nsa::ErrorCode::kInvalidArgument, name + " is no option",
          near ? "did you mean " + *near + "?" : kAll};
}

bool is_path(const std::string& option) {
  return option != "--join" && option != "--token" && option != "--name" && option != "--run";
}

// Checks which options may be combined, and reads the token from its file.
nsa::Result<nsa::control::JoinOptions> join_options(const Values& values, bool system_mode) {
  constexpr size_t kLongest = 4096;
  nsa::control::JoinOptions join{values.join, values.token, values.name, values.run,
                                 values.token_file};
  if (join.head.empty()) {
    if (values.token.empty() && values.token_file.empty() && values.name.empty() &&
        values.run.empty())
      return join;
    return nsa::fail(nsa::ErrorCode::kInvalidArgument,
                     "--token, --token-file, --name and --run have no effect without --join",
                     "nsad --join HOST:PORT --token TOKEN");
  }
  if (system_mode)
    return nsa::fail(nsa::ErrorCode::kUnsupported, "--join cannot be combined with --system yet",
                     "start the agent as a user: nsad --join " + join.head);
  if (!values.token_file.empty()) {
    if (!join.token.empty())
      return nsa::fail(nsa::ErrorCode::kInvalidArgument,
                       "--token and --token-file say the same thing", "leave one of them out");
    auto token = nsa::read_file(values.token_file, kLongest);
    if (!token) {
      token.error().next = "write it there: on the head, nsactl node token -q prints one";
      return nsa::fail(std::move(token.error()));
    }
    join.token = std::move(*token);
    while (!join.token.empty() && std::isspace(static_cast<unsigned char>(join.token.back())))
      join.token.pop_back();
    if (join.token.empty())
      return nsa::fail(nsa::ErrorCode::kInvalidArgument, values.token_file + " holds no token",
                       "nsactl node token on the head prints one");
  }
  return join;
}

nsa::Status run(const nsa::control::DaemonOptions& options) {
  return options.join.head.empty() ? nsa::control::run_daemon(options)
                                   : nsa::control::run_agent(options);
}

} // namespace

int main(int argc, char** argv) {
  nsa::control::DaemonOptions options;
  Values values;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    std::string* value = values.find(name);
    options.arguments.push_back(name);
    if (name == "--help") return std::fputs(kHelp, stdout) < 0;
    if (name == "--version")
      return std::printf("nsad %s (%s)\n", nsa::build_info().version.c_str(),
                         nsa::build_info().commit.c_str()) < 0;
    if (name == "--system") {
      options.system_mode = true;
    } else if (value == nullptr || i + 1 == argc) {
      return report(bad_option(name, values), kUsage);
    } else {
      // Paths become absolute, so that a shim can start nsad again from any folder.
      *value = is_path(name) ? std::filesystem::absolute(argv[++i]).string() : argv[++i];
      options.arguments.push_back(*value);
    }
  }
  if (!values.log.empty())
    if (const auto opened = write_to(values.log); !opened)
      return report(opened.error(), kBadConfig);
  auto join = join_options(values, options.system_mode);
  if (!join) return report(join.error(), kUsage);
  options.join = std::move(*join);
  auto paths = options.system_mode ? nsa::Result<nsa::net::NodePaths>(nsa::net::system_paths())
                                   : nsa::net::user_paths();
  if (!paths) return report(paths.error(), kBadConfig);
  options.paths = std::move(*paths);
  if (!values.state.empty()) options.paths.state = values.state;
  if (!values.state.empty()) options.paths.log = values.state + "/nsad.log";
  if (!values.socket.empty()) options.paths.socket = values.socket;
  const std::string node_file = values.config.empty() ? options.paths.config : values.config;
  // Root reads only a file that only root can write.
  if (options.system_mode && ::access(node_file.c_str(), F_OK) == 0)
    if (auto trusted = nsa::privilege::check_trusted(node_file); !trusted)
      return report(trusted.error(), kBadConfig);
  auto node = nsa::control::read_node_file(node_file, !values.config.empty());
  if (!node) return report(node.error(), kBadConfig);
  options.config = std::move(*node);
  options.program = std::filesystem::read_symlink("/proc/self/exe").string();
  if (auto chosen = choose_host(options); !chosen) return report(chosen.error(), kBadConfig);
  const auto done = run(options);
  if (done) return 0;
  // An agent that the head refuses needs a person to look at it.
  const bool is_refused =
      !options.join.head.empty() && done.error().code == nsa::ErrorCode::kPermission;
  return report(done.error(), is_refused ? kBadConfig : 1);
}
