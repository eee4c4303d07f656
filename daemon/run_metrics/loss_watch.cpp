#include "daemon/run_metrics/loss_watch.h"

#include <algorithm>
#include <cstdio>

namespace nsa::control {

namespace {
constexpr double kNewestWeight = 0.1; // weight of the newest loss in the mean, after the first ten
constexpr double kFactor = 1.5, kNats = 1.0;
constexpr uint64_t kLasting = 5;
} // namespace

void LossWatch::add(double loss) {
  ++seen_;
  newest_ = loss;
  mean_ += (loss - mean_) * std::max(kNewestWeight, 1.0 / static_cast<double>(seen_));
  lowest_ = seen_ == 1 ? mean_ : std::min(lowest_, mean_);
  far_ = is_far() ? far_ + 1 : 0;
}

bool LossWatch::is_far() const {
  return seen_ > 1 && mean_ > kFactor * lowest_ && mean_ > lowest_ + kNats;
}

bool LossWatch::diverged(bool ended) const {
  return ended ? is_far() : far_ >= kLasting;
}

std::string LossWatch::text() const {
  char text[96];
  std::snprintf(text, sizeof text, "loss diverged: %.3g -> %.3g", lowest_,
                std::max(newest_, mean_));
  return text;
}

void to_json(nlohmann::json& json, const LossWatch& w) {
  json = {w.mean_, w.lowest_, w.newest_, w.seen_, w.far_};
}

void from_json(const nlohmann::json& json, LossWatch& w) {
  w.mean_ = json.at(0).get<double>();
  w.lowest_ = json.at(1).get<double>();
  w.newest_ = json.at(2).get<double>();
  w.seen_ = json.at(3).get<uint64_t>();
  w.far_ = json.at(4).get<uint64_t>();
}

} // namespace nsa::control
