#include "common/curves/curve_index.h"

#include <algorithm>
#include <charconv>
#include <type_traits>

namespace nsa::curves {

namespace {

constexpr std::string_view kMetricLine = "{\"kind\":";
constexpr std::string_view kSegmentLine = "{\"begin\":";

nlohmann::json json_of(const CurvePoint& place) {
  return nlohmann::json::array({place.attempt, place.step, place.tokens, place.time, place.value});
}

CurvePoint place_of(const nlohmann::json& json) {
  return {json.at(0).get<int64_t>(), json.at(1).get<double>(), json.at(2).get<double>(),
          json.at(3).get<std::string>(), json.at(4).get<double>()};
}

// Returns the beginning of a metric's line. Members are written in this order.
std::string beginning_of(std::string_view kind, std::string_view metric) {
  return std::string(kMetricLine) + nlohmann::json(kind).dump() +
         ",\"metric\":" + nlohmann::json(metric).dump() + ",";
}

void append_metric(std::string& lines, std::string_view kind, std::string_view metric,
                   const Extremes& extremes) {
  lines += beginning_of(kind, metric) + "\"least\":" + json_of(extremes.least).dump() +
           ",\"greatest\":" + json_of(extremes.greatest).dump() + "}\n";
}

} // namespace

uint64_t check_of(std::string_view last_bytes) { // FNV-1a
  uint64_t hash = 14695981039346656037ull;
  for (const char c : last_bytes)
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

bool SegmentBuilder::add(const FlatRecord& record, int64_t bytes) {
  if (record.kind.empty()) {
    add_unreadable(bytes);
    return true;
  }
  Kind& kind = kinds_[record.kind];
  CurvePoint place;
  place.step = record.number_or("step", NAN);
  if (!std::isnan(place.step)) {
    if (place.step <= kind.greatest) return false;
    place.attempt = static_cast<int64_t>(record.number_or("attempt", 0));
    place.tokens = record.number_or("tokens", 0);
    place.time = record.time;
    kind.least = std::min(kind.least, place.step);
    kind.greatest = place.step;
    take(kind, record, place);
  }
  ++kind.records;
  end_ += bytes;
  return true;
}

void SegmentBuilder::add_unreadable(int64_t bytes) {
  ++unreadable_;
  end_ += bytes;
}

void SegmentBuilder::take(Kind& kind, const FlatRecord& record, const CurvePoint& place) {
  const auto keep = [&place](CurvePoint& kept, double value) {
    kept = place;
    kept.value = value;
  };
  for (const auto& [name, value] : record.numbers) {
    if (!std::isfinite(value)) continue;
    const auto [found, is_new] = kind.metrics.try_emplace(name);
    Extremes& extremes = found->second;
    if (is_new || value < extremes.least.value) keep(extremes.least, value);
    if (is_new || value > extremes.greatest.value) keep(extremes.greatest, value);
  }
}

std::string SegmentBuilder::lines(uint64_t check) const {
  std::string lines;
  nlohmann::json kinds = nlohmann::json::object();
  for (const auto& [name, kind] : kinds_) {
    for (const auto& [metric, extremes] : kind.metrics)
      append_metric(lines, name, metric, extremes);
    nlohmann::json& told = kinds[name] = nlohmann::json::array({kind.records});
    if (kind.greatest >= kind.least) {
      told.push_back(kind.least);
      told.push_back(kind.greatest);
    }
  }
  return lines + std::string(kSegmentLine) + std::to_string(begin_) +
         ",\"end\":" + std::to_string(end_) + ",\"check\":" + std::to_string(check) +
         ",\"unreadable\":" + std::to_string(unreadable_) + ",\"kinds\":" + kinds.dump() + "}\n";
}

namespace {

// Parses a metric's line in the form that SegmentBuilder writes, about ten times as fast as a JSON
// parser. Returns false for any other form.
class PlaceReader {
public:
  explicit PlaceReader(std::string_view text) : text_(text) {}

  bool take(std::string_view expected) {
    if (!text_.starts_with(expected)) return false;
    text_.remove_prefix(expected.size());
    return true;
  }
  bool place(CurvePoint& place) {
    return take("[") && number(place.attempt) && take(",") && number(place.step) && take(",") &&
           number(place.tokens) && take(",\"") && plain_text(place.time) && take("\",") &&
           number(place.value) && take("]");
  }
  bool at_end() const { return text_.empty(); }

private:
  template <class T> bool number(T& value) {
    const auto read = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (read.ec != std::errc()) return false;
    if constexpr (std::is_floating_point_v<T>)
      if (!std::isfinite(value)) return false; // "inf" is not JSON
    text_.remove_prefix(static_cast<size_t>(read.ptr - text_.data()));
    return true;
  }
  bool plain_text(std::string& text) { // accepts no escapes
    const size_t end = text_.find_first_of("\"\\");
    if (end == std::string_view::npos || text_[end] != '"') return false;
    text = text_.substr(0, end);
    if (std::any_of(text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }))
      return false;
    text_.remove_prefix(end);
    return true;
  }

  std::string_view text_;
};

std::optional<Extremes> read_extremes(std::string_view members) {
  PlaceReader reader(members);
  Extremes extremes;
  if (reader.take("\"least\":") && reader.place(extremes.least) && reader.take(",\"greatest\":") &&
      reader.place(extremes.greatest) && reader.take("}") && reader.at_end())
    return extremes;
  return std::nullopt;
}

// Reads line by line. A line of a metric that was not requested costs one comparison.
class IndexReader {
public:
  IndexReader(std::string_view kind, const std::vector<std::string>& metrics) : kind_(kind) {
    for (const std::string& metric : metrics)
      beginnings_.push_back(beginning_of(kind, metric));
    segment_.metrics.resize(metrics.size());
  }

  // Returns false if the line is not part of an index.
  bool take(std::string_view line, size_t end_of_line) {
    if (line.starts_with(kSegmentLine)) return end_segment(line, end_of_line);
    for (size_t i = 0; i < beginnings_.size(); ++i)
      if (line.starts_with(beginnings_[i])) return take_metric(line, i);
    return line.starts_with(kMetricLine);
  }

  std::vector<Segment> segments;

private:
  bool take_metric(std::string_view line, size_t metric) {
    if (auto extremes = read_extremes(line.substr(beginnings_[metric].size()))) {
      segment_.metrics[metric] = std::move(*extremes);
      return true;
    }
    const auto json = parse_json(line, "an index");
    if (!json) return false;
    segment_.metrics[metric] = {place_of(json->at("least")), place_of(json->at("greatest"))};
    return true;
  }

  bool end_segment(std::string_view line, size_t end_of_line) {
    const auto json = parse_json(line, "an index");
    if (!json) return false;
    segment_.begin = json->at("begin").get<int64_t>();
    segment_.end = json->at("end").get<int64_t>();
    segment_.check = json->at("check").get<uint64_t>();
    segment_.unreadable = json->at("unreadable").get<int64_t>();
    if (segment_.begin != (segments.empty() ? 0 : segments.back().end) ||
        segment_.end <= segment_.begin || segment_.end - segment_.begin > kLongestSegment)
      return false;
    const nlohmann::json& kinds = json->at("kinds");
    if (const auto own = kinds.find(kind_); own != kinds.end()) {
      segment_.records = own->at(0).get<int64_t>();
      if (own->size() == 3) {
        segment_.least = own->at(1).get<double>();
        segment_.greatest = own->at(2).get<double>();
      }
    }
    segment_.index_end = end_of_line;
    const size_t metrics = segment_.metrics.size();
    segments.push_back(std::exchange(segment_, {}));
    segment_.metrics.resize(metrics);
    return true;
  }

  const std::string kind_;
  std::vector<std::string> beginnings_;
  Segment segment_;
};

} // namespace

std::vector<Segment> read_index(std::string_view index, std::string_view kind,
                                const std::vector<std::string>& metrics) {
  IndexReader reader(kind, metrics);
  try {
    size_t from = 0;
    for (size_t end; (end = index.find('\n', from)) != std::string_view::npos; from = end + 1)
      if (!reader.take(index.substr(from, end - from), end + 1)) break;
  } catch (const nlohmann::json::exception&) { // a member is missing or has another type
    return std::move(reader.segments);
  }
  return std::move(reader.segments);
}

} // namespace nsa::curves
