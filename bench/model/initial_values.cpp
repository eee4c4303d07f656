#include "bench/model/initial_values.h"

#include "common/base/clock.h"
#include "nsa_model/model/parameters.h"
#include "worker/rules/model_setup.h"

#include <cstdio>
#include <sys/resource.h>
#include <thread>

namespace nsa::bench {

namespace {

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

} // namespace

void time_initial_values(const spec::RunSpec& spec) {
  const auto config = train::model_config(spec, {});
  if (!config) {
    std::fprintf(stderr, "error: %s\n", config.error().what.c_str());
    std::exit(1);
  }
  for (const int threads : {1, static_cast<int>(std::thread::hardware_concurrency())}) {
    const MonotonicTime begin = MonotonicTime::now();
    const double processor = processor_seconds();
    int64_t values = 0;
    for (const model::ParameterSpec& parameter : model::parameter_specs(*config))
      values +=
          model::initial_values(parameter, static_cast<uint64_t>(spec.train.seed), threads).numel();
    std::printf("%lld initial values, %d thread%s: %.2f s, %.2f processor seconds\n",
                static_cast<long long>(values), threads, threads == 1 ? "" : "s",
                to_seconds(MonotonicTime::now() - begin), processor_seconds() - processor);
  }
}

} // namespace nsa::bench
