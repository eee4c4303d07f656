// What most verbs begin with: a connection to nsad as the global options and nsactl.toml say.
//
// A user's own nsad answers unless the system's is asked for: by --system, or by `daemon =
// "system"` in nsactl.toml. --socket and NSA_SOCKET name a socket and beat the file.
#pragma once

#include "cli/client/daemon.h"
#include "cli/verb.h"
#include "common/spec/client_spec.h"

namespace nsa::cli {

// /etc/nsa/nsactl.toml, and over it the user's own beside nsad.toml. kInvalidArgument names the
// first mistake.
Result<spec::ClientSpec> read_client_files();

// `may_start` false: never start nsad, whatever the options say. Says on standard error when the
// system's nsad answers, and when an own one was started beside it.
Result<client::Daemon> connect(const Context& context, bool may_start = true);

} // namespace nsa::cli
