// The chunked gated delta rule on a GPU: the error of the chunks alone against float64, token by
// token; and the time of the pass that is served, DeltaMemoryPass, from projected tokens to what
// memories read, for the sets of segments that a layer of a mom model makes of whole prompts.
//
//   cuda_delta_chunk_bench [--check] [--long] [--time] [--once]   the first three, unless named
//
// --once: three of the timed sets, one call each, for a profiler.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "bench/cuda_delta_chunk_problem.cuh"
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/matrix_memory/chunked/chunked.h"
#include "kernels/cuda/matrix_memory/matrix_memory.h"

namespace mneme::cuda {
namespace {

double difference_squares, want_squares;  // of the comparison in hand

void Compare(double got, double want) {
  if (!std::isfinite(got)) got = 1e30;
  difference_squares += (got - want) * (got - want);
  want_squares += want * want;
}
double RelativeError() {
  const double e = std::sqrt(difference_squares / std::max(want_squares, 1e-300));
  difference_squares = want_squares = 0;
  return e;
}

bool failed = false;

// Runs the problem, in `calls` calls of as even lengths as may be, and compares every
// `row_step`-th row of values with float64, token by token.
void Check(Device& device, const char* name, Problem& p, int row_step, int calls = 1,
           double limit = 2e-3) {
  const Dims& d = p.dims;
  const int64_t wide = d.value_heads * d.value_dim, narrow = d.heads * d.key_dim;
  const std::vector<float> q = Download(p.q, p.entries * narrow),
                           k = Download(p.k, p.entries * narrow),
                           v = Download(p.v, p.entries * wide),
                           log_decay = Download(p.log_decay, int64_t{p.entries} * d.value_heads),
                           beta = Download(p.beta, int64_t{p.entries} * d.value_heads);
  if (calls == 1) {
    matrix_memory::chunked::GatedDeltaChunks(device, p.args);
  } else {  // one segment only
    int done = 0;
    for (int c = 0; c < calls; ++c) {
      const int end = static_cast<int>(int64_t{p.entries} * (c + 1) / calls);
      const std::vector<int> offsets = {0, end - done};
      const std::vector<int> fresh = {c == 0 && p.segments[0].fresh};
      int *o = Upload(offsets), *f = Upload(fresh);
      MatrixMemoryArgs a = p.args;
      a.q.data = p.q + done * narrow, a.k.data = p.k + done * narrow;
      a.v.data = p.v + done * wide, a.out.data = p.out + done * wide;
      a.log_decay.data = p.log_decay + done * d.value_heads;
      a.beta.data = p.beta + done * d.value_heads;
      for (TensorView* t : {&a.q, &a.k, &a.v, &a.out, &a.log_decay, &a.beta}) {
        t->shape.dims[0] = end - done;
      }
      a.segments.offsets.data = o, a.segments.fresh.data = f;
      matrix_memory::chunked::GatedDeltaChunks(device, a);
      MUST(cudaStreamSynchronize(device.stream()));
      cudaFree(o), cudaFree(f);
      done = end;
    }
  }
  MUST(cudaStreamSynchronize(device.stream()));
  const std::string error = device.TakeError();
  if (!error.empty()) {
    std::printf("%s: %s\n", name, error.c_str());
    std::exit(1);
  }
  const std::vector<float> out = Download(p.out, p.entries * wide), state = p.State();
  std::vector<bool> touched(state.size());
  bool kept = true;
  double out_error = 0, state_error = 0;
  double state_difference = 0, state_want = 0;
  std::vector<double> s(d.key_dim);
  for (size_t n = 0; n < p.segments.size(); ++n) {
    const ProblemSegment& segment = p.segments[n];
    const bool chain = segment.slot >= 0 && segment.length > 1;
    if (!chain) {
      if (segment.slot < 0) continue;
      for (int64_t i = p.first[n] * wide; i < p.first[n + 1] * wide; ++i) {
        uint32_t bits;
        std::memcpy(&bits, &out[i], 4);
        kept &= bits == 0xffffffffu;
      }
      continue;
    }
    const int64_t base = (segment.slot * p.memories + segment.memory) * p.state_elements;
    std::fill_n(touched.begin() + base, p.state_elements, true);
    for (int j = 0; j < d.value_heads; ++j) {
      const int head = j / (d.value_heads / d.heads);
      for (int i = n % row_step; i < d.value_dim; i += row_step) {
        const int64_t at = base + (int64_t{j} * d.value_dim + i) * d.key_dim;
        for (int c = 0; c < d.key_dim; ++c) s[c] = segment.fresh ? 0 : p.initial_state[at + c];
        for (int e = p.first[n]; e < p.first[n + 1]; ++e) {
          const float* ke = &k[e * narrow + head * d.key_dim];
          const float* qe = &q[e * narrow + head * d.key_dim];
          const double decay = std::exp(static_cast<double>(log_decay[e * d.value_heads + j]));
          double recall = 0, o = 0, key_query = 0;
          for (int c = 0; c < d.key_dim; ++c) {
            s[c] *= decay;
            recall += s[c] * ke[c];
            o += s[c] * qe[c];
            key_query += double{ke[c]} * qe[c];
          }
          const double u =
              beta[e * d.value_heads + j] * (v[e * wide + j * d.value_dim + i] - recall);
          for (int c = 0; c < d.key_dim; ++c) s[c] += u * ke[c];
          Compare(out[e * wide + j * d.value_dim + i], o + u * key_query);
        }
        for (int c = 0; c < d.key_dim; ++c) {
          const double got = std::isfinite(state[at + c]) ? state[at + c] : 1e30;
          state_difference += (got - s[c]) * (got - s[c]);
          state_want += s[c] * s[c];
        }
      }
    }
  }
  out_error = RelativeError();
  state_error = std::sqrt(state_difference / std::max(state_want, 1e-300));
  for (size_t i = 0; i < state.size(); ++i) {
    if (!touched[i]) {
      kept &= std::memcmp(&state[i], &p.initial_state[i], 4) == 0 ||
              (std::isnan(state[i]) && std::isnan(p.initial_state[i]));
    }
  }
  const bool good = out_error <= limit && state_error <= limit && kept;
  failed |= !good;
  std::printf("%-34s out %.2e  state %.2e %s%s\n", name, out_error, state_error,
              kept ? "" : "WROTE ELSEWHERE ", good ? "" : "FAILED");
}

void CheckAll(Device& device) {
  const std::vector<ProblemSegment> mixed = {
      {65, 0, 0, false}, {1, 1, 0, false},  {0, 2, 0, false},   {64, 3, 0, true},
      {7, -1, 0, false}, {2, 0, 1, true},   {130, 1, 1, false}, {3, 2, 1, false},
      {1, 3, 1, true},   {63, 0, 2, false}, {129, 1, 2, true},  {200, 2, 2, true}};
  uint64_t seed = 1;
  for (const int key_dim : {64, 128, 256}) {
    for (const Dims d :
         {Dims{2, 2, key_dim, key_dim}, Dims{1, 2, key_dim, 48}, Dims{2, 4, key_dim, 80}}) {
      char name[80];
      std::snprintf(name, sizeof(name), "mixed %d/%d heads %d x %d", d.heads, d.value_heads,
                    d.key_dim, d.value_dim);
      Problem p(d, mixed, 4, 3, 0, seed++);
      Check(device, name, p, 3);
    }
  }
  std::vector<ProblemSegment> lengths;
  for (int n = 0; n <= 200; n += 1 + n / 20)
    lengths.push_back({n, static_cast<int>(lengths.size()), 0, n % 3 == 2});
  {
    Problem p({1, 1, 128, 16}, lengths, lengths.size(), 1, 4, seed++);
    Check(device, "lengths 0 to 200, 128 x 16", p, 5);
  }
  {
    Problem p({1, 1, 256, 128}, lengths, lengths.size(), 1, 0, seed++, DType::kF16);
    Check(device, "the same, 256 x 128, f16 state", p, 16);
  }
  for (const float scale : {1e-12f, 1e12f}) {
    Problem p({1, 1, 256, 64}, {{500, 0, 0, false}, {300, 1, 0, true}}, 2, 1, 3, seed++,
              DType::kF32, scale);
    Check(device, "values of size 1e-12 or 1e12", p, 8);
  }
  for (const int calls : {1, 3, 30}) {
    Problem p({1, 2, 256, 128}, {{1000, 0, 0, true}}, 1, 1, 4, 77);
    Check(device, "1000 entries in 1, 3, 30 calls", p, 16, calls);
  }
}

void CheckLong(Device& device) {
  for (const int kind : {0, 1, 2, 3, 4}) {
    char name[80];
    std::snprintf(name, sizeof(name), "65536 entries, decay kind %d", kind);
    Problem p({1, 1, 256, 64}, {{65536, 0, 0, true}}, 1, 1, kind, 1000 + kind);
    Check(device, name, p, 16, 8);
  }
}

// Segments of `prompts` prompts through four memories, two a token, and a shared one.
std::vector<ProblemSegment> LayerSegments(int prompts, int tokens) {
  std::vector<ProblemSegment> list;
  for (int m = 0; m < 4; ++m) {
    for (int i = 0; i < prompts; ++i) {
      const int skew = (m % 2 == 0 ? 1 : -1) * (tokens / 16 + 3 * i);  // routing is not quite even
      list.push_back({tokens / 2 + skew, i, m, true});
    }
  }
  for (int i = 0; i < prompts; ++i) list.push_back({tokens, i, 4, true});
  return list;
}

void Run(Device& device, const Pass& pass) {
  if (matrix_memory::DeltaMemoryPass(device, pass.args)) return;
  std::printf("sizes that are not served in one pass\n");
  std::exit(1);
}

// Keeps the device busy while the host queues what is to be timed.
__global__ void Delay(int64_t cycles) {
  const int64_t begin = clock64();
  while (clock64() - begin < cycles) continue;
}

// Steps with prompts are launched one kernel after the other, not as graphs.
void Time(Device& device, const char* name, const Pass& pass) {
  constexpr int kPasses = 5;
  constexpr int64_t kDelay = 4'000'000;  // 2 ms
  cudaEvent_t begin, end;
  MUST(cudaEventCreate(&begin));
  MUST(cudaEventCreate(&end));
  Run(device, pass);  // grows the scratch memory
  MUST(cudaStreamSynchronize(device.stream()));
  std::vector<float> times;
  for (int round = 0; round < 9; ++round) {
    Delay<<<1, 1, 0, device.stream()>>>(kDelay);
    MUST(cudaEventRecord(begin, device.stream()));
    for (int i = 0; i < kPasses; ++i) Run(device, pass);
    MUST(cudaEventRecord(end, device.stream()));
    MUST(cudaEventSynchronize(end));
    float ms;
    MUST(cudaEventElapsedTime(&ms, begin, end));
    if (round >= 2) times.push_back(ms / kPasses);
  }
  MUST(cudaEventDestroy(begin));
  MUST(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  const Dims& d = pass.dims;
  const double flops = 2.0 * pass.entries * d.value_heads * (3.0 * d.key_dim * d.value_dim);
  std::printf("%-30s %6d entries  %.4f ms (%.4f to %.4f)  %.1f TFLOP/s of the recurrence\n", name,
              pass.entries, times[times.size() / 2], times.front(), times.back(),
              flops / times[times.size() / 2] * 1e-9);
  const std::string error = device.TakeError();
  if (!error.empty()) std::printf("%s\n", error.c_str()), failed = true;
}

void TimeAll(Device& device) {
  const Dims mom = {4, 4, 256, 256};
  const struct {
    const char* name;
    int prompts, tokens;
  } layers[] = {{"layer, 1 x 512", 1, 512},
                {"layer, 1 x 2048", 1, 2048},
                {"layer, 1 x 8192", 1, 8192},
                {"layer, 8 x 256", 8, 256},
                {"layer, 8 x 2048", 8, 2048}};
  for (const auto& layer : layers) {
    const Pass pass(mom, LayerSegments(layer.prompts, layer.tokens), layer.prompts, 5, 5);
    Time(device, layer.name, pass);
  }
  const struct {
    const char* name;
    int prompts, tokens;
  } singles[] = {{"one memory, 1 x 2048", 1, 2048},
                 {"one memory, 1 x 8192", 1, 8192},
                 {"one memory, 8 x 2048", 8, 2048}};
  for (const auto& single : singles) {
    std::vector<ProblemSegment> list;
    for (int i = 0; i < single.prompts; ++i) list.push_back({single.tokens, i, 0, true});
    const Pass pass(mom, list, single.prompts, 1, 6);
    Time(device, single.name, pass);
  }
  {
    std::vector<ProblemSegment> list = LayerSegments(1, 2048);
    std::vector<ProblemSegment> all;
    for (int m = 0; m < 5; ++m) {
      all.push_back(list[m]);
      for (int i = 1; i < 256; ++i) {
        all.push_back({m == 4 || (i + m) % 2 == 0 ? 1 : 0, i, m, false});
      }
    }
    const Pass pass(mom, all, 256, 5, 7);
    Time(device, "1 x 2048 beside 255 decoding", pass);
  }
  {
    const Pass pass({16, 32, 128, 128}, {{8192, 0, 0, true}}, 1, 1, 8);
    Time(device, "16/32 heads of 128, 1 x 8192", pass);
  }
}

void RunOnce(Device& device) {
  const Dims mom = {4, 4, 256, 256};
  const Pass one(mom, {{8192, 0, 0, true}}, 1, 1, 6);
  const Pass layer(mom, LayerSegments(1, 2048), 1, 5, 5);
  const Pass eight(mom, LayerSegments(8, 2048), 8, 5, 5);
  for (const Pass* pass : {&eight, &layer, &one}) {
    Run(device, *pass);
    MUST(cudaStreamSynchronize(device.stream()));
  }
}

int Main(int argc, char** argv) {
  const auto named = [&](const char* flag) {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], flag) == 0) return true;
    }
    return false;
  };
  for (int i = 1; i < argc; ++i) {
    bool known = false;
    for (const char* flag : {"--check", "--long", "--time", "--once"}) {
      known |= std::strcmp(argv[i], flag) == 0;
    }
    if (known) continue;
    std::fprintf(stderr, "%s, expected --check, --long, --time or --once\n", argv[i]);
    return 2;
  }
  const auto asked = [&](const char* flag) { return argc == 1 || named(flag); };
  Device device(0, DType::kBF16);
  if (!device.ok()) {
    std::printf("%s\n", device.TakeError().c_str());
    return 1;
  }
  std::printf("%s\n", device.properties().name);
  if (asked("--check")) CheckAll(device);
  if (asked("--long")) CheckLong(device);
  if (asked("--time")) TimeAll(device);
  if (named("--once")) RunOnce(device);
  std::printf(failed ? "FAILED\n" : "done\n");
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace mneme::cuda

int main(int argc, char** argv) { return mneme::cuda::Main(argc, argv); }
