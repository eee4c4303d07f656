// A node to measure: a real nsad in a temporary folder. It supervises one run whose ranks only
// pretend to compute. The destructor ends the run and the daemon and removes the folder. One
// thread.
#pragma once

#include "common/base/json.h"
#include "common/base/result.h"
#include "common/net/http_client.h"

#include <filesystem>
#include <string>
#include <sys/types.h>

namespace nsa::bench {

class Node {
public:
  // `programs`: the folder of nsad, nsa-shim and nsa-fake-worker.
  static Result<std::unique_ptr<Node>> start(const std::filesystem::path& programs);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  const std::string& run() const { return run_; }
  std::filesystem::path logs() const { return run_folder_ / "attempts" / "1" / "logs"; }
  std::string run_file(const std::filesystem::path& data) const;

  Result<net::ClientResponse> ask(const std::string& method, const std::string& target,
                                  const std::string& body = "") const;
  // Reads at most `most` bytes of a stream, then disconnects. Returns the number of bytes read.
  Result<uint64_t> read(const std::string& target, uint64_t most) const;
  Result<nlohmann::json> get(const std::string& target) const;
  Result<net::ClientResponse> submit(const std::string& toml) const;

  uint64_t step() const;        // step that the run has reached
  uint64_t peak_memory() const; // peak memory of nsad in bytes

private:
  Node() = default;
  Status begin(const std::filesystem::path& programs);

  std::filesystem::path folder_, run_folder_;
  std::string socket_, run_;
  pid_t daemon_ = -1;
};

} // namespace nsa::bench
