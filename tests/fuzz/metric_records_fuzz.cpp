// metrics.jsonl, a file that a rank owns. For any contents, complete and reduced records are lines
// of JSON, and the last line counts them.
#include "common/curves/flat_record.h"
#include "daemon/api/metric_records.h"
#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

namespace {

void read_all(std::string_view text, nsa::api::MetricQuery query) {
  using namespace nsa;
  const FileOpener open = [text](const std::filesystem::path&) -> Result<UniqueFd> {
    UniqueFd file(::memfd_create("fuzz", MFD_CLOEXEC));
    if (!file || ::write(file.get(), text.data(), text.size()) < 0 ||
        ::lseek(file.get(), 0, SEEK_SET) != 0)
      return fail_errno("memfd");
    return file;
  };
  api::MetricRecords records("fuzz.jsonl", open, std::move(query));
  std::string lines;
  while (true) {
    const auto piece = records.next();
    fuzz::expect(piece.has_value(), "a file that can be read gives pieces");
    lines += piece->lines;
    if (piece->at_end) break;
  }
  for (size_t at = 0; at < lines.size();) {
    const size_t end = lines.find('\n', at);
    fuzz::expect(end != std::string::npos, "every line ends");
    fuzz::expect(check_json(std::string_view(lines).substr(at, end - at), "a line").has_value(),
                 "every line is JSON");
    at = end + 1;
  }
  fuzz::expect(lines.find("\"end\"") != std::string::npos, "the end is told");
}

// What the fast scanner accepts as a record equals what the JSON parser reads.
void read_as_record(std::string_view text) {
  using namespace nsa;
  curves::FlatRecord quick;
  if (!quick.read(text)) return;
  const auto tree = parse_json(text, "a record");
  if (!tree) return; // a number that no double can represent, or too deep
  const curves::FlatRecord slow = curves::flat_record(*tree);
  fuzz::expect(quick.kind == slow.kind && quick.time == slow.time && quick.numbers == slow.numbers,
               "both ways to read a record agree");
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = nsa::fuzz::text_of(data, size);
  read_as_record(text);
  read_all(text, {});
  read_all(text, {.metrics = {"loss", "gates.0/selected"}, .points = 10});
  read_all(text, {.metrics = {"loss"}, .points = 10, .first_step = 2, .last_step = 5});
  return 0;
}
