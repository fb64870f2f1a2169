#include "models/mixers/engram_memory.h"

#include <algorithm>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/mixers/engram_capacity.h"

namespace mneme {
namespace {

// Crossings that are worked on together, which bounds their workspace.
constexpr int kCrossingsAtOnce = 8;
// How much wider the encoder's feed-forward network is inside, whatever that of the layers is.
constexpr int kExpansion = 4;

// queries [count, dim] times weight [dim, dim].
std::vector<float> Fold(std::span<const float> queries, std::span<const float> weight,
                        int64_t dim) {
  std::vector<float> folded(queries.size());
  std::vector<double> sums(static_cast<size_t>(dim));
  for (size_t row = 0; row < queries.size(); row += static_cast<size_t>(dim)) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t j = 0; j < dim; ++j) {
      const double q = queries[row + static_cast<size_t>(j)];
      const float* from = weight.data() + j * dim;
      for (int64_t i = 0; i < dim; ++i) sums[static_cast<size_t>(i)] += q * from[i];
    }
    std::transform(sums.begin(), sums.end(), folded.begin() + static_cast<int64_t>(row),
                   [](double sum) { return static_cast<float>(sum); });
  }
  return folded;
}

}  // namespace

void AttendedEngrams::Project(Kernels& kernels, const Projection& projection, const TensorView& x,
                              const TensorView& offsets, const TensorView& y) {
  const LinearArgs product = {.x = x,
                              .weights = projection.weights,
                              .group_offsets = offsets,
                              .y = y,
                              .bias = projection.bias};
  kernels.Linear({&product, 1});
}

absl::StatusOr<EngramMemory> EngramMemory::Make(const LayerBuilder& builder,
                                                const EngramConfig& config) {
  EngramMemory memory;
  memory.config_ = config;
  memory.crossings_at_once_ = builder.network.asynchronous ? kUsualCrossings : kCrossingsAtOnce;
  memory.model_dim_ = builder.model_dim;
  if (config.encodes) MNEME_RETURN_IF_ERROR(memory.TakeEncoder(builder));
  memory.AddFields(builder);
  return memory;
}

absl::Status EngramMemory::TakeEncoder(const LayerBuilder& builder) {
  mneme::Weights& weights = builder.weights();
  const int dim = builder.model_dim, working = config_.rules.working;
  const auto name = [&](const char* tensor) { return absl::StrCat(config_.encoder, tensor); };
  MNEME_ASSIGN_OR_RETURN(const std::vector<float> queries,
                         weights.Values(builder.Weight(name("query_embeddings")), {1, working, dim},
                                        WeightInit::kNormal));
  MNEME_ASSIGN_OR_RETURN(const std::vector<float> keys,
                         weights.Values(builder.Weight(name("key_transform.weight")), {dim, dim},
                                        WeightInit::kNormal));
  MNEME_RETURN_IF_ERROR(
      weights.Values(builder.Weight(name("key_transform.bias")), {dim}, WeightInit::kZeros)
          .status());
  MNEME_ASSIGN_OR_RETURN(queries_, weights.Constant(Fold(queries, keys, dim)));
  queries_.shape = {working, dim};
  const int inner = config_.encoder_dim > 0 ? config_.encoder_dim : kExpansion * dim;
  MNEME_ASSIGN_OR_RETURN(value_,
                         TakeProjection(builder, name("value_transform"), dim, dim, Bias::kAdded));
  MNEME_ASSIGN_OR_RETURN(expand_,
                         TakeProjection(builder, name("feedforward"), inner, dim, Bias::kAdded));
  MNEME_ASSIGN_OR_RETURN(contract_,
                         TakeProjection(builder, name("output"), dim, inner, Bias::kAdded));
  return absl::OkStatus();
}

void EngramMemory::AddFields(const LayerBuilder& builder) {
  const bool f64 = builder.network.state_format.memory_dtype == DType::kF64;
  const DType number = f64 ? DType::kF64 : DType::kF32;
  const EngramRules& rules = config_.rules;
  const int64_t capacity = config_.capacity, dim = builder.model_dim;
  StateLayout& layout = builder.network.state;
  types_ = layout.Add({.name = "engrams.types",
                       .dtype = DType::kU8,
                       .shape = {capacity},
                       .traffic = StateTraffic::kSegments,
                       .room = StateRoom::kChosen});
  const auto of_slots = [&](const char* name, DType dtype, Shape shape,
                            StateRoom room = StateRoom::kChosen) {
    return layout.Add({.name = name,
                       .dtype = dtype,
                       .shape = shape,
                       .guard = StateGuard::kFlags,
                       .flags = types_.index,
                       .traffic = StateTraffic::kSegments,
                       .room = room});
  };
  vectors_ = of_slots("engrams.vectors", number, {capacity, dim});
  lifespans_ = of_slots("engrams.lifespans", number, {capacity});
  gains_ = of_slots("engrams.gains", number, {capacity});
  births_ = of_slots("engrams.births", DType::kI32, {capacity});
  if (const int steps = EngramHistorySteps(config_.capacity); steps > 0) {
    fired_ = of_slots("engrams.fired", DType::kI32, {capacity, steps / 32}, StateRoom::kOfChosen);
  } else {
    counts_ = of_slots("engrams.counts", DType::kU16, {capacity, capacity}, StateRoom::kOfChosen);
  }
  recalled_ = layout.Add({.name = "engrams.recalled",
                          .dtype = DType::kI32,
                          .shape = {1, rules.recalled()},
                          .traffic = StateTraffic::kSegments});
  facts_ = layout.Add({.name = "engrams.facts",
                       .dtype = DType::kI32,
                       .shape = {1, kEngramFacts},
                       .traffic = StateTraffic::kSegments});
  seed_ = layout.Add({.name = kEngramSeed,
                      .dtype = DType::kI32,
                      .shape = {1, 2},
                      .traffic = StateTraffic::kSegments,
                      .is_late = true});
  weights_ = layout.Add({.name = "engrams.weights",
                         .dtype = number,
                         .shape = {config_.layers, config_.heads, rules.recalled()}});
  const auto of_encoder = [&](const char* name, Shape shape) {
    return layout.Add({.name = name, .dtype = number, .shape = shape, .guard = StateGuard::kFed});
  };
  if (config_.encodes) {
    largest_ = of_encoder("encoder.largest", {1, rules.working});
    total_ = of_encoder("encoder.total", {1, rules.working});
  }
  sums_ = of_encoder("encoder.sums", {1, rules.working, dim});
}

EngramStore EngramMemory::Store(const ForwardContext& ctx) const {
  const int steps = EngramHistorySteps(config_.capacity);
  return {.capacity = config_.capacity,
          .dim = model_dim_,
          .steps = steps,
          .types = ctx.State(types_),
          .vectors = ctx.State(vectors_),
          .lifespans = ctx.State(lifespans_),
          .gains = ctx.State(gains_),
          .births = ctx.State(births_),
          .counts = steps > 0 ? StateView{} : ctx.State(counts_),
          .fired = steps > 0 ? ctx.State(fired_) : StateView{},
          .recalled = ctx.State(recalled_),
          .facts = ctx.State(facts_),
          .seed = ctx.State(seed_)};
}

void EngramMemory::Seed(Backend& backend, std::byte* slab, uint64_t seed) const {
  const uint64_t own = seed ^ config_.rules.seed;
  const uint32_t words[] = {static_cast<uint32_t>(own), static_cast<uint32_t>(own >> 32)};
  backend.CopyFromHost(slab + seed_.offset, words, sizeof(words));
}

void EngramMemory::Cross(ForwardContext& ctx,
                         std::span<const std::span<const PackedMatrix>> readers,
                         absl::FunctionRef<void(const AttendedEngrams&)> project) const {
  EngramKernels& kernels = ctx.kernels();
  const EngramRules& rules = config_.rules;
  const EngramStore store = Store(ctx);
  const StateView total = config_.encodes ? ctx.State(total_) : StateView{};
  const int crossing =
      ctx.batch.crossings < 0 ? ctx.batch.rows : std::min(ctx.batch.crossings, ctx.batch.rows);
  const int most = std::min(crossings_at_once_, crossing);
  for (int first = 0; first < crossing; first += most) {
    const Workspace::Scope scope(ctx.workspace);
    const Crossings crossings = {ctx.TempIndices({most}), ctx.TempIndices({most})};
    const TensorView entries = ctx.TempIndices({2}), attended = ctx.TempIndices({2});
    kernels.FindCrossings({.row_offsets = ctx.batch.row_offsets,
                           .slots = ctx.batch.slots,
                           .positions = ctx.batch.positions,
                           .segment = config_.segment,
                           .first = first,
                           .working = rules.working,
                           .attended = rules.attended(),
                           .crossings = crossings,
                           .working_entries = entries,
                           .attended_entries = attended,
                           .report_range = ctx.reports.range});
    kernels.CommitEngrams({.rules = rules,
                           .store = store,
                           .crossings = crossings,
                           .segment = config_.segment,
                           .layers = config_.layers,
                           .heads = config_.heads,
                           .sums = ctx.State(weights_),
                           .reports = ctx.reports});
    const int64_t rows = int64_t{most} * rules.working;
    const TensorView working = ctx.Temp({rows, model_dim_});
    kernels.ReadEncoder({.crossings = crossings,
                         .working = rules.working,
                         .total = total,
                         .sums = ctx.State(sums_),
                         .x = working});
    if (config_.encodes) {
      const TensorView value = ctx.Temp({rows, model_dim_});
      const TensorView inner = ctx.Temp({rows, expand_.out()});
      AttendedEngrams::Project(ctx.kernels(), value_, working, entries, value);
      AttendedEngrams::Project(ctx.kernels(), expand_, value, entries, inner);
      AttendedEngrams::Project(ctx.kernels(), contract_, inner, entries, working);
    }
    kernels.WriteEngrams({.rules = rules, .store = store, .crossings = crossings, .x = working});
    const TensorView scores = ctx.Temp({most, config_.capacity + 1});
    kernels.ScoreEngrams(
        {.rules = rules, .store = store, .crossings = crossings, .scores = scores});
    kernels.RetrieveEngrams({.rules = rules,
                             .store = store,
                             .crossings = crossings,
                             .scores = scores,
                             .reports = ctx.reports});
    const TensorView x =
        ctx.TempForProducts({int64_t{most} * rules.attended(), model_dim_}, readers);
    kernels.GatherEngrams({.rules = rules, .store = store, .crossings = crossings, .x = x});
    project({.crossings = crossings, .x = x, .offsets = attended});
  }
}

absl::StatusOr<std::vector<RecalledEngram>> EngramMemory::ReadRecalled(
    Backend& backend, const std::byte* slab) const {
  const auto read = [&]<typename T>(const StateField& field, std::vector<T> values) {
    backend.CopyToHost(values.data(), slab + field.offset,
                       static_cast<int64_t>(values.size() * sizeof(T)));
    return values;
  };
  const auto room = static_cast<size_t>(config_.rules.recalled());
  const auto lines = static_cast<size_t>(config_.layers) * static_cast<size_t>(config_.heads);
  const auto capacity = static_cast<size_t>(config_.capacity);
  const auto facts = read(facts_, std::vector<int32_t>(kEngramFacts));
  const auto recalled = read(recalled_, std::vector<int32_t>(room));
  const auto types = read(types_, std::vector<EngramType>(capacity));
  const auto births = read(births_, std::vector<uint32_t>(capacity));
  std::vector<double> sums;
  if (weights_.dtype == DType::kF64) {
    sums = read(weights_, std::vector<double>(lines * room));
  } else {
    const auto narrow = read(weights_, std::vector<float>(lines * room));
    sums.assign(narrow.begin(), narrow.end());
  }
  MNEME_RETURN_IF_ERROR(backend.Synchronize());
  std::vector<RecalledEngram> engrams;
  for (size_t i = 0; i < static_cast<size_t>(facts[kEngramsRecalled]); ++i) {
    const auto engram = static_cast<size_t>(recalled[i]);
    double weight = 0;
    for (size_t line = 0; line < lines; ++line) weight += sums[line * room + i];
    engrams.push_back({.segment = int64_t{births[engram]} / config_.rules.working,
                       .birth = births[engram],
                       .long_term = types[engram] == EngramType::kLongTerm,
                       .weight = weight / static_cast<double>(lines)});
  }
  return engrams;
}

void EngramMemory::Encode(ForwardContext& ctx, const TensorView& h) const {
  ctx.kernels().EncodeTokens({.h = h,
                              .queries = queries_,
                              .row_offsets = ctx.batch.row_offsets,
                              .slots = ctx.batch.slots,
                              .positions = ctx.batch.positions,
                              .segment = config_.segment,
                              .largest = config_.encodes ? ctx.State(largest_) : StateView{},
                              .total = config_.encodes ? ctx.State(total_) : StateView{},
                              .sums = ctx.State(sums_)});
}

}  // namespace mneme
