#include "tools/engram_dump.h"

#include <nlohmann/json.hpp>

namespace mneme {

std::string EngramDumpLine(const EngramGraph& graph) {
  using Json = nlohmann::ordered_json;
  Json births = Json::array(), types = Json::array(), lifespans = Json::array(),
       gains = Json::array(), counts = Json::array(), recalled = Json::array();
  for (size_t i = 0; i < graph.engrams().size(); ++i) {
    const GraphEngram& engram = graph.engrams()[i];
    births.push_back(engram.birth);
    types.push_back(static_cast<int>(engram.type));
    lifespans.push_back(engram.lifespan);
    gains.push_back(engram.last_gain);
    counts.push_back(graph.Together(i));
  }
  for (const size_t i : graph.recalled()) recalled.push_back(graph.engrams()[i].birth);
  return Json{{"segment", graph.segment()},
              {"position", graph.position()},
              {"births", std::move(births)},
              {"types", std::move(types)},
              {"lifespans", std::move(lifespans)},
              {"gains", std::move(gains)},
              {"counts", std::move(counts)},
              {"recalled", std::move(recalled)},
              {"found", graph.fact(kEngramsFound)},
              {"null_candidate", graph.fact(kEngramNullCandidate)},
              {"null_recalled", graph.fact(kEngramNullRecalled)},
              {"columns", graph.fact(kEngramColumns)},
              {"evicted", graph.fact(kEngramsEvicted)}}
      .dump();
}

}  // namespace mneme
