// Load on a server over gRPC or HTTP: `mneme bench`, where only the programs of bench/ are.
#include <string>
#include <vector>

#include "base/standard_streams.h"
#include "clients/cli/command.h"

int main(int argc, char** argv) {
  mneme::OpenStandardStreams(argv);
  return mneme::cli::CheckOutput(
      mneme::cli::RunBench(std::vector<std::string>(argv + 1, argv + argc)));
}
