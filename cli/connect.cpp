#include "cli/connect.h"

#include "common/base/file.h"
#include "common/base/printable.h"
#include "common/net/paths.h"

#include <cstdlib>
#include <filesystem>

namespace nsa::cli {

namespace {

constexpr const char* kHostFile = "/etc/nsa/nsactl.toml";
constexpr size_t kMaxBytes = 1 << 16;

bool has_named_socket() {
  const char* named = std::getenv("NSA_SOCKET");
  return named != nullptr && *named != '\0';
}

} // namespace

Result<spec::ClientSpec> read_client_files() {
  spec::ClientSpec spec;
  NSA_TRY_ASSIGN(const net::NodePaths paths, net::user_paths());
  const std::string own = std::filesystem::path(paths.config).replace_filename("nsactl.toml");
  for (const std::string& path : {std::string(kHostFile), own}) {
    const auto text = read_file(path, kMaxBytes);
    if (!text && text.error().code == ErrorCode::kNotFound) continue;
    if (!text) return fail(text.error());
    const auto problems = spec::read_client_file(*text, path, spec);
    if (!problems.empty())
      return fail(ErrorCode::kInvalidArgument, spec::format_problem(problems.front()),
                  "docs/nsactl-file.md lists the keys; without the file all have their defaults");
  }
  return spec;
}

Result<client::Daemon> connect(const Context& context, bool may_start) {
  NSA_TRY_ASSIGN(const spec::ClientSpec spec, read_client_files());
  for (const std::string& old : spec.old_names)
    context.io.err << "warning: nsactl.toml: " << printable(old) << "\n";
  client::DaemonAddress address;
  address.socket = context.socket;
  address.program_dir = context.program_dir;
  address.may_start = may_start && context.may_start;
  address.notice = [&io = context.io](const std::string& text) {
    io.err << "note: " << printable(text) << "\n";
  };
  address.system_socket = spec.system_socket;
  address.escape = !context.raw && context.output != Output::kJson;
  const bool named = !context.socket.empty() || has_named_socket();
  if (context.system || (!named && spec.daemon == spec::Answering::kSystem))
    address.socket = spec.system_socket;
  NSA_TRY_ASSIGN(client::Daemon daemon, client::Daemon::connect(address));
  if (context.quiet || context.output == Output::kJson) return daemon;
  if (daemon.is_system())
    context.io.err << "the system's nsad answers, on " << daemon.socket() << "\n";
  else if (daemon.was_started() && net::HttpClient::connect_unix(spec.system_socket))
    context.io.err << "started your own nsad; to use the system's, add --system\n";
  return daemon;
}

} // namespace nsa::cli
