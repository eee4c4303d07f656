#include "common/curves/flat_record.h"

#include <algorithm>
#include <charconv>

namespace nsa::curves {

namespace {

constexpr int kDepth = 8;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

class FlatReader {
public:
  FlatReader(std::string_view line, FlatRecord& record)
      : at_(line.data()), end_(line.data() + line.size()), record_(record) {}

  bool read() {
    const bool is_plain = object(0) && at_ == end_;
    record_.numbers.resize(count_);
    return is_plain;
  }

private:
  bool take(char c) { return at_ < end_ && *at_ == c ? ++at_, true : false; }

  bool text(std::string_view& text) {
    if (!take('"')) return false;
    const char* begin = at_;
    while (at_ < end_ && *at_ >= ' ' && *at_ <= '~' && *at_ != '"' && *at_ != '\\')
      ++at_;
    text = {begin, static_cast<size_t>(at_ - begin)};
    return take('"');
  }

  bool digits() {
    const char* begin = at_;
    while (at_ < end_ && is_digit(*at_))
      ++at_;
    return at_ > begin;
  }
  bool number(double& value) {
    const char* begin = at_;
    take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      if (!digits()) return false;
    }
    return std::from_chars(begin, at_, value).ec == std::errc();
  }
  bool word(std::string_view expected) {
    if (!std::string_view(at_, static_cast<size_t>(end_ - at_)).starts_with(expected)) return false;
    at_ += expected.size();
    return true;
  }

  bool object(int depth) {
    if (depth > kDepth || !take('{')) return false;
    if (take('}')) return true;
    const size_t outer = prefix_.size();
    std::string_view before;
    do {
      std::string_view name;
      // Members come in order, as a tree gives them, so that none is there twice.
      if (!text(name) || !take(':') || (before.data() && name <= before)) return false;
      before = name;
      if (!member(name, depth)) return false;
      prefix_.resize(outer);
    } while (take(','));
    return take('}');
  }

  bool member(std::string_view name, int depth) {
    if (at_ == end_) return false;
    switch (*at_) {
    case '{':
      prefix_.append(name).push_back('.');
      return object(depth + 1);
    case '"': {
      std::string_view value;
      if (!text(value)) return false;
      if (depth == 0 && name == "kind") record_.kind = value;
      if (depth == 0 && name == "time") record_.time = value;
      return true;
    }
    case 't':
      return word("true");
    case 'f':
      return word("false");
    case 'n':
      return word("null");
    default:
      if (count_ == record_.numbers.size()) record_.numbers.emplace_back();
      auto& [path, value] = record_.numbers[count_++];
      path.assign(prefix_).append(name);
      return number(value);
    }
  }

  const char* at_;
  const char* end_;
  FlatRecord& record_;
  std::string prefix_; // "gates."
  size_t count_ = 0;   // of the record's numbers
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
  return FlatReader(line, *this).read();
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
