#include "tests/models/golden.h"

#include <cstring>

#include "base/log.h"
#include "models/safetensors.h"

namespace mneme {
namespace {

constexpr int kStepBegin = 29;  // as in the others

template <typename T>
std::vector<T> Values(const SafetensorsFile& file, const char* name, DType dtype) {
  const SafetensorsTensor* tensor = file.header().Find(name);
  CHECK(tensor != nullptr && tensor->dtype == dtype) << file.path() << " lacks " << name;
  std::vector<T> values(static_cast<size_t>(tensor->elements()));
  std::memcpy(values.data(), file.Bytes(*tensor).data(), values.size() * sizeof(T));
  return values;
}

std::vector<double> Floats(const SafetensorsFile& file, const char* name) {
  const std::vector<float> values = Values<float>(file, name, DType::kF32);
  return {values.begin(), values.end()};
}

}  // namespace

std::string GoldenFolder(const std::string& name) { return "tests/golden/" + name; }

Golden ReadGolden(const std::string& name) {
  const auto file = SafetensorsFile::Open(GoldenFolder(name) + "/golden.safetensors");
  CHECK_OK(file.status());
  Golden golden;
  golden.input_ids = Values<int32_t>(*file, "input_ids", DType::kI32);
  golden.logits = Floats(*file, "logits");
  golden.vocab = static_cast<int>(golden.logits.size() / golden.input_ids.size());
  // References that cannot go on from a state have computed whole sequences only.
  const bool stepped = file->header().Find("step_logits") != nullptr;
  golden.step_logits =
      stepped ? Floats(*file, "step_logits")
              : std::vector<double>(golden.logits.begin() + int64_t{kStepBegin} * golden.vocab,
                                    golden.logits.end());
  golden.long_input_ids = Values<int32_t>(*file, "long_input_ids", DType::kI32);
  golden.long_logits_last16 = Floats(*file, "long_logits_last16");
  golden.greedy_from_16 = Values<int32_t>(*file, "greedy_from_16", DType::kI32);
  golden.step_begin =
      static_cast<int>(golden.input_ids.size() - golden.step_logits.size() / golden.vocab);
  return golden;
}

std::vector<std::string> GatedDeltaGoldens() {
  return {"mom",      "mom_single_kv",      "mom_head256",
          "mom_bf16", "mom_gated_deltanet", "gated_deltanet"};
}

std::vector<std::string> GoldenNames() {
  std::vector<std::string> names = GatedDeltaGoldens();
  for (const char* name :
       {"linear_attn", "retnet", "gla", "delta_net", "kda", "hgrn2", "gsa", "mom_linear_attn",
        "mom_gla", "mom_gsa", "transformer", "llama", "llama_tied", "mistral_sliding"}) {
    names.push_back(name);
  }
  return names;
}

}  // namespace mneme
