#include "common/curves/flat_record.h"

#include "common/base/json_scanner.h"

#include <algorithm>
#include <charconv>

namespace nsa::curves {

namespace {

class FlatReader {
public:
  explicit FlatReader(FlatRecord& record) : record_(record) {}
  ~FlatReader() { record_.numbers.resize(count_); }

  std::string* begin(std::string_view path) {
    path_ = path;
    return path == "kind" ? &record_.kind : path == "time" ? &record_.time : nullptr;
  }
  void text() {}
  bool number(std::string_view text) {
    if (count_ == record_.numbers.size()) record_.numbers.emplace_back();
    auto& [path, value] = record_.numbers[count_++];
    path = path_;
    return std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc();
  }
  bool element(std::string_view) { return false; } // kPlain has no arrays

private:
  FlatRecord& record_;
  std::string_view path_;
  size_t count_ = 0; // number of the record's numbers
};

void take_numbers(const nlohmann::json& members, const std::string& prefix, FlatRecord& record) {
  for (const auto& [name, value] : members.items()) {
    if (value.is_object()) take_numbers(value, prefix + name + ".", record);
    if (value.is_number()) record.numbers.emplace_back(prefix + name, value.get<double>());
  }
}

std::string text_at(const nlohmann::json& record, const char* name) {
  const auto member = record.find(name);
  return member != record.end() && member->is_string() ? member->get<std::string>() : "";
}

} // namespace

double FlatRecord::number_or(std::string_view name, double absent) const {
  const auto found = std::find_if(numbers.begin(), numbers.end(),
                                  [&](const auto& number) { return number.first == name; });
  return found == numbers.end() ? absent : found->second;
}

bool FlatRecord::read(std::string_view line) {
  kind.clear();
  time.clear();
  FlatReader reader(*this);
  return JsonScanner<FlatReader, JsonForm::kPlain>(line, reader).scan();
}

FlatRecord flat_record(const nlohmann::json& record) {
  FlatRecord flat;
  if (!record.is_object()) return flat;
  flat.kind = text_at(record, "kind");
  flat.time = text_at(record, "time");
  take_numbers(record, "", flat);
  return flat;
}

} // namespace nsa::curves
