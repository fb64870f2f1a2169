#include "tests/models/rounded_weights.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/log.h"
#include "kernels/float16.h"
#include "models/model.h"
#include "tests/models/golden.h"
#include "tests/models/recorded_routing.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {

void WriteRounded(const std::string& name, const TestFolder& folder) {
  StoredTensors tensors = ReadTensors(GoldenFolder(name) + "/model.safetensors");
  for (auto& [tensor_name, tensor] : tensors) {
    if (tensor.dtype != DType::kF32 || tensor.shape.size() != 2) continue;
    const auto* values = reinterpret_cast<const float*>(tensor.bytes.data());
    std::vector<uint16_t> rounded(tensor.bytes.size() / sizeof(float));
    std::transform(values, values + rounded.size(), rounded.begin(), BF16FromF32);
    const auto bytes = std::as_bytes(std::span(rounded));
    tensor.dtype = DType::kBF16;
    tensor.bytes.assign(bytes.begin(), bytes.end());
  }
  WriteTensors(tensors, folder.File("model.safetensors"));
  folder.CopyFrom(GoldenFolder(name), "config.json");
}

Sensitivity MeasureSensitivity(const std::string& name) {
  const Golden golden = ReadGolden(name);
  const auto plan = PlanModel(GoldenFolder(name), StateFormat{});
  CHECK_OK(plan.status());
  const std::vector<int> steps = {static_cast<int>(golden.input_ids.size())};
  const auto drive = [&](const std::string& folder) {
    return Drive(folder, MakeReference(),
                 {.slots = 1, .max_rows = 1, .max_tokens = std::max(steps.front(), 64)});
  };
  const auto stored = drive(GoldenFolder(name));
  RecordedRouting record(stored->backend());
  stored->set_routing(&record);
  const std::vector<double> want = FeedSlot(*stored, 0, golden.input_ids);

  const TestFolder folder;
  WriteRounded(name, folder);
  const auto rounded = drive(folder.path());
  RecordedRouting force(rounded->backend(),
                        Recut(record.recorded(), plan->info.layers, plan->info.top_k, steps));
  rounded->set_routing(&force);
  const std::vector<double> got = FeedSlot(*rounded, 0, golden.input_ids);
  return {RelativeError(got, want), WorstRowError(got, want, golden.vocab)};
}

}  // namespace mneme
