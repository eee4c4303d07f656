// Connects to nsad as the global options and nsactl.toml say. Most verbs begin with it.
//
// nsactl uses the user's own nsad unless --system, or `daemon = "system"` in nsactl.toml, selects
// the system's. The option --socket and the variable NSA_SOCKET name a socket and override the
// file.
#pragma once

#include "cli/client/daemon.h"
#include "cli/verb.h"
#include "common/spec/client_spec.h"

namespace nsa::cli {

// Reads /etc/nsa/nsactl.toml, and then the user's own file beside nsad.toml, which overrides it.
// The error kInvalidArgument names the first mistake.
Result<spec::ClientSpec> read_client_files();

// If `may_start` is false, nsad is never started, whatever the options say. A message on standard
// error says when the system's nsad answers, and when the user's own one was started beside it.
Result<client::Daemon> connect(const Context& context, bool may_start = true);

} // namespace nsa::cli
