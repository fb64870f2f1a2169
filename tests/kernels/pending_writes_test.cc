#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float16.h"
#include "kernels/state_row.h"
#include "tests/kernels/delta_rule_problem.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

constexpr double kUnitF16 = 0x1p-11;
constexpr double kTinyF16 = 0x1p-25;  // half of the smallest step of f16

struct PendingCase {
  BackendUnderTest backend;
  DType state_dtype;

  std::unique_ptr<Backend> Make() const {
    BackendOptions options;
    options.compute_dtype = DType::kF32;
    if (!backend.isa.empty()) options.isa = backend.isa;
    options.state_dtype = state_dtype;
    absl::StatusOr<std::unique_ptr<Backend>> made = MakeBackend(backend.device, options);
    return made.ok() ? *std::move(made) : nullptr;
  }
};

void PrintTo(const PendingCase& pending_case, std::ostream* out) {
  *out << pending_case.backend.device << " " << Name(pending_case.state_dtype);
}

// Backends that hold writes back; there may be none.
std::vector<PendingCase> PendingCases() {
  std::vector<PendingCase> cases;
  for (const BackendUnderTest& backend : AvailableBackends()) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kI8}) {
      const PendingCase one = {backend, dtype};
      const std::unique_ptr<Backend> made = one.Make();
      if (made != nullptr && made->state_format().pending_writes > 0 &&
          made->state_format().memory_dtype == dtype) {
        cases.push_back(one);
      }
    }
  }
  return cases;
}

// Memories that tokens go through, on a backend and in float64, with a bound for every row.
//
// Rows of S do not mix. Let e bound the 2-norm of the difference between a row and what the device
// stands for: its matrix with its pending writes folded exactly. Let m be the sum of the norms of
// these parts; all of them fade alike, so m = a m + |u||k| bounds it, however often the device
// folds. A token
//   decays: nothing is rounded, as the log decay itself is kept
//   recalls r = s . k, a sum over key_dim of each part, of exp, of a sum of at most C log decays,
//     which moves exp by 0.37 C u at most, and of C + 1 parts: eps_1 m |k|
//   writes u = beta (v - r): three roundings of |u||k|; beside a matrix that is not kF32, u and k
//     are rounded to f16
//   and may fold: eps_2 m for exp, as above, and C + 1 additions; then a rounding of the row to the
//     matrix's dtype
// so that e <- contraction e + beta |k|^2 eps_1 m + (3 u + 2 u_f16) |u||k| + eps_2 m + u_state |s|.
// An output is off by |q| (e + 2 eps_1 m).
//
// A row of kI8 is in units of its largest magnitude / 127, and rounding moves each element by half
// of that. So coarse a rounding is counted where it happens only: a memory folded when nothing is
// pending after a token. Several tokens may find pending writes folded first, and round twice.
class Memories {
 public:
  Memories(Backend& backend, uint64_t seed, DeltaDims dims, int slots, int memories)
      : random_(seed),
        dims_(dims),
        memories_(memories),
        capacity_(backend.state_format().pending_writes),
        state_dtype_(backend.state_format().memory_dtype),
        bench_(backend),
        written_(bench_, slots, memories, 1, DType::kU8),
        states_(
            bench_, slots, memories,
            int64_t{dims.value_heads} * dims.value_dim * StateRowPitch(state_dtype_, dims.key_dim),
            state_dtype_),
        phase_(bench_, slots, 1, 1, DType::kI32),
        range_(bench_, slots, memories, 2, DType::kI32),
        keys_(bench_, slots, memories, int64_t{capacity_} * dims.heads * dims.key_dim,
              PendingDType(state_dtype_)),
        updates_(bench_, slots, memories, int64_t{capacity_} * dims.value_heads * dims.value_dim,
                 PendingDType(state_dtype_)),
        decays_(bench_, slots, memories, int64_t{capacity_} * dims.value_heads, DType::kF32),
        rows_(static_cast<size_t>(slots) * memories) {
    for (int i = 0; i < slots * memories; ++i) SetWritten(i / memories, i % memories, 0);
    for (int slot = 0; slot < slots; ++slot) {
      const int32_t phase = 7 * slot % (capacity_ + 1);
      backend.CopyFromHost(phase_.view().At(slot, 0), &phase, sizeof(phase));
    }
  }

  // A step over `list`; compares its outputs.
  void Step(std::vector<SegmentSpec> list) {
    for (SegmentSpec& segment : list) {
      if (!segment.active()) continue;
      std::vector<double>& rows = Rows(segment.slot, segment.memory).values;
      segment.fresh = rows.empty();
      if (!segment.fresh) continue;
      rows.assign(dims_.state_elements(), 0.0);
      Rows(segment.slot, segment.memory).error.assign(RowCount(), 0.0);
      Rows(segment.slot, segment.memory).mass.assign(RowCount(), 0.0);
      SetWritten(segment.slot, segment.memory, 1);
    }
    const std::vector<std::byte> before = states_.Bytes(), keys_before = keys_.Bytes(),
                                 updates_before = updates_.Bytes(), decays_before = decays_.Bytes(),
                                 range_before = range_.Bytes();
    const DeltaProblem p(random_.Int(0, 1 << 30), dims_, list, 1, 0, 0);
    const int n = Entries(list);
    Workbench bench(bench_.backend());
    MatrixMemoryArgs args;
    args.q = bench.Activations(p.q, {n, dims_.heads, dims_.key_dim});
    args.k = bench.Activations(p.k, {n, dims_.heads, dims_.key_dim});
    args.v = bench.Activations(p.v, {n, dims_.value_heads, dims_.value_dim});
    args.log_decay = bench.Activations(p.log_decay, {n, dims_.value_heads});
    args.beta = bench.Activations(p.beta, {n, dims_.value_heads});
    args.segments = Upload(bench, list);
    for (const SegmentSpec& segment : list) {
      args.segments.longest = std::max(args.segments.longest, segment.length);
    }
    args.state = states_.view();
    args.pending = Pending();
    args.out = args.v;
    bench.kernels().MatrixMemory(args);
    const std::vector<double> out = bench.Read(args.out);
    std::vector<int> active;
    for (size_t s = 0; s < list.size(); ++s) {
      if (list[s].active()) active.push_back(static_cast<int>(s));
    }
    std::vector<double> want, bound;
    Follow(p, list, range_before, range_.Bytes(), want, bound);
    EXPECT_THAT(PickEntries(out, static_cast<int>(RowCount()), list, active),
                IsWithin(bound, want));
    const auto touched = [&list](int slot, int memory) {
      return std::any_of(list.begin(), list.end(), [slot, memory](const SegmentSpec& s) {
        return s.active() && s.slot == slot && s.memory == memory;
      });
    };
    EXPECT_TRUE(states_.OnlyTouched(before, touched)) << "another matrix was written";
    EXPECT_TRUE(keys_.OnlyTouched(keys_before, touched)) << "another memory's keys were written";
    EXPECT_TRUE(updates_.OnlyTouched(updates_before, touched)) << "another memory's updates";
    EXPECT_TRUE(decays_.OnlyTouched(decays_before, touched)) << "another memory's decays";
    EXPECT_TRUE(range_.OnlyTouched(range_before, touched)) << "another memory's range";
  }

  void Settle(const std::vector<int>& slots) {
    const std::vector<std::byte> before = states_.Bytes(), range_before = range_.Bytes();
    for (const int slot : slots) {
      for (int memory = 0; slot >= 0 && memory < memories_; ++memory) {
        if (Rows(slot, memory).values.empty() || !Pends(range_before, slot, memory)) continue;
        for (int64_t row = 0; row < RowCount(); ++row) RoundRow(Rows(slot, memory), row);
      }
    }
    Workbench bench(bench_.backend());
    bench.kernels().SettleMemories({.slots = bench.Ints(slots),
                                    .memories = memories_,
                                    .written = written_.view(),
                                    .heads = dims_.heads,
                                    .key_dim = dims_.key_dim,
                                    .value_heads = dims_.value_heads,
                                    .value_dim = dims_.value_dim,
                                    .state = states_.view(),
                                    .pending = Pending()});
    const auto touched = [&](int slot, int memory) {
      return std::count(slots.begin(), slots.end(), slot) > 0 && !Rows(slot, memory).values.empty();
    };
    EXPECT_TRUE(states_.OnlyTouched(before, touched)) << "a matrix not to be settled was written";
    EXPECT_TRUE(range_.OnlyTouched(range_before, touched)) << "a range not to be settled";
  }

  // Copies slab `from`, as it is, to slab `to`.
  void CopySlab(int from, int to) {
    Backend& backend = bench_.backend();
    for (SlabPool* pool : {&written_, &states_, &range_, &keys_, &updates_, &decays_}) {
      const StateView& view = pool->view();
      for (int memory = 0; memory < memories_; ++memory) {
        backend.Copy(view.At(to, memory), view.At(from, memory), view.memory_bytes);
      }
    }
    backend.Copy(phase_.view().At(to, 0), phase_.view().At(from, 0), sizeof(int32_t));
    for (int memory = 0; memory < memories_; ++memory) Rows(to, memory) = Rows(from, memory);
  }

  // Compares the matrices of slots that were settled.
  void ExpectMatrices(const std::vector<int>& slots) {
    const std::vector<std::byte> bytes = states_.Bytes();
    const StateView& view = states_.view();
    for (const int slot : slots) {
      for (int memory = 0; memory < memories_; ++memory) {
        const Reference& reference = Rows(slot, memory);
        if (reference.values.empty()) continue;
        const std::byte* at =
            bytes.data() + slot * view.slab_bytes + view.offset + memory * view.memory_bytes;
        std::vector<double> got, bound;
        for (int64_t d = 0; d < dims_.state_elements(); ++d) {
          if (state_dtype_ == DType::kF32) {
            float value;
            std::memcpy(&value, at + 4 * d, 4);
            got.push_back(value);
          } else if (state_dtype_ == DType::kI8) {
            const int64_t pitch = StateRowPitch(DType::kI8, dims_.key_dim);
            const std::byte* row = at + d / dims_.key_dim * pitch;
            float scale;
            std::memcpy(&scale, row + pitch - sizeof(scale), sizeof(scale));
            got.push_back(double{scale} * static_cast<int8_t>(row[d % dims_.key_dim]));
          } else {
            uint16_t value;
            std::memcpy(&value, at + 2 * d, 2);
            got.push_back(F32FromF16(value));
          }
          bound.push_back(reference.error[d / dims_.key_dim] + kTinyF32);
        }
        EXPECT_THAT(got, IsWithin(bound, reference.values))
            << "slot " << slot << ", memory " << memory;
      }
    }
  }

  // One entry for each of `rows` slots and each memory with the given chance; some padding.
  std::vector<SegmentSpec> RandomTokens(int rows, double chance, int longest = 1) {
    std::vector<SegmentSpec> list;
    for (int memory = 0; memory < memories_; ++memory) {
      for (int slot = 0; slot < rows; ++slot) {
        const int length = random_.Chance(chance) ? random_.Int(1, longest) : 0;
        list.push_back({length, random_.Chance(0.05) ? -1 : slot, memory, false});
      }
    }
    return list;
  }
  SeededRandom& random() { return random_; }

 private:
  struct Reference {
    std::vector<double> values;       // of the matrix; empty: never written
    std::vector<double> error, mass;  // of each row
  };

  int64_t RowCount() const { return int64_t{dims_.value_heads} * dims_.value_dim; }
  Reference& Rows(int slot, int memory) { return rows_[slot * memories_ + memory]; }
  void SetWritten(int slot, int memory, uint8_t value) {
    bench_.backend().CopyFromHost(written_.view().At(slot, memory), &value, 1);
  }
  PendingWrites Pending() {
    return {.capacity = capacity_,
            .phase = phase_.view(),
            .range = range_.view(),
            .keys = keys_.view(),
            .updates = updates_.view(),
            .log_decay = decays_.view()};
  }

  // Whether anything is pending, by the bytes of all ranges.
  bool Pends(const std::vector<std::byte>& ranges, int slot, int memory) const {
    const StateView& view = range_.view();
    int32_t range[2];
    std::memcpy(range,
                ranges.data() + slot * view.slab_bytes + view.offset + memory * view.memory_bytes,
                sizeof(range));
    return range[0] != range[1];
  }
  // kI8: a row, as it now is, is rounded.
  void RoundRow(Reference& reference, int64_t row) const {
    if (state_dtype_ != DType::kI8) return;
    double largest = 0;
    for (int d = 0; d < dims_.key_dim; ++d) {
      largest = std::max(largest, std::abs(reference.values[row * dims_.key_dim + d]));
    }
    const double step = (largest + reference.error[row]) * (1 + 0x1p-10) / 254 + 1e-30;
    reference.error[row] += std::sqrt(dims_.key_dim) * step;
    reference.mass[row] += std::sqrt(dims_.key_dim) * step;
  }

  // The step in float64; appends outputs and their bounds.
  void Follow(const DeltaProblem& p, const std::vector<SegmentSpec>& list,
              const std::vector<std::byte>& range_before, const std::vector<std::byte>& range_after,
              std::vector<double>& want, std::vector<double>& bound) {
    const double parts = capacity_ + 1;
    const double eps_1 =
        SumError(dims_.key_dim) + 2 * kFunctionError + (1.4 * parts + 8) * kUnitF32;
    const double eps_2 = 2 * kFunctionError + (1.4 * parts + 8) * kUnitF32;
    const bool half = state_dtype_ == DType::kF16;
    const std::vector<int> offsets = Offsets(list);
    for (size_t n = 0; n < list.size(); ++n) {
      if (!list[n].active()) continue;
      Reference& reference = Rows(list[n].slot, list[n].memory);
      const bool folds_first =
          list[n].length > 1 && !list[n].fresh && Pends(range_before, list[n].slot, list[n].memory);
      const bool folds = !Pends(range_after, list[n].slot, list[n].memory);
      for (int e = offsets[n]; e < offsets[n + 1]; ++e) {
        for (int64_t row = 0; row < RowCount(); ++row) {
          if (folds_first && e == offsets[n]) RoundRow(reference, row);
          const int head = static_cast<int>(row / dims_.value_dim);
          const int key_head = head / (dims_.value_heads / dims_.heads);
          const double* k = &p.k[(int64_t{e} * dims_.heads + key_head) * dims_.key_dim];
          const double* q = &p.q[(int64_t{e} * dims_.heads + key_head) * dims_.key_dim];
          const double a = std::exp(p.log_decay[int64_t{e} * dims_.value_heads + head]);
          const double b = p.beta[int64_t{e} * dims_.value_heads + head];
          double* s = &reference.values[row * dims_.key_dim];
          double recall = 0, read = 0, k_square = 0, q_square = 0, square = 0;
          for (int d = 0; d < dims_.key_dim; ++d) recall += (s[d] *= a) * k[d];
          const double u = b * (p.v[int64_t{e} * RowCount() + row] - recall);
          for (int d = 0; d < dims_.key_dim; ++d) {
            s[d] += u * k[d];
            read += s[d] * q[d];
            k_square += k[d] * k[d];
            q_square += q[d] * q[d];
            square += s[d] * s[d];
          }
          const double written = std::abs(u) * std::sqrt(k_square);
          double& mass = reference.mass[row];
          double& error = reference.error[row];
          mass = a * mass + written;
          error = a * std::max(1.0, std::abs(1 - b * k_square)) * error +
                  b * k_square * eps_1 * mass + 3 * kUnitF32 * written + eps_2 * mass;
          if (state_dtype_ != DType::kF32) {
            error += 2 * kUnitF16 * written +
                     kTinyF16 * (std::abs(u) * std::sqrt(dims_.key_dim) + std::sqrt(k_square));
          }
          if (half) error += kUnitF16 * std::sqrt(square) + kTinyF16 * std::sqrt(dims_.key_dim);
          want.push_back(read);
          bound.push_back(std::sqrt(q_square) * (error + 2 * eps_1 * mass) + kTinyF32);
          if (folds && e + 1 == offsets[n + 1]) RoundRow(reference, row);
        }
      }
    }
  }

  SeededRandom random_;
  const DeltaDims dims_;
  const int memories_, capacity_;
  const DType state_dtype_;
  Workbench bench_;
  SlabPool written_, states_, phase_, range_, keys_, updates_, decays_;
  std::vector<Reference> rows_;
};

std::vector<int> AllSlots(int slots) {
  std::vector<int> all;
  for (int slot = 0; slot < slots; ++slot) all.push_back(slot);
  return all;
}

class PendingWritesTest : public testing::TestWithParam<PendingCase> {
 protected:
  std::unique_ptr<Backend> backend_ = GetParam().Make();
};

TEST_P(PendingWritesTest, HundredsOfTokensMatchFloat64) {
  uint64_t seed = 0;
  for (const DeltaDims dims :
       {DeltaDims{2, 4, 64, 40}, DeltaDims{1, 2, 128, 33}, DeltaDims{1, 1, 256, 24},
        DeltaDims{2, 4, 20, 24}, DeltaDims{1, 1, 1, 1}, DeltaDims{1, 3, 33, 5}}) {
    ++seed;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << dims.Describe());
    constexpr int kSlots = 3;
    Memories memories(*backend_, seed, dims, kSlots, 2);
    for (int step = 0; step < 200; ++step) memories.Step(memories.RandomTokens(kSlots, 0.6));
    memories.Settle(AllSlots(kSlots));
    memories.ExpectMatrices(AllSlots(kSlots));
    if (HasFailure()) return;
  }
}

TEST_P(PendingWritesTest, LongerSegmentsMeetPendingWrites) {
  uint64_t seed = 100;
  for (const DeltaDims dims :
       {DeltaDims{2, 4, 64, 24}, DeltaDims{1, 1, 128, 128}, DeltaDims{2, 2, 48, 20}}) {
    ++seed;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << dims.Describe());
    constexpr int kSlots = 3;
    Memories memories(*backend_, seed, dims, kSlots, 2);
    for (int step = 0; step < 90; ++step) {
      const int longest = memories.random().Chance(0.2) ? 7 : 1;
      memories.Step(memories.RandomTokens(kSlots, 0.6, longest));
    }
    memories.Settle(AllSlots(kSlots));
    memories.ExpectMatrices(AllSlots(kSlots));
    if (HasFailure()) return;
  }
}

TEST_P(PendingWritesTest, SettlesInTheMiddleAndMovesBetweenSlabs) {
  uint64_t seed = 200;
  for (const DeltaDims dims : {DeltaDims{2, 4, 64, 24}, DeltaDims{2, 2, 20, 9}}) {
    ++seed;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << dims.Describe());
    constexpr int kSlots = 4;
    Memories memories(*backend_, seed, dims, kSlots, 3);
    for (int step = 0; step < 120; ++step) {
      memories.Step(memories.RandomTokens(kSlots, 0.5));
      const int slot = memories.random().Int(0, kSlots - 1);
      if (step % 9 == 5) memories.Settle({slot, -1});
      if (step % 13 == 7) {
        // A slab stays itself when it is copied, pending writes and all.
        memories.CopySlab(slot, (slot + 1) % kSlots);
      }
      if (step % 31 == 11) {
        memories.Settle({slot});
        memories.ExpectMatrices({slot});
      }
    }
    memories.Settle(AllSlots(kSlots));
    memories.ExpectMatrices(AllSlots(kSlots));
    if (HasFailure()) return;
  }
}

// Few rows are written at once, many held back; a memory sees both, in any order.
TEST_P(PendingWritesTest, BatchesOfEverySizeShareMemories) {
  constexpr int kSlots = 40;
  Memories memories(*backend_, 300, {4, 4, 256, 256}, kSlots, 2);
  memories.Step(memories.RandomTokens(kSlots, 1));
  for (int step = 0; step < 30; ++step) {
    const bool large = memories.random().Chance(0.6);
    memories.Step(memories.RandomTokens(large ? kSlots : memories.random().Int(1, 3), 0.95));
    if (HasFailure()) return;
  }
  memories.Settle(AllSlots(kSlots));
  memories.ExpectMatrices(AllSlots(kSlots));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PendingWritesTest);
INSTANTIATE_TEST_SUITE_P(Backends, PendingWritesTest, testing::ValuesIn(PendingCases()),
                         [](const testing::TestParamInfo<PendingCase>& info) {
                           return info.param.backend.device + "_" + Name(info.param.state_dtype);
                         });

}  // namespace
}  // namespace mneme
