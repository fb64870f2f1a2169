// Problems of DeltaMemoryPass: segments of sessions whose memories may have writes pending, run on
// a backend in one pass or in the operations it stands for.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>

#include "kernels/state_row.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {

struct PassDims {
  int heads, value_heads, key_dim, value_dim;
  bool grouped;  // k, v and gates by entry; else by token, as q

  int keys() const { return heads * key_dim; }
  int values() const { return value_heads * value_dim; }
};

struct PassOptions {
  bool fuse = false;
  bool says_longer = false;  // how many segments are: a device may then take the others apart
  DType projected = DType::kF32;
  DType window = DType::kF32;
  DType state = DType::kF32;
  bool pending = false;  // memories have pending writes, and there is room for more
};

struct PassResult {
  bool fused;
  std::vector<double> out;  // entries of active segments, in order
  std::vector<double> states, windows;
  int prompts = 0, met_pending = 0;  // RunInSteps(): steps with a prompt; that met pending writes
};

struct PassProblem {
  static constexpr int kWidth = 4, kCapacity = 16;

  PassProblem(uint64_t seed, PassDims dims, std::vector<SegmentSpec> list, int slots = 6,
              int memories = 3)
      : dims(dims), slots(slots), memories(memories), segments(std::move(list)) {
    norms.q.scale = 1 / std::sqrt(static_cast<float>(dims.key_dim));
    SeededRandom random(seed);
    entries = Entries(segments);
    tokens = entries / 2 + 1;
    for (int e = 0; e < entries; ++e) entry_tokens.push_back(random.Int(0, tokens - 1));
    const int rows = dims.grouped ? entries : tokens;
    q = random.NormalValues(int64_t{tokens} * dims.keys(), 2);
    k = random.NormalValues(int64_t{rows} * dims.keys(), 2);
    v = random.NormalValues(int64_t{rows} * dims.values(), 2);
    a = random.NormalValues(int64_t{rows} * dims.value_heads);
    b = random.NormalValues(int64_t{rows} * dims.value_heads);
    a_log = random.NormalValues(dims.value_heads);
    dt_bias = random.NormalValues(dims.value_heads);
    q_conv = random.NormalValues(dims.keys() * kWidth);
    k_conv = random.NormalValues(dims.keys() * kWidth);
    v_conv = random.NormalValues(dims.values() * kWidth);
    state = random.NormalValues(StateElements());
    key_window = random.NormalValues((kWidth - 1) * dims.keys());
    value_window = random.NormalValues((kWidth - 1) * dims.values());
    for (int i = 0; i < slots * memories; ++i) pending.emplace_back(random, dims);
  }
  int64_t StateElements() const { return int64_t{dims.values()} * dims.key_dim; }
  bool Fresh(int slot, int memory) const {
    return std::any_of(segments.begin(), segments.end(), [=](const SegmentSpec& s) {
      return s.fresh && s.slot == slot && s.memory == memory;
    });
  }
  bool Active(int slot, int memory) const {
    return std::any_of(segments.begin(), segments.end(), [=](const SegmentSpec& s) {
      return s.active() && s.slot == slot && s.memory == memory;
    });
  }

  // As Backend::output_dtype may have them.
  void RoundProjections() { Round({&q, &k, &v}, DType::kBF16); }
  // As StateFormat::bf16_window_dtype may.
  void RoundWindows() { Round({&key_window, &value_window}, DType::kBF16); }
  static void Round(std::initializer_list<std::vector<double>*> all, DType dtype) {
    for (std::vector<double>* values : all) {
      for (double& value : *values) value = RoundTo(value, dtype);
    }
  }
  // To what memories of `dtype` and the writes that are pending beside them can hold.
  void RoundStates(DType dtype) {
    for (Pending& one : pending) Round({&one.keys, &one.updates}, PendingDType(dtype));
    if (dtype != DType::kI8) return Round({&state}, dtype);
    for (int64_t row = 0; row < dims.values(); ++row) {
      double* const first = &state[row * dims.key_dim];
      double largest = 0;
      for (int d = 0; d < dims.key_dim; ++d) largest = std::max(largest, std::abs(first[d]));
      scales.push_back(static_cast<float>(largest / 127));
      for (int d = 0; d < dims.key_dim; ++d) {
        first[d] = double{scales.back()} * std::nearbyint(first[d] / scales.back());
      }
    }
  }
  // Queries and keys so short, of squares that add up to 0.004 to 0.02, that an eps of 0.01 counts.
  void ShortenKeys() {
    for (std::vector<double>* filter : {&q_conv, &k_conv}) {
      for (double& value : *filter) value *= 0x1p-8;
    }
  }
  void SlowDecaysBy(double factor) {
    for (double& value : a_log) value = RoundTo(value - std::log(factor), DType::kF32);
  }

  // One memory's pending writes, as PendingWrites has them.
  struct Pending {
    Pending(SeededRandom& random, const PassDims& dims)
        : begin(random.Int(0, kCapacity)), end(random.Int(begin, kCapacity)) {
      for (int i = 0; i < kCapacity * dims.heads; ++i) {
        std::vector<double> key = random.NormalValues(dims.key_dim);
        double sum = 0;
        for (const double value : key) sum += value * value;
        for (double& value : key) value = RoundTo(value / std::sqrt(sum), DType::kF32);
        keys.insert(keys.end(), key.begin(), key.end());
      }
      updates = random.NormalValues(int64_t{kCapacity} * dims.values());
      for (int i = 0; i < kCapacity * dims.value_heads; ++i) {
        log_decay.push_back(RoundTo(-std::exp(random.Uniform(-9, 1)), DType::kF32));
      }
    }
    int begin, end;
    std::vector<double> keys, updates, log_decay;
  };

  // Row `row` of memory i is another one of `state` for every i.
  int64_t StateRow(int i, int64_t row) const { return (row + i) % dims.values(); }
  // A memory's matrix; with its pending writes folded, what it stands for.
  std::vector<double> StateOf(int i, bool add_pending) const {
    std::vector<double> all;
    for (int64_t row = 0; row < dims.values(); ++row) {
      const auto first = state.begin() + StateRow(i, row) * dims.key_dim;
      all.insert(all.end(), first, first + dims.key_dim);
    }
    const Pending& held = pending[i];
    for (int j = held.begin; add_pending && j < held.end; ++j) {
      for (int64_t row = 0; row < dims.values(); ++row) {
        const int64_t head = row / dims.value_dim;
        const double decay = std::exp(held.log_decay[j * dims.value_heads + head]);
        const double update = held.updates[int64_t{j} * dims.values() + row];
        const double* key =
            &held.keys[(int64_t{j} * dims.heads + head / (dims.value_heads / dims.heads)) *
                       dims.key_dim];
        for (int d = 0; d < dims.key_dim; ++d) {
          double& s = all[row * dims.key_dim + d];
          s = decay * s + update * key[d];
        }
      }
    }
    return all;
  }

  PassResult Run(Backend& backend, const PassOptions& options) const;

  PassDims dims;
  int slots, memories;
  QueryKeyNorms norms;
  std::vector<SegmentSpec> segments;
  int entries, tokens;
  std::vector<int> entry_tokens;
  std::vector<double> q, k, v, a, b, a_log, dt_bias, q_conv, k_conv, v_conv;
  std::vector<double> state, key_window, value_window;
  std::vector<float> scales;  // of rows of `state`: kI8
  std::vector<Pending> pending;
};

// A problem's inputs and sessions on a backend.
class PassRun {
 public:
  // Steps may have up to `padding` segments of one entry besides, of no session.
  PassRun(Backend& backend, const PassProblem& p, const PassOptions& options, int padding = 0)
      : p_(p),
        options_(options),
        exact_(backend.activation_dtype() == DType::kF64),
        state_dtype_(exact_ ? DType::kF64 : options.state),
        padding_(padding),
        bench_(backend),
        states_(bench_, p.slots, p.memories,
                p.dims.values() * StateRowPitch(state_dtype_, p.dims.key_dim), state_dtype_),
        q_windows_(NewWindows(p.dims.keys())),
        k_windows_(NewWindows(p.dims.keys())),
        v_windows_(NewWindows(p.dims.values())),
        written_(bench_, p.slots, p.memories, 1, DType::kU8),
        phase_(bench_, p.slots, 1, 1, DType::kI32),
        range_(bench_, p.slots, p.memories, 2, DType::kI32),
        keys_(NewPending(p.dims.keys(), PendingDType(options.state))),
        updates_(NewPending(p.dims.values(), PendingDType(options.state))),
        decays_(NewPending(p.dims.value_heads, DType::kF32)) {
    const PassDims& d = p.dims;
    const int64_t rows = d.grouped ? p.entries + padding : p.tokens;
    const DType projected = exact_ ? DType::kF64 : options.projected;
    q_ = Upload(p.q, p.tokens, d.keys(), projected);
    k_ = Upload(p.k, rows, d.keys(), projected);
    v_ = Upload(p.v, rows, d.values(), projected);
    a_ = Upload(p.a, rows, d.value_heads, backend.activation_dtype());
    b_ = Upload(p.b, rows, d.value_heads, backend.activation_dtype());
    q_conv_ = bench_.Floats(p.q_conv, {d.keys(), PassProblem::kWidth});
    k_conv_ = bench_.Floats(p.k_conv, {d.keys(), PassProblem::kWidth});
    v_conv_ = bench_.Floats(p.v_conv, {d.values(), PassProblem::kWidth});
    a_log_ = bench_.Floats(p.a_log, {d.value_heads});
    dt_bias_ = bench_.Floats(p.dt_bias, {d.value_heads});
    // Fresh memories hold whatever their slabs happened to hold: one bits, NaN.
    for (int slot = 0; slot < p.slots; ++slot) {
      const int32_t phase = slot % (PassProblem::kCapacity + 1);
      backend.CopyFromHost(phase_.view().At(slot, 0), &phase, sizeof(phase));
      for (int memory = 0; memory < p.memories; ++memory) {
        written_.Write(slot, memory, {1});
        if (!p.Fresh(slot, memory)) Load(slot, memory);
      }
    }
  }

  // Takes the problem's entries from `first` on through `list`. Outputs of all of them.
  std::vector<double> Step(std::vector<SegmentSpec> list, int first) {
    const PassDims& d = p_.dims;
    Workbench bench(bench_.backend());
    const int own = Entries(list), n = own + padding_;
    list.insert(list.end(), padding_, {1, -1, 0, false});
    std::vector<int> entry_tokens(p_.entry_tokens.begin() + first,
                                  p_.entry_tokens.begin() + first + own);
    entry_tokens.resize(n);  // padding is of token 0
    Segments uploaded = mneme::Upload(bench, list);
    int longer = 0;
    for (const SegmentSpec& s : list) longer += s.length > 1 ? 1 : 0;
    if (longer == 0) uploaded.longest = 1;  // a decode step says so
    if (options_.says_longer) uploaded.longer = longer;

    const TensorView tokens_of = bench.Ints(entry_tokens);
    const TensorView rows_of = d.grouped ? TensorView{} : tokens_of;
    const auto by_entry = [&](TensorView view) {
      if (!d.grouped) return view;
      view.data = view.as<std::byte>() + view.bytes() / view.shape[0] * first;
      view.shape.dims[0] = n;
      return view;
    };
    const auto convolution = [&](TensorView x, TensorView from, TensorView weight,
                                 SlabPool& windows) {
      return ShortConvArgs{.x = x,
                           .entry_rows = from,
                           .weight = weight,
                           .segments = uploaded,
                           .window = windows.view(),
                           .y = bench.NewActivations({n, x.shape[1]})};
    };
    DeltaMemoryPassArgs args{.q = convolution(q_, tokens_of, q_conv_, q_windows_),
                             .k = convolution(by_entry(k_), rows_of, k_conv_, k_windows_),
                             .v = convolution(by_entry(v_), rows_of, v_conv_, v_windows_),
                             .norms = p_.norms,
                             .gates = {.a = by_entry(a_),
                                       .b = by_entry(b_),
                                       .a_log = a_log_,
                                       .dt_bias = dt_bias_,
                                       .entry_rows = rows_of,
                                       .log_decay = bench.NewActivations({n, d.value_heads}),
                                       .beta = bench.NewActivations({n, d.value_heads})}};
    const auto shaped = [](TensorView view, Shape shape) {
      view.shape = shape;
      return view;
    };
    args.rule.q = shaped(args.q.y, {n, d.heads, d.key_dim});
    args.rule.k = shaped(args.k.y, {n, d.heads, d.key_dim});
    args.rule.v = shaped(args.v.y, {n, d.value_heads, d.value_dim});
    args.rule.log_decay = args.gates.log_decay;
    args.rule.beta = args.gates.beta;
    args.rule.segments = uploaded;
    args.rule.state = states_.view();
    args.rule.pending = PendingOf();
    args.rule.out = args.rule.v;

    Kernels& kernels = bench.kernels();
    const bool fused = options_.fuse && kernels.DeltaMemoryPass(args);
    if (!fused) {
      const ShortConvArgs convolutions[] = {args.q, args.k, args.v};
      kernels.ShortConv(convolutions);
      const auto& [q, k] = args.norms;
      kernels.L2Norm({.x = args.rule.q, .scale = q.scale, .eps = q.eps, .y = args.rule.q});
      kernels.L2Norm({.x = args.rule.k, .scale = k.scale, .eps = k.eps, .y = args.rule.k});
      kernels.DeltaGates(args.gates);
      kernels.MatrixMemory(args.rule);
    }
    fused_ &= fused;
    std::vector<double> out = bench.Read(args.rule.out);
    out.resize(static_cast<size_t>(own) * d.values());
    return out;
  }
  bool fused() const { return fused_; }

  // Memories that have writes pending.
  int CountPending() {
    if (!HasPending()) return 0;
    int count = 0;
    for (int i = 0; i < p_.slots * p_.memories; ++i) {
      int32_t places[2];
      bench_.backend().CopyToHost(places, range_.view().At(i / p_.memories, i % p_.memories),
                                  sizeof(places));
      count += places[0] != places[1] ? 1 : 0;
    }
    return count;
  }
  void Settle() {
    if (!HasPending()) return;
    std::vector<int> slots;
    for (int slot = 0; slot < p_.slots; ++slot) slots.push_back(slot);
    bench_.kernels().SettleMemories({.slots = bench_.Ints(slots),
                                     .memories = p_.memories,
                                     .written = written_.view(),
                                     .heads = p_.dims.heads,
                                     .key_dim = p_.dims.key_dim,
                                     .value_heads = p_.dims.value_heads,
                                     .value_dim = p_.dims.value_dim,
                                     .state = states_.view(),
                                     .pending = PendingOf()});
  }

  // Reads the memories of active segments; others would hide the errors of those.
  void ReadTo(PassResult& result) {
    for (const SegmentSpec& s : p_.segments) {
      if (s.active()) Append(ReadState(s.slot, s.memory), result.states);
    }
    for (SlabPool* windows : {&q_windows_, &k_windows_, &v_windows_}) {
      for (const SegmentSpec& s : p_.segments) {
        if (s.active()) Append(windows->Read(s.slot, s.memory), result.windows);
      }
    }
  }

  // All fields of all memories, and whether those that no segment goes through are as they were.
  std::vector<std::vector<std::byte>> Bytes() {
    std::vector<std::vector<std::byte>> all;
    for (SlabPool* pool : Pools()) all.push_back(pool->Bytes());
    return all;
  }
  bool OnlyTouchedActive(const std::vector<std::vector<std::byte>>& before) {
    const auto active = [this](int slot, int memory) { return p_.Active(slot, memory); };
    bool kept = true;
    for (size_t i = 0; i < before.size(); ++i) kept &= Pools()[i]->OnlyTouched(before[i], active);
    return kept;
  }

 private:
  bool HasPending() const { return options_.pending && !exact_; }
  PendingWrites PendingOf() const {
    if (!HasPending()) return {};
    return {.capacity = PassProblem::kCapacity,
            .phase = phase_.view(),
            .range = range_.view(),
            .keys = keys_.view(),
            .updates = updates_.view(),
            .log_decay = decays_.view()};
  }
  std::vector<SlabPool*> Pools() {
    return {&states_, &q_windows_, &k_windows_, &v_windows_, &range_, &keys_, &updates_, &decays_};
  }
  SlabPool NewWindows(int64_t channels) {
    return SlabPool(bench_, p_.slots, p_.memories, (PassProblem::kWidth - 1) * channels,
                    exact_ ? DType::kF64 : options_.window);
  }
  SlabPool NewPending(int64_t values, DType dtype) {
    return SlabPool(bench_, p_.slots, p_.memories, PassProblem::kCapacity * values, dtype);
  }
  TensorView Upload(std::vector<double> values, int64_t rows, int64_t width, DType dtype) {
    values.resize(static_cast<size_t>(rows * width));
    return bench_.Values(values, {rows, width}, dtype);
  }
  static void Append(const std::vector<double>& values, std::vector<double>& to) {
    to.insert(to.end(), values.begin(), values.end());
  }

  void Load(int slot, int memory) {
    const int i = slot * p_.memories + memory;
    WriteState(slot, memory, p_.StateOf(i, /*add_pending=*/options_.pending && exact_));
    q_windows_.Write(slot, memory, p_.key_window);
    k_windows_.Write(slot, memory, p_.key_window);
    v_windows_.Write(slot, memory, p_.value_window);
    if (!HasPending()) return;
    const PassProblem::Pending& held = p_.pending[i];
    const int32_t places[2] = {held.begin, held.end};
    bench_.backend().CopyFromHost(range_.view().At(slot, memory), places, sizeof(places));
    keys_.Write(slot, memory, held.keys);
    updates_.Write(slot, memory, held.updates);
    decays_.Write(slot, memory, held.log_decay);
  }
  // kI8: kernels/state_row.h.
  void WriteState(int slot, int memory, const std::vector<double>& values) {
    if (state_dtype_ != DType::kI8) return states_.Write(slot, memory, values);
    const int key_dim = p_.dims.key_dim;
    const int64_t pitch = StateRowPitch(DType::kI8, key_dim);
    std::vector<std::byte> bytes(static_cast<size_t>(p_.dims.values() * pitch));
    for (int64_t row = 0; row < p_.dims.values(); ++row) {
      const float scale = p_.scales[p_.StateRow(slot * p_.memories + memory, row)];
      std::byte* const at = &bytes[row * pitch];
      for (int d = 0; d < key_dim; ++d) {
        const double integer = std::nearbyint(values[row * key_dim + d] / scale);
        at[d] = static_cast<std::byte>(static_cast<int8_t>(integer));
      }
      std::memcpy(at + pitch - sizeof(scale), &scale, sizeof(scale));
    }
    bench_.backend().CopyFromHost(states_.view().At(slot, memory), bytes.data(),
                                  static_cast<int64_t>(bytes.size()));
  }
  std::vector<double> ReadState(int slot, int memory) {
    if (state_dtype_ != DType::kI8) return states_.Read(slot, memory);
    const int key_dim = p_.dims.key_dim;
    const int64_t pitch = StateRowPitch(DType::kI8, key_dim);
    std::vector<std::byte> bytes(static_cast<size_t>(p_.dims.values() * pitch));
    bench_.backend().CopyToHost(bytes.data(), states_.view().At(slot, memory),
                                static_cast<int64_t>(bytes.size()));
    std::vector<double> values;
    for (int64_t row = 0; row < p_.dims.values(); ++row) {
      const std::byte* const at = &bytes[row * pitch];
      float scale;
      std::memcpy(&scale, at + pitch - sizeof(scale), sizeof(scale));
      for (int d = 0; d < key_dim; ++d) {
        values.push_back(double{scale} * static_cast<int8_t>(at[d]));
      }
    }
    return values;
  }

  const PassProblem& p_;
  const PassOptions options_;
  const bool exact_;  // the reference
  const DType state_dtype_;
  const int padding_;
  bool fused_ = true;
  Workbench bench_;
  SlabPool states_, q_windows_, k_windows_, v_windows_;
  SlabPool written_, phase_, range_, keys_, updates_, decays_;
  TensorView q_, k_, v_, a_, b_, q_conv_, k_conv_, v_conv_, a_log_, dt_bias_;
};

inline PassResult PassProblem::Run(Backend& backend, const PassOptions& options) const {
  PassRun run(backend, *this, options);
  const bool look = options.fuse && options.pending;  // at all of memory, which takes its time
  std::vector<std::vector<std::byte>> before;
  if (look) before = run.Bytes();
  const std::vector<double> out = run.Step(segments, 0);
  if (look) {
    EXPECT_TRUE(run.OnlyTouchedActive(before)) << "a memory of no segment was written";
  }
  run.Settle();
  std::vector<int> active;
  for (size_t s = 0; s < segments.size(); ++s) {
    if (segments[s].active()) active.push_back(static_cast<int>(s));
  }
  PassResult result = {.fused = run.fused(),
                       .out = PickEntries(out, dims.values(), segments, active)};
  run.ReadTo(result);
  return result;
}

}  // namespace mneme
