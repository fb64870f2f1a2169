// What upstream's code computes of Memoria's models, segment by segment, beside ours.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "models/safetensors.h"
#include "tests/models/memoria_state.h"
#include "tests/models/model_driver.h"

namespace mneme {

// golden.safetensors of a folder.
class MemoriaResults {
 public:
  explicit MemoriaResults(const std::string& folder) : file_(Open(folder)) {}

  bool Has(const std::string& name) const { return file_.header().Find(name) != nullptr; }
  template <typename T>
  std::vector<T> Values(const std::string& name) const {
    const SafetensorsTensor* tensor = file_.header().Find(name);
    CHECK(tensor != nullptr) << file_.path() << " lacks " << name;
    const auto bytes = file_.Bytes(*tensor);
    CHECK_EQ(bytes.size(), static_cast<size_t>(tensor->elements()) * sizeof(T)) << name;
    std::vector<T> values(static_cast<size_t>(tensor->elements()));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<int32_t> Ints(const std::string& name) const { return Values<int32_t>(name); }
  std::vector<double> Floats(const std::string& name) const {
    const std::vector<float> values = Values<float>(name);
    return {values.begin(), values.end()};
  }

 private:
  static SafetensorsFile Open(const std::string& folder) {
    auto file = SafetensorsFile::Open(folder + "/golden.safetensors");
    CHECK_OK(file.status());
    return *std::move(file);
  }
  SafetensorsFile file_;
};

// Folders of tests/golden and of $MNEME_GOLDEN whose names begin with `prefix`.
std::vector<std::string> MemoriaFolders(const std::string& prefix);

// Compares slot 0 of a driver with results whose names begin with "<prefix>", "s003." or
// "d1.s003.". Failures are those of the test.
class MemoriaGolden {
 public:
  MemoriaGolden(const std::string& name, std::unique_ptr<Backend> backend);

  ModelDriver& driver() { return *driver_; }
  const MemoriaResults& results() const { return results_; }
  const MemoriaConfig& config() const { return config_; }

  void ExpectClose(const std::vector<double>& got, const std::vector<double>& want,
                   const std::string& what);
  // Once the segment has recalled engrams. `segment`: as its crossing counts it.
  void ExpectRetrieved(const std::string& prefix, int segment);
  // After the segment's last token.
  void ExpectWeights(const std::string& prefix);
  // Once the segment behind it has recalled engrams, so that those and the working ones fired.
  void ExpectCommitted(const std::string& prefix);

  // That rounding takes no other choice: the best scores that were not chosen, and lifespans that
  // gained something, keep their distance from those that were, and from 0.
  void ExpectNothingIsClose(const std::string& prefix) const;

  double worst() const { return worst_; }  // relative error so far

 private:
  void ExpectScores(const std::string& prefix, int segment, const MemoriaState& state);

  MemoriaResults results_;
  std::unique_ptr<ModelDriver> driver_;
  MemoriaConfig config_;
  double worst_ = 0;
};

}  // namespace mneme
