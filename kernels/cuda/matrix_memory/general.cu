// The gated delta rule for any shape: a warp takes one row of a matrix, in shared memory, through
// all its entries. Pending writes are added up first, whether the sum is then stored or not.
#include <algorithm>

#include "kernels/cuda/common/state_dispatch.h"
#include "kernels/cuda/matrix_memory/launch.h"
#include "kernels/cuda/matrix_memory/shared_row.cuh"

namespace mneme::cuda::matrix_memory {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;

template <typename T>
__global__ void __launch_bounds__(kThreads) GeneralKernel(const __grid_constant__ Problem p) {
  extern __shared__ float shared_rows[];
  Item item;
  if (!FindItem(p, item)) return;
  const Range range = ReadRange(p, item);
  const int pending = range.size();
  if (item.length == 0 && pending == 0 && !item.fresh) return;  // is settled
  const bool fold = Folds(p, item, range);
  __syncthreads();
  if (threadIdx.x == 0) {
    RangeChange change;
    change.Begin(p, item, range, fold);
    change.Finish();
  }
  if (item.length == 0 && item.fresh) return;  // the matrix is written by others

  const int lane = threadIdx.x % kWarp;
  const int row = item.tile * kWarps + threadIdx.x / kWarp;
  if (row >= p.value_dim) return;
  const int key_head = item.head / (p.value_heads / p.heads);
  float* s = shared_rows + (threadIdx.x / kWarp) * p.key_dim;  // a lane uses its own elements only
  T* state = p.state.At<T>(item.slot, item.memory) +
             (static_cast<int64_t>(item.head) * p.value_dim + row) * RowPitch<T>(p.key_dim);
  ReadSharedRow(state, item.fresh, p.key_dim, s);

  Term<T>* updates = nullptr;
  Term<T>* keys = nullptr;
  float* decays = nullptr;
  if (p.capacity > 0) {
    updates = p.updates.At<Term<T>>(item.slot, item.memory) + item.head * p.value_dim + row;
    keys = p.keys.At<Term<T>>(item.slot, item.memory) + key_head * p.key_dim;
    decays = p.decays.At<float>(item.slot, item.memory) + item.head;
  }
  if (pending > 0) {
    float since = 0;  // log decay since write j
    for (int j = range.begin; j < range.end; ++j) since += decays[j * p.value_heads];
    const float all = expf(since);
    for (int d = lane; d < p.key_dim; d += kWarp) s[d] *= all;
    since = 0;
    for (int j = range.end - 1; j >= range.begin; --j) {
      const float u = expf(since) * static_cast<float>(updates[j * p.value_heads * p.value_dim]);
      const Term<T>* key = keys + static_cast<int64_t>(j) * p.heads * p.key_dim;
      for (int d = lane; d < p.key_dim; d += kWarp) {
        s[d] = fmaf(u, static_cast<float>(key[d]), s[d]);
      }
      since += decays[j * p.value_heads];
    }
  }

  for (int e = item.first; e < item.first + item.length; ++e) {
    const int64_t at_key = (static_cast<int64_t>(e) * p.heads + key_head) * p.key_dim;
    const int64_t at_head = static_cast<int64_t>(e) * p.value_heads + item.head;
    const float *q = p.q + at_key, *k = p.k + at_key;
    const float log_decay = LogDecayAt(p.log_decay, at_head);
    const float v = p.v[at_head * p.value_dim + row];
    float recall = 0, read = 0, k_dot_q = 0;
    for (int d = lane; d < p.key_dim; d += kWarp) {
      recall = fmaf(s[d], k[d], recall);
      read = fmaf(s[d], q[d], read);
      k_dot_q = fmaf(k[d], q[d], k_dot_q);
    }
    const float decay = expf(log_decay);
    const Write write =
        OneToken(SumLanes(recall), SumLanes(read), SumLanes(k_dot_q), v, decay, p.beta[at_head]);
    if (lane == 0) p.out[at_head * p.value_dim + row] = p.scale * write.out;
    if (fold) {
      for (int d = lane; d < p.key_dim; d += kWarp) {
        s[d] = __fmaf_rn(write.u, k[d], __fmul_rn(decay, s[d]));
      }
      continue;
    }
    if (lane == 0) StoreState(updates + range.end * p.value_heads * p.value_dim, write.u);
    if (row == 0) {
      if (lane == 0) decays[range.end * p.value_heads] = log_decay;
      if (item.head % (p.value_heads / p.heads) == 0) {
        Term<T>* key = keys + static_cast<int64_t>(range.end) * p.heads * p.key_dim;
        for (int d = lane; d < p.key_dim; d += kWarp) StoreState(key + d, k[d]);
      }
    }
  }
  if (fold) StoreSharedRow(s, p.key_dim, state);
}

template <typename T>
void Launch(Device& device, const Problem& p) {
  const int64_t blocks = static_cast<int64_t>(p.segments.count) * p.value_heads * p.tiles;
  const size_t shared = sizeof(float) * kWarps * p.key_dim;
  if (shared > 48 * 1024) {
    device.Check(cudaFuncSetAttribute(GeneralKernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shared)),
                 "shared memory of the gated delta rule");
  }
  GeneralKernel<T><<<static_cast<unsigned>(blocks), kThreads, shared, device.stream()>>>(p);
  device.Check(cudaGetLastError(), "gated delta rule");
}

}  // namespace

void LaunchGeneral(Device& device, Problem problem, DType state_dtype) {
  problem.tiles = (problem.value_dim + kWarps - 1) / kWarps;
  if (!RangeCountFits(device, problem)) return;
  ForStateType(state_dtype, [&]<typename T>() { Launch<T>(device, problem); });
}

}  // namespace mneme::cuda::matrix_memory
