// Time, traffic and arithmetic of operations by themselves, set against the memory bandwidth
// measured in the same run. Those of whole steps: engine_bench --sections operations.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/log.h"
#include "base/standard_streams.h"
#include "bench/matrix_product.h"
#include "bench/memory_bandwidth.h"
#include "kernels/backend.h"

namespace mneme {
namespace {

struct Options {
  std::string op;  // run what contains it
  BackendOptions backend;
  double seconds = 1.0;  // per line
};

constexpr char kUsage[] =
    R"(kernel_bench [--op=SUBSTRING] [--isa=ISA] [--threads=N] [--compute-dtype=f32|bf16]
             [--seconds=S]

  linear    matrix products, with oneDNN's beside them where it was found at build time
  pack      laying out weights at load
  sample    choosing tokens

`floor` is the time that the measured bandwidth leaves for the bytes of the weights; `of floor` is floor / best time.
)";

// Times of `run`: at least three, and for as long as asked.
std::vector<double> Sample(double seconds, const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  run();
  std::vector<double> times;
  double total = 0;
  while (times.size() < 3 || total < seconds) {
    const Clock::time_point start = Clock::now();
    run();
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    total += times.back();
  }
  std::sort(times.begin(), times.end());
  return times;
}

void BenchLinear(const Options& options, Backend& backend, const MemoryBandwidth& bandwidth) {
  std::printf("\n%-22s %6s %10s %8s %9s %9s   %s\n", "linear bf16 [out, in]", "rows", "best us",
              "GB/s", "GFLOP/s", "of floor", "oneDNN us (GFLOP/s, ours/oneDNN)");
  for (const auto& [out, in] : {std::pair{1024, 1024}, {2048, 1024}, {1024, 2048}}) {
    for (const int rows : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512}) {
      MatrixProduct product(backend, rows, out, in);
      const double best = Sample(options.seconds / 3, [&] { product.Run(); }).front();
      const double flops = 2.0 * rows * out * in, bytes = 2.0 * out * in;
      std::printf("%-22s %6d %10.1f %8.1f %9.1f %8.0f %%", absl::StrCat(out, " x ", in).c_str(),
                  rows, best * 1e6, bytes / best / 1e9, flops / best / 1e9,
                  100 * FloorSeconds(bandwidth, bytes, 0) / best);
      if (product.HasOneDnn()) {
        const double theirs = Sample(options.seconds / 3, [&] { product.RunOneDnn(); }).front();
        std::printf("   %10.1f (%.1f, %.2f)", theirs * 1e6, flops / theirs / 1e9, theirs / best);
      }
      std::printf("\n");
    }
  }
}

void BenchPack(const Options& options, Backend& backend) {
  const int out = 32000, in = 1024;
  std::vector<uint16_t> matrix(static_cast<size_t>(out) * in, 0x3c00);
  absl::StatusOr<Buffer> packed =
      Buffer::Allocate(backend, backend.PackedBytes(DType::kBF16, out, in));
  CHECK_OK(packed.status());
  const double best =
      Sample(options.seconds, [&] {
        backend.PackMatrix({matrix.data(), DType::kBF16, {out, in}}, packed->data());
      }).front();
  std::printf("\npack bf16 %d x %d: %.2f ms, %.1f GB/s of weights\n", out, in, best * 1e3,
              2.0 * out * in / best / 1e9);
}

void BenchSample(const Options& options, Backend& backend) {
  constexpr int kRows = 16, kVocab = 32000;
  std::vector<float> logits(static_cast<size_t>(kRows) * kVocab);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>((i * 2654435761u) % 100000) * 1e-4f;
  }
  struct Case {
    const char* name;
    SamplingRow row;
  };
  const Case cases[] = {
      {"greedy", {.temperature = 0}},
      {"temperature 1", {.temperature = 1, .seed = 1}},
      {"top_k 40", {.temperature = 1, .top_k = 40, .seed = 1}},
      {"top_p 0.9, min_p 0.01", {.temperature = 1, .top_p = 0.9f, .min_p = 0.01f, .seed = 1}},
      {"greedy, 5 logprobs", {.temperature = 0, .top_logprobs = 5}},
  };
  std::printf("\nsample, %d rows of %d\n", kRows, kVocab);
  for (const Case& test : cases) {
    const std::vector<SamplingRow> rows(kRows, test.row);
    std::vector<int32_t> tokens(kRows), top_tokens(kRows * 5);
    std::vector<float> logprobs(kRows), top_logprobs(kRows * 5);
    const double best =
        Sample(options.seconds / 3, [&] {
          backend.kernels().Sample({.logits = {logits.data(), DType::kF32, {kRows, kVocab}},
                                    .rows = rows,
                                    .max_top_logprobs = 5,
                                    .tokens = tokens,
                                    .logprobs = logprobs,
                                    .top_tokens = top_tokens,
                                    .top_logprobs = top_logprobs});
        }).front();
    std::printf("    %-24s %9.1f us\n", test.name, best * 1e6);
  }
}

int Main(int argc, char** argv) {
  OpenStandardStreams(argv);
  Options options;
  for (int i = 1; i < argc; ++i) {
    const absl::string_view arg = argv[i];
    const size_t equals = arg.find('=');
    const absl::string_view name = arg.substr(0, equals);
    const absl::string_view value =
        equals == absl::string_view::npos ? absl::string_view() : arg.substr(equals + 1);
    bool good = true;
    if (name == "--op") {
      options.op = std::string(value);
    } else if (name == "--isa") {
      options.backend.isa = std::string(value);
    } else if (name == "--threads") {
      good = absl::SimpleAtoi(value, &options.backend.threads);
    } else if (name == "--seconds") {
      good = absl::SimpleAtod(value, &options.seconds);
    } else if (name == "--compute-dtype") {
      good = value == "f32" || value == "bf16";
      options.backend.compute_dtype = value == "bf16" ? DType::kBF16 : DType::kF32;
    } else {
      good = false;
    }
    if (!good) {
      std::fputs(kUsage, stderr);
      return 2;
    }
  }
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend("cpu", options.backend);
  if (!backend.ok()) {
    std::fprintf(stderr, "kernel_bench: %s\n", backend.status().ToString().c_str());
    return 1;
  }
  const MemoryBandwidth bandwidth = MeasureMemoryBandwidth(options.backend.threads);
  std::printf("%s, compute dtype %s; memory: read %.1f GB/s, read-modify-write %.1f GB/s\n",
              (*backend)->description().c_str(), Name((*backend)->compute_dtype()),
              bandwidth.read / 1e9, bandwidth.read_modify_write / 1e9);
  const auto wanted = [&](const char* op) { return std::strstr(op, options.op.c_str()); };
  if (wanted("linear")) BenchLinear(options, **backend, bandwidth);
  if (wanted("pack")) BenchPack(options, **backend);
  if (wanted("sample")) BenchSample(options, **backend);
  return 0;
}

}  // namespace
}  // namespace mneme

int main(int argc, char** argv) { return mneme::Main(argc, argv); }
