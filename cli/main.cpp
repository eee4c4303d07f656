// nsactl: the command line of nsad.
#include "cli/command.h"
#include "cli/verbs.h"

#include <filesystem>
#include <iostream>
#include <sys/ioctl.h>
#include <unistd.h>

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  const auto width = [] {
    winsize size{};
    return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? int{size.ws_col} : 0;
  };
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const nsa::cli::Terminal terminal{std::cout,
                                    std::cerr,
                                    std::cin,
                                    ::isatty(STDOUT_FILENO) == 1,
                                    ::isatty(STDERR_FILENO) == 1,
                                    ::isatty(STDIN_FILENO) == 1,
                                    width,
                                    self.parent_path().string()};
  return nsa::cli::run_command(nsa::cli::all_verbs(), {argv + 1, argv + argc}, terminal);
}
