// Matrix memories in chunks on a GPU: the error of every rule that has a chunked form against
// float64, token by token, on ragged segments; and the time of whole prompts, head sizes being the
// defaults of the models that have the rule. fla_matrix_chunks.py times its peer.
//
//   cuda_matrix_chunk_bench [--check] [--time] [--once] [RULE...]   the first two and all rules,
//                                                                  unless named
//
// --once: each timed problem, one call, for a profiler.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "bench/cuda_matrix_chunk_problem.cuh"
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/matrix_memory/chunked/chunked.h"

namespace mneme::cuda {
namespace {

struct NamedRule {
  const char* name;
  MatrixRule rule;
  Sizes sizes;
};

const NamedRule kRules[] = {
    {"linear_attn", {Decay::kNone, Correction::kNone}, Alike(4, 256, 256)},
    {"retnet", {Decay::kConstant, Correction::kNone}, Alike(8, 256, 512)},
    {"mamba2", {Decay::kHead, Correction::kNone}, {64, 128, 64, 1, 1, 64, 64}},
    {"gla", {Decay::kKey, Correction::kNone}, Alike(4, 256, 512)},
    {"hgrn2", {Decay::kKey, Correction::kNone}, Alike(16, 128, 128)},
    {"gsa_keys", {Decay::kValue, Correction::kNone}, Alike(4, 512, 64)},
    {"gsa_values", {Decay::kKey, Correction::kNone}, Alike(4, 64, 512)},
    {"delta_net", {Decay::kNone, Correction::kDelta}, Alike(16, 128, 128)},
    {"kda", {Decay::kKey, Correction::kDelta}, Alike(16, 128, 128)},
    {"rwkv6",
     {Decay::kKey, Correction::kNone, MatrixRule::Read::kBeforeWithBonus},
     Alike(4, 128, 256)},
    {"rwkv7", {Decay::kKey, Correction::kGeneral}, Alike(16, 64, 64)},
};

bool failed = false;

struct Difference {
  double squares = 0, want = 0;
  void Add(double got, double expected) {
    if (!std::isfinite(got)) got = 1e30;
    squares += (got - expected) * (got - expected);
    want += expected * expected;
  }
  double Relative() const { return std::sqrt(squares / std::max(want, 1e-300)); }
};

// Compares every `row_step`-th row of values with float64, token by token.
void Check(Device& device, const char* name, ChunkProblem& p, int row_step,
           double limit = 8.0 / 512) {
  const Sizes& d = p.sizes;
  const MatrixMemoryArgs& a = p.args;
  const auto all = [](const TensorView& x) {
    return x.empty() ? std::vector<float>() : Download(x.as<float>(), x.shape.elements());
  };
  const std::vector<float> q = all(a.q), k = all(a.k), v = all(a.v), log_decay = all(a.log_decay),
                           beta = all(a.beta), recalls = all(a.c), erases = all(a.e),
                           bonus = all(a.bonus);
  if (!matrix_memory::chunked::SupportsRule(device, a)) {
    std::printf("%s: not supported\n", name);
    failed = true;
    return;
  }
  matrix_memory::chunked::MatrixChunks(device, a);
  MUST(cudaStreamSynchronize(device.stream()));
  const std::string error = device.TakeError();
  if (!error.empty()) {
    std::printf("%s: %s\n", name, error.c_str());
    std::exit(1);
  }
  const std::vector<float> out = all(a.out), state = p.State();
  std::vector<bool> touched(state.size());
  bool kept = true;
  Difference out_error, state_error;
  double worst = 0;  // of an entry and a head
  std::vector<double> s(d.key_dim);
  for (size_t n = 0; n < p.segments.size(); ++n) {
    const ProblemSegment& segment = p.segments[n];
    if (segment.slot < 0) continue;
    if (segment.length < 2) {
      for (int64_t i = int64_t{p.first[n]} * d.heads * d.value_dim;
           i < int64_t{p.first[n + 1]} * d.heads * d.value_dim; ++i) {
        const float before = a.out.data == a.v.data ? v[i] : 0;
        uint32_t bits;
        std::memcpy(&bits, &out[i], 4);
        kept &= a.out.data == a.v.data ? out[i] == before : bits == 0xffffffffu;
      }
      continue;
    }
    const int64_t base = (segment.slot * p.memories + segment.memory) * p.elements;
    std::fill_n(touched.begin() + base, p.elements, true);
    for (int h = 0; h < d.heads; ++h) {
      std::vector<Difference> rows(segment.length);
      for (int i = static_cast<int>(n) % row_step; i < d.value_dim; i += row_step) {
        const int64_t at = base + (int64_t{h} * d.value_dim + i) * d.key_dim;
        for (int c = 0; c < d.key_dim; ++c) s[c] = segment.fresh ? 0 : p.initial[at + c];
        for (int e = p.first[n]; e < p.first[n + 1]; ++e) {
          const auto part = [&](const std::vector<float>& x, int heads, int64_t width) {
            return x.data() + (int64_t{e} * heads + h / (d.heads / heads)) * width;
          };
          const float* qe = part(q, d.query_heads, d.key_dim);
          const float* ke = part(k, d.key_heads, d.key_dim);
          const double value = part(v, d.value_heads, d.value_dim)[i];
          const float* const recalling =
              recalls.empty() ? nullptr : part(recalls, d.decay_heads, d.key_dim);
          const float* const erasing =
              erases.empty() ? nullptr : part(erases, d.decay_heads, d.key_dim);
          const float* g = nullptr;
          double decay = 1;
          switch (a.rule.decay) {
            case Decay::kNone:
              break;
            case Decay::kConstant:
              decay = std::exp(double{log_decay[h]});
              break;
            case Decay::kHead:
              decay = std::exp(double{*part(log_decay, d.decay_heads, 1)});
              break;
            case Decay::kKey:
              g = part(log_decay, d.decay_heads, d.key_dim);
              break;
            case Decay::kValue:
              decay = std::exp(double{part(log_decay, d.decay_heads, d.value_dim)[i]});
              break;
          }
          double recall = 0, read = 0, key_query = 0, recalled = 0, erase_query = 0;
          for (int c = 0; c < d.key_dim; ++c) {
            if (recalling != nullptr) recalled += s[c] * recalling[c];
            if (erasing != nullptr) erase_query += double{erasing[c]} * qe[c];
            if (!bonus.empty()) {
              read += s[c] * qe[c];
              key_query += double{ke[c]} * qe[c] * bonus[h * d.key_dim + c];
            }
            s[c] *= g != nullptr ? std::exp(g[c]) : decay;
            recall += s[c] * ke[c];
            if (!bonus.empty()) continue;
            read += s[c] * qe[c];
            key_query += double{ke[c]} * qe[c];
          }
          const double u = beta.empty() ? value : beta[e * d.heads + h] * (value - recall);
          for (int c = 0; c < d.key_dim; ++c) {
            s[c] += u * ke[c] + (erasing != nullptr ? recalled * erasing[c] : 0);
          }
          const double got = out[(int64_t{e} * d.heads + h) * d.value_dim + i];
          const double want = a.scale * (read + u * key_query + recalled * erase_query);
          out_error.Add(got, want);
          rows[e - p.first[n]].Add(got, want);
        }
        for (int c = 0; c < d.key_dim; ++c) state_error.Add(state[at + c], s[c]);
      }
      for (const Difference& row : rows) worst = std::max(worst, row.Relative());
    }
  }
  for (size_t i = 0; i < state.size(); ++i) {
    if (touched[i]) continue;
    kept &= std::memcmp(&state[i], &p.initial[i], 4) == 0 ||
            (std::isnan(state[i]) && std::isnan(p.initial[i]));
  }
  const bool good = out_error.Relative() <= limit && state_error.Relative() <= limit && kept;
  failed |= !good;
  std::printf("%-44s out %.2e  worst %.2e  state %.2e %s%s\n", name, out_error.Relative(), worst,
              state_error.Relative(), kept ? "" : "WROTE ELSEWHERE ", good ? "" : "FAILED");
}

void CheckRule(Device& device, const NamedRule& named) {
  const std::vector<ProblemSegment> mixed = {
      {65, 0, 0, false}, {1, 1, 0, false},  {0, 2, 0, false},   {64, 3, 0, true},
      {7, -1, 0, false}, {2, 0, 1, true},   {130, 1, 1, false}, {3, 2, 1, false},
      {1, 3, 1, true},   {63, 0, 2, false}, {129, 1, 2, true},  {200, 2, 2, true}};
  const bool values = named.rule.decay == Decay::kValue;
  const bool key_delta =
      named.rule.decay == Decay::kKey && named.rule.correction == Correction::kDelta;
  uint64_t seed = 1;
  char text[120];
  const char* const kinds[] = {"any", "mild", "extreme"};
  for (const Gates gates : {Gates::kAny, Gates::kMild, Gates::kExtreme}) {
    const bool gated = named.rule.decay != Decay::kNone && named.rule.decay != Decay::kConstant;
    if (!gated && gates != Gates::kAny) continue;
    Sizes d = named.sizes;
    const int divisor = d.heads / 2;
    for (int* heads : {&d.heads, &d.query_heads, &d.key_heads, &d.value_heads, &d.decay_heads}) {
      *heads = std::max(1, *heads / divisor);
    }
    std::snprintf(text, sizeof(text), "%s, mixed, %s gates", named.name, kinds[(int)gates]);
    ChunkProblem p(named.rule, d, mixed, 4, 3, gates, 100 * seed++, gates == Gates::kMild);
    Check(device, text, p, 7);
  }
  for (const int key_dim : {64, 128, 256, 512}) {
    if (key_dim == 512 && (named.rule.correction == Correction::kDelta || key_delta)) continue;
    if (key_dim > 128 && named.rule.correction == Correction::kGeneral) continue;
    for (const bool half : {false, true}) {
      const Sizes d = Alike(1, key_dim, values ? 64 : half ? 80 : 192);
      std::snprintf(text, sizeof(text), "%s, 1 x %d x %d%s", named.name, key_dim, d.value_dim,
                    half ? ", f16 state" : "");
      ChunkProblem p(named.rule, d, mixed, 4, 3, Gates::kMild, 100 * seed++, false,
                     half ? DType::kF16 : DType::kF32);
      Check(device, text, p, 5);
    }
  }
  if (named.rule.correction == Correction::kNone) {  // tensors of fewer heads, each its own way
    const Sizes d = {4, 128, 128, 4, 2, 2, named.rule.decay == Decay::kNone ? 4 : 2};
    std::snprintf(text, sizeof(text), "%s, heads of q 4, k 2, v 2 of 4", named.name);
    ChunkProblem p(named.rule, d, mixed, 4, 3, Gates::kMild, 100 * seed++, false);
    Check(device, text, p, 7);
  }
  {
    std::vector<ProblemSegment> lengths;
    for (int n = 0; n <= 200; n += 1 + n / 20) {
      lengths.push_back({n, static_cast<int>(lengths.size()), 0, n % 3 == 2});
    }
    const Sizes d = Alike(1, 64, 64);
    std::snprintf(text, sizeof(text), "%s, lengths 0 to 200", named.name);
    const int count = static_cast<int>(lengths.size());
    ChunkProblem p(named.rule, d, lengths, count, 1, Gates::kAny, 100 * seed++, false);
    Check(device, text, p, 9);
  }
  // Few and long, which are cut into spans.
  for (const bool half : {false, true}) {
    const Sizes d = Alike(2, half ? 128 : named.sizes.key_dim, values ? 64 : 80);
    std::snprintf(text, sizeof(text), "%s, long ones%s", named.name, half ? ", f16 state" : "");
    ChunkProblem p(named.rule, d,
                   {{1500, 0, 0, false},
                    {1, 1, 0, false},
                    {130, 2, 0, true},
                    {0, 1, 1, true},
                    {2100, 2, 1, half}},
                   3, 2, Gates::kMild, 100 * seed++, !half, half ? DType::kF16 : DType::kF32);
    Check(device, text, p, 16);
  }
  {
    const Sizes d = Alike(1, named.sizes.key_dim, 64);
    std::snprintf(text, sizeof(text), "%s, 20000 entries", named.name);
    ChunkProblem p(named.rule, d, {{20000, 0, 0, true}}, 1, 1, Gates::kMild, 100 * seed++, false);
    Check(device, text, p, 32);
  }
}

// Keeps the device busy while the host queues what is to be timed.
__global__ void Delay(int64_t cycles) {
  const int64_t begin = clock64();
  while (clock64() - begin < cycles) continue;
}

void Time(Device& device, const NamedRule& named, int prompts, int tokens, bool once) {
  constexpr int kPasses = 5;
  constexpr int64_t kDelay = 4'000'000;  // 2 ms
  std::vector<ProblemSegment> list;
  for (int i = 0; i < prompts; ++i) list.push_back({tokens, i, 0, true});
  ChunkProblem p(named.rule, named.sizes, list, prompts, 1, Gates::kMild, 7, false);
  const auto run = [&] { matrix_memory::chunked::MatrixChunks(device, p.args); };
  if (!matrix_memory::chunked::SupportsRule(device, p.args)) {
    std::printf("%s: not supported\n", named.name);
    failed = true;
    return;
  }
  run();  // grows the scratch memory
  MUST(cudaStreamSynchronize(device.stream()));
  if (once) return;
  cudaEvent_t begin, end;
  MUST(cudaEventCreate(&begin));
  MUST(cudaEventCreate(&end));
  std::vector<float> times;
  for (int round = 0; round < 9; ++round) {
    Delay<<<1, 1, 0, device.stream()>>>(kDelay);
    MUST(cudaEventRecord(begin, device.stream()));
    for (int i = 0; i < kPasses; ++i) run();
    MUST(cudaEventRecord(end, device.stream()));
    MUST(cudaEventSynchronize(end));
    float ms;
    MUST(cudaEventElapsedTime(&ms, begin, end));
    if (round >= 2) times.push_back(ms / kPasses);
  }
  MUST(cudaEventDestroy(begin));
  MUST(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  const float ms = times[times.size() / 2];
  std::printf("mneme %-12s %d x %-5d %8.4f ms (%.4f to %.4f) %6.1f M tokens/s\n", named.name,
              prompts, tokens, ms, times.front(), times.back(), prompts * tokens / ms * 1e-3);
  const std::string error = device.TakeError();
  if (!error.empty()) std::printf("%s\n", error.c_str()), failed = true;
}

int Main(int argc, char** argv) {
  const auto named = [&](const char* word) {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], word) == 0) return true;
    }
    return false;
  };
  bool any_rule = false, any_flag = false;
  for (int i = 1; i < argc; ++i) {
    bool known = false;
    for (const char* flag : {"--check", "--time", "--once"}) {
      known |= std::strcmp(argv[i], flag) == 0;
    }
    any_flag |= known;
    for (const NamedRule& rule : kRules) {
      if (std::strcmp(argv[i], rule.name) == 0) any_rule = known = true;
    }
    if (known) continue;
    std::fprintf(stderr, "%s, expected --check, --time, --once or the name of a rule\n", argv[i]);
    return 2;
  }
  Device device(0, DType::kBF16);
  if (!device.ok()) {
    std::printf("%s\n", device.TakeError().c_str());
    return 1;
  }
  std::printf("%s\n", device.properties().name);
  for (const NamedRule& rule : kRules) {
    if (any_rule && !named(rule.name)) continue;
    if (!any_flag || named("--check")) CheckRule(device, rule);
    std::fflush(stdout);
    for (const bool once : {false, true}) {
      if (once ? !named("--once") : any_flag && !named("--time")) continue;
      Time(device, rule, 1, 8192, once);
      Time(device, rule, 8, 2048, once);
    }
    std::fflush(stdout);
  }
  std::printf(failed ? "FAILED\n" : "done\n");
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace mneme::cuda

int main(int argc, char** argv) { return mneme::cuda::Main(argc, argv); }
