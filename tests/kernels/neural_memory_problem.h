// A neural memory as a test describes it: its network, how it is trained, and ragged work for it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/random_values.h"
#include "tests/support/segments.h"
#include "tests/support/workbench.h"

namespace mneme {

struct MemoryRule {
  using Read = NeuralMemoryArgs::Read;
  using Norm = MemoryNetwork::Norm;
  using Activation = MemoryNetwork::Activation;

  const char* name = "";
  int heads = 2, dim = 16, depth = 2, hidden = 24;
  bool biases = false;
  Activation activation = Activation::kGelu;
  Norm norm = Norm::kNone;
  bool trains_gain = false;
  float gain_offset = 0;
  int step = 1, anchor_period = 1, frozen_period = 0;
  Read read = Read::kRunning;
  int keys = 1;
  int orders = 1;
  int mix = 0;  // logits of a head
  bool keep = true, scaled = false, tensor_rates = false;
  bool residual = false, before = false, transition = false;
  double max_grad_norm = 0;
  bool spectral_norm = false;
  bool loss = true;
  int first_position = 0;
  bool initial_of_all = false;
  bool channel_gates = false;

  MemoryNetwork network() const {
    return {.depth = depth,
            .hidden = depth == 1 ? 0 : hidden,
            .biases = biases,
            .activation = activation,
            .norm = norm,
            .eps = 1e-5f,
            .trains_gain = trains_gain,
            .gain_offset = gain_offset};
  }
  int gate_width() const { return channel_gates ? dim : 1; }
  bool ahead() const { return read == Read::kAhead; }
  bool has_anchor() const { return anchor_period != 0 && (anchor_period != step || transition); }
  bool has_pairs() const { return step > 1 && !ahead(); }
  // Whether a GPU takes tokens under an anchor together, those of a segment: how they are split
  // over calls then shows in roundings.
  bool has_windows() const {
    return step == 1 && (has_anchor() || anchor_period == 0) && read == Read::kRunning &&
           depth == 2 && dim % 16 == 0 && hidden % 16 == 0;
  }
};

struct MemoryProblem {
  static constexpr int kSlots = 4;

  // A field of every slab.
  struct Field {
    std::string name;
    int64_t elements = 0;
    std::vector<std::vector<double>> before = {};  // by slot; none: whatever was there
    bool is_read = true;                           // and not written
    std::vector<double> initial = {};              // of sessions that were fed nothing; or none
  };

  MemoryProblem(uint64_t seed, const MemoryRule& rule, std::vector<SegmentSpec> list)
      : rule(rule), segments(std::move(list)) {
    SeededRandom random(seed);
    const MemoryNetwork network = rule.network();
    const int64_t rows = int64_t{Entries(segments)} * rule.heads, pairs = rows * rule.keys;
    const int width = rule.gate_width();
    q = random.NormalValues(rows * rule.dim);
    k = random.NormalValues(pairs * rule.dim);
    v = random.NormalValues(pairs * rule.dim);
    // Keys of about unit length and small rates, as models have them: the memory stays tame.
    const double length = std::sqrt(rule.dim), most = 0.1 / rule.step / rule.keys / rule.depth;
    for (double& x : k) x = static_cast<float>(x / length);
    rate = random.UniformValues(pairs * width, 0, most);
    momentum = random.UniformValues(rows * rule.orders * width, 0, 0.9 / std::max(1, rule.orders));
    mix = random.NormalValues(rows * rule.mix);
    keep = random.UniformValues(rows * width, 0.8, 1);
    tensor_rates = random.UniformValues(rows * network.tensors(), 0.5, 1.5);
    residual_mix = random.UniformValues(rows, 0, 1);
    scale = random.UniformValues(rule.step, 0.5, 1);
    gain = random.UniformValues(rule.heads * rule.dim, 0.5, 1.5);
    shift = random.NormalValues(rule.heads * rule.dim, 0.1);
    for (const SegmentSpec& s : segments) {
      starts.push_back(rule.first_position +
                       (s.fresh ? 0 : 1 + static_cast<int>(seed % 5) + s.slot));
    }
    AddCopy(random, "weights", true, 1, 0.3, true);
    AddCopy(random, "momenta", rule.orders > 0, rule.orders, 0.02, rule.initial_of_all);
    AddCopy(random, "anchors", rule.has_anchor(), 1, 0.3, rule.initial_of_all);
    AddCopy(random, "frozen", rule.frozen_period != 0, 1, 0.3, false);
    AddCopy(random, "gradients", rule.ahead(), 1, 0.02, rule.initial_of_all);
    AddCopy(random, "before", rule.before, 1, 0, false);
    AddCopy(random, "residual", rule.residual, 1, 0.1, false);
    if (!rule.has_pairs()) return;
    // Rows of the open step's tokens, and zeros behind them.
    for (const auto& [name, width, factor] : {std::tuple("keys", rule.dim, 1 / length),
                                              {"values", rule.dim, 1.0},
                                              {"rates", rule.gate_width(), most}}) {
      const int held = (rule.step - 1) * rule.keys;
      const auto filled = [&, width = width, factor = factor](int position) {
        std::vector<double> values = random.UniformValues(rule.heads * held * width, 0, factor);
        const int open = position % rule.step * rule.keys;
        for (size_t i = 0; i < values.size(); ++i) {
          if (static_cast<int>(i) / width % held >= open) values[i] = 0;
        }
        return values;
      };
      Field field{.name = name, .elements = int64_t{rule.heads} * held * width, .is_read = false};
      for (int slot = 0; slot < kSlots; ++slot) {
        int position = 0;
        for (size_t s = 0; s < segments.size(); ++s) {
          if (segments[s].slot == slot) position = starts[s];
        }
        field.before.push_back(filled(position));
      }
      if (rule.initial_of_all) field.initial = filled(rule.first_position);
      fields.push_back(field);
    }
  }

  int64_t Elements(int t) const {
    return rule.heads * rule.network().shape(t, rule.dim).elements();
  }
  // The index of a field of a copy; its tensors follow one another.
  int FieldIndex(const std::string& name, int t = 0) const {
    for (size_t i = 0; i < fields.size(); ++i) {
      if (fields[i].name == name) return static_cast<int>(i) + t;
    }
    return -1;
  }

  struct Loaded {
    std::vector<std::unique_ptr<SlabPool>> pools;  // by field
    NeuralMemoryArgs args;
  };
  Loaded Load(Workbench& bench) const {
    const MemoryNetwork network = rule.network();
    Loaded loaded;
    NeuralMemoryArgs& args = loaded.args;
    args.network = network;
    for (const Field& field : fields) {
      loaded.pools.push_back(std::make_unique<SlabPool>(bench, kSlots, 1, field.elements,
                                                        bench.backend().activation_dtype()));
      // A memory that is fresh holds what its slab happened to hold: NaN, here.
      for (int slot = 0; slot < kSlots; ++slot) {
        if (IsFresh(segments, slot, 0) && field.name != "before" && field.name != "residual") {
          continue;
        }
        loaded.pools.back()->Write(slot, 0, field.before[static_cast<size_t>(slot)]);
      }
    }
    const auto set = [&](const char* name, MemoryCopy& copy, MemoryInitial* initial, int copies) {
      const int first = FieldIndex(name);
      for (int t = 0; first >= 0 && t < network.tensors(); ++t) {
        const auto at = static_cast<size_t>(first + t);
        copy.at[t] = loaded.pools[at]->view();
        if (initial == nullptr || fields[at].initial.empty()) continue;
        const Shape one = network.shape(t, rule.dim);
        const int64_t rows = int64_t{copies} * rule.heads;
        initial->at[t] = bench.Floats(
            fields[at].initial, one.rank == 2 ? Shape{rows, one[0], one[1]} : Shape{rows, one[0]});
      }
    };
    set("weights", args.weights, &args.initial_weights, 1);
    set("momenta", args.momenta, &args.initial_momenta, rule.orders);
    set("anchors", args.anchors, &args.initial_anchors, 1);
    set("frozen", args.frozen, nullptr, 1);
    set("gradients", args.gradients, &args.initial_gradients, 1);
    set("before", args.before, nullptr, 1);
    set("residual", args.residual, nullptr, 1);
    if (rule.anchor_period == 0) args.initial_anchor = args.initial_weights;
    if (rule.has_pairs()) {
      const int64_t held = int64_t{rule.step - 1} * rule.keys;
      const auto pairs = [&](const char* name, StateView& view, TensorView& initial, Shape shape) {
        const auto at = static_cast<size_t>(FieldIndex(name));
        view = loaded.pools[at]->view();
        if (!fields[at].initial.empty()) initial = bench.Floats(fields[at].initial, shape);
      };
      pairs("keys", args.pending.k, args.initial_pending.k, {rule.heads, held, rule.dim});
      pairs("values", args.pending.v, args.initial_pending.v, {rule.heads, held, rule.dim});
      pairs("rates", args.pending.rate, args.initial_pending.rate,
            rule.channel_gates ? Shape{rule.heads, held, rule.dim} : Shape{rule.heads, held});
    }
    SetInputs(bench, args);
    return loaded;
  }

  struct Trained {
    std::vector<double> out, loss;  // entries of active segments, in order
    std::vector<double> states;     // all fields of their memories
  };
  std::vector<double> States(const Loaded& loaded) const {
    std::vector<double> states;
    for (const SegmentSpec& s : segments) {
      if (!s.active()) continue;
      for (const auto& pool : loaded.pools) {
        const auto values = pool->Read(s.slot, 0);
        states.insert(states.end(), values.begin(), values.end());
      }
    }
    return states;
  }
  std::vector<double> ActiveRows(Workbench& bench, const TensorView& tensor, int width) const {
    if (tensor.empty()) return {};
    std::vector<int> active;
    for (size_t s = 0; s < segments.size(); ++s) {
      if (segments[s].active()) active.push_back(static_cast<int>(s));
    }
    return PickEntries(bench.Read(tensor), width, segments, active);
  }
  Trained Results(Workbench& bench, const Loaded& loaded) const {
    return {ActiveRows(bench, loaded.args.out, rule.heads * rule.dim),
            ActiveRows(bench, loaded.args.loss, rule.heads * rule.keys), States(loaded)};
  }
  Trained Run(Backend& backend) const {
    Workbench bench(backend);
    Loaded loaded = Load(bench);
    std::vector<std::vector<std::byte>> bytes;
    for (const auto& pool : loaded.pools) bytes.push_back(pool->Bytes());
    bench.kernels().NeuralMemory(loaded.args);
    for (size_t i = 0; i < bytes.size(); ++i) {
      EXPECT_TRUE(loaded.pools[i]->OnlyTouched(bytes[i],
                                               [&](int slot, int memory) {
                                                 return !fields[i].is_read &&
                                                        IsActive(segments, slot, memory);
                                               }))
          << fields[i].name << " outside the segments' memories was written";
    }
    return Results(bench, loaded);
  }

  // Entries [begin, end), all of one segment, as a problem of its own.
  MemoryProblem Part(int segment, int begin, int end) const {
    MemoryProblem part = *this;
    const int offset = Offsets(segments)[static_cast<size_t>(segment)];
    part.segments = {segments[static_cast<size_t>(segment)]};
    part.segments[0].length = end - begin;
    part.starts = {starts[static_cast<size_t>(segment)] + begin};
    const int gates = rule.heads, pairs = rule.heads * rule.keys;
    for (auto [values, width] : {std::pair(&part.q, gates * rule.dim),
                                 {&part.k, pairs * rule.dim},
                                 {&part.v, pairs * rule.dim},
                                 {&part.rate, pairs * rule.gate_width()},
                                 {&part.momentum, gates * rule.orders * rule.gate_width()},
                                 {&part.mix, gates * rule.mix},
                                 {&part.keep, gates * rule.gate_width()},
                                 {&part.tensor_rates, gates * rule.network().tensors()},
                                 {&part.residual_mix, gates}}) {
      *values = {values->begin() + (offset + begin) * width,
                 values->begin() + (offset + end) * width};
    }
    return part;
  }

  // Each token goes through the network three times, with a sum and an activation a layer, and its
  // errors stay in the memory, where those of many tokens, which have either sign, add up as the
  // root of their number. The iteration that makes an update orthogonal multiplies what should be
  // zero, and is rounding, by up to 3.4445 each time.
  double Bound() const {
    int longest = 1;
    for (const SegmentSpec& s : segments) longest = std::max(longest, s.length);
    const double wide = std::max(rule.dim, rule.depth > 1 ? rule.hidden : 0);
    return 3 * rule.depth * (SumError(wide) + kFunctionError) * (2 + std::sqrt(longest)) *
           (rule.spectral_norm ? std::pow(3.4445, 5) : 1);
  }

  MemoryRule rule;
  std::vector<SegmentSpec> segments;
  std::vector<int> starts;
  std::vector<double> q, k, v, rate, momentum, mix, keep, tensor_rates, residual_mix, scale, gain,
      shift;
  double transition = 0.5;  // a logit
  std::vector<Field> fields;

 private:
  void AddCopy(SeededRandom& random, const char* name, bool wanted, int copies, double range,
               bool initial) {
    for (int t = 0; wanted && t < rule.network().tensors(); ++t) {
      Field field{.name = name,
                  .elements = copies * Elements(t),
                  .is_read = std::string(name) == "residual"};
      for (int slot = 0; slot < kSlots; ++slot) {
        field.before.push_back(random.NormalValues(field.elements, range));
      }
      if (initial) field.initial = random.NormalValues(field.elements, range);
      fields.push_back(field);
    }
  }

  void SetInputs(Workbench& bench, NeuralMemoryArgs& args) const {
    const int entries = Entries(segments);
    const int64_t heads = rule.heads, pairs = int64_t{rule.heads} * rule.keys, dim = rule.dim;
    args.q = bench.Activations(q, {entries, heads, dim});
    args.k = bench.Activations(k, {entries, pairs, dim});
    args.v = bench.Activations(v, {entries, pairs, dim});
    const int width = rule.gate_width();
    args.channel_gates = rule.channel_gates;
    args.rate = bench.Activations(rate, {entries, pairs * width});
    args.keys = rule.keys;
    if (rule.orders > 0)
      args.momentum = bench.Activations(momentum, {entries, heads * rule.orders * width});
    if (rule.mix > 0) args.momentum_mix = bench.Activations(mix, {entries, heads * rule.mix});
    if (rule.keep) args.keep = bench.Activations(keep, {entries, heads * width});
    if (rule.tensor_rates) {
      args.tensor_rates =
          bench.Activations(tensor_rates, {entries, heads * rule.network().tensors()});
    }
    if (rule.residual) args.residual_mix = bench.Activations(residual_mix, {entries, heads});
    if (rule.transition) args.transition = bench.Floats({transition}, {1});
    if (rule.scaled) args.step_scale = bench.Floats(scale, {rule.step});
    if (rule.norm != MemoryRule::Norm::kNone && !rule.trains_gain) {
      args.gain = bench.Floats(gain, {heads, dim});
      args.shift = bench.Floats(shift, {heads, dim});
    }
    args.rate_scale = 2;
    args.max_grad_norm = rule.max_grad_norm;
    args.spectral_norm = rule.spectral_norm;
    args.step = rule.step;
    args.anchor_period = rule.anchor_period;
    args.frozen_period = rule.frozen_period;
    args.read = rule.read;
    std::vector<int64_t> positions;
    for (size_t s = 0; s < segments.size(); ++s) {
      for (int i = 0; i < segments[s].length; ++i) positions.push_back(starts[s] + i);
    }
    args.positions = bench.Longs(positions);
    args.first_position = rule.first_position;
    args.segments = Upload(bench, segments);
    args.out = bench.NewActivations({entries, heads, dim});
    if (rule.loss) args.loss = bench.NewActivations({entries, pairs});
  }
};

}  // namespace mneme
