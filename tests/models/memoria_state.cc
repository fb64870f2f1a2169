#include "tests/models/memoria_state.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/json_text.h"
#include "base/log.h"
#include "models/mixers/engram_capacity.h"
#include "models/mixers/engram_state.h"
#include "models/state_codec.h"
#include "models/state_layout.h"
#include "tests/support/workbench.h"

namespace mneme {
namespace {

template <typename T>
std::vector<T> Elements(const StateTensor& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

std::vector<double> Numbers(const StateTensor& tensor) {
  if (tensor.dtype == DType::kF64) return Elements<double>(tensor);
  const std::vector<float> values = Elements<float>(tensor);
  return {values.begin(), values.end()};
}

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
  std::map<std::string, const StateTensor*> tensors;
  for (const StateTensor& tensor : decoded->tensors) tensors[tensor.name] = &tensor;
  const auto get = [&](const char* name) -> const StateTensor& { return *tensors.at(name); };
  const auto types = Elements<uint8_t>(get("engrams.types"));
  const auto births = Elements<uint32_t>(get("engrams.births"));
  const EngramCounts counts(*decoded);
  const auto recalled = Elements<int32_t>(get("engrams.recalled"));
  const std::vector<double> lifespans = Numbers(get("engrams.lifespans"));
  const std::vector<double> gains = Numbers(get("engrams.gains"));
  const std::vector<double> vectors = Numbers(get("engrams.vectors"));
  const StateTensor& weights = get("engrams.weights");
  const std::vector<double> sums = Numbers(weights);
  const size_t capacity = types.size(), dim = vectors.size() / capacity;

  std::vector<size_t> slots;
  for (size_t i = 0; i < capacity; ++i) {
    if (types[i] != 0) slots.push_back(i);
  }
  std::sort(slots.begin(), slots.end(), [&](size_t a, size_t b) { return births[a] < births[b]; });
  MemoriaState state = {.facts = Elements<int32_t>(get("engrams.facts"))};
  for (const size_t i : slots) {
    const auto begin = vectors.begin() + static_cast<int64_t>(i * dim);
    MemoriaState::Engram engram = {.birth = births[i],
                                   .type = static_cast<EngramType>(types[i]),
                                   .lifespan = lifespans[i],
                                   .gain = gains[i],
                                   .x = {begin, begin + static_cast<int64_t>(dim)}};
    for (const size_t j : slots) engram.counts.push_back(counts(i, j));
    state.engrams.push_back(std::move(engram));
  }
  const auto room = static_cast<size_t>(weights.shape[2]);
  const auto lines = static_cast<size_t>(weights.shape[0] * weights.shape[1]);
  for (int i = 0; i < state.facts[kEngramsRecalled]; ++i) {
    const auto at = std::find(slots.begin(), slots.end(), static_cast<size_t>(recalled[i]));
    CHECK(at != slots.end()) << "a recalled engram that is dead";
    state.recalled.push_back(static_cast<size_t>(at - slots.begin()));
    double sum = 0, all = 0;
    for (size_t line = 0; line < lines; ++line) {
      sum += sums[line * room + static_cast<size_t>(i)];
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
