// Receives a folder of files from another node. Pieces are appended to <folder>.partial, so that a
// later call resumes an interrupted one. Every file is read back and compared with its checksum; a
// damaged one is fetched once more. Only then is the folder renamed, so it is complete or absent.
//
// Blocking; only one call for a folder at a time.
#pragma once

#include "common/transfer/plan.h"

#include <filesystem>

namespace nsa::transfer {

struct Piece {
  size_t file = 0;
  uint64_t offset = 0;
  std::string bytes;
};

// Where pieces come from.
class Source {
public:
  virtual ~Source() = default;
  // `here` is the number of bytes of all files that are already on disk.
  virtual Status ask(size_t file, Range range, uint64_t here) = 0;
  // Waits for the next piece, in the order of the requests. Error: kUnavailable if the link is cut.
  virtual Result<Piece> next() = 0;
};

struct Received {
  uint64_t bytes = 0;   // total size of all files
  uint64_t fetched = 0; // received over the link in this call
  int damaged = 0;      // files that did not match their checksum and were fetched again
  double seconds = 0;
};
void to_json(nlohmann::json& json, const Received& received);
void from_json(const nlohmann::json& json, Received& received);

// Errors: kUnavailable if the link is cut; received data stays. kCorrupt if a file twice had
// another checksum. kExhausted if the disk lacks space, which is checked before the first request.
Result<Received> receive(const std::vector<File>& files, const std::filesystem::path& folder,
                         Source& source);

// Reads a file's size and checksum, which a sender announces. Blocking.
Result<File> describe(const std::filesystem::path& path);

} // namespace nsa::transfer
