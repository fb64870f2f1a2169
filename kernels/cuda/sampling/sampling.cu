// Draws the tokens of a batch in one launch: every row has a team of blocks (common/team.cuh),
// which adjusts logits where lists say so, looks for the largest, and, if there is a distribution
// to draw from, cuts it and draws by selection (sampling/select.cuh). Parameters go up by one copy
// or, if they are few, as arguments of the launch; results are written to pinned host memory, where
// the host looks for them (sampling/draws.h).
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "base/log.h"
#include "base/random.h"
#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/sampling/draws.h"
#include "kernels/cuda/sampling/next_inputs.cuh"
#include "kernels/cuda/sampling/select.cuh"
#include "kernels/cuda/sampling/sums.cuh"

namespace mneme::cuda::sampling {
namespace {

constexpr int kMaxInlineRows = 40;     // 96 bytes each, of the 4 KiB that arguments may have
constexpr int kTokensPerBlock = 2048;  // fewer are not worth a block

struct Row {
  SamplingRow params;
  int64_t replaced = 0;  // of the row's first logit in SampleParams::replaced
};

struct SampleParams {
  const float* logits;
  int vocab;
  bool in_fours;
  const Row* rows;  // null: inline_rows
  const HistoryToken* history;
  const BiasToken* bias;
  double* replaced;  // for each row, a logit for each token of its bias and history lists
  int max_top_logprobs;
  int bits_at;  // of Values::replaced in shared memory
  DrawResults to;
  NextInputs next;
  Row inline_rows[kMaxInlineRows];
};

// Steps 1 and 2 of kernels.h for this block's tokens. `bits` has one for each.
__device__ void ReplaceLogits(const SamplingRow& row, Values& values, uint32_t* bits) {
  const int words = (values.end - values.begin + 31) / 32;
  for (int i = threadIdx.x; i < words; i += kThreads) bits[i] = 0;
  __syncthreads();
  const auto mark = [&](int token) {
    const uint32_t bit = 1u << ((token - values.begin) % 32);
    return (atomicOr(&bits[(token - values.begin) / 32], bit) & bit) != 0;
  };
  for (int i = threadIdx.x; i < values.bias_count; i += kThreads) {
    const BiasToken bias = values.bias[i];
    if (!values.Has(bias.token)) continue;
    mark(bias.token);
    values.bias_logits[i] = static_cast<double>(values.logits[bias.token]) + bias.bias;
  }
  __syncthreads();
  const double presence = row.presence_penalty, frequency = row.frequency_penalty;
  for (int i = threadIdx.x; i < values.history_count; i += kThreads) {
    const HistoryToken seen = values.history[i];
    if (!values.Has(seen.token)) continue;
    double logit = values.logits[seen.token];
    if (mark(seen.token)) {
      for (int j = 0; j < values.bias_count; ++j) {
        if (values.bias[j].token != seen.token) continue;
        logit = values.bias_logits[j];
        values.bias_logits[j] = NAN;
        break;
      }
    }
    logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    logit -= (seen.generated_count > 0 ? presence : 0.0) + frequency * seen.generated_count;
    values.history_logits[i] = logit;
  }
  __syncthreads();
  values.replaced = bits;
}

// Steps 3 to 5 for a temperature above zero, given that there is a finite largest logit.
__device__ int32_t Draw(const SamplingRow& row, const Extremes& extremes, Selector& selector) {
  const double rate = 1.0 / static_cast<double>(row.temperature);
  selector.Start(extremes, rate, /*weigh=*/true);
  Mass mass = selector.mass();
  double last = extremes.smallest;  // of the logits that stay
  if (row.top_k > 0 && static_cast<uint32_t>(row.top_k) < selector.count()) {
    const Place place = selector.Find({true, static_cast<Mass>(row.top_k)});
    mass = place.mass;
    last = place.logit;
  }
  if (row.top_p < 1) {
    const double target = ceil(static_cast<double>(row.top_p) * ToDouble(mass));
    const Mass need = ToMass(fmax(target, 1.0));
    const Place place = selector.Find({false, Smaller(need, mass)});
    mass = place.mass;
    last = place.logit;
  }
  if (row.min_p > 0) {
    const double least = row.min_p, largest = extremes.largest;
    const auto stays = [=](double logit) {
      const double x = (logit - largest) * rate;
      return x > -708.0 && ExpOfNegative(x) >= least;
    };
    if (!stays(last)) {
      mass = selector.Sum(
          [=](double logit) { return stays(logit) ? WeightOf((logit - largest) * rate) : 0; });
    }
  }
  const double uniform = UniformDouble(row.seed, row.choice, static_cast<uint64_t>(row.position));
  const Mass need = ToMass(uniform * ToDouble(mass)) + 1;
  return selector.Find({false, Smaller(need, mass)}).token;
}

// The row's log-probabilities, of the model's logits.
__device__ void ReportLogprobs(const SampleParams& p, const SamplingRow& row, int64_t r,
                               int32_t token, const Extremes& extremes, const Team& team,
                               const Values& values) {
  if (token < 0 || extremes.token < 0 || isinf(extremes.largest)) return;
  Selector selector(team, values, p.vocab);
  const double largest = extremes.largest;
  constexpr Mass kNaN = Mass{1} << 100;  // more than all weights together
  static_assert(kMaxVocab < 1 << 27);
  const Mass sum = selector.Sum(
      [=](double logit) { return isnan(logit) ? kNaN : Mass{WeightOf(logit - largest)}; });
  if (sum >= kNaN) return;
  const double log_sum = largest + log(ToDouble(sum) * 0x1p-63);
  const bool writes = team.rank() == 0;
  if (writes && threadIdx.x == 0) {
    p.to.logprobs[r] = static_cast<float>(values.logits[token] - log_sum);
  }
  int wanted = min(row.top_logprobs, p.max_top_logprobs);
  if (wanted <= 0) return;
  selector.Start(extremes, 1.0, /*weigh=*/false);
  wanted = min(wanted, static_cast<int>(selector.count()));
  const Place place = selector.Find({true, static_cast<Mass>(wanted)});
  selector.SortPrefix(place, wanted);
  if (!writes) return;
  for (int i = threadIdx.x; i < wanted; i += kThreads) {
    p.to.top_tokens[r * p.max_top_logprobs + i] = Shared().tokens[i];
    p.to.top_logprobs[r * p.max_top_logprobs + i] = static_cast<float>(Shared().keys[i] - log_sum);
  }
}

__global__ void __launch_bounds__(kThreads, 2) DrawRows(const __grid_constant__ SampleParams p) {
  const Team team;
  Weights::MakePowers(Shared().powers);
  uint32_t* bits = reinterpret_cast<uint32_t*>(dynamic_shared + p.bits_at);
  const int64_t r = blockIdx.x / team.size();
  const Row& task = p.rows != nullptr ? p.rows[r] : p.inline_rows[r];
  const SamplingRow& row = task.params;

  Values values;
  values.logits = p.logits + r * p.vocab;
  const int share = ((p.vocab + team.size() - 1) / team.size() + 31) / 32 * 32;
  values.begin = min(p.vocab, team.rank() * share);
  values.end = min(p.vocab, values.begin + share);
  values.in_fours = p.in_fours;
  const Values unchanged = values;
  values.bias = p.bias + row.bias_begin;
  values.bias_count = row.bias_end - row.bias_begin;
  values.history = p.history + row.history_begin;
  values.history_count = row.history_end - row.history_begin;
  values.bias_logits = p.replaced + task.replaced;
  values.history_logits = values.bias_logits + values.bias_count;

  int32_t token = row.forced_token;
  Extremes extremes;
  if (token < 0) {
    if (values.bias_count + values.history_count > 0) ReplaceLogits(row, values, bits);
    Selector selector(team, values, p.vocab);
    extremes = selector.FindExtremes();
    if (extremes.token < 0 || isinf(extremes.largest)) {
      token = kNoLogits;
      if (values.replaced != nullptr) {
        const Extremes raw = Selector(team, unchanged, p.vocab).FindExtremes();
        if (raw.token >= 0 && !isinf(raw.largest)) token = kNothingLeft;
      }
    } else if (row.temperature == 0) {
      token = extremes.token;
    } else {
      token = Draw(row, extremes, selector);
    }
  }
  if (row.top_logprobs >= 0) {
    if (row.forced_token >= 0 || values.replaced != nullptr) {
      extremes = Selector(team, unchanged, p.vocab).FindExtremes();
    }
    ReportLogprobs(p, row, r, token, extremes, team, unchanged);
  }
  if (team.rank() == 0) {
    __threadfence_system();  // who sees the token sees all else
    __syncthreads();
    if (threadIdx.x == 0) {
      p.to.tokens[r] = token;
      WriteNextInputs(token, row.end_tokens, r, p.next);
    }
  }
  team.Sync();  // others may look at this block's shared memory until here
}

// Blocks per row: as many as run at once, if each has enough to do.
class TeamSizes {
 public:
  explicit TeamSizes(const Device& device) {
    cudaFuncAttributes attributes = {};
    // No clusters in the device, or in the code that runs there?
    if (device.properties().major < 9 ||
        cudaFuncGetAttributes(&attributes, DrawRows) != cudaSuccess || attributes.ptxVersion < 90) {
      return;
    }
    for (int size = 2; size <= kMaxTeam; size *= 2) {
      Launch launch(device, size, size, sizeof(SelectorShared));
      if (cudaOccupancyMaxActiveClusters(&most_rows_[size], DrawRows, &launch.config) !=
          cudaSuccess) {
        cudaGetLastError();
        most_rows_[size] = 0;
      }
    }
  }
  int Choose(int64_t rows, int64_t vocab) const {
    int size = kMaxTeam;
    while (size > 1 && (rows > most_rows_[size] || vocab < int64_t{size} * kTokensPerBlock)) {
      size /= 2;
    }
    return size;
  }

  struct Launch {
    Launch(const Device& device, int64_t blocks, int team, size_t shared_bytes) {
      config.gridDim = dim3(static_cast<unsigned>(blocks));
      config.blockDim = dim3(kThreads);
      config.dynamicSmemBytes = shared_bytes;
      config.stream = device.stream();
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim = {static_cast<unsigned>(team), 1, 1};
      config.attrs = &cluster;
      config.numAttrs = team > 1 ? 1 : 0;
    }
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute cluster = {};
  };

 private:
  int most_rows_[kMaxTeam + 1] = {};
};

// Places in a block of memory, one after the other.
class Layout {
 public:
  int64_t Add(int64_t bytes) {
    const int64_t place = bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    return place;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

}  // namespace

void SampleRows(Device& device, const SampleArgs& args, const DrawResults& to,
                PinnedMemory& parameters) {
  const int64_t rows = static_cast<int64_t>(args.rows.size()), vocab = args.logits.shape[1];
  CHECK(args.max_top_logprobs <= kCandidates) << args.max_top_logprobs;
  if (vocab > kMaxVocab) {
    return device.Check(cudaErrorInvalidValue, "Sample, of so large a vocabulary");
  }

  std::vector<Row> tasks(args.rows.size());
  int64_t replaced = 0;
  bool selects = false;  // looks for more than the largest
  for (int64_t r = 0; r < rows; ++r) {
    const SamplingRow row = args.rows[r].Bounded();
    tasks[r] = {row, replaced};
    selects |= row.top_logprobs > 0 || (row.forced_token < 0 && row.temperature != 0);
    if (row.forced_token < 0) {
      replaced += (row.bias_end - row.bias_begin) + (row.history_end - row.history_begin);
    }
  }

  Layout uploads;
  const bool in_arguments = rows <= kMaxInlineRows;
  const int64_t rows_at = uploads.Add(in_arguments ? 0 : rows * int64_t{sizeof(Row)});
  const int64_t history_bytes = static_cast<int64_t>(args.history.size_bytes());
  const int64_t bias_bytes = static_cast<int64_t>(args.bias.size_bytes());
  const int64_t history_at = uploads.Add(history_bytes), bias_at = uploads.Add(bias_bytes);

  std::byte* scratch = static_cast<std::byte*>(device.Scratch(uploads.bytes() + replaced * 8 + 64));
  if (scratch == nullptr) return;
  if (uploads.bytes() > 0) {
    auto* const from = static_cast<std::byte*>(parameters.Reserve(device, uploads.bytes()));
    if (from == nullptr) return;
    const auto stage = [from](int64_t at, const void* data, int64_t bytes) {
      if (bytes > 0) std::memcpy(from + at, data, static_cast<size_t>(bytes));
    };
    if (!in_arguments) stage(rows_at, tasks.data(), rows * int64_t{sizeof(Row)});
    stage(history_at, args.history.data(), history_bytes);
    stage(bias_at, args.bias.data(), bias_bytes);
    device.Check(cudaMemcpyAsync(scratch, from, static_cast<size_t>(uploads.bytes()),
                                 cudaMemcpyHostToDevice, device.stream()),
                 "upload of sampling parameters");
  }

  SampleParams p = {};
  p.logits = args.logits.as<const float>();
  p.vocab = static_cast<int>(vocab);
  p.in_fours = vocab % 4 == 0 && IsAligned(p.logits);
  p.rows = in_arguments ? nullptr : reinterpret_cast<const Row*>(scratch + rows_at);
  p.history = reinterpret_cast<const HistoryToken*>(scratch + history_at);
  p.bias = reinterpret_cast<const BiasToken*>(scratch + bias_at);
  p.replaced = reinterpret_cast<double*>(scratch + uploads.bytes());
  p.max_top_logprobs = args.max_top_logprobs;
  p.to = to;
  p.next = NextInputsOf(args);
  if (in_arguments) std::copy(tasks.begin(), tasks.end(), p.inline_rows);

  // Only what is needed: less to set up, and more blocks fit.
  p.bits_at = static_cast<int>(selects ? sizeof(SelectorShared) : offsetof(SelectorShared, place));
  static_assert(offsetof(SelectorShared, place) % 16 == 0);
  static const int allowed = [&] {
    const int most = static_cast<int>(device.properties().sharedMemPerBlockOptin);
    device.Check(cudaFuncSetAttribute(DrawRows, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
                 "shared memory of Sample");
    return most;
  }();
  static const TeamSizes sizes(device);
  const int size = sizes.Choose(rows, vocab);
  const int64_t share = ((vocab + size - 1) / size + 31) / 32;
  const int64_t shared_bytes = p.bits_at + (replaced > 0 ? share * 4 : 0);
  if (shared_bytes > allowed) {
    return device.Check(cudaErrorInvalidValue, "Sample, of so large a vocabulary");
  }
  const TeamSizes::Launch launch(device, rows * size, size, static_cast<size_t>(shared_bytes));
  device.Check(cudaLaunchKernelEx(&launch.config, DrawRows, p), "Sample");
}

}  // namespace mneme::cuda::sampling
