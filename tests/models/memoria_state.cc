#include "tests/models/memoria_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/json_text.h"
#include "base/log.h"
#include "models/engrams/engram_graph.h"
#include "models/mixers/engram_capacity.h"
#include "models/state_codec.h"
#include "models/state_layout.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

StateView ViewOf(ModelDriver& driver, int slot, const char* name) {
  const StateLayout& layout = driver.model().state_layout();
  for (const StateField& field : layout.fields()) {
    if (field.name == name) return Slabs{driver.Slab(slot), layout.slab_bytes()}.View(field);
  }
  LOG(FATAL) << "no field " << name;
}

}  // namespace

MemoriaConfig ReadMemoriaConfig(const std::string& folder) {
  const auto json = ReadJsonObject(folder + "/config.json");
  CHECK_OK(json.status());
  MemoriaConfig config = {.segment = json->at("segment_tokens").get<int>()};
  const nlohmann::json& working = json->at("memoria_num_memories");
  config.rules.working = working.is_null() ? config.segment : working.get<int>();
  config.rules.short_term = json->at("memoria_stm_capacity").get<int>();
  config.rules.recalled_short = json->at("memoria_num_reminded_stm").get<int>();
  config.rules.recalled_long = json->at("memoria_num_reminded_ltm").get<int>();
  config.rules.score = json->at("memoria_profile") == "upstream_1_1"
                           ? EngramRules::Score::kNegSquare
                           : EngramRules::Score::kExpMean;
  return config;
}

MemoriaState ReadMemoriaState(ModelDriver& driver, int slot) {
  const auto decoded =
      DecodeState(driver.backend(), driver.model(), driver.Slab(slot), driver.position(slot));
  CHECK_OK(decoded.status());
  const ModelInfo& info = driver.model().info();
  const EngramGraph graph = EngramGraph::Read(
      *decoded,
      {.tokens = std::max(info.segment, info.classes.segment), .working = info.working_engrams},
      {.counts = true});
  const std::vector<double> vectors = decoded->Get("engrams.vectors").Numbers();
  const StateTensor& weights = decoded->Get("engrams.weights");
  const std::vector<double> sums = weights.Numbers();
  const size_t count = graph.engrams().size();
  const auto dim = static_cast<int64_t>(vectors.size()) / graph.capacity();

  MemoriaState state = {.recalled = graph.recalled(),
                        .facts = decoded->Get("engrams.facts").Elements<int32_t>()};
  for (size_t i = 0; i < count; ++i) {
    const GraphEngram& from = graph.engrams()[i];
    const auto begin = vectors.begin() + static_cast<int64_t>(from.slot) * dim;
    MemoriaState::Engram engram = {.birth = from.birth,
                                   .type = from.type,
                                   .lifespan = from.lifespan,
                                   .gain = from.last_gain,
                                   .x = {begin, begin + dim}};
    const std::vector<int64_t> together = graph.Together(i);
    engram.counts.assign(together.begin(), together.end());
    state.engrams.push_back(std::move(engram));
  }
  const auto room = static_cast<size_t>(weights.shape[2]);
  const auto lines = static_cast<size_t>(weights.shape[0] * weights.shape[1]);
  for (size_t i = 0; i < state.recalled.size(); ++i) {
    double sum = 0, all = 0;
    for (size_t line = 0; line < lines; ++line) {
      sum += sums[line * room + i];
      all += std::accumulate(sums.begin() + static_cast<int64_t>(line * room),
                             sums.begin() + static_cast<int64_t>((line + 1) * room), 0.0);
    }
    // Weights of a token and head sum to 1.
    state.weights.push_back(all > 0 ? sum / all : 0);
  }
  return state;
}

std::map<uint32_t, double> ScoresByBirth(ModelDriver& driver, int slot, const EngramRules& rules,
                                         const MemoriaState& state, int segment) {
  Workbench bench(driver.backend());
  const StateView types = ViewOf(driver, slot, "engrams.types");
  const StateView vectors = ViewOf(driver, slot, "engrams.vectors");
  const int capacity = driver.model().info().engrams;
  const auto dim = static_cast<int>(state.engrams.front().x.size());
  const TensorView scores = bench.NewActivations({1, capacity + 1});
  const int steps = EngramHistorySteps(capacity);
  const Crossings crossings = {bench.Ints({0}), bench.Ints({segment})};
  driver.backend().kernels().ScoreEngrams(
      {.rules = rules,
       .store = {.capacity = capacity,
                 .dim = dim,
                 .steps = steps,
                 .types = types,
                 .vectors = vectors,
                 .lifespans = ViewOf(driver, slot, "engrams.lifespans"),
                 .gains = ViewOf(driver, slot, "engrams.gains"),
                 .births = ViewOf(driver, slot, "engrams.births"),
                 .counts = steps > 0 ? StateView{} : ViewOf(driver, slot, "engrams.counts"),
                 .fired = steps > 0 ? ViewOf(driver, slot, "engrams.fired") : StateView{},
                 .recalled = ViewOf(driver, slot, "engrams.recalled"),
                 .facts = ViewOf(driver, slot, "engrams.facts")},
       .crossings = crossings,
       .scores = scores});
  const std::vector<double> values = bench.Read(scores);
  std::vector<EngramType> type_of(static_cast<size_t>(capacity));
  std::vector<uint32_t> birth_of(static_cast<size_t>(capacity));
  driver.backend().CopyToHost(type_of.data(), types.At(0, 0), capacity);
  driver.backend().CopyToHost(birth_of.data(), ViewOf(driver, slot, "engrams.births").At(0, 0),
                              capacity * static_cast<int64_t>(sizeof(uint32_t)));
  std::map<uint32_t, double> by_birth;
  for (size_t i = 0; i < type_of.size(); ++i) {
    if (type_of[i] != EngramType::kShortTerm && type_of[i] != EngramType::kLongTerm) continue;
    by_birth[birth_of[i]] = values[i];
  }
  return by_birth;
}

}  // namespace mneme
