// What `nsactl doctor` looks at, one function a matter. Reads /proc, /dev, /sys and the folders of
// nsad; blocking, a second at most.
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
  std::string fix;   // what to do about it; empty when good
};

// Everything, in the order in which it matters. `program_dir`: folder of the running nsactl.
std::vector<Finding> examine(const std::string& program_dir);

// The parts, for tests.
Finding check_program(const std::string& program_dir, const std::string& name);
Finding check_disk(const std::filesystem::path& folder);
Finding check_fsync(const std::filesystem::path& folder);
Finding check_port(const std::string& address, int port);
Finding check_cgroup(const std::filesystem::path& root);

} // namespace nsa::cli
