// nsa-bench: one command for the measuring programs, which are installed beside it. It replaces
// itself by the requested program (exec), so that each program links only what it measures.
#include "bench/arguments/arguments.h"
#include "common/base/build_info.h"
#include "common/base/text.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

namespace {

struct Subject {
  const char* name;
  const char* what;
  const char* example;
};
constexpr Subject kSubjects[] = {
    {"model", "training steps of the whole model, NSA and dense: tokens/s, ms, memory, MFU",
     "nsa-bench model --json"},
    {"attention", "one layer's attention by branch, beside cuDNN and ATen flash",
     "nsa-bench attention --sequence 2048,8192"},
    {"decode", "one decoding step's attention over caches, beside PyTorch's dense attention",
     "nsa-bench decode --context 32768"},
    {"data", "tokenising, preparing, verifying and loading of a text", "nsa-bench data TEXT RANKS"},
    {"daemon", "how late nsad's loop is under requests that take long",
     "nsa-bench daemon --seconds 10"}};

constexpr int kUsageError = 2;

void print_help() {
  std::printf("Measures this system on this machine.\n\nUsage: nsa-bench SUBJECT [options]\n\n"
              "Subjects:\n");
  for (const Subject& subject : kSubjects)
    std::printf("  %-11s %s\n", subject.name, subject.what);
  std::printf("\nExamples:\n");
  for (const Subject& subject : kSubjects)
    std::printf("  %s\n", subject.example);
  std::printf("\nnsa-bench SUBJECT --help has the options of each.\n");
}

// Returns only if the program cannot be started. `words`: its name and its arguments.
int start(const Subject& subject, char** words) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto program = self.parent_path() / (std::string("nsa-bench-") + subject.name);
  ::execv(program.c_str(), words);
  if (errno == ENOENT) {
    std::fprintf(
        stderr,
        "error: %s is not there: model, attention and decode come with builds that have LibTorch\n",
        program.c_str());
  } else {
    std::fprintf(stderr, "error: cannot start %s: %s\n", program.c_str(), std::strerror(errno));
  }
  return 1;
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    print_help();
    return kUsageError;
  }
  const std::string word = argv[1];
  if (word == "--help" || word == "-h" || (word == "help" && argc == 2)) {
    print_help();
    return 0;
  }
  if (word == "--version") {
    std::printf("nsa-bench %s (%s)\n", nsa::build_info().version.c_str(),
                nsa::build_info().commit.c_str());
    return 0;
  }
  std::vector<std::string> names;
  for (const Subject& subject : kSubjects) {
    names.emplace_back(subject.name);
    if (word == subject.name) return start(subject, argv + 1);
    if (word == "help" && argv[2] == std::string(subject.name)) {
      char help[] = "--help";
      char* words[] = {argv[2], help, nullptr};
      return start(subject, words);
    }
  }
  const std::string asked = word == "help" ? argv[2] : word;
  const auto nearest = nsa::nearest_name(asked, names);
  std::fprintf(stderr, "error: nsa-bench measures %s, not \"%s\"%s\n",
               nsa::join(names, ", ").c_str(), asked.c_str(),
               nearest ? (": did you mean " + *nearest + "?").c_str() : "");
  return kUsageError;
}
