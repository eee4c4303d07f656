#include "daemon/metrics/render.h"

#include "daemon/metrics/catalogue.h"
#include "daemon/metrics/process.h"

#include <limits>
#include <prometheus/collectable.h>
#include <prometheus/text_serializer.h>
#include <sstream>

namespace nsa::metrics {

namespace {

prometheus::MetricType type_of(Type type) {
  switch (type) {
  case Type::kCounter:
    return prometheus::MetricType::Counter;
  case Type::kHistogram:
    return prometheus::MetricType::Histogram;
  case Type::kGauge:
    break;
  }
  return prometheus::MetricType::Gauge;
}

// Collects the samples of one row in prometheus-cpp's types.
class FamilySamples : public Samples {
public:
  explicit FamilySamples(const Row& row) : type_(row.type) {
    family.name = std::string(row.name);
    family.help = std::string(row.meaning);
    family.type = type_of(row.type);
  }

  void value(Labels labels, double value) override {
    prometheus::ClientMetric& metric = add(std::move(labels));
    if (type_ == Type::kCounter)
      metric.counter.value = value;
    else
      metric.gauge.value = value;
  }

  void histogram(Labels labels, const Histogram& histogram) override {
    prometheus::ClientMetric& metric = add(std::move(labels));
    uint64_t below = 0;
    for (size_t i = 0; i < histogram.counts().size(); ++i) {
      below += histogram.counts()[i];
      const double bound = i < histogram.bounds().size() ? histogram.bounds()[i]
                                                         : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({below, bound});
    }
    metric.histogram.sample_count = below;
    metric.histogram.sample_sum = histogram.sum();
  }

  prometheus::MetricFamily family;

private:
  prometheus::ClientMetric& add(Labels labels) {
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    for (auto& [name, value] : labels)
      metric.label.push_back({std::move(name), std::move(value)});
    return metric;
  }

  Type type_;
};

// Connects a snapshot to prometheus-cpp. Each scrape builds the families from the snapshot, and
// nothing is registered.
class SnapshotCollectable : public prometheus::Collectable {
public:
  explicit SnapshotCollectable(const Snapshot& snapshot) : snapshot_(snapshot) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families;
    for (const std::vector<Row>* rows : {&catalogue(), &process_catalogue()})
      for (const Row& row : *rows) {
        FamilySamples samples(row);
        row.read(snapshot_, samples);
        if (!samples.family.metric.empty()) families.push_back(std::move(samples.family));
      }
    return families;
  }

private:
  const Snapshot& snapshot_;
};

} // namespace

std::string render(const Snapshot& snapshot) {
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, SnapshotCollectable(snapshot).Collect());
  return std::move(text).str();
}

} // namespace nsa::metrics
