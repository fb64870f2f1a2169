// PassStreams: a block has a token, whose streams stay in its registers from the write of one
// branch to the input of the next one.
#include <cstdint>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/segments.cuh"
#include "kernels/cuda/residual_streams/mixing.cuh"
#include "kernels/cuda/residual_streams/residual_streams.h"

namespace mneme::cuda::residual_streams {
namespace {

constexpr int kMostHeld = 2;  // accesses of a thread to a stream, of four elements each

// Rows of f32, or of bf16 if it `rounds`; none: null.
struct Rows {
  void* data;
  bool rounds;

  explicit Rows(const TensorView& view) : data(view.data), rounds(view.dtype == DType::kBF16) {}
  __device__ void Save(int64_t at, const float4& x) const {
    if (rounds) {
      SaveFour(static_cast<__nv_bfloat16*>(data) + at, x);
    } else {
      SaveFour(static_cast<float*>(data) + at, x);
    }
  }
};

struct Norm {
  const float* weight;
  float eps;
  Rows y;

  explicit Norm(const RmsNormArgs& args)
      : weight(args.weight.as<const float>()), eps(args.eps), y(args.y) {}
};

struct Mean {
  const int64_t* positions;
  SegmentArrays segments;
  StateView state;
  int64_t chunk;
  Rows y;

  explicit Mean(const ChunkMeanArgs& args)
      : positions(args.positions.as<const int64_t>()),
        segments(ArraysOf(args.segments)),
        state(args.sums),
        chunk(args.chunk),
        y(args.y) {}
};

struct PassProblem {
  ReadProblem read;
  const float *written, *post;  // what WriteStreams adds; or null
  Norm norms[2];
  Mean mean;
};

// The sums of a token's open chunk, or null: of a chunk that begins with it, or of padding. `to` is
// where they are left, or null.
__device__ inline const float* SumsOfChunk(const Mean& mean, int token, float** to) {
  const int likely = min(token, mean.segments.count - 1);
  const bool in_turn =
      mean.segments.offsets[likely] == token && mean.segments.offsets[likely + 1] > token;
  const Segment segment(mean.segments, in_turn ? likely : SegmentOf(mean.segments, token));
  *to = segment.slot < 0 || token >= segment.end
            ? nullptr
            : MemoryAt<float>(mean.state, segment.slot, segment.memory);
  return mean.positions[token] % mean.chunk == 0 ? nullptr : *to;
}

template <int kWidth, int kHeld>
__global__ void __launch_bounds__(kThreads, kHeld == 1 ? 3 : 2)
    PassKernel(const __grid_constant__ PassProblem p) {
  LetNextKernelStart();
  PrefetchWeights(p.read);
  __shared__ float sums[kWidth][kSums<kWidth>];
  __shared__ float squares[kWarps];
  __shared__ Mixing<kWidth> mixing;
  const int dim = p.read.dim;
  const auto token = static_cast<int>(blockIdx.x);
  const auto element = [&](int n) { return 4 * (n * kThreads + static_cast<int>(threadIdx.x)); };
  MixingOfLane<kWidth> of_lane(p.read, kWidth);
  float4 norm_weights[2][kHeld];
#pragma unroll
  for (int which = 0; which < 2; ++which) {
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      const bool there = p.norms[which].y.data != nullptr && element(n) < dim;
      norm_weights[which][n] = there ? LoadFour(p.norms[which].weight + element(n)) : float4{};
    }
  }
  WaitForPreviousKernel();

  float* const x = p.read.x + int64_t{token} * kWidth * dim;
  float4 own[kHeld][kWidth];
  {
    float post[kWidth];
#pragma unroll
    for (int s = 0; s < kWidth; ++s) {
      post[s] = p.written == nullptr ? 0.0f : p.post[int64_t{token} * kWidth + s];
    }
    SumsOfFours<kWidth> all;
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      const int i = element(n);
      if (i >= dim) break;
#pragma unroll
      for (int s = 0; s < kWidth; ++s) own[n][s] = LoadFour(x + int64_t{s} * dim + i);
      if (p.written != nullptr) {
        const float4 written = LoadFour(p.written + int64_t{token} * dim + i);
#pragma unroll
        for (int s = 0; s < kWidth; ++s) own[n][s] = AddTimes(post[s], written, own[n][s]);
      }
      all.Add(own[n], SumsOfFours<kWidth>::Load(p.read, i));
    }
    all.Finish(sums);
  }
  __syncthreads();
  if (threadIdx.x < kWarp) of_lane.Find(p.read, token, sums, &mixing);
  // What the others wait for is there behind it.
  float* to_sums = nullptr;
  float4 open_sums[kHeld] = {};
  if (p.mean.y.data != nullptr) {
    const float* const from = SumsOfChunk(p.mean, token, &to_sums);
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      if (from != nullptr && element(n) < dim) open_sums[n] = LoadFour(from + element(n));
    }
  }
  __syncthreads();

  float4 input[kHeld];
  float square = 0;
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = element(n);
    if (i >= dim) break;
    input[n] = {};
#pragma unroll
    for (int s = 0; s < kWidth; ++s) input[n] = AddTimes(mixing.pre[s], own[n][s], input[n]);
    square = Dot(input[n], input[n], square);
    if (p.read.y != nullptr) SaveFour(p.read.y + int64_t{token} * dim + i, input[n]);
    const bool writes = p.read.post != nullptr;
    if (!writes && p.written == nullptr) continue;
#pragma unroll
    for (int t = 0; t < kWidth; ++t) {
      float4 mixed = own[n][t];
      if (writes) {
        mixed = {};
#pragma unroll
        for (int s = 0; s < kWidth; ++s) {
          mixed = AddTimes(mixing.residual[s][t], own[n][s], mixed);
        }
      }
      SaveFour(x + int64_t{t} * dim + i, mixed);
    }
  }
  if (p.norms[0].y.data == nullptr && p.norms[1].y.data == nullptr) return;
  const float mean_square = BlockSum<kThreads>(square, squares) / static_cast<float>(dim);
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const Norm& norm = p.norms[which];
    if (norm.y.data == nullptr) continue;
    const float factor = 1.0f / sqrtf(mean_square + norm.eps);
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      const int i = element(n);
      if (i >= dim) break;
      const float4 w = norm_weights[which][n];
      const float4 y = {input[n].x * factor * w.x, input[n].y * factor * w.y,
                        input[n].z * factor * w.z, input[n].w * factor * w.w};
      norm.y.Save(int64_t{token} * dim + i, y);
      if (which == 0 || p.mean.y.data == nullptr) continue;
      const float4 sum = AddTimes(1.0f, y, open_sums[n]);
      if (to_sums != nullptr) SaveFour(to_sums + i, sum);
      const auto chunk = static_cast<float>(p.mean.chunk);
      p.mean.y.Save(int64_t{token} * dim + i,
                    {sum.x / chunk, sum.y / chunk, sum.z / chunk, sum.w / chunk});
    }
  }
}

template <int kHeld>
auto KernelOf(int streams) {
  constexpr void (*kOfStreams[])(PassProblem) = {PassKernel<1, kHeld>, PassKernel<2, kHeld>,
                                                 PassKernel<3, kHeld>, PassKernel<4, kHeld>};
  return kOfStreams[streams - 1];
}

}  // namespace

bool PassStreams(Device& device, const PassStreamsArgs& args) {
  const ReadStreamsArgs& read = args.read;
  const auto tokens = static_cast<int>(read.x.shape[0]),
             streams = static_cast<int>(read.x.shape[1]);
  const int64_t dim = read.x.shape[2];
  constexpr int kFours = 4 * kThreads;
  if (tokens == 0 || streams > 4 || dim > kMostHeld * kFours || !InFours(read) ||
      (!args.mean.y.empty() && (args.mean.segments.longest != 1 || !IsAligned(args.mean.sums)))) {
    return false;
  }
  for (const TensorView& view : {args.write.x, args.norms[0].weight, args.norms[0].y,
                                 args.norms[1].weight, args.norms[1].y, args.mean.y}) {
    if (!AreAligned(view)) return false;
  }
  const PassProblem problem = {.read = ProblemOf(read),
                               .written = args.write.x.as<const float>(),
                               .post = args.write.post.as<const float>(),
                               .norms = {Norm(args.norms[0]), Norm(args.norms[1])},
                               .mean = Mean(args.mean)};
  const auto kernel = dim <= kFours ? KernelOf<1>(streams) : KernelOf<2>(streams);
  LaunchOverlapping(device, "PassStreams", kernel, tokens, kThreads, 0, 1, problem);
  return true;
}

}  // namespace mneme::cuda::residual_streams
