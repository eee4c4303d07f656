// What most verbs begin with: a connection to nsad as the global options say.
#pragma once

#include "cli/client/daemon.h"
#include "cli/verb.h"

namespace nsa::cli {

// `may_start` false: never start nsad, whatever the options say.
inline Result<client::Daemon> connect(const Context& context, bool may_start = true) {
  return client::Daemon::connect(
      {context.socket, context.program_dir, may_start && context.may_start,
       [&io = context.io](const std::string& text) { io.err << "note: " << text << "\n"; }});
}

} // namespace nsa::cli
