// Receives a folder of files from another node. Pieces are appended to <folder>.partial, so that a
// later call goes on where a cut one has ended. Every file is read back and held against its
// checksum; a damaged one is fetched once more. Only then does the folder get its name: it is whole
// or not there.
//
// Blocking; one call for a folder at a time.
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
  // `here`: bytes of all files that are on disk already.
  virtual Status ask(size_t file, Range range, uint64_t here) = 0;
  // Waits for the next piece, in the order in which they were asked for. kUnavailable: the link is
  // cut.
  virtual Result<Piece> next() = 0;
};

struct Received {
  uint64_t bytes = 0;   // of all files
  uint64_t fetched = 0; // that came over the link in this call
  int damaged = 0;      // files whose copy did not fit its checksum and was fetched anew
  double seconds = 0;
};
void to_json(nlohmann::json& json, const Received& received);
void from_json(const nlohmann::json& json, Received& received);

// kUnavailable: cut; what has come stays. kCorrupt: a file came twice with another checksum.
// kExhausted: the disk lacks the space, which is looked at before anything is asked for.
Result<Received> receive(const std::vector<File>& files, const std::filesystem::path& folder,
                         Source& source);

// What a sender says of a file in its folder: size and checksum are read. Blocking.
Result<File> describe(const std::filesystem::path& path);

} // namespace nsa::transfer
