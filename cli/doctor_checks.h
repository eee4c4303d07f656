// The checks of `nsactl doctor`, one function for each subject. They read /proc, /dev, /sys and
// nsad's folders, and block for at most a second.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace nsa::cli {

struct Finding {
  enum class Grade { kGood, kNote, kBad };
  Grade grade = Grade::kGood;
  std::string what;  // "disk"
  std::string found; // "212 GiB free in ~/.local/state/nsa"
  std::string fix;   // what to do; empty if the finding is good
};

// Runs all checks, the most important first. `program_dir` is the folder of the running nsactl.
std::vector<Finding> examine(const std::string& program_dir);

// The single checks, exposed for tests.
Finding check_program(const std::string& program_dir, const std::string& name);
Finding check_disk(const std::filesystem::path& folder);
Finding check_fsync(const std::filesystem::path& folder);
Finding check_port(const std::string& address, int port);
Finding check_cgroup(const std::filesystem::path& root);

} // namespace nsa::cli
