#include "bench/cuda_tables.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "bench/cuda_timing.h"
#include "tools/flag_parser.h"

namespace mneme {

int RunCudaTables(const char* program, const char* purpose, std::span<const CudaTable> tables,
                  int argc, char** argv) {
  std::string json;
  FlagParser parser(absl::StrCat("usage: ", program, " [flags]\n\n", purpose, "\n\n"));
  parser.Add("--json", "FILE", &json, "also write the results there");
  const absl::Status parsed = parser.ParseFlags(argc, argv);
  if (parser.help_requested()) {
    std::printf("%s", parser.Help().c_str());
    return kExitOk;
  }
  if (!parsed.ok()) return Report(program, parsed, kExitUsage);
  cuda::Device device(0, DType::kBF16);
  if (!device.ok()) return Report(program, absl::InternalError(device.TakeError()), kExitDevice);
  const double copy = CopyBandwidth(device);
  nlohmann::ordered_json report;
  for (const CudaTable& table : tables) {
    const BenchTable measured = table.measure(device, copy);
    measured.Print();
    report[table.key] = measured.ToJson();
  }
  if (!json.empty()) {
    const absl::Status written = WriteJson(report, json);
    if (!written.ok()) return Report(program, written, kExitFailure);
  }
  const std::string error = device.TakeError();
  if (!error.empty()) return Report(program, absl::InternalError(error), kExitFailure);
  return kExitOk;
}

}  // namespace mneme
