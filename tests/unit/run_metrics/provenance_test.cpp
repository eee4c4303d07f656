// Which programs, data and devices an attempt used.
#include "common/base/file.h"
#include "daemon/run_metrics/provenance.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

namespace nsa::control {
namespace {

TEST(Provenance, AProgramIsKnownByItsBuildIdOrItsChecksum) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(program_id("/proc/self/exe").size(), 40u) << "the linker's SHA-1";
  EXPECT_EQ(program_id(folder.path() / "none"), "");
  const auto script = folder.path() / "worker.sh";
  ASSERT_TRUE(write_file_atomic(script, "#!/bin/sh\nexec one\n"));
  const std::string before = program_id(script);
  EXPECT_EQ(before.size(), 32u);
  ASSERT_TRUE(write_file_atomic(script, "#!/bin/sh\nexec two\n"));
  EXPECT_NE(program_id(script), before);
  // A program that is cut off or invented still gets a checksum.
  const std::string whole = *read_file("/proc/self/exe", 1ull << 32);
  ASSERT_TRUE(write_file_atomic(script, whole.substr(0, 100)));
  EXPECT_EQ(program_id(script).size(), 32u);
  ASSERT_TRUE(write_file_atomic(script, whole.substr(0, 64) + std::string(4096, '\xff')));
  EXPECT_EQ(program_id(script).size(), 32u);
}

TEST(Provenance, AnAttemptsProvenanceDoesNotDependOnTheOrderOfHellos) {
  RunRecord record;
  record.row.spec_digest = "d1";
  record.spec.parallel.ranks = 2;
  record.provenance = begin_provenance(record, {{"nsad", "/proc/self/exe"}});
  EXPECT_EQ(record.provenance["devices"], nlohmann::json::parse("[null, null]"));
  EXPECT_EQ(record.provenance["topology"]["cpus"].get<std::string>().front(), '0');
  wire::RankHello zero, one;
  zero.build = "1.0+a";
  zero.device = "cuda:0";
  one.rank = 1;
  one.device = "cuda:1";
  for (const auto& order : {std::pair(zero, one), std::pair(one, zero)}) {
    nlohmann::json provenance = record.provenance;
    note_hello(provenance, order.first);
    note_hello(provenance, order.second);
    EXPECT_EQ(provenance["devices"], nlohmann::json::parse(R"(["cuda:0", "cuda:1"])"));
    EXPECT_EQ(provenance["worker"], "1.0+a");
    EXPECT_EQ(provenance["build_ids"], record.provenance["build_ids"]);
  }
  // An attempt that has not begun has no provenance, in particular not that of the attempt before.
  state::Run run;
  run.attempt.number = 2;
  record.of_attempt = 1;
  EXPECT_TRUE(attempt_row(run, record).provenance.is_null());
}

TEST(Provenance, ARebuiltProgramIsNamed) {
  const auto before =
      nlohmann::json::parse(R"({"build_ids": {"nsa-worker": "1", "nsa-shim": "2", "nsad": "3"}})");
  auto now = before;
  EXPECT_TRUE(changed_programs(before, now).empty());
  now["build_ids"]["nsa-shim"] = "4";
  EXPECT_EQ(changed_programs(before, now).dump(), R"({"nsa-shim":{"before":"2","now":"4"}})");
  now["build_ids"]["nsa-shim"] = "";
  EXPECT_TRUE(changed_programs(before, now).empty()) << "not known is not changed";
  EXPECT_TRUE(changed_programs(nlohmann::json(), before).empty()) << "the first attempt";
  EXPECT_TRUE(changed_programs({{"worker", "1.0"}}, before).empty()) << "of an older nsad";
}

} // namespace
} // namespace nsa::control
