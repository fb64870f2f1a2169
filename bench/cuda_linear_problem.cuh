// The problems of the benchmark of Linear() and of its check: random data on the device, routings,
// and every path of Linear() by name.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/linear/batch.h"
#include "kernels/cuda/linear/linear.h"

namespace mneme::cuda::linear {

// The exit status of --check.
int CheckLinear();

inline void Require(Device& device, const char* what) {
  const cudaError_t status = cudaStreamSynchronize(device.stream());
  const std::string error = device.TakeError();
  if (status == cudaSuccess && error.empty()) return;
  std::printf("FAILED %s: %s %s\n", what, cudaGetErrorString(status), error.c_str());
  std::exit(1);
}

__device__ inline float HashNormal(uint64_t i) {
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
  int terms;   // of an activation: 3: exact; 0: as the device computes
  int pieces;  // of output features that it wants whole
  std::function<void(Device&, const std::vector<LinearArgs>&)> run;
};

inline std::vector<const LinearArgs*> Pointers(const std::vector<LinearArgs>& products) {
  std::vector<const LinearArgs*> pointers;
  for (const LinearArgs& args : products) pointers.push_back(&args);
  return pointers;
}

// The copy of x in 16 bits, which all products have, for each of them.
inline std::vector<const void*> Rounded(Device& device, const std::vector<LinearArgs>& products,
                                        int terms) {
  const TensorView& x = products[0].x;
  char* const copy = static_cast<char*>(device.Scratch(kLinearBlasWorkspaceBytes +
                                                       x.shape.elements() * 2 * terms)) +
                     kLinearBlasWorkspaceBytes;
  RoundActivations(device, x, products[0].weights[0].dtype, terms, copy);
  return std::vector<const void*>(products.size(), copy);
}

// All paths, each by itself, and what Linear() chooses. `rows`: where the path might be chosen.
inline std::vector<Variant> Variants() {
  using Products = std::vector<LinearArgs>;
  const auto dtype = [](const Products& p) { return p[0].weights[0].dtype; };
  std::vector<Variant> variants = {
      {"auto", 1, 1 << 30, 0, 1, [](Device& d, const Products& p) { Linear(d, p); }}};
  variants.push_back({"few", 1, 8, 3, 1, [=](Device& d, const Products& p) {
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
        {shape.name, shape.first_rows, shape.last_rows, 1, 1, [=](Device& d, const Products& p) {
           LinearWarpgroups(d, Pointers(p), dtype(p), 1, Rounded(d, p, 1), wanted);
         }});
  }
  for (const int tile : {kBulkNarrow, kBulkWide}) {
    variants.push_back({tile == kBulkNarrow ? "bulk128" : "bulk256", 128, 8192, 1, kBulkOutputPiece,
                        [=](Device& d, const Products& p) {
                          LinearBulk(d, Pointers(p), dtype(p), 1, Rounded(d, p, 1), tile);
                        }});
  }
  variants.push_back({"bulk*3", 2048, 2048, 3, kBulkOutputPiece, [=](Device& d, const Products& p) {
                        LinearBulk(d, Pointers(p), dtype(p), 3, Rounded(d, p, 3));
                      }});
  variants.push_back({"wg*3", 2048, 2048, 3, 1, [=](Device& d, const Products& p) {
                        LinearWarpgroups(d, Pointers(p), dtype(p), 3, Rounded(d, p, 3));
                      }});
  variants.push_back({"tiles", 256, 256, 1, 1, [=](Device& d, const Products& p) {
                        LinearTiles(d, Pointers(p), dtype(p), 1, Rounded(d, p, 1));
                      }});
  variants.push_back({"blas", 8, 8192, 1, 1, [=](Device& d, const Products& p) {
                        const void* rounded = Rounded(d, p, 1)[0];
                        void* workspace = d.Scratch(kLinearBlasWorkspaceBytes);
                        for (const LinearArgs& args : p) LinearBlas(d, args, rounded, workspace);
                      }});
  return variants;
}

}  // namespace mneme::cuda::linear
