#include "daemon/api/metric_line.h"

#include "common/base/json_scanner.h"

#include <charconv>
#include <limits>

namespace nsa::api {

namespace {

constexpr double kNotThere = std::numeric_limits<double>::quiet_NaN();

class WantedNumbers {
public:
  WantedNumbers(const std::vector<std::string>& names, MetricLine& line)
      : names_(names), line_(line) {}

  std::string* begin(std::string_view path) {
    into_ = nullptr;
    for (size_t i = 0; i < names_.size() && into_ == nullptr; ++i)
      if (names_[i] == path) into_ = &line_.values[i];
    if (into_ != nullptr) *into_ = kNotThere;
    if (path == "kind") line_.has_kind = true;
    std::string* const text = path == "kind" ? &line_.kind : path == "time" ? &line_.time : nullptr;
    if (text != nullptr) text->clear();
    return text;
  }
  void text() {}
  bool number(std::string_view text) {
    return into_ == nullptr ||
           std::from_chars(text.data(), text.data() + text.size(), *into_).ec == std::errc{};
  }
  bool element(std::string_view) { return true; }

private:
  const std::vector<std::string>& names_;
  MetricLine& line_;
  double* into_ = nullptr; // where the current member's value goes
};

} // namespace

bool read_metric_line(std::string_view text, const std::vector<std::string>& names,
                      MetricLine& line) {
  line.kind.clear();
  line.time.clear();
  line.has_kind = false;
  line.values.assign(names.size(), kNotThere);
  WantedNumbers wanted(names, line);
  return JsonScanner(text, wanted).scan();
}

} // namespace nsa::api
