// The sections of engine_bench: each loads what it needs, measures, and returns tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/bench_table.h"
#include "bench/memory_bandwidth.h"
#include "tools/tool_runner.h"

namespace mneme {

struct EngineBenchSettings {
  ModelFlags model;  // compute_dtype: the first of compute_dtypes
  // A folder with the model's widths and few layers, for what would take too much time or memory on
  // the whole model: contexts of full length, and hundreds of sessions.
  std::string shallow;
  int shallow_layers = 2;
  std::vector<std::string> compute_dtypes = {"f32", "bf16"};
  bool bandwidth_once = false;  // for trial runs, where figures do not count

  int rounds = 5;  // of decode, each with a measurement of the bandwidth; odd
  int steps = 4;   // of each kind in a round
  std::vector<int> decode_rows = {1, 4, 16, 32, 64};
  std::vector<int> operation_rows = {1, 4, 16};

  int prefill_rounds = 3;
  std::vector<int> prefill_tokens = {128, 512, 2048};
  int chunk = 512;  // prompt tokens in a step

  int near_context = 1000;
  int far_context = 100000;      // of the shallow model
  int far_context_deep = 10000;  // of the whole model; 0: leave it out
  int context_steps = 300;

  int streams = 256;
  int stream_prompt = 32;
  int stream_tokens = 64;  // mean; lengths are spread from half to one and a half

  int decoders = 32;
  int quiet_tokens = 50;   // each decoder makes alone, before and after the prompt
  int long_prompt = 4096;  // read beside them
};

// Memory bandwidth, measured again and again between other measurements, because it varies on
// shared hosts.
class BandwidthSampler {
 public:
  BandwidthSampler(int threads, bool once) : threads_(threads), once_(once) {}

  MemoryBandwidth Measure();
  MemoryBandwidth median() const;
  // "Memory: read 27.1 GB/s (26.8 to 27.3), read-modify-write ...; times measured: 5."
  std::string ToString() const;

 private:
  const int threads_;
  const bool once_;
  std::vector<double> read_, read_modify_write_;
};

// Loading the folder, whose files are in the page cache after the first time.
absl::StatusOr<BenchTable> BenchLoad(const EngineBenchSettings& settings);
// Decode steps by batch size, arithmetic and way of drawing, rounds interleaved.
absl::StatusOr<BenchTable> BenchDecode(const EngineBenchSettings& settings);
// Where the time of decode steps and of a prompt's goes, operation by operation.
absl::StatusOr<BenchTable> BenchOperations(const EngineBenchSettings& settings);
// Prompts, beside oneDNN's matrix products of the same shapes.
absl::StatusOr<BenchTable> BenchPrefill(const EngineBenchSettings& settings);
// A decode step late in a session against one early in it.
absl::StatusOr<BenchTable> BenchContext(const EngineBenchSettings& settings);
// Many concurrent requests through the whole engine, on the shallow model.
absl::StatusOr<BenchTable> BenchStreams(const EngineBenchSettings& settings);
// Decoding requests with and without a long prompt beside them, through the whole engine.
absl::StatusOr<BenchTable> BenchInterference(const EngineBenchSettings& settings);

}  // namespace mneme
