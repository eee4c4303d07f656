// Compares n ranks that each have a part of a global batch with one rank that has all of it. Each
// rank is a process with the worker's device runtime and communicator: NCCL between GPUs, the mesh
// between CPU ranks. The CPU ranks show that this program finds errors. This process calls no
// function of CUDA. A rank is this program, started with the rank's number.
#include "tests/support/ranks_training.h"
#include "tests/support/small_model.h"
#include "worker/runtime/runtime.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr int kSkip = 77; // exit code of a rank that lacks something; its output says what
constexpr auto kLimit = 100s;

// Width and heads of the M7C, so its kernels run; two layers.
model::ModelConfig gpu_model(bool fused) {
  model::ModelConfig c;
  c.vocabulary = 1024;
  c.layers = 2;
  c.kernels = fused ? model::Kernels::kFused : model::Kernels::kAten;
  c.fused_layers = c.joined_embedding_gradient = fused;
  return c;
}

// FP32; BF16; BF16 with gradients sent as BF16; the same three with shards.
enum Ways { kFp32, kBf16, kBf16Wire, kFp32Shards, kBf16Shards, kBf16WireShards, kWays };

RanksWay way_of(int way_and_shards, bool gpu) {
  const int which = way_and_shards % kFp32Shards;
  RanksWay way{.model = gpu ? gpu_model(which != kFp32) : test::small_model(64)};
  if (gpu) {
    way.batch.length = 1088;
    way.bucket_bytes = size_t(4) << 20;
  }
  // This epsilon makes updates almost linear in the gradients. With Adam's own epsilon, the
  // rounding error of a gradient near zero would become a step of full length.
  way.epsilon = 1e-3;
  way.shards = way_and_shards >= kFp32Shards;
  if (which != kFp32) way.type = at::kBFloat16;
  if (which == kBf16Wire) way.options.compress = at::kBFloat16;
  return way;
}

void write(std::ofstream& out, const double* values, size_t count) {
  out.write(reinterpret_cast<const char*>(&count), sizeof count);
  out.write(reinterpret_cast<const char*>(values),
            static_cast<std::streamsize>(count * sizeof(double)));
}

// Arguments: --rank RANK WORLD DEVICE FOLDER FILE. Trains in every way and writes the results.
int rank_main(char** words) {
  const int rank = std::atoi(words[0]), world = std::atoi(words[1]);
  runtime::Request request;
  request.device = *spec::choice_from<spec::Device>(words[2]);
  request.rank = rank;
  const auto runtime = runtime::open_runtime(request);
  if (!runtime) {
    std::cout << runtime.error().what << std::endl;
    return kSkip;
  }
  const at::Device device = (*runtime)->device();
  if (device.is_cuda() && device.index() != rank) {
    std::cout << "needs " << world << " GPUs" << std::endl;
    return kSkip;
  }
  auto collectives = (*runtime)->make_collectives(rank, world, {words[3], -1, 60s}, 60s);
  if (!collectives) {
    std::cout << collectives.error().what << std::endl;
    return 1;
  }
  std::ofstream out(words[4], std::ios::binary);
  for (int which = 0; which < kWays; ++which) {
    const RanksWay way = way_of(which, device.is_cuda());
    const RanksOutcome outcome = train_rank(way, ranks_text(way), **runtime, **collectives);
    for (const at::Tensor& tensor : {outcome.first_gradient, outcome.masters})
      write(out, tensor.const_data_ptr<double>(), static_cast<size_t>(tensor.numel()));
    write(out, outcome.losses.data(), outcome.losses.size());
  }
  (*collectives)->shut_down();
  out.close();
  return out && !testing::Test::HasFailure() ? 0 : 1;
}

std::vector<double> read(std::ifstream& in) {
  size_t count = 0;
  in.read(reinterpret_cast<char*>(&count), sizeof count);
  std::vector<double> values(in ? count : 0);
  in.read(reinterpret_cast<char*>(values.data()),
          static_cast<std::streamsize>(values.size() * sizeof(double)));
  return values;
}

class RanksOn : public testing::TestWithParam<std::string> {
protected:
  void SetUp() override {
    folder_ = (fs::temp_directory_path() / "nsa-ranks-XXXXXX").string();
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string file(int rank, const char* what) const {
    return folder_ + "/" + what + std::to_string(rank);
  }

  pid_t start(int rank, int world, const std::string& place) {
    const std::vector<std::string> words = {
        "ranks",    "--rank", std::to_string(rank), std::to_string(world),
        GetParam(), place,    file(rank, "values")};
    std::vector<char*> pointers;
    for (const std::string& word : words)
      pointers.push_back(const_cast<char*>(word.c_str()));
    pointers.push_back(nullptr);
    const std::string log = file(rank, "log");
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    const int to = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(to, STDOUT_FILENO);
    ::dup2(to, STDERR_FILENO);
    ::execv("/proc/self/exe", pointers.data());
    ::_exit(127);
  }

  // Returns the results of rank 0 for every way, after all ranks have agreed. Returns nothing if
  // the test is skipped.
  std::optional<std::vector<RanksOutcome>> run(int world) {
    const std::string place = folder_ + "/meet-" + std::to_string(world);
    EXPECT_EQ(::mkdir(place.c_str(), 0700), 0);
    std::vector<pid_t> pids;
    for (int rank = 0; rank < world; ++rank)
      pids.push_back(start(rank, world, place));
    const std::vector<int> codes = wait(pids);
    for (int rank = 0; rank < world; ++rank)
      if (codes[size_t(rank)] == kSkip) {
        why_not_ = text(rank);
        return std::nullopt;
      }
    std::vector<RanksOutcome> first;
    for (int rank = 0; rank < world; ++rank) {
      EXPECT_EQ(codes[size_t(rank)], 0) << "rank " << rank << " of " << world << ":\n"
                                        << text(rank);
      if (codes[size_t(rank)] != 0) return std::nullopt;
      std::ifstream in(file(rank, "values"), std::ios::binary);
      for (int which = 0; which < kWays; ++which) {
        const auto tensor = [&] {
          const std::vector<double> values = read(in);
          return at::tensor(values, at::kDouble);
        };
        RanksOutcome outcome;
        outcome.first_gradient = tensor();
        outcome.masters = tensor();
        outcome.losses = read(in);
        if (rank == 0)
          first.push_back(std::move(outcome));
        else
          EXPECT_TRUE(at::equal(outcome.masters, first[size_t(which)].masters))
              << "all ranks have the same bits";
      }
    }
    return first;
  }

  std::string why_not_;

private:
  std::string text(int rank) const {
    std::ifstream in(file(rank, "log"));
    return {std::istreambuf_iterator<char>(in), {}};
  }

  // Returns exit codes, and -1 for processes that had to be killed. If a rank is missing, its peers
  // would wait forever.
  static std::vector<int> wait(const std::vector<pid_t>& pids) {
    std::vector<int> codes(pids.size(), -1);
    std::vector<bool> ended(pids.size());
    const auto end = std::chrono::steady_clock::now() + kLimit;
    const auto all = [&] { return std::find(ended.begin(), ended.end(), false) == ended.end(); };
    while (!all() && std::chrono::steady_clock::now() < end) {
      for (size_t i = 0; i < pids.size(); ++i) {
        int status = 0;
        if (ended[i] || ::waitpid(pids[i], &status, WNOHANG) != pids[i]) continue;
        ended[i] = true;
        codes[i] = WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
        if (codes[i] == 0) continue;
        for (size_t other = 0; other < pids.size(); ++other)
          if (!ended[other]) ::kill(pids[other], SIGTERM);
      }
      std::this_thread::sleep_for(10ms);
    }
    for (size_t i = 0; i < pids.size(); ++i)
      if (!ended[i]) {
        ::kill(pids[i], SIGKILL);
        ::waitpid(pids[i], nullptr, 0);
      }
    return codes;
  }

  std::string folder_;
};

INSTANTIATE_TEST_SUITE_P(, RanksOn, testing::Values("cpu", "cuda"),
                         [](const auto& info) { return info.param; });

TEST_P(RanksOn, TwoAreOne) {
  const auto one = run(1);
  if (!why_not_.empty()) GTEST_SKIP() << why_not_;
  const auto two = run(2);
  if (!why_not_.empty()) GTEST_SKIP() << why_not_;
  ASSERT_TRUE(one && two);
  const auto error = [](const at::Tensor& found, const at::Tensor& exact, const char* what) {
    const double relative = relative_error(found, exact);
    std::cout << "  " << what << " " << relative << "\n";
    return relative;
  };
  const RanksOutcome& exact = one->at(kFp32);
  for (const int which : {kFp32, kFp32Shards}) {
    const RanksOutcome& found = two->at(which);
    EXPECT_LE(error(found.first_gradient, exact.first_gradient, "fp32 gradient"), 1e-6);
    EXPECT_LE(error(found.masters, exact.masters, "fp32 weights"), 1e-6);
    for (size_t step = 0; step < exact.losses.size(); ++step)
      EXPECT_NEAR(found.losses[step], exact.losses[step], 1e-6 * exact.losses[step]);
  }

  const RanksOutcome& plain = one->at(kBf16);
  const double gradient = error(plain.first_gradient, exact.first_gradient, "bf16 gradient, one"),
               weights = error(plain.masters, exact.masters, "bf16 weights, one");
  EXPECT_GT(gradient, 1e-4) << "BF16 was computed in";
  for (const int which : {kBf16, kBf16Wire, kBf16Shards, kBf16WireShards}) {
    EXPECT_LE(error(two->at(which).first_gradient, exact.first_gradient, "bf16 gradient, two"),
              1.5 * gradient);
    EXPECT_LE(error(two->at(which).masters, exact.masters, "bf16 weights, two"), 1.5 * weights);
  }
}

} // namespace
} // namespace nsa::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  constexpr int kWords = 7; // including the words before the rank
  if (argc == kWords && std::string(argv[1]) == "--rank") return nsa::test::rank_main(argv + 2);
  return RUN_ALL_TESTS();
}
