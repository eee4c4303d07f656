#include "cli/render/top_view.h"

#include "cli/render/table.h"
#include "common/base/text.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>
#include <tuple>

namespace nsa::render {

namespace {

std::optional<double> number(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? std::optional(found->get<double>())
                                                     : std::nullopt;
}
uint64_t count(const nlohmann::json& object, const char* key) {
  const auto value = number(object, key);
  return value && *value > 0 ? static_cast<uint64_t>(*value) : 0;
}
std::string text_at(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

bool holds(const TopRank& rank, const std::string& filter) {
  for (const std::string& text :
       {rank.run, rank.run_name, rank.run_state.text(), rank.rank.phase, rank.rank.state.text(),
        rank.rank.device, "rank " + std::to_string(rank.rank.rank)})
    if (text.find(filter) != std::string::npos) return true;
  return false;
}

using Less = bool (*)(const TopRank&, const TopRank&);
// The most interesting ranks come first: the greatest numbers and the longest silence.
const std::vector<std::pair<std::string, Less>>& orders() {
  static const std::vector<std::pair<std::string, Less>> list = {
      {"run",
       [](const TopRank& a, const TopRank& b) {
         return std::tie(a.run, a.rank.rank) < std::tie(b.run, b.rank.rank);
       }},
      {"progress",
       [](const TopRank& a, const TopRank& b) { return a.progress_seconds > b.progress_seconds; }},
      {"step", [](const TopRank& a, const TopRank& b) { return a.rank.step > b.rank.step; }},
      {"tokens", [](const TopRank& a,
                    const TopRank& b) { return a.tokens_per_second > b.tokens_per_second; }},
      {"memory",
       [](const TopRank& a, const TopRank& b) { return a.memory_bytes() > b.memory_bytes(); }},
      {"temperature",
       [](const TopRank& a, const TopRank& b) {
         return a.celsius.value_or(-1) > b.celsius.value_or(-1);
       }},
      {"phase", [](const TopRank& a, const TopRank& b) { return a.rank.phase < b.rank.phase; }}};
  return list;
}

std::string or_dash(const std::optional<double>& value, const char* unit) {
  return value ? std::to_string(std::lround(*value)) + unit : "-";
}
std::string bytes_or_dash(uint64_t bytes) {
  return bytes > 0 ? format_bytes(bytes) : "-";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines = split(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

std::vector<std::string> rank_lines(const std::vector<TopRank>& ranks, const TopScreen& screen) {
  Table table({" RUN", "NAME", "RANK", "PHASE", "STEP", "TOK/S", "MEMORY", "TEMP", "PROGRESS"});
  for (const size_t column : {2, 4, 5, 6, 7, 8})
    table.right(column);
  table.give_way(1, 12);
  for (const size_t column : {7, 5, 1, 6}) // temperature, rate, name, memory
    table.give_way(column, 0);
  table.give_way(3, 8);
  for (size_t i = 0; i < ranks.size(); ++i) {
    const TopRank& r = ranks[i];
    const bool selected = static_cast<int>(i) == screen.selected;
    const std::string mark = selected ? (screen.style.unicode ? "▸" : ">") : " ";
    table.add({mark + r.run, r.run_name, std::to_string(r.rank.rank),
               r.rank.phase.empty() ? r.rank.state.text() : r.rank.phase,
               std::to_string(r.rank.step),
               r.tokens_per_second > 0 ? format_count(r.tokens_per_second) : "-",
               bytes_or_dash(r.memory_bytes()), or_dash(r.celsius, " C"),
               r.progress_seconds < 0 ? "-" : format_duration(r.progress_seconds) + " ago"});
  }
  return lines_of(table.print(screen.width, screen.style.unicode));
}

std::vector<std::string> gpu_lines(const Top& top, const TopScreen& screen) {
  if (top.gpus.empty()) return {};
  Table table({" GPU", "MODEL", "HELD BY", "BUSY", "MEMORY", "TEMP", "POWER", "PROCESSES"});
  for (const size_t column : {3, 4, 5, 6, 7})
    table.right(column);
  table.give_way(1, 0);
  for (const size_t column : {7, 6})
    table.give_way(column, 0);
  for (const TopGpu& gpu : top.gpus) {
    const auto busy =
        gpu.utilization_ratio ? std::optional(100 * *gpu.utilization_ratio) : std::nullopt;
    table.add({" " + std::to_string(gpu.index), gpu.name, gpu.holder.empty() ? "-" : gpu.holder,
               or_dash(busy, " %"),
               bytes_or_dash(gpu.used_bytes) + " of " + bytes_or_dash(gpu.memory_bytes),
               or_dash(gpu.celsius, " C"), or_dash(gpu.watts, " W"),
               std::to_string(gpu.processes)});
  }
  return lines_of(table.print(screen.width, screen.style.unicode));
}

std::string headline(const Top& top, size_t shown, const TopOrder& order, WallTime now) {
  std::string text = clock_time(now, now) + " " + top.node.name + "  " + std::to_string(shown) +
                     (shown == 1 ? " rank" : " ranks") + " by " + order.sort +
                     (order.reversed ? ", reversed" : "");
  if (!order.filter.empty()) text += " with \"" + order.filter + "\"";
  text += "  CPU slots " + std::to_string(top.node.cpu_slots_used) + "/" +
          std::to_string(top.node.cpu_slots);
  if (!top.gpus.empty())
    text += "  GPUs " + std::to_string(top.node.gpus_used) + "/" + std::to_string(top.gpus.size());
  text += "  disk " + format_bytes(top.node.disk_free_bytes) + " free";
  if (top.left_out > 0) text += "  " + std::to_string(top.left_out) + " more runs: name one";
  return text;
}

} // namespace

const std::vector<std::string>& top_sort_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> names;
    for (const auto& [name, less] : orders())
      names.push_back(name);
    return names;
  }();
  return keys;
}

std::vector<TopRank> arrange(std::vector<TopRank> ranks, const TopOrder& order) {
  if (!order.filter.empty())
    std::erase_if(ranks, [&](const TopRank& rank) { return !holds(rank, order.filter); });
  const Less by_run = orders().front().second;
  const auto found = std::find_if(orders().begin(), orders().end(),
                                  [&](const auto& entry) { return entry.first == order.sort; });
  const Less less = found == orders().end() ? by_run : found->second;
  std::stable_sort(ranks.begin(), ranks.end(), by_run); // equal ranks keep their places
  std::stable_sort(ranks.begin(), ranks.end(), [&](const TopRank& a, const TopRank& b) {
    return order.reversed ? less(b, a) : less(a, b);
  });
  return ranks;
}

Top top_of(const nlohmann::json& daemon, const std::vector<wire::RunDetail>& runs, WallTime now) {
  Top top;
  top.node = {text_at(daemon, "node"),
              text_at(daemon, "socket"),
              static_cast<int64_t>(count(daemon, "cpu_slots")),
              static_cast<int64_t>(count(daemon, "cpu_slots_used")),
              static_cast<int64_t>(count(daemon, "gpus_used")),
              count(daemon, "disk_free_bytes")};
  const auto gpus = daemon.find("gpus");
  if (gpus != daemon.end() && gpus->is_array())
    for (const nlohmann::json& gpu : *gpus)
      top.gpus.push_back({static_cast<int>(count(gpu, "index")), text_at(gpu, "uuid"),
                          text_at(gpu, "name"), "", count(gpu, "used_bytes"),
                          count(gpu, "memory_bytes"), count(gpu, "processes"),
                          number(gpu, "utilization_ratio"), number(gpu, "temperature_celsius"),
                          number(gpu, "power_watts")});
  for (const wire::RunDetail& run : runs) {
    for (const wire::RankView& rank : run.ranks) {
      if (rank.state != wire::RankStatus::kRunning && rank.state != wire::RankStatus::kStarting)
        continue;
      TopRank& row = top.ranks.emplace_back();
      row.run = run.summary.id;
      row.run_name = run.summary.name;
      row.run_state = run.summary.state;
      row.rank = rank;
      row.tokens_per_second = run.summary.tokens_per_second / static_cast<double>(run.ranks.size());
      if (rank.last_progress_at != 0)
        row.progress_seconds =
            std::max(0.0, to_seconds(Duration(now.nanoseconds - rank.last_progress_at)));
      for (TopGpu& gpu : top.gpus)
        if (!rank.gpu_uuid.empty() && gpu.uuid == rank.gpu_uuid) {
          row.celsius = gpu.celsius;
          gpu.holder = row.run + " rank " + std::to_string(rank.rank);
        }
    }
  }
  return top;
}

std::string top_screen(const Top& top, const std::vector<TopRank>& arranged, const TopOrder& order,
                       WallTime now, const TopScreen& screen) {
  std::vector<std::string> lines = {
      elide(headline(top, arranged.size(), order, now), screen.width, screen.style.unicode)};
  const std::vector<std::string> gpus = gpu_lines(top, screen);
  std::vector<std::string> ranks = rank_lines(arranged, screen);
  if (arranged.empty())
    ranks = {top.ranks.empty() ? " no run has live ranks" : " no rank fits the filter"};
  const size_t around = lines.size() + gpus.size() + (screen.footer.empty() ? 0 : 1);
  const size_t room = screen.height > 0 && static_cast<size_t>(screen.height) > around + 2
                          ? static_cast<size_t>(screen.height) - around
                          : (screen.height > 0 ? 2 : ranks.size());
  if (ranks.size() > room) { // the header stays, and the selected rank remains visible
    const size_t rows = room - 1, all = ranks.size() - 1;
    const auto selected = static_cast<size_t>(std::max(0, screen.selected));
    const size_t first = std::min(selected < rows ? 0 : selected - rows + 1, all - rows);
    std::vector<std::string> seen = {ranks.front()};
    seen.insert(seen.end(), ranks.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                ranks.begin() + static_cast<std::ptrdiff_t>(first + rows) + 1);
    ranks = std::move(seen);
  }
  lines.insert(lines.end(), ranks.begin(), ranks.end());
  lines.insert(lines.end(), gpus.begin(), gpus.end());
  if (!screen.footer.empty())
    lines.push_back(elide(screen.footer, screen.width, screen.style.unicode));
  return join(lines, "\n") + "\n";
}

std::string page_of(const std::string& text, size_t& from, const TopScreen& screen) {
  const std::vector<std::string> lines = lines_of(text);
  const size_t rows = screen.height > 1 ? static_cast<size_t>(screen.height) - 1 : lines.size();
  from = std::min(from, lines.size() > rows ? lines.size() - rows : 0);
  std::string page;
  for (size_t i = from; i < std::min(lines.size(), from + rows); ++i)
    page += elide(lines[i], screen.width, screen.style.unicode) + "\n";
  return page + elide(screen.footer, screen.width, screen.style.unicode) + "\n";
}

nlohmann::json top_json(const Top& top, const std::vector<TopRank>& arranged) {
  const auto known = [](const std::optional<double>& value) {
    return value ? nlohmann::json(*value) : nlohmann::json();
  };
  nlohmann::json items = nlohmann::json::array(), gpus = nlohmann::json::array();
  for (const TopRank& r : arranged)
    items.push_back(
        {{"run", r.run},
         {"name", r.run_name},
         {"state", r.run_state},
         {"rank", r.rank.rank},
         {"pid", r.rank.pid},
         {"phase", r.rank.phase},
         {"step", r.rank.step},
         {"tokens_per_second", r.tokens_per_second},
         {"memory_bytes", r.memory_bytes()},
         {"temperature_celsius", known(r.celsius)},
         {"gpu_uuid", r.rank.gpu_uuid},
         {"last_progress_at", r.rank.last_progress_at},
         {"progress_seconds",
          r.progress_seconds < 0 ? nlohmann::json() : nlohmann::json(r.progress_seconds)}});
  for (const TopGpu& g : top.gpus)
    gpus.push_back({{"index", g.index},
                    {"uuid", g.uuid},
                    {"model", g.name},
                    {"holder", g.holder},
                    {"used_bytes", g.used_bytes},
                    {"memory_bytes", g.memory_bytes},
                    {"processes", g.processes},
                    {"utilization_ratio", known(g.utilization_ratio)},
                    {"temperature_celsius", known(g.celsius)},
                    {"power_watts", known(g.watts)}});
  return {{"items", items}, {"gpus", gpus}, {"left_out", top.left_out}};
}

} // namespace nsa::render
