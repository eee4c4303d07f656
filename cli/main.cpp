// nsactl, the command line of nsad.
#include "cli/command.h"
#include "cli/verbs.h"

int main(int argc, char** argv) {
  return nsa::cli::run_process(nsa::cli::all_verbs(), argc, argv);
}
