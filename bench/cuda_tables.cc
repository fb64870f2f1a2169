#include "bench/cuda_tables.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "bench/cuda_timing.h"
#include "tools/flag_parser.h"

namespace mneme {

int RunCudaTables(const char* program, const char* purpose, std::span<const CudaTable> tables,
                  int argc, char** argv) {
  std::string json;
  std::string chosen;
  FlagParser parser(absl::StrCat("usage: ", program, " [flags]\n\n", purpose, "\n\n"));
  parser.Add(
      "--tables", "A,B", &chosen,
      absl::StrCat("some of ", absl::StrJoin(tables, ",", [](std::string* to, const auto& t) {
                     to->append(t.key);
                   })));
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
  const std::vector<std::string> keys = absl::StrSplit(chosen, ',');
  nlohmann::ordered_json report;
  for (const CudaTable& table : tables) {
    if (!chosen.empty() && !absl::c_linear_search(keys, table.key)) continue;
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
