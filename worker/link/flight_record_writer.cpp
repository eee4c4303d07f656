#include "worker/link/flight_record_writer.h"

#include "common/base/file.h"
#include "common/base/log.h"

#include <pthread.h>
#include <utility>

namespace nsa::train {

FlightRecordWriter::FlightRecordWriter(link::Link& link, Rank rank,
                                       std::function<std::string()> record)
    : link_(link), rank_(rank), record_(std::move(record)), thread_([this] { run(); }) {
  link_.on_collectives_request([this](const std::string& folder) {
    {
      const std::lock_guard lock(mutex_);
      wanted_ = folder;
    }
    changed_.notify_one();
  });
}

FlightRecordWriter::~FlightRecordWriter() {
  link_.on_collectives_request({});
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void FlightRecordWriter::run() {
  ::pthread_setname_np(::pthread_self(), "flight-record");
  while (true) {
    std::string folder;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closing_ || !wanted_.empty(); });
      if (closing_) return;
      folder = std::exchange(wanted_, {});
    }
    const auto path =
        std::filesystem::path(folder) / ("collectives-" + std::to_string(rank_) + ".json");
    std::string text;
    try {
      text = record_();
    } catch (const std::exception& e) {
      log::error("train", std::string("the flight recorder cannot be read: ") + e.what());
      continue;
    }
    if (auto written = write_file_atomic(path, text, 0640, Survives::kProcessCrash); !written)
      log::error("train",
                 "the flight recorder's record cannot be written: " + written.error().what);
  }
}

} // namespace nsa::train
