// nsa-worker is one rank of a run. nsa-shim starts it; a user can, too (docs/design/training.md).
#include "worker/options.h"

#include "common/base/log.h"
#include "worker/bootstrap/session.h"
#include "worker/faults/acts.h"
#include "worker/link/inherited.h"
#include "worker/probe_mode.h"
#include "worker/runtime/out_of_memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <csignal>
#include <exception>
#include <iostream>
#include <unistd.h>

namespace {

using nsa::wire::RankExit;

nsa::link::Link* g_link = nullptr; // signal handlers get no arguments
nsa::Rank g_rank = 0;
std::filesystem::path g_out_of_memory_file;

// Sends the reason, waits briefly for delivery, and exits without destructors. Destructors would
// wait for threads of an unfinished operation (a collective, the loader).
[[noreturn]] void leave(const nsa::train::Failure& failure) {
  nsa::log::error("worker", failure.error.what,
                  {{"rank", std::to_string(g_rank)},
                   {"exit", std::to_string(static_cast<int>(failure.exit))},
                   {"next", failure.error.next}});
  if (g_link != nullptr) {
    nsa::wire::RankError message;
    message.rank = g_rank;
    message.exit_code = static_cast<int>(failure.exit);
    message.what = failure.error.what;
    message.next = failure.error.next;
    message.blamed_peer = failure.blamed;
    g_link->send(message);
    g_link->flush(std::chrono::seconds(2));
  }
  ::_exit(static_cast<int>(failure.exit));
}

// Converts the current exception to a failure.
nsa::train::Failure current_failure() {
  using nsa::ErrorCode;
  try {
    throw;
  } catch (const c10::OutOfMemoryError& e) {
    return {RankExit::kOutOfMemory,
            {ErrorCode::kExhausted,
             e.what_without_backtrace() + nsa::runtime::largest_blocks_text(g_out_of_memory_file),
             "lower train.micro_batch and raise train.accumulate, or set "
             "train.activation_recompute; CUDA graphs keep memory of their own "
             "(toggles.cuda.graphs = \"off\")"},
            {}};
  } catch (const c10::Error& e) {
    return {RankExit::kFailed, {ErrorCode::kInternal, e.what_without_backtrace(), ""}, {}};
  } catch (const nsa::train::InjectedOutOfMemory& e) {
    return {RankExit::kOutOfMemory, {ErrorCode::kExhausted, e.what(), ""}, {}};
  } catch (const std::bad_alloc&) {
    return {RankExit::kFailed,
            {ErrorCode::kExhausted, "out of host memory", "lower train.micro_batch"},
            {}};
  } catch (const std::exception& e) {
    return {RankExit::kFailed, {ErrorCode::kInternal, e.what(), ""}, {}};
  } catch (...) {
    return {RankExit::kFailed, {ErrorCode::kInternal, "an exception of unknown type", ""}, {}};
  }
}

// Handles exceptions that leave a thread or a destructor, which end in std::terminate.
[[noreturn]] void on_terminate() {
  if (std::current_exception()) leave(current_failure());
  leave({RankExit::kFailed, {nsa::ErrorCode::kInternal, "std::terminate was called", ""}, {}});
}

// SIGTERM and SIGINT request a checkpoint and an orderly end, as a StopRequest does. A second
// signal has its default effect.
void on_stop_signal(int signal) {
  if (g_link != nullptr) g_link->request_stop();
  ::signal(signal, SIG_DFL);
}

} // namespace

static void complain(const nsa::Error& error) {
  std::cerr << "nsa-worker: " << error.what << "\n";
  if (!error.next.empty()) std::cerr << "  " << error.next << "\n";
}

static int probe(const std::vector<std::string>& arguments) {
  ::signal(SIGPIPE, SIG_IGN);
  const auto result = nsa::worker::run_probe(arguments);
  if (result) std::cout << *result << std::flush;
  if (!result) std::cerr << result.error().what << "\n"; // nsad adds the program's name
  return static_cast<int>(result ? RankExit::kDone : RankExit::kFailed);
}

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (nsa::worker::is_probe(arguments)) return probe(arguments);
  auto options = nsa::worker::parse_options(arguments);
  if (!options) {
    complain(options.error());
    return static_cast<int>(RankExit::kUsage);
  }
  auto inherited = nsa::link::take_inherited(options->rank, options->attempt);
  if (!inherited) {
    complain(inherited.error());
    return static_cast<int>(RankExit::kUsage);
  }
  nsa::link::Link link(std::move(inherited->link));
  g_link = &link;
  g_rank = options->rank;
  g_out_of_memory_file = nsa::runtime::out_of_memory_file(options->attempt_folder, options->rank);
  std::set_terminate(on_terminate);
  ::signal(SIGTERM, on_stop_signal);
  ::signal(SIGINT, on_stop_signal);
  ::signal(SIGPIPE, SIG_IGN);
  if (!inherited->supervised)
    nsa::log::info("worker", "started by hand: nobody watches this rank",
                   {{"rank", std::to_string(options->rank)}});
  try {
    auto finished = nsa::train::run_rank(*options, link, std::move(inherited->page));
    if (!finished) leave(finished.error());
    nsa::log::info("worker", "finished: " + nsa::text_of(finished->reason),
                   {{"step", std::to_string(finished->step)}});
  } catch (...) {
    leave(current_failure());
  }
  link.flush(std::chrono::seconds(5));
  return static_cast<int>(RankExit::kDone);
}
