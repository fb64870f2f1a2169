#include "kernels/cpu/cpu_kernels.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/log.h"
#include "base/random.h"
#include "kernels/cpu/packed_layout.h"
#include "kernels/cut_rows.h"
#include "kernels/ops/checks.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mneme {
FlushDenormals::FlushDenormals() {
#if defined(__x86_64__)
  saved_ = _mm_getcsr();
#endif
  Enable();
}

FlushDenormals::~FlushDenormals() {
#if defined(__x86_64__)
  _mm_setcsr(saved_);
#endif
}

void FlushDenormals::Enable() {
#if defined(__x86_64__)
  constexpr uint32_t kFlushToZero = 1u << 15, kDenormalsAreZero = 1u << 6;
  _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
#endif
}

void WorkerMemory::Free::operator()(void* p) const { std::free(p); }

void* WorkerMemory::Reserve(int64_t bytes) {
  if (bytes > bytes_) {
    bytes_ = (bytes + 4095) / 4096 * 4096;
    data_.reset(std::aligned_alloc(4096, static_cast<size_t>(bytes_)));
    CHECK(data_ != nullptr) << "out of memory for " << bytes_ << " bytes of working memory";
  }
  return data_.get();
}

CpuKernels::CpuKernels(const Isa& isa, DType compute_dtype, ThreadPool& pool)
    : ops_(*isa.ops),
      round_activations_(compute_dtype == DType::kBF16),
      pool_(pool),
      workers_(static_cast<size_t>(pool.threads())) {}

void CpuKernels::For(int64_t n, int64_t grain, double nanoseconds, Range task) {
  if (n <= 0) return;
  if (static_cast<double>(n) * nanoseconds < kWorthSharingNanoseconds) return task(0, n);
  pool_.ParallelFor(n, grain, [&](int64_t begin, int64_t end, int) { task(begin, end); });
}

void CpuKernels::Embedding(const EmbeddingArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t tokens = args.ids.shape[0], dim = args.table.shape[1];
  const int32_t* ids = args.ids.as<int32_t>();
  for (int64_t t = 0; t < tokens; ++t) {
    CHECK(ids[t] >= 0 && ids[t] < args.table.shape[0]) << "token id " << ids[t];
  }
  For(tokens, 1, 0.2 * static_cast<double>(dim),
      [&](int64_t begin, int64_t end) { ops_.embedding(args, begin, end); });
}

void CpuKernels::AddPositions(const AddPositionsArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  For(args.positions.shape[0], 1, 0.2 * static_cast<double>(args.table.shape[1]),
      [&](int64_t begin, int64_t end) { ops_.add_positions(args, begin, end); });
}

void CpuKernels::PositionLayer(const PositionLayerArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  For(args.positions.shape[0], 1, 0.5 * static_cast<double>(args.weight.shape[0]),
      [&](int64_t begin, int64_t end) { ops_.position_layer(args, begin, end); });
}

void CpuKernels::GatherRows(const GatherRowsArgs& args) {
  Check(args, kCpuActivations);
  const int64_t n = args.indices.shape[0], dim = args.x.shape[1];
  for (int64_t i = 0; i < n; ++i) {
    const int32_t row = args.indices.as<int32_t>()[i];
    CHECK(row >= 0 && row < args.x.shape[0]) << "row " << row;
    std::memcpy(args.y.as<float>() + i * dim, args.x.as<float>() + row * dim,
                static_cast<size_t>(dim) * sizeof(float));
  }
}

void CpuKernels::BanTokens(const BanTokensArgs& args) {
  Check(args, kCpuActivations);
  const int64_t rows = args.logits.shape[0], vocab = args.logits.shape[1];
  for (int64_t i = 0; i < args.tokens.shape[0]; ++i) {
    const int32_t token = args.tokens.as<int32_t>()[i];
    CHECK(token >= 0 && token < vocab) << "token " << token;
    for (int64_t r = 0; r < rows; ++r) {
      args.logits.as<float>()[r * vocab + token] = -std::numeric_limits<float>::infinity();
    }
  }
}

void CpuKernels::RmsNorm(const RmsNormArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t tokens = args.x.shape[0], dim = args.x.shape[1];
  For(tokens, 1, 0.15 * static_cast<double>(dim),
      [&](int64_t begin, int64_t end) { ops_.rms_norm(args, begin, end); });
}

void CpuKernels::LayerNorm(const LayerNormArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const Shape& shape = args.x.shape;
  const int64_t heads = shape.rank == 3 ? shape[1] : 1, dim = shape[shape.rank - 1];
  For(shape[0] * heads, 1, 0.25 * static_cast<double>(dim) + 15,
      [&](int64_t begin, int64_t end) { ops_.layer_norm(args, begin, end); });
}

void CpuKernels::AddBias(const AddBiasArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  // The last group need not end with the last entry.
  const int64_t entries = args.group_offsets.empty()
                              ? args.y.shape[0]
                              : args.group_offsets.as<int32_t>()[args.bias.shape[0]];
  For(entries, 1, 0.1 * static_cast<double>(args.y.shape[1]),
      [&](int64_t begin, int64_t end) { ops_.add_bias(args, begin, end); });
}

void CpuKernels::Activate(std::span<const ActivateArgs> activations) {
  CheckAll(activations, kCpuActivations);
  const FlushDenormals flush;
  constexpr int64_t kElements = 256;  // of one item
  int64_t items = 0;
  for (const ActivateArgs& args : activations) {
    items += (args.y.shape.elements() + kElements - 1) / kElements;
  }
  For(items, 1, 0.4 * kElements, [&](int64_t begin, int64_t end) {
    int64_t first = 0;  // item of the current activation
    for (const ActivateArgs& args : activations) {
      const int64_t elements = args.y.shape.elements();
      const int64_t count = (elements + kElements - 1) / kElements;
      const int64_t from = std::max(begin - first, int64_t{0});
      const int64_t to = std::min(end - first, count);
      if (from < to) {
        ops_.activate(args, from * kElements, std::min(to * kElements, elements));
      }
      first += count;
    }
  });
}

void CpuKernels::Multiply(const MultiplyArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  For(args.y.shape.elements(), 64, 0.1,
      [&](int64_t begin, int64_t end) { ops_.multiply(args, begin, end); });
}

void CpuKernels::AddScaled(const AddScaledArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t rows = args.x.shape[0], dim = args.x.shape[1];
  For(rows, 1, 0.15 * static_cast<double>(dim),
      [&](int64_t begin, int64_t end) { ops_.add_scaled(args, begin, end); });
}

void CpuKernels::SwiGlu(const SwiGluArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t tokens = args.gate.shape[0], dim = args.gate.shape[1];
  For(tokens * dim, 64, 0.4, [&](int64_t begin, int64_t end) { ops_.swiglu(args, begin, end); });
}

void CpuKernels::L2Norm(const L2NormArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t entries = args.x.shape[0], heads = args.x.shape[1], dim = args.x.shape[2];
  For(entries * heads, 1, 0.15 * static_cast<double>(dim) + 10,
      [&](int64_t begin, int64_t end) { ops_.l2_norm(args, begin, end); });
}

void CpuKernels::SumNorm(const SumNormArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t rows = args.x.shape[0] * args.x.shape[1], dim = args.x.shape[2];
  For(rows, 1, 0.15 * static_cast<double>(dim) + 10,
      [&](int64_t begin, int64_t end) { ops_.sum_norm(args, begin, end); });
}

void CpuKernels::Divide(const DivideArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t rows = args.x.shape[0] * args.x.shape[1], dim = args.x.shape[2];
  For(rows, 1, 0.1 * static_cast<double>(dim) + 5,
      [&](int64_t begin, int64_t end) { ops_.divide(args, begin, end); });
}

void CpuKernels::Softmax(const SoftmaxArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t rows = args.x.shape[0] * args.x.shape[1], dim = args.x.shape[2];
  For(rows, 1, 0.6 * static_cast<double>(dim) + 20,
      [&](int64_t begin, int64_t end) { ops_.softmax(args, begin, end); });
}

void CpuKernels::MapFeatures(const FeatureMapArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t rows = args.x.shape[0] * args.x.shape[1];
  For(rows, 1, 1.0 * static_cast<double>(args.y.shape[2]) + 20,
      [&](int64_t begin, int64_t end) { ops_.map_features(args, begin, end); });
}

void CpuKernels::Rope(const RopeArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t tokens = args.x.shape[0], heads = args.x.shape[1], dim = args.x.shape[2];
  For(tokens, 1, (20.0 + 0.2 * static_cast<double>(heads)) * static_cast<double>(dim),
      [&](int64_t begin, int64_t end) { ops_.rope(args, begin, end); });
}

void CpuKernels::GatedRmsNorm(const GatedRmsNormArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t tokens = args.x.shape[0], heads = args.x.shape[1], dim = args.x.shape[2];
  For(tokens * heads, 1, 0.5 * static_cast<double>(dim) + 10,
      [&](int64_t begin, int64_t end) { ops_.gated_rms_norm(args, begin, end); });
}

void CpuKernels::DeltaGates(const DeltaGatesArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t entries = args.log_decay.shape[0], heads = args.log_decay.shape[1];
  For(entries, 1, 30 * static_cast<double>((heads + 15) / 16),
      [&](int64_t begin, int64_t end) { ops_.delta_gates(args, begin, end); });
}

void CpuKernels::MixMemories(const MixMemoriesArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t tokens = args.y.shape[0], dim = args.y.shape[1];
  const int64_t columns = args.token_entries.shape[1];
  For(tokens, 1, 0.1 * static_cast<double>(dim * columns),
      [&](int64_t begin, int64_t end) { ops_.mix_memories(args, begin, end); });
}

void CpuKernels::RouteTopK(const RouteTopKArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t tokens = args.logits.shape[0], memories = args.logits.shape[1];
  const int64_t top_k = args.indices.shape[1];
  if (!args.forced.empty()) {
    for (int64_t i = 0; i < tokens * top_k; ++i) {
      const int32_t memory = args.forced.as<int32_t>()[i];
      CHECK(memory >= 0 && memory < memories) << "forced memory " << memory;
    }
  }
  For(tokens, 1, 20 * static_cast<double>(memories + top_k),
      [&](int64_t begin, int64_t end) { ops_.route_top_k(args, begin, end); });
}

// Two passes over the pairs, as in a counting sort: sizes of the segments, then places.
void CpuKernels::Dispatch(const DispatchArgs& args) {
  Check(args, kCpuActivations);
  const int64_t rows = args.slots.shape[0];
  const int64_t tokens = args.token_entries.shape[0], choices = args.token_entries.shape[1];
  const int64_t top_k = choices - (args.shared ? 1 : 0);
  const int64_t groups = args.memories + (args.shared ? 1 : 0);
  const int32_t* row_offsets = args.row_offsets.as<int32_t>();
  CHECK_EQ(row_offsets[rows], tokens);

  const int32_t* indices = args.indices.as<int32_t>();
  const auto memory_of = [&](int64_t token, int64_t choice) {
    return choice < top_k ? indices[token * top_k + choice] : args.memories;
  };
  // offsets[s + 1] counts segment s, then becomes where its next entry goes, then its end.
  int32_t* offsets = args.segments.offsets.as<int32_t>();
  std::fill(offsets, offsets + args.segments.count + 1, 0);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t t = row_offsets[row]; t < row_offsets[row + 1]; ++t) {
      for (int64_t j = 0; j < choices; ++j) {
        const int32_t memory = memory_of(t, j);
        CHECK(memory >= 0 && memory < groups) << "memory " << memory;
        ++offsets[memory * rows + row + 1];
      }
    }
  }
  int32_t entry = 0;
  for (int64_t s = 0; s < args.segments.count; ++s) {
    const int32_t size = offsets[s + 1];
    if (s % rows == 0) args.group_offsets.as<int32_t>()[s / rows] = entry;
    const int64_t row = s % rows, memory = s / rows;
    const int32_t slot = args.slots.as<int32_t>()[row];
    int32_t fresh = 0;
    if (slot >= 0 && size > 0) {
      uint8_t* written = args.written.as<uint8_t>(slot, static_cast<int>(memory));
      fresh = *written == 0 ? 1 : 0;
      *written = 1;
    }
    args.segments.slots.as<int32_t>()[s] = slot;
    args.segments.memories.as<int32_t>()[s] = static_cast<int32_t>(memory);
    args.segments.fresh.as<int32_t>()[s] = fresh;
    offsets[s + 1] = entry;
    entry += size;
  }
  args.group_offsets.as<int32_t>()[groups] = entry;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t t = row_offsets[row]; t < row_offsets[row + 1]; ++t) {
      for (int64_t j = 0; j < choices; ++j) {
        const int32_t at = offsets[memory_of(t, j) * rows + row + 1]++;
        args.entry_tokens.as<int32_t>()[at] = static_cast<int32_t>(t);
        args.token_entries.as<int32_t>()[t * choices + j] = at;
      }
    }
  }
}

void CpuKernels::IndexRows(const IndexRowsArgs& args) {
  Check(args, kCpuActivations);
  const int32_t* offsets = args.row_offsets.as<int32_t>();
  for (int64_t row = 0; row < args.slots.shape[0]; ++row) {
    const int64_t position = args.prefix + args.positions.as<int64_t>()[row];
    const int32_t begin = offsets[row], end = offsets[row + 1];
    for (int32_t t = begin; t < end; ++t) {
      args.token_positions.as<int64_t>()[t] = std::max<int64_t>(position, 0) + t - begin;
    }
    args.segments.memories.as<int32_t>()[row] = 0;
    args.segments.fresh.as<int32_t>()[row] = position == 0 && begin < end ? 1 : 0;
  }
}

void CpuKernels::CutRows(const CutRowsArgs& args) {
  Check(args, kCpuActivations);
  CutRowsOnHost(args);
}

void CpuKernels::ExpandRows(const ExpandRowsArgs& args) {
  Check(args, kCpuActivations);
  ExpandRowsOnHost(args);
}

void CpuKernels::ShortConv(std::span<const ShortConvArgs> convolutions) {
  CheckAll(convolutions, kCpuActivations);
  const FlushDenormals flush;
  constexpr int64_t kChannels = 256;  // of one item
  int64_t items = 0;
  double nanoseconds = 0;
  for (const ShortConvArgs& args : convolutions) {
    const int64_t channels = args.x.shape[1], entries = args.y.shape[0];
    CHECK(args.window.dtype == DType::kF32);
    items += (channels + kChannels - 1) / kChannels;
    nanoseconds +=
        0.6 * static_cast<double>(entries * channels) + 2.0 * static_cast<double>(channels);
  }
  if (items == 0) return;
  For(items, 1, nanoseconds / static_cast<double>(items), [&](int64_t begin, int64_t end) {
    int64_t first = 0;  // item of the current convolution
    for (const ShortConvArgs& args : convolutions) {
      const int64_t channels = args.x.shape[1];
      const int64_t count = (channels + kChannels - 1) / kChannels;
      const int64_t from = std::max(begin - first, int64_t{0});
      const int64_t to = std::min(end - first, count);
      if (from < to) {
        ops_.short_conv(args, from * kChannels, std::min(to * kChannels, channels));
      }
      first += count;
    }
  });
}

void CpuKernels::DecayGates(const DecayGatesArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t entries = args.log_decay.shape[0], heads = args.x.shape[1], dim = args.x.shape[2];
  For(entries * heads, 1, 3.0 * static_cast<double>(dim) + 10,
      [&](int64_t begin, int64_t end) { ops_.decay_gates(args, begin, end); });
}

void CpuKernels::SelectiveScan(const SelectiveScanArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t entries = args.u.shape[0], channels = args.u.shape[1], states = args.a.shape[0];
  For(channels, 16, 1.5 * static_cast<double>((entries + 1) * (states + 4)),
      [&](int64_t begin, int64_t end) { ops_.selective_scan(args, begin, end); });
}

void CpuKernels::Discretize(const DiscretizeArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t entries = args.u.shape[0], heads = args.u.shape[1], dim = args.u.shape[2];
  For(entries, 1, static_cast<double>(heads) * (2.0 + 0.1 * static_cast<double>(dim)),
      [&](int64_t begin, int64_t end) { ops_.discretize(args, begin, end); });
}

void CpuKernels::MatrixMemory(const MatrixMemoryArgs& args) {
  Check(args, kCpuActivations);
  const FlushDenormals flush;
  const int64_t entries = args.out.shape[0], heads = args.out.shape[1];
  const int64_t value_dim = args.out.shape[2], key_dim = args.k.shape[2];
  CHECK(args.state.dtype == DType::kF32);

  active_segments_.clear();
  const int32_t* offsets = args.segments.offsets.as<int32_t>();
  for (int s = 0; s < args.segments.count; ++s) {
    if (offsets[s] < offsets[s + 1] && args.segments.slots.as<int32_t>()[s] >= 0) {
      active_segments_.push_back(s);
    }
  }
  if (active_segments_.empty()) return;

  // Enough tasks for workers to finish together, each of a multiple of 16 rows, which keeps lines
  // of the outputs to one worker. A task begins with the decays of its keys: those want more rows.
  const int64_t tasks_each = args.rule.decay == MatrixRule::Decay::kKey ? 4 : 16;
  const int64_t pieces = static_cast<int64_t>(active_segments_.size()) * heads;
  const int64_t wanted = (tasks_each * pool_.threads() + pieces - 1) / pieces;
  const int64_t block = std::max<int64_t>(16, (value_dim / wanted + 15) / 16 * 16);
  rule_tasks_.clear();
  for (const int segment : active_segments_) {
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t row = 0; row < value_dim; row += block) {
        rule_tasks_.push_back({segment, static_cast<int>(head), static_cast<int>(row),
                               static_cast<int>(std::min(row + block, value_dim))});
      }
    }
  }
  const int64_t scratch_bytes =
      ops_.matrix_memory_scratch(args) * static_cast<int64_t>(sizeof(float));
  const auto run = [&](int64_t begin, int64_t end, int worker) {
    float* scratch = nullptr;
    if (scratch_bytes > 0) {
      scratch = static_cast<float*>(
          workers_[static_cast<size_t>(worker)].matrix_memory.Reserve(scratch_bytes));
    }
    for (int64_t i = begin; i < end; ++i) {
      const RuleTask& task = rule_tasks_[static_cast<size_t>(i)];
      ops_.matrix_memory(args, task.segment, task.head, task.begin, task.end, scratch);
    }
  };
  const int64_t tasks = static_cast<int64_t>(rule_tasks_.size());
  const double nanoseconds = 0.3 * static_cast<double>(entries * heads * value_dim * key_dim);
  if (nanoseconds < kWorthSharingNanoseconds) return run(0, tasks, 0);
  // Tasks of one token each are alike, and better taken in long runs: they are one stream of
  // memory.
  const bool alike = args.segments.longest == 1;
  const int64_t chunk = std::max<int64_t>(1, tasks / ((alike ? 2 : 8) * pool_.threads()));
  pool_.ParallelForDynamic(tasks, chunk, run);
}

void CpuKernels::Sample(const SampleArgs& args) {
  Check(args, kCpuActivations);
  sampling_rows_.clear();
  for (const SamplingRow& row : args.rows) sampling_rows_.push_back(row.Bounded());
  const FlushDenormals flush;
  const int64_t rows = static_cast<int64_t>(args.rows.size()), vocab = args.logits.shape[1];
  double nanoseconds = 0;
  for (const SamplingRow& row : sampling_rows_) {
    for (int32_t i = row.bias_begin; i < row.bias_end; ++i) {
      CHECK(args.bias[static_cast<size_t>(i)].token >= 0 &&
            args.bias[static_cast<size_t>(i)].token < vocab);
    }
    for (int32_t i = row.history_begin; i < row.history_end; ++i) {
      CHECK(args.history[static_cast<size_t>(i)].token >= 0 &&
            args.history[static_cast<size_t>(i)].token < vocab);
    }
    nanoseconds += static_cast<double>(vocab) * (row.temperature == 0 ? 0.2 : 4.0);
  }
  const auto sample = [&](int64_t begin, int64_t end, int worker) {
    Worker& memory = workers_[static_cast<size_t>(worker)];
    const int64_t padded = (vocab + 15) / 16 * 16;
    auto* doubles = static_cast<double*>(
        memory.sample.Reserve(padded * (2 * sizeof(double) + sizeof(int32_t))));
    SampleScratch scratch = {doubles, doubles + padded,
                             reinterpret_cast<int32_t*>(doubles + 2 * padded)};
    for (int64_t r = begin; r < end; ++r) {
      const SamplingRow& row = sampling_rows_[static_cast<size_t>(r)];
      const double uniform =
          UniformDouble(row.seed, row.choice, static_cast<uint64_t>(row.position));
      ops_.sample(args, row, static_cast<int>(r), uniform, scratch);
    }
  };
  if (nanoseconds < kWorthSharingNanoseconds || rows == 1) {
    sample(0, rows, 0);
  } else {
    pool_.ParallelForDynamic(rows, 1, sample);
  }
  args.WriteNextInputs();
}

}  // namespace mneme
