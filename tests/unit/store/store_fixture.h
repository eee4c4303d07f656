// A ledger in a temporary folder, and rows to put in it.
#pragma once

#include "daemon/store/ledger.h"

#include <cstdlib>
#include <filesystem>
#include <gtest/gtest.h>
#include <string>

namespace nsa::store {

class StoreTest : public testing::Test {
public:
  ~StoreTest() override { std::filesystem::remove_all(folder_); }

protected:
  StoreTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "nsa-store-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }

  Result<Ledger> open(uint64_t reserve = 1 << 20) {
    return Ledger::open({folder_, reserve}, WallTime{1'000});
  }

  static RunRow run_row(const RunId& id, int64_t at = 5) {
    RunRow r;
    r.id = id;
    r.name = "name-" + id;
    r.user = "ann";
    r.submitted_at = at;
    r.spec = {{"train", {{"steps", 10}}}};
    r.overrides = {"train.steps=10"};
    return r;
  }
  static RunProgressRow progress_row(const RunId& id, const std::string& state, bool open) {
    RunProgressRow p;
    p.run = id;
    p.state = ChoiceOrText<wire::RunState>(state);
    p.open = open;
    p.shown = {{"name", "name-" + id}};
    p.list_row = "[\"" + id + "\"]";
    return p;
  }
  static EventRow event_row(const RunId& id, const std::string& kind, bool replay = true) {
    EventRow e;
    e.run = id;
    e.kind = ChoiceOrText<wire::EventKind>(kind);
    e.severity = wire::Severity::kInfo;
    e.text = "a text";
    e.detail = {{"rank", 1}};
    e.replay = replay;
    return e;
  }

  // Executes SQL in a ledger that is closed.
  void change(const std::string& sql) {
    auto other = Database::open((folder_ / "ledger.db").string());
    ASSERT_TRUE(other && other->execute(sql)) << sql;
  }
  // JSON that is nested too deeply for every reader.
  static std::string nested() { return std::string(200000, '[') + std::string(200000, ']'); }

  std::filesystem::path folder_;
};

} // namespace nsa::store
