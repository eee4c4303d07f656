#include "daemon/metrics/catalogue.h"

#include "common/progress/phase.h"
#include "daemon/metrics/process.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <type_traits>

namespace nsa::metrics {

namespace {

// ---- Rows for single figures (figure.h) ---------------------------------------------------------

Labels of(const RunSample& run) {
  return {{"run_id", run.id}};
}
Labels of(const RunSample& run, const RankSample& rank) {
  return {{"run_id", run.id}, {"rank", std::to_string(rank.rank)}};
}

template <class Sample> constexpr std::string_view kLabels;
template <> constexpr std::string_view kLabels<RunSample> = "run_id";
template <> constexpr std::string_view kLabels<RankSample> = "run_id, rank";
template <> constexpr std::string_view kLabels<GpuSample> = "node, gpu";
template <> constexpr std::string_view kLabels<NodeSample> = "node";
template <> constexpr std::string_view kLabels<DaemonSample> = "";

// Calls visit(labels, sample) for each sample of the type `Sample`.
template <class Sample, class Visit> void for_each_sample(const Snapshot& snapshot, Visit visit) {
  if constexpr (std::is_same_v<Sample, RunSample>) {
    for (const RunSample& run : snapshot.runs)
      visit(of(run), run);
  } else if constexpr (std::is_same_v<Sample, RankSample>) {
    for (const RunSample& run : snapshot.runs)
      for (const RankSample& rank : run.ranks)
        visit(of(run, rank), rank);
  } else if constexpr (std::is_same_v<Sample, GpuSample>) {
    for (const GpuSample& gpu : snapshot.daemon.gpus)
      visit(Labels{{"node", snapshot.daemon.node}, {"gpu", std::to_string(gpu.index)}}, gpu);
  } else if constexpr (std::is_same_v<Sample, NodeSample>) {
    for (const NodeSample& node : snapshot.daemon.nodes)
      visit(Labels{{"node", node.node}}, node);
  } else {
    visit(Labels{}, snapshot.daemon);
  }
}

Labels with(Labels labels, std::string_view label, std::string value) {
  labels.emplace_back(label, std::move(value));
  return labels;
}

const std::string& key_text(const std::string& key) {
  return key;
}
std::string key_text(uint64_t key) {
  return std::to_string(key);
}

// These overloads report one value each. An unknown value has no series.
void tell(const Labels& labels, const Histogram& histogram, Samples& out) {
  out.histogram(labels, histogram);
}
void tell(const Labels& labels, WallTime time, Samples& out) {
  if (time.nanoseconds != 0) out.value(labels, time.seconds());
}
template <class Number>
  requires std::is_arithmetic_v<Number>
void tell(const Labels& labels, Number value, Samples& out) {
  out.value(labels, static_cast<double>(value));
}
template <class Value>
void tell(const Labels& labels, const std::optional<Value>& value, Samples& out) {
  if (value) tell(labels, *value, out);
}

// Reports a map. The series are the words of its label if it has some, and its keys otherwise.
template <class Key, class Value>
void tell(const Labels& labels, const Described& of, const std::map<Key, Value>& map,
          Samples& out) {
  if (of.words.empty())
    for (const auto& [key, value] : map)
      tell(with(labels, of.label, key_text(key)), value, out);
  if constexpr (std::is_same_v<Key, std::string>) {
    for (const std::string_view word : of.words) {
      const auto found = map.find(std::string(word));
      Labels all = with(labels, of.label, std::string(word));
      if (found != map.end())
        tell(all, found->second, out);
      else if constexpr (std::is_arithmetic_v<Value>)
        tell(all, Value(0), out);
      else
        tell(all, recovery_histogram(), out); // only recovery times have words among histograms
    }
    if constexpr (std::is_arithmetic_v<Value>) {
      Value other = 0;
      for (const auto& [key, value] : map)
        if (std::find(of.words.begin(), of.words.end(), key) == of.words.end()) other += value;
      if (!of.words.empty() && other != 0) tell(with(labels, of.label, "other"), other, out);
    }
  }
}
template <class Value>
void tell(const Labels& labels, const Described&, const Value& value, Samples& out) {
  tell(labels, value, out);
}

template <class Sample> std::vector<Row> rows_of() {
  std::vector<Row> rows;
  for_each_figure<Sample>([&](const auto& figure) {
    std::string labels(kLabels<Sample>);
    if (!figure.of.label.empty())
      labels += (labels.empty() ? "" : ", ") + std::string(figure.of.label);
    rows.push_back({figure.of.name, figure.of.type, std::move(labels), figure.of.meaning,
                    [figure](const Snapshot& snapshot, Samples& out) {
                      for_each_sample<Sample>(snapshot,
                                              [&](const Labels& at, const Sample& sample) {
                                                tell(at, figure.of, sample.*figure.at, out);
                                              });
                    },
                    figure.of.on_dashboard});
  });
  return rows;
}

// Returns rows for the values that nsad computes from step records, for each run or each rank.
template <class Sample> std::vector<Row> step_rows(std::string_view wire::Metric::* name) {
  std::vector<Row> rows;
  for (size_t i = 0; i < wire::kStepMetrics.size(); ++i) {
    const wire::Metric& metric = wire::kStepMetrics[i].metric;
    if ((metric.*name).empty()) continue;
    rows.push_back(
        {metric.*name, metric.over == wire::OverRecords::kSum ? Type::kCounter : Type::kGauge,
         std::string(kLabels<Sample>), metric.meaning,
         [i](const Snapshot& snapshot, Samples& out) {
           for_each_sample<Sample>(snapshot, [&](const Labels& at, const Sample& sample) {
             tell(at, sample.figures.at(i), out);
           });
         },
         metric.on_dashboard});
  }
  return rows;
}

// ---- Rows that combine several figures ----------------------------------------------------------

// A rank chooses the names of its phases. All unknown names share one series, so that the number of
// series stays bounded.
std::map<std::string, double> known_phases(const std::map<std::string, double>& told) {
  std::map<std::string, double> known;
  for (const auto& [phase, seconds] : told) {
    const bool listed = std::any_of(progress::kPhases.begin(), progress::kPhases.end(),
                                    [&](const auto& info) { return info.name == phase; });
    known[listed ? phase : "other"] += seconds;
  }
  return known;
}

struct LayerValue {
  int layer = -1;        // -1 if the key is only a word
  std::string_view word; // the key's word, alone or after the layer
  double value = 0;
};
// Parses keys such as "3/selected", "3" or "embedding", in the form of the metric. Deep models keep
// only every second layer, every third, and so on, so that at most kMostLayers remain. More curves
// are unreadable, and each layer has a series for every metric and three for gates.
std::vector<LayerValue> known_layers(const wire::LayerMetric& metric,
                                     const std::map<std::string, double>& told) {
  constexpr int kMostLayers = 32, kDeepest = 100'000;
  std::vector<LayerValue> values;
  int layers = 0;
  for (const auto& [key, value] : told) {
    int layer = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), layer);
    const bool numbered = error == std::errc{} && layer >= 0 && layer < kDeepest &&
                          // Rejects "03", which would repeat 3.
                          key.starts_with(std::to_string(layer));
    std::string_view rest(end, static_cast<size_t>(key.data() + key.size() - end));
    const bool has_word = rest.starts_with('/');
    if (numbered && has_word) rest.remove_prefix(1);
    const auto word = std::find(metric.words.begin(), metric.words.end(), rest);
    const bool is_known = word != metric.words.end();
    if (metric.label.empty() ? (numbered ? rest.empty() && !has_word : is_known)
                             : numbered && has_word && is_known)
      values.push_back({numbered ? layer : -1, is_known ? *word : std::string_view(), value});
  }
  for (const LayerValue& v : values)
    layers = std::max(layers, v.layer + 1);
  const int stride = (layers + kMostLayers - 1) / kMostLayers;
  std::erase_if(values, [&](const LayerValue& v) { return v.layer >= 0 && v.layer % stride != 0; });
  return values;
}

void step_skew(const Snapshot& snapshot, Samples& samples) {
  for (const RunSample& run : snapshot.runs) {
    std::vector<double> seconds;
    for (const RankSample& rank : run.ranks)
      if (rank.own_step_seconds > 0) seconds.push_back(rank.own_step_seconds);
    if (seconds.empty()) continue;
    std::sort(seconds.begin(), seconds.end());
    samples.value(of(run), seconds.back() / seconds[(seconds.size() - 1) / 2]);
  }
}

using S = const Snapshot&;

std::vector<Row> run_rows() {
  using enum Type;
  return {
      {"nsa_run_info", kGauge, "run_id, name, user, model, attention, spec_digest, commit",
       "Always 1; joins a run's names to its other series by run_id. `name` and `user` only where "
       "`metrics.names` of nsad.toml asks for them.",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           out.value({{"run_id", r.id},
                      {"name", r.name},
                      {"user", r.user},
                      {"model", r.model},
                      {"attention", r.attention},
                      {"spec_digest", r.spec_digest},
                      {"commit", r.commit}},
                     1);
       },
       kQueryOnly},
      {"nsa_run_kernel_info", kGauge, "run_id, part, kernel",
       "Always 1; which kernel computes each part of the model, by the plan of the newest attempt. "
       "The rank's log has the reasons.",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           for (const auto& [part, kernel] : r.kernels)
             out.value({{"run_id", r.id}, {"part", part}, {"kernel", kernel}}, 1);
       },
       kQueryOnly},
      {"nsa_run_state", kGauge, "run_id, state", "1 for the state that the run is in, else 0.",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           for (const std::string_view state : kRunStates)
             out.value({{"run_id", r.id}, {"state", std::string(state)}}, r.state.view() == state);
       }},
      {"nsa_eval_loss", kGauge, "run_id, split", "Loss of the last evaluation, nats a token.",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           if (r.heldout_loss) out.value({{"run_id", r.id}, {"split", "heldout"}}, *r.heldout_loss);
       }},
      {"nsa_run_step_skew_ratio", kGauge, "run_id",
       "Step time of the slowest rank divided by the median rank's, each without its wait for the "
       "others; 1: all ranks are equally fast.",
       step_skew},
      {"nsa_run_failing_gates", kGauge, "run_id, metric, action",
       "Gates of the run file whose newest verdict is a failure, by what they look at and what "
       "they do.",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           for (const auto& [which, count] : r.failing_gates)
             out.value({{"run_id", r.id}, {"metric", which.first}, {"action", which.second}},
                       static_cast<double>(count));
       },
       kQueryOnly},
  };
}

std::vector<Row> layer_rows() {
  std::vector<Row> rows;
  for (size_t i = 0; i < wire::kLayerMetrics.size(); ++i) {
    const wire::LayerMetric& metric = wire::kLayerMetrics[i].layers;
    const std::string label(metric.label);
    rows.push_back({metric.prometheus, Type::kGauge,
                    "run_id, layer" + (label.empty() ? "" : ", " + label), metric.meaning,
                    [&metric, label, i](S s, Samples& out) {
                      for (const RunSample& r : s.runs)
                        for (const LayerValue& v : known_layers(metric, r.layers[i])) {
                          Labels labels =
                              with(of(r), "layer",
                                   v.layer < 0 ? std::string(v.word) : std::to_string(v.layer));
                          if (!label.empty()) labels.emplace_back(label, v.word);
                          out.value(std::move(labels), v.value);
                        }
                    },
                    metric.on_dashboard});
  }
  return rows;
}

std::vector<Row> rank_rows() {
  using enum Type;
  return {
      {"nsa_rank_info", kGauge, "run_id, rank, node, gpu, gpu_uuid", "Always 1; where a rank runs.",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           for (const RankSample& k : r.ranks) {
             Labels labels = of(r, k);
             labels.emplace_back("node", k.node);
             labels.emplace_back("gpu", k.gpu);
             labels.emplace_back("gpu_uuid", k.gpu_uuid);
             out.value(std::move(labels), 1);
           }
       },
       kQueryOnly},
      {"nsa_rank_phase_seconds_total", kCounter, "run_id, rank, phase",
       "Time by phase, as the rank reports it (forward, backward, all-reduce, ...).",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           for (const RankSample& k : r.ranks)
             for (const auto& [phase, seconds] : known_phases(k.phase_seconds)) {
               Labels labels = of(r, k);
               labels.emplace_back("phase", phase);
               out.value(std::move(labels), seconds);
             }
       }},
  };
}

std::vector<Row> daemon_rows() {
  using enum Type;
  return {
      {"nsad_build_info", kGauge, "version, commit, node", "Always 1; which nsad this is.",
       [](S s, Samples& out) {
         out.value(
             {{"version", s.daemon.version}, {"commit", s.daemon.commit}, {"node", s.daemon.node}},
             1);
       },
       kQueryOnly},
      {"nsa_gpu_info", kGauge, "node, gpu, uuid, model, driver", "Always 1; a GPU of this node.",
       [](S s, Samples& out) {
         for (const GpuSample& g : s.daemon.gpus)
           out.value({{"node", s.daemon.node},
                      {"gpu", std::to_string(g.index)},
                      {"uuid", g.uuid},
                      {"model", g.model},
                      {"driver", s.daemon.driver}},
                     1);
       },
       kQueryOnly},
      {"nsad_http_requests_total", kCounter, "route, code", "Requests to the API and /metrics.",
       [](S s, Samples& out) {
         for (const auto& [route, sample] : s.daemon.http)
           for (const auto& [code, count] : sample.requests)
             out.value({{"route", route}, {"code", std::to_string(code)}},
                       static_cast<double>(count));
       }},
      {"nsad_http_request_duration_seconds", kHistogram, "route",
       "Time until the answer's header is sent; followed streams continue after it.",
       [](S s, Samples& out) {
         for (const auto& [route, sample] : s.daemon.http)
           out.histogram({{"route", route}}, sample.seconds);
       },
       kQueryOnly},
  };
}

} // namespace

const std::vector<Row>& catalogue() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all;
    for (std::vector<Row>& part : std::array{
             run_rows(), layer_rows(), rows_of<RunSample>(),
             step_rows<RunSample>(&wire::Metric::prometheus), rank_rows(), rows_of<RankSample>(),
             step_rows<RankSample>(&wire::Metric::prometheus_of_rank), daemon_rows(),
             rows_of<DaemonSample>(), rows_of<GpuSample>(), rows_of<NodeSample>()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return rows;
}

std::string catalogue_markdown() {
  static constexpr std::array<const char*, 3> kTypes = {"gauge", "counter", "histogram"};
  std::string table = "| metric | type | labels | meaning |\n|---|---|---|---|\n";
  std::string text = "Query only, for joins, alerts or a look behind a panel:";
  size_t line = text.size();
  const char* separator = " ";
  for (const std::vector<Row>* rows : {&catalogue(), &process_catalogue()})
    for (const Row& row : *rows) {
      table += "| `" + std::string(row.name) + "` | " + kTypes[static_cast<size_t>(row.type)] +
               " | " + std::string(row.labels) + " | " + std::string(row.meaning) + " |\n";
      if (row.on_dashboard) continue;
      text += separator;
      line += row.name.size() + 4;
      if (line > 118) {
        text.back() = '\n';
        line = row.name.size() + 3;
      }
      text += "`" + std::string(row.name) + "`";
      separator = ", ";
    }
  return text + ".\n\n" + table;
}

std::string step_metrics_markdown() {
  static constexpr std::array kUnits = {"", "nats", "tokens", "tokens/s", "steps", "s", "bytes"};
  static constexpr std::array kOver = {"", "newest", "sum"};
  std::string text = "| key | unit | kept | TensorBoard | Prometheus | status | meaning |\n"
                     "|---|---|---|---|---|---|---|\n";
  const auto code = [](std::string_view name) {
    return name.empty() ? std::string() : "`" + std::string(name) + "`";
  };
  for (const auto& row : wire::kStepMetrics) {
    const wire::Metric& m = row.metric;
    text += "| `" + std::string(row.name) + "` | " + kUnits[static_cast<size_t>(m.unit)] + " | " +
            kOver[static_cast<size_t>(m.over)] + " | " + code(m.tensorboard) + " | " +
            code(m.prometheus) + code(m.prometheus_of_rank) + " | " + std::string(m.status) +
            " | " + std::string(m.meaning) + " |\n";
  }
  return text;
}

std::string layer_metrics_markdown() {
  std::string text =
      "| key | members | TensorBoard | Prometheus | meaning |\n|---|---|---|---|---|\n";
  for (const auto& row : wire::kLayerMetrics) {
    const wire::LayerMetric& m = row.layers;
    std::string members = m.label.empty() ? "`3`" : "`3/" + std::string(m.words.front()) + "`";
    for (const std::string_view word : m.label.empty() ? m.words : m.words.subspan(1))
      members += ", `" + std::string(m.label.empty() ? "" : "3/") + std::string(word) + "`";
    text += "| `" + std::string(row.name) + "` | " + members + " | `" + std::string(m.tensorboard) +
            "/3` | `" + std::string(m.prometheus) + "` | " + std::string(m.meaning) + " |\n";
  }
  return text;
}

} // namespace nsa::metrics
