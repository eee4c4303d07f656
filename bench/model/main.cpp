// nsa-bench model: times training steps of a whole model on this machine, as the worker makes them.
// It also prints the table of NSA and its dense twin over sequence lengths. It uses one rank, or
// several that share each step like the ranks of a run. With several it starts itself once for each
// rank.
//
// Times come from device events. MFU counts the model's own products and attended pairs, relative
// to the devices' dense BF16 rate, if that rate is known.
#include "bench/model/failure.h"
#include "bench/model/initial_values.h"
#include "bench/model/options.h"
#include "bench/model/rows.h"
#include "bench/model/table.h"
#include "bench/ranks/own_rank.h"
#include "bench/ranks/rank_processes.h"

#include <ATen/detail/CUDAHooksInterface.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <unistd.h>

namespace {

using namespace nsa;
using bench::die;
using bench::Options;
using bench::or_die;

int start_ranks(const Options& options, int argc, char** argv) {
  bench::RankProgram program;
  program.world = static_cast<int>(options.ranks);
  std::error_code ignored;
  program.arguments = {std::filesystem::read_symlink("/proc/self/exe", ignored)};
  program.arguments.insert(program.arguments.end(), argv + 1, argv + argc);
  for (char** variable = environ; *variable != nullptr; ++variable)
    program.environment.emplace_back(*variable);
  const int signal = or_die(bench::run_ranks(program));
  if (signal == 0) return 0;
  ::signal(signal, SIG_DFL); // the shell then sees which signal ended the program
  ::raise(signal);
  return 1;
}

void check_device(const Options& options, const runtime::Runtime& runtime) {
  if (runtime.device().is_cpu()) {
    if (!options.sizes_given)
      die({ErrorCode::kInvalidArgument, "there is no GPU here, and the M7C takes hours on a CPU",
           "give sizes, as the last but one example of nsa-bench model --help does"});
    return;
  }
  const int gpus = at::detail::getCUDAHooks().getNumGPUs();
  if (options.ranks > gpus)
    die({ErrorCode::kInvalidArgument,
         "--ranks " + std::to_string(options.ranks) + ": each takes a GPU, and this process sees " +
             std::to_string(gpus),
         "ask for as many at most, or see CUDA_VISIBLE_DEVICES and nvidia-smi"});
}

std::unique_ptr<runtime::Runtime> open_runtime(const Options& options, const spec::RunSpec& spec,
                                               Rank rank) {
  runtime::Request request;
  request.device = spec.parallel.device;
  request.rank = rank;
  request.threads = static_cast<int>(spec.train.threads);
  request.deterministic = spec.train.deterministic;
  request.graphs = std::find(options.graphs.begin(), options.graphs.end(), bench::Graphs::kOn) !=
                   options.graphs.end();
  auto runtime = or_die(runtime::open_runtime(request));
  if (request.graphs && !runtime->why_no_graphs().empty())
    die({ErrorCode::kInvalidArgument, "--graphs on: " + runtime->why_no_graphs(),
         "leave it out, or run on a GPU"});
  check_device(options, *runtime);
  return runtime;
}

std::shared_ptr<const dataset::Dataset> open_data(const Options& options,
                                                  const spec::RunSpec& spec) {
  if (options.data.empty()) return nullptr;
  auto dataset = or_die(dataset::Dataset::open(options.data, dataset::Check::kSizes));
  if (dataset->manifest().tokenizer.vocabulary_size > spec.model.vocabulary)
    die({ErrorCode::kInvalidArgument, "the data set has more tokens than the model",
         "set model.vocabulary to at least " +
             std::to_string(dataset->manifest().tokenizer.vocabulary_size)});
  return dataset;
}

int run(int argc, char** argv) {
  const Options options = bench::parse_options(argc, argv);
  const spec::RunSpec first =
      bench::spec_of(options, options.attention.at(0), options.sequences.at(0), false);
  if (options.initial_values) {
    bench::time_initial_values(first);
    return 0;
  }
  const auto own = or_die(bench::own_rank(static_cast<int>(options.ranks)));
  if (options.ranks > 1 && !own) return start_ranks(options, argc, argv);
  const Rank rank = own ? own->rank : 0;
  const auto runtime = open_runtime(options, first, rank);
  const auto dataset = open_data(options, first);
  comm::RendezvousAddress address;
  if (own) address.folder = own->rendezvous;
  const auto collectives =
      or_die(runtime->make_collectives(rank, static_cast<int>(options.ranks), address,
                                       from_seconds(first.parallel.collective_timeout_seconds)));
  if (rank == 0) bench::print_head(options, first, *runtime);
  bench::Rows rows(options, *runtime, *collectives, dataset);
  for (const spec::Attention attention : options.attention)
    for (const bench::Layers layers : options.layers)
      rows.run(attention, layers);
  collectives->shut_down();
  if (rank == 0 && rows.left_out() > 0)
    std::fprintf(stderr, "%d rows were left out: --seconds %.0f were over\n", rows.left_out(),
                 options.seconds);
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const c10::Error& error) {
    die({ErrorCode::kSystem, error.what_without_backtrace()});
  } catch (const std::exception& error) {
    die({ErrorCode::kSystem, error.what()});
  }
}
