// The screen of `nsactl top`: live ranks and the node's GPUs, sorted and filtered. Pure.
#pragma once

#include "cli/render/text.h"
#include "common/base/json.h"
#include "common/base/result.h"
#include "common/wire/api_types.h"

#include <optional>
#include <string>
#include <vector>

namespace nsa::render {

// A rank of a live run.
struct TopRank {
  RunId run;
  std::string run_name;
  ChoiceOrText<wire::RunState> run_state;
  wire::RankView rank;
  double tokens_per_second = 0;  // the rank's share of the run's rate
  std::optional<double> celsius; // temperature of its GPU
  double progress_seconds = -1;  // since its progress page last changed; -1 before its first change
  uint64_t memory_bytes() const { // on its device if it has one, otherwise of the process
    return rank.allocated_bytes > 0 ? rank.allocated_bytes : rank.resident_bytes;
  }
};

struct TopGpu {
  int index = 0;
  std::string uuid, name, holder; // holder: "k3fm2 rank 1"; empty if no run of this nsad uses it
  uint64_t used_bytes = 0, memory_bytes = 0, processes = 0;
  std::optional<double> utilization_ratio, celsius, watts;
};

struct TopNode {
  std::string name, socket;
  int64_t cpu_slots = 0, cpu_slots_used = 0, gpus_used = 0;
  uint64_t disk_free_bytes = 0;
};

struct Top {
  TopNode node;
  std::vector<TopRank> ranks;
  std::vector<TopGpu> gpus;
  size_t left_out = 0; // live runs beyond the limit of one screen
};

// The order and filter of the ranks.
struct TopOrder {
  std::string sort = "run"; // one of top_sort_keys()
  bool reversed = false;
  std::string filter; // text in a run's id, name or state, a phase, a device, or "rank 3"
};
const std::vector<std::string>& top_sort_keys();
std::vector<TopRank> arrange(std::vector<TopRank> ranks, const TopOrder& order);

// Built from nsad's answers: GET /v1/daemon, and GET /v1/runs/{run} for each live run.
Top top_of(const nlohmann::json& daemon, const std::vector<wire::RunDetail>& runs, WallTime now);

struct TopScreen {
  Style style;
  int width = 80, height = 0; // height 0 means no limit
  int selected = -1;          // index among the arranged ranks; -1 if none is selected
  std::string footer;         // the last line; empty if there is none
};
// Returns at most `height` lines of at most `width` columns. If not all ranks fit, it shows those
// around the selected one.
std::string top_screen(const Top& top, const std::vector<TopRank>& arranged, const TopOrder& order,
                       WallTime now, const TopScreen& screen);

// Returns a long text from line `from` on, cut to width and height. Lowers `from` if
// fewer lines follow it than fit.
std::string page_of(const std::string& text, size_t& from, const TopScreen& screen);

nlohmann::json top_json(const Top& top, const std::vector<TopRank>& arranged);

} // namespace nsa::render
