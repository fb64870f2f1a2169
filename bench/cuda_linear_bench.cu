// Matrix products on the GPU: every path of Linear() over the projections of two models, and, with
// --check, its results against double loops.
//
// Times are graph replays over enough copies of the weights that they come from memory. Bytes are
// those of the weights that entries need, of x and of y, each once.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear_batch.h"
#include "kernels/cuda/operations.h"

namespace mneme::cuda {
namespace {

void Require(Device& device, const char* what) {
  const cudaError_t status = cudaStreamSynchronize(device.stream());
  const std::string error = device.TakeError();
  if (status == cudaSuccess && error.empty()) return;
  std::printf("FAILED %s: %s %s\n", what, cudaGetErrorString(status), error.c_str());
  std::exit(1);
}

__device__ float HashNormal(uint64_t i) {
  // Sum of four uniform numbers, near enough to normal, variance 1.
  float sum = 0;
  for (int j = 0; j < 4; ++j) {
    i = (i ^ (i >> 31)) * 0x7fb5d329728ea185u + 0x9e3779b97f4a7c15u;
    sum += static_cast<float>((i ^ (i >> 27)) >> 40) * 0x1p-24f - 0.5f;
  }
  return sum * 1.7320508f;
}

template <typename T>
__global__ void FillRandom(T* values, int64_t count, float scale, uint64_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    values[i] = static_cast<T>(HashNormal(seed * 0x2545f4914f6cdd1du + i) * scale);
  }
}

// Device memory, freed with the arena.
class Arena {
 public:
  explicit Arena(Device& device) : device_(device) {}
  ~Arena() {
    cudaStreamSynchronize(device_.stream());
    for (void* block : blocks_) cudaFree(block);
  }
  char* New(int64_t bytes) {
    void* block = nullptr;
    device_.Check(cudaMalloc(&block, std::max<int64_t>(bytes, 16)), "cudaMalloc");
    blocks_.push_back(block);
    return static_cast<char*>(block);
  }
  // `shift` elements past an aligned address.
  TensorView Random(const Shape& shape, DType dtype, float scale, int shift = 0) {
    const int64_t count = shape.elements();
    char* data = New((count + shift) * SizeOf(dtype)) + shift * SizeOf(dtype);
    ++seed_;
    if (dtype == DType::kF32) {
      FillRandom<<<512, 256, 0, device_.stream()>>>(reinterpret_cast<float*>(data), count, scale,
                                                    seed_);
    } else if (dtype == DType::kBF16) {
      FillRandom<<<512, 256, 0, device_.stream()>>>(reinterpret_cast<__nv_bfloat16*>(data), count,
                                                    scale, seed_);
    } else {
      FillRandom<<<512, 256, 0, device_.stream()>>>(reinterpret_cast<__half*>(data), count, scale,
                                                    seed_);
    }
    return {data, dtype, shape};
  }
  TensorView Ints(const std::vector<int32_t>& values) {
    char* data = New(values.size() * 4);
    device_.Check(cudaMemcpy(data, values.data(), values.size() * 4, cudaMemcpyHostToDevice),
                  "cudaMemcpy");
    return {data, DType::kI32, {static_cast<int64_t>(values.size())}};
  }

 private:
  Device& device_;
  std::vector<void*> blocks_;
  uint64_t seed_ = 0;
};

// Which entries go to which group: `top` of `routed` groups per token, and one group of all.
struct Routing {
  Routing(int tokens, int routed, int top) {
    std::mt19937 random(tokens);
    std::vector<std::vector<int32_t>> groups(routed + 1);
    for (int t = 0; t < tokens; ++t) {
      const int start = static_cast<int>(random() % routed);
      for (int j = 0; j < top; ++j) groups[(start + j) % routed].push_back(t);
      groups[routed].push_back(t);
    }
    for (const auto& group : groups) {
      rows.insert(rows.end(), group.begin(), group.end());
      offsets.push_back(static_cast<int32_t>(rows.size()));
      used += !group.empty();
    }
  }
  std::vector<int32_t> rows, offsets = {0};
  int used = 0;
};

struct Variant {
  std::string name;
  int first_rows, last_rows;
  int terms;  // of an activation: 3: exact; 0: as the device computes
  std::function<void(Device&, const std::vector<LinearArgs>&)> run;
};

std::vector<const LinearArgs*> Pointers(const std::vector<LinearArgs>& products) {
  std::vector<const LinearArgs*> pointers;
  for (const LinearArgs& args : products) pointers.push_back(&args);
  return pointers;
}

// The copies of x in 16 bits that products take, which all have the same x, in the order of their
// entries if `gathered`.
std::vector<const void*> Rounded(Device& device, const std::vector<LinearArgs>& products, int terms,
                                 bool gathered = false) {
  const DType dtype = products[0].weights[0].dtype;
  const TensorView& x = products[0].x;
  TensorView entry_rows;
  for (const LinearArgs& args : products) {
    if (!args.entry_rows.empty()) entry_rows = args.entry_rows;
  }
  const int64_t row_bytes = 2 * x.shape[1] * terms;
  const int64_t plain_bytes = (x.shape[0] * row_bytes + 255) / 256 * 256;
  const int64_t gathered_bytes =
      gathered && !entry_rows.empty() ? entry_rows.shape[0] * row_bytes : 0;
  char* base =
      static_cast<char*>(device.Scratch(kLinearBlasWorkspaceBytes + plain_bytes + gathered_bytes)) +
      kLinearBlasWorkspaceBytes;
  bool plain_made = false, gathered_made = false;
  std::vector<const void*> copies;
  for (const LinearArgs& args : products) {
    const bool gather = gathered_bytes > 0 && !args.entry_rows.empty();
    char* copy = gather ? base + plain_bytes : base;
    bool& made = gather ? gathered_made : plain_made;
    if (!made) {
      RoundActivations(device, x, gather ? args.entry_rows : TensorView{}, dtype, terms, copy);
    }
    made = true;
    copies.push_back(copy);
  }
  return copies;
}

// All paths, each by itself, and what Linear() chooses. `rows`: where the path might be chosen.
std::vector<Variant> Variants() {
  using Products = std::vector<LinearArgs>;
  const auto dtype = [](const Products& p) { return p[0].weights[0].dtype; };
  std::vector<Variant> variants = {
      {"auto", 1, 1 << 30, 0, [](Device& d, const Products& p) { Linear(d, p); }}};
  variants.push_back({"few", 1, 8, 3, [=](Device& d, const Products& p) {
                        LinearFewRows(d, Pointers(p), dtype(p), true);
                      }});
  const struct {
    const char* name;
    int entries, warpgroups, stages, first_rows, last_rows;
  } shapes[] = {{"w16.8", 16, 1, 8, 2, 16},
                {"w16.7", 16, 1, 7, 2, 16},
                {"w32", 32, 1, 6, 4, 128},
                {"w64", 64, 1, 4, 32, 256},
                {"w128", 128, 1, 4, 64, 512}};
  for (const auto& shape : shapes) {
    const WarpgroupShape wanted = {shape.entries, shape.warpgroups, shape.stages};
    variants.push_back(
        {shape.name, shape.first_rows, shape.last_rows, 1, [=](Device& d, const Products& p) {
           LinearWarpgroups(d, Pointers(p), dtype(p), 1, Rounded(d, p, 1), wanted);
         }});
  }
  for (const int tile : {128, 256}) {
    variants.push_back(
        {tile == 128 ? "bulk128" : "bulk256", tile, 8192, 1, [=](Device& d, const Products& p) {
           LinearBulk(d, Pointers(p), dtype(p), 1, Rounded(d, p, 1, true), tile);
         }});
  }
  variants.push_back({"bulk*3", 2048, 2048, 3, [=](Device& d, const Products& p) {
                        LinearBulk(d, Pointers(p), dtype(p), 3, Rounded(d, p, 3, true));
                      }});
  variants.push_back({"wg*3", 2048, 2048, 3, [=](Device& d, const Products& p) {
                        LinearWarpgroups(d, Pointers(p), dtype(p), 3, Rounded(d, p, 3));
                      }});
  variants.push_back({"tiles", 256, 256, 1, [=](Device& d, const Products& p) {
                        LinearTiles(d, Pointers(p), dtype(p), 1, Rounded(d, p, 1));
                      }});
  variants.push_back({"blas", 8, 8192, 1, [=](Device& d, const Products& p) {
                        const void* rounded = Rounded(d, p, 1)[0];
                        void* workspace = d.Scratch(kLinearBlasWorkspaceBytes);
                        for (const LinearArgs& args : p) LinearBlas(d, args, rounded, workspace);
                      }});
  return variants;
}

template <typename T>
__global__ void InDouble(const T* w, const float* x, const int32_t* entry_rows, int begin, int end,
                         int in, int out, double* y, double* scale) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= int64_t{end - begin} * out) return;
  const int entry = begin + static_cast<int>(i / out), o = static_cast<int>(i % out);
  const float* row = x + int64_t{entry_rows == nullptr ? entry : entry_rows[entry]} * in;
  double sum = 0, absolute = 0;
  for (int k = 0; k < in; ++k) {
    const double term = static_cast<double>(static_cast<float>(w[int64_t{o} * in + k])) * row[k];
    sum += term;
    absolute += fabs(term);
  }
  y[int64_t{entry} * out + o] = sum;
  scale[int64_t{entry} * out + o] = absolute;
}

struct CheckedProduct {
  LinearArgs args;
  std::vector<PackedMatrix> weights;
  std::vector<int32_t> offsets;
};

// Largest error over its bound, of `run` on fresh y; -1 if two runs differ.
double WorstError(Device& device, CheckedProduct& product, double relative,
                  const std::function<void(const LinearArgs&)>& run) {
  Arena arena(device);
  LinearArgs& args = product.args;
  args.weights = product.weights;
  const int64_t count = args.y.shape.elements();
  const int in = product.weights[0].in_features, out = product.weights[0].out_features;
  std::vector<float> before(count), got(count), again(count);
  const auto read = [&](std::vector<float>& to) {
    cudaMemcpyAsync(to.data(), args.y.data, count * 4, cudaMemcpyDeviceToHost, device.stream());
    Require(device, "check");
  };
  read(before);
  run(args);
  read(got);
  cudaMemcpyAsync(args.y.data, before.data(), count * 4, cudaMemcpyHostToDevice, device.stream());
  run(args);
  read(again);
  cudaMemcpyAsync(args.y.data, before.data(), count * 4, cudaMemcpyHostToDevice, device.stream());
  if (std::memcmp(got.data(), again.data(), count * 4) != 0) return -1;
  double* want = reinterpret_cast<double*>(arena.New(count * 16));
  for (size_t g = 0; g + 1 < product.offsets.size(); ++g) {
    const int begin = product.offsets[g], end = product.offsets[g + 1];
    if (begin == end) continue;
    const int blocks = static_cast<int>((int64_t{end - begin} * out + 127) / 128);
    const auto launch = [&](auto* w) {
      InDouble<<<blocks, 128, 0, device.stream()>>>(w, args.x.as<float>(),
                                                    args.entry_rows.as<int32_t>(), begin, end, in,
                                                    out, want, want + count);
    };
    const void* w = product.weights[g].data;
    if (product.weights[g].dtype == DType::kF32) launch(static_cast<const float*>(w));
    if (product.weights[g].dtype == DType::kBF16) launch(static_cast<const __nv_bfloat16*>(w));
    if (product.weights[g].dtype == DType::kF16) launch(static_cast<const __half*>(w));
  }
  std::vector<double> host(2 * count);
  cudaMemcpyAsync(host.data(), want, count * 16, cudaMemcpyDeviceToHost, device.stream());
  Require(device, "double loop");
  double worst = 0;
  for (int64_t i = 0; i < count; ++i) {
    double bound = relative * host[count + i] + 1e-35;
    double right = host[i];
    if (args.accumulate) {
      right += before[i];
      bound += 0x1p-23 * (std::abs(right) + std::abs(before[i]));
    }
    const double error = std::abs(got[i] - right) / bound;
    worst = std::max(worst, std::isnan(error) ? 1e30 : error);
  }
  return worst;
}

// Calls of several products of the same x, as a layer of memories makes them. Prints what is wrong;
// the number of it.
int CheckCalls(DType compute) {
  Device device(0, compute);
  int failures = 0;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int tokens : {1, 2, 3, 5, 16, 40, 100, 200, 600}) {
      Arena arena(device);
      constexpr int kIn = 264;
      const Routing routing(tokens, 4, 2);
      const TensorView x = arena.Random({tokens, kIn}, DType::kF32, 1);
      const TensorView rows = arena.Ints(routing.rows), offsets = arena.Ints(routing.offsets);
      std::vector<CheckedProduct> products;
      for (const int out : {200, -136, -4, -200, 4, 40}) {  // negative: grouped
        CheckedProduct& product = products.emplace_back();
        for (int g = 0; g < (out < 0 ? 5 : 1); ++g) {
          const TensorView w = arena.Random({std::abs(out), kIn}, dtype, 0.06f);
          product.weights.push_back({w.data, dtype, std::abs(out), kIn});
        }
        product.args.x = x;
        product.offsets = {0, tokens};
        if (out < 0) {
          product.offsets = routing.offsets;
          product.args.entry_rows = rows;
          product.args.group_offsets = offsets;
        }
        product.args.y = arena.Random({product.offsets.back(), std::abs(out)}, DType::kF32, 1);
      }
      std::vector<LinearArgs> call;
      for (CheckedProduct& product : products) {
        product.args.weights = product.weights;
        call.push_back(product.args);
      }
      const double sum = 6 * std::sqrt(kIn + 1.0) * 0x1p-24;
      const double relative = compute == DType::kF32 ? sum : 0x1p-8 + (1 + 0x1p-8) * sum;
      for (size_t i = 0; i < products.size(); ++i) {
        const double error = WorstError(device, products[i], relative,
                                        [&](const LinearArgs&) { Linear(device, call); });
        if (error >= 0 && error <= 1) continue;
        ++failures;
        std::printf("BAD call: %s weights, compute %s, %d tokens, product %d: %g\n", Name(dtype),
                    Name(compute), tokens, static_cast<int>(i), error);
      }
    }
  }
  return failures;
}

int Check() {
  constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
  const std::vector<Variant> variants = Variants();
  int failures = 0, cases = 0, turn = 0;
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    Device device(0, compute);
    Require(device, "device");
    std::map<std::string, double> worst;
    for (const DType dtype : kTypes) {
      for (const bool grouped : {false, true}) {
        for (const int in : {1, 7, 64, 72, 129, 500, 1024, 2056, 5632}) {
          for (const int out : {1, 4, 33, 40, 130, 256}) {
            for (const int tokens : {1, 2, 3, 4, 5, 8, 13, 16, 30, 64, 65, 130, 700}) {
              if (tokens > 64 && in > 2056) continue;
              if (turn++ % 3 != 0) continue;
              Arena arena(device);
              const int shift = (in + out + tokens) % 5 == 0;
              const Routing routing(tokens, 6, 2);
              CheckedProduct product;
              const int groups = grouped ? 7 : 1;
              for (int g = 0; g < groups; ++g) {
                const TensorView w =
                    arena.Random({out, in}, dtype, 1 / std::sqrt(float(in)), shift);
                product.weights.push_back({w.data, dtype, out, in});
              }
              const int entries = grouped ? static_cast<int>(routing.rows.size()) : tokens;
              product.args.x = arena.Random({tokens, in}, DType::kF32, 1);
              product.args.y = arena.Random({entries, out}, DType::kF32, 1);
              product.args.accumulate = (in / 2 + out + tokens) % 2 == 0;
              product.offsets = {0, tokens};
              if (grouped) {
                product.offsets = routing.offsets;
                product.args.entry_rows = arena.Ints(routing.rows);
                product.args.group_offsets = arena.Ints(routing.offsets);
              }
              const double sum = std::min(in + 1.0, 6 * std::sqrt(in + 1.0)) * 0x1p-24;
              const double relative = compute == DType::kF32 ? sum : 0x1p-8 + (1 + 0x1p-8) * sum;
              const bool aligned = in % 8 == 0 && shift == 0 && dtype != DType::kF32;
              for (const Variant& variant : variants) {
                const bool automatic = variant.terms == 0;
                if (!automatic && (!aligned || compute == DType::kF32)) continue;
                if (variant.terms == 3 && dtype == DType::kF16 && variant.name[0] != 'f') continue;
                if (variant.name == "blas" && grouped) continue;
                const double allowed = variant.terms == 3 ? sum : relative;
                const double error =
                    WorstError(device, product, allowed,
                               [&](const LinearArgs& args) { variant.run(device, {args}); });
                ++cases;
                double& worst_of = worst[variant.name];
                worst_of = std::max(worst_of, error);
                if ((error < 0 || error > 1) && ++failures <= 25) {
                  std::printf("BAD %s: %s weights, compute %s, %s, %d x %d, %d tokens%s: %g\n",
                              variant.name.c_str(), Name(dtype), Name(compute),
                              grouped ? "grouped" : "one", out, in, tokens,
                              product.args.accumulate ? ", accumulate" : "", error);
                }
              }
            }
          }
        }
      }
    }
    for (const auto& [name, error] : worst) {
      std::printf("compute %s, %s: worst error / bound %.3f\n", Name(compute), name.c_str(), error);
    }
  }
  failures += CheckCalls(DType::kF32) + CheckCalls(DType::kBF16);
  std::printf("check: %d cases, %d failures\n", cases, failures);
  return failures == 0 ? 0 : 1;
}

// Seconds per call of `work(i)`, i = 0 .. copies - 1, by graph replay.
double Seconds(Device& device, int copies, const std::function<void(int)>& work) {
  work(0);  // grows scratch memory, asks cuBLAS
  Require(device, "first run");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  device.Check(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeRelaxed), "capture");
  for (int i = 0; i < copies; ++i) work(i);
  device.Check(cudaStreamEndCapture(device.stream(), &graph), "capture");
  device.Check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaGraphDestroy(graph);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  for (int round = 0; round < 6; ++round) {
    cudaEventRecord(begin, device.stream());
    device.Check(cudaGraphLaunch(exec, device.stream()), "replay");
    cudaEventRecord(end, device.stream());
    cudaEventSynchronize(end);
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    if (round > 0) times.push_back(milliseconds);
  }
  Require(device, "replay");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(exec);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e-3 / copies;
}

__global__ void CopyBytes(const uint4* from, uint4* to, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = from[i + j * stride];
#pragma unroll
    for (int j = 0; j < 4; ++j) to[i + j * stride] = v[j];
  }
  for (; i < count; i += stride) to[i] = from[i];
}

double CopyBandwidth(Device& device) {
  Arena arena(device);
  const int64_t bytes = int64_t{2} << 30;
  const TensorView from = arena.Random({bytes / 4}, DType::kF32, 1);
  const TensorView to = arena.Random({bytes / 4}, DType::kF32, 1);
  double best = 0;
  for (int i = 0; i < 4; ++i) {  // the first of them wake the device up
    const double seconds = Seconds(device, 10, [&](int) {
      CopyBytes<<<8 * device.multiprocessors(), 256, 0, device.stream()>>>(
          from.as<const uint4>(), to.as<uint4>(), bytes / 16);
    });
    best = std::max(best, 2.0 * static_cast<double>(bytes) / seconds);
  }
  return best;
}

// One call of Linear().
struct Call {
  const char* name;
  int in;
  std::vector<int> outs;     // ungrouped
  std::vector<int> grouped;  // four routed memories, two a token, and a shared one
};

void Time(bool quick) {
  Device device(0, DType::kBF16);
  Require(device, "device");
  const double copy = CopyBandwidth(device);
  std::printf("%s: copy %.3f TB/s\n", device.properties().name, copy * 1e-12);
  const std::vector<Call> calls = {
      {"340m qgkvab", 1024, {1024, 1024}, {1024, 1024, 4, 4}},
      {"340m kv", 1024, {}, {1024, 1024}},
      {"340m o", 1024, {1024}, {}},
      {"340m gate,up", 1024, {2048, 2048}, {}},
      {"340m down", 2048, {1024}, {}},
      {"340m head", 1024, {32000}, {}},
      {"340m router", 1024, {4}, {}},
      {"1.3b qgkvab", 2048, {1024, 1024}, {1024, 1024, 4, 4}},
      {"1.3b o", 1024, {2048}, {}},
      {"1.3b gate,up", 2048, {5632, 5632}, {}},
      {"1.3b down", 5632, {2048}, {}},
  };
  const std::vector<Variant> variants = Variants();
  std::printf("%-13s %5s %7s | %6s %5s %5s %6s |", "call", "rows", "MB", "us", "TB/s", "copy%",
              "TF/s");
  for (size_t v = 1; v < variants.size(); ++v) std::printf(" %7s", variants[v].name.c_str());
  std::printf("  us\n");
  std::vector<int> row_counts = {1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192};
  if (quick) row_counts = {1, 8, 64, 2048};
  for (const Call& call : calls) {
    for (const int rows : row_counts) {
      if (rows > 512 && call.outs.size() == 1 && call.outs[0] > 30000) continue;
      Arena arena(device);
      const Routing routing(rows, 4, 2);
      int64_t stored = 0;  // weights of one copy
      double bytes = rows * 4.0 * call.in, operations = 0;
      const auto count = [&](int out, int groups, int used, double entries) {
        const int64_t matrix = int64_t{out} * call.in * 2;
        stored += groups * matrix;
        bytes += static_cast<double>(used * matrix) + entries * out * 4;
        operations += 2 * entries * out * call.in;
      };
      for (const int out : call.outs) count(out, 1, 1, rows);
      for (const int out : call.grouped) {
        count(out, 5, routing.used, static_cast<double>(routing.rows.size()));
      }
      const int copies = static_cast<int>(
          std::clamp<int64_t>((int64_t{200} << 20) / stored + 1, rows >= 2048 ? 2 : 3, 64));

      const TensorView x = arena.Random({rows, call.in}, DType::kF32, 1);
      const TensorView entry_rows = arena.Ints(routing.rows), offsets = arena.Ints(routing.offsets);
      std::vector<std::vector<std::vector<PackedMatrix>>> weights(copies);
      std::vector<std::vector<LinearArgs>> products(copies);
      std::vector<TensorView> outputs;
      for (int c = 0; c < copies; ++c) {
        const auto add = [&](int out, bool grouped) {
          auto& set = weights[c].emplace_back();
          const TensorView w = arena.Random({grouped ? 5 : 1, out, call.in}, DType::kBF16, 0.03f);
          for (int g = 0; g < (grouped ? 5 : 1); ++g) {
            set.push_back(
                {w.as<__nv_bfloat16>() + int64_t{g} * out * call.in, DType::kBF16, out, call.in});
          }
          const int64_t entries = grouped ? static_cast<int64_t>(routing.rows.size()) : rows;
          const size_t index = products[c].size();
          if (c == 0) outputs.push_back(arena.Random({entries, out}, DType::kF32, 1));
          LinearArgs args;
          args.x = x;
          args.y = outputs[index];
          if (grouped) {
            args.entry_rows = entry_rows;
            args.group_offsets = offsets;
          }
          products[c].push_back(args);
        };
        for (const int out : call.outs) add(out, false);
        for (const int out : call.grouped) add(out, true);
        for (size_t i = 0; i < products[c].size(); ++i) products[c][i].weights = weights[c][i];
      }
      Require(device, "set up");
      for (const Variant& variant : variants) {
        const std::string& name = variant.name;
        const bool wanted = rows >= variant.first_rows && rows <= variant.last_rows &&
                            (name != "blas" || call.grouped.empty());
        if (!wanted) {
          std::printf(" %7s", "-");
          continue;
        }
        const double seconds =
            Seconds(device, copies, [&](int c) { variant.run(device, products[c]); });
        if (name == "auto") {
          std::printf("%-13s %5d %7.2f | %6.1f %5.2f %4.0f%% %6.1f |", call.name, rows,
                      bytes * 1e-6, seconds * 1e6, bytes / seconds * 1e-12,
                      100 * bytes / seconds / copy, operations / seconds * 1e-12);
        } else {
          std::printf(" %7.1f", seconds * 1e6);
        }
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace mneme::cuda

int main(int argc, char** argv) {
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--check") == 0) return mneme::cuda::Check();
    if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else {
      std::printf("usage: cuda_linear_bench [--check | --quick]\n");
      return 2;
    }
  }
  mneme::cuda::Time(quick);
  return 0;
}
