#include "tests/support/backends.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "kernels/reference/reference_backend.h"

namespace mneme {

std::unique_ptr<Backend> BackendUnderTest::Make(int threads, DType compute_dtype) const {
  BackendOptions options;
  options.compute_dtype = compute_dtype;
  options.threads = threads;
  if (!isa.empty()) options.isa = isa;
  if (device == "reference") return MakeReferenceBackend(options);
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend(device, options);
  CHECK_OK(backend.status());
  return *std::move(backend);
}

void PrintTo(const BackendUnderTest& backend, std::ostream* out) {
  *out << backend.device << " " << backend.isa;
}

std::vector<BackendUnderTest> AvailableBackends() {
  const char* const device = std::getenv("MNEME_TEST_DEVICE");
  if (device != nullptr && absl::string_view(device) == "cuda") return {{"cuda", ""}};
  std::vector<BackendUnderTest> available;
  for (const char* isa : {"baseline", "avx2", "avx512", "avx512_bf16", "amx"}) {
    BackendOptions options;
    options.threads = 1;
    options.isa = isa;
    if (MakeBackend("cpu", options).ok()) available.push_back({"cpu", isa});
  }
  CHECK(!available.empty());
  return available;
}

std::vector<BackendUnderTest> AllBackends() {
  std::vector<BackendUnderTest> all = AvailableBackends();
  all.push_back({"reference", "float64"});
  return all;
}

std::vector<BackendUnderTest> OutermostBackends() {
  std::vector<BackendUnderTest> all = AllBackends();
  if (all.size() > 3) all.erase(all.begin() + 1, all.end() - 2);
  return all;
}

std::string BackendName(const testing::TestParamInfo<BackendUnderTest>& info) {
  return absl::StrCat(info.param.device, info.param.isa.empty() ? "" : "_", info.param.isa);
}

bool HasHopperKernels() {
  BackendOptions options;
  options.compute_dtype = DType::kBF16;
  const auto backend = MakeBackend("cuda", options);
  const PackedMatrix matrix = {.dtype = DType::kBF16, .out_features = 256, .in_features = 64};
  return backend.ok() && (*backend)->output_dtype({&matrix, 1}, 2500) == DType::kBF16;
}

std::unique_ptr<Backend> MakeCuda(DType compute_dtype, DType state_dtype) {
  BackendOptions options;
  options.compute_dtype = compute_dtype;
  options.state_dtype = state_dtype;
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend("cuda", options);
  CHECK(backend.ok()) << backend.status();
  return *std::move(backend);
}

std::unique_ptr<Backend> MakeReference(DType compute_dtype) {
  BackendOptions options;
  options.compute_dtype = compute_dtype;
  return MakeReferenceBackend(options);
}

}  // namespace mneme
