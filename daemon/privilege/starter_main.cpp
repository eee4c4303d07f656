// nsa-starter --daemon-uid N --group-id N --minimum-uid N --runs-folder DIR
//
// `nsad --system` starts this program while it is root; descriptor 3 is the socket to nsad. Without
// root and that socket the program exits at once, so it is of no use to anyone else.
#include "common/base/log.h"
#include "daemon/privilege/starter.h"

#include <charconv>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>

namespace {

int usage(const std::string& why) {
  std::fprintf(stderr,
               "nsa-starter: %s\nnsad --system starts it; it is of no use by itself\n"
               "usage: nsa-starter --daemon-uid N --group-id N --minimum-uid N --runs-folder DIR\n",
               why.c_str());
  return 2;
}

} // namespace

int main(int argc, char** argv) {
  namespace privilege = nsa::privilege;
  privilege::StarterOptions options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) return usage(name + " needs a value");
    const char* const value = argv[i + 1];
    if (name == "--runs-folder") {
      options.runs_folder.reset(::open(value, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!options.runs_folder) return usage(std::string("cannot open ") + value);
      continue;
    }
    uint32_t* const number = name == "--daemon-uid"    ? &options.rules.daemon
                             : name == "--group-id"    ? &options.rules.group
                             : name == "--minimum-uid" ? &options.rules.minimum_uid
                                                       : nullptr;
    const char* const end = value + std::strlen(value);
    if (number == nullptr) return usage(name + " is no option");
    if (std::from_chars(value, end, *number).ptr != end) return usage(name + " takes a number");
  }
  if (options.rules.daemon == 0 || options.rules.group == 0 || !options.runs_folder)
    return usage("an option is missing");
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(privilege::kStarterSocketFd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 ||
      type != SOCK_SEQPACKET)
    return usage("descriptor 3 is not the socket of nsad");
  ::fcntl(privilege::kStarterSocketFd, F_SETFD, FD_CLOEXEC);
  if (::geteuid() != 0) return usage("it is not root");
  privilege::Starter starter(nsa::UniqueFd(privilege::kStarterSocketFd), std::move(options));
  if (const auto done = starter.run(); !done) {
    nsa::log::error("starter", done.error().what);
    return 1;
  }
  return 0;
}
