// Loads libnsa_sentencepiece.so, which is linked with SentencePiece.
#include "common/base/checksum.h"
#include "common/base/file.h"
#include "common/dataset/sentencepiece_plug_in.h"

#include <dlfcn.h>

namespace nsa::dataset {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostModelBytes = size_t{64} << 20;

Result<MakeSentencePieceTokenizer> load_plug_in() {
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& place :
       {folder / "../lib" / kSentencePieceLibrary, folder / kSentencePieceLibrary}) {
    if (!fs::exists(place, error)) continue;
    void* library = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
      return fail(ErrorCode::kUnavailable,
                  std::string("SentencePiece cannot be loaded: ") + ::dlerror(),
                  "install the library: apt-get install libsentencepiece0");
    if (void* entry = ::dlsym(library, kSentencePieceEntryPoint))
      return reinterpret_cast<MakeSentencePieceTokenizer>(entry);
    return fail(ErrorCode::kUnavailable,
                place.string() + " has no entry point " + kSentencePieceEntryPoint,
                "install the programs and libraries of one build");
  }
  return fail(ErrorCode::kUnsupported,
              std::string("this build reads no tokenizers of SentencePiece: ") +
                  kSentencePieceLibrary + " is not there",
              "install libsentencepiece-dev and build again");
}

} // namespace

Result<std::unique_ptr<Tokenizer>> load_sentencepiece_tokenizer(const fs::path& tokenizer_model) {
  const std::string doing = "reading " + tokenizer_model.string();
  NSA_TRY_ASSIGN(const std::string content, read_file(tokenizer_model, kMostModelBytes));
  static const Result<MakeSentencePieceTokenizer> make = load_plug_in();
  if (!make) return fail(Error(make.error()).within(doing));
  auto made = (*make)(content, checksum_hex(content));
  if (!made) return fail(std::move(made).error().within(doing));
  return made;
}

} // namespace nsa::dataset
