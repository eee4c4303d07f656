#include "daemon/metrics/snapshot.h"

namespace nsa::metrics {

// Chosen for 125M parameters on 1 to 8 GPUs, and wide enough for a laptop.
Histogram step_histogram() {
  return Histogram(
      {.01, .02, .03, .05, .075, .1, .15, .2, .25, .3, .4, .5, .75, 1, 1.5, 2, 3, 5, 10, 30, 60});
}
Histogram recovery_histogram() {
  return Histogram({1, 2, 5, 10, 20, 30, 60, 120, 300, 600});
}
Histogram checkpoint_histogram() {
  return Histogram({.05, .1, .25, .5, 1, 2, 5, 10, 30, 60, 120});
}
Histogram request_histogram() {
  return Histogram({.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5});
}

} // namespace nsa::metrics
