// Views of a session's engrams for people and programs: small tables made of their graph.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops/engrams.h"
#include "models/engrams/engram_graph.h"

namespace mneme {

// EngramType::kFree stands for engrams of every kind.
struct EngramsQuery {
  // Ties, and kBirth: the oldest first.
  enum class Order { kBirth, kNewest, kLifespan, kFirings, kGain };
  static constexpr int kUsual = 100, kMost = 10000;
  Order order = Order::kBirth;
  EngramType kind = EngramType::kFree;
  std::optional<uint32_t> birth;  // this one alone
  int limit = kUsual;
};
struct EdgesQuery {
  static constexpr int kUsual = 100, kMost = 20000;
  int64_t min_count = 1;          // firings together, at least
  double min_weight = 0;          // of EngramEdge::strength
  std::optional<uint32_t> birth;  // only those of this engram
  int limit = kUsual;
};
struct HistogramQuery {
  enum class Quantity { kLifespan, kAge, kCreation };
  static constexpr int kUsual = 20, kMost = 1000;
  Quantity quantity = Quantity::kLifespan;
  EngramType kind = EngramType::kFree;
  int bins = kUsual;  // at most
  bool logarithmic = false;
};
struct ContiguityQuery {
  static constexpr int kUsual = 200, kMost = 10000;
  int max_distance = kUsual;
};
// The summary always comes.
struct MemoryQuery {
  std::optional<EngramsQuery> engrams;
  std::optional<EdgesQuery> edges;
  std::optional<HistogramQuery> histogram;
  std::optional<ContiguityQuery> contiguity;

  EngramGraph::Parts parts() const {
    return {.vectors = engrams.has_value(),
            .counts = engrams.has_value() || edges.has_value() || contiguity.has_value()};
  }
};

// Positions [first, end) in the conversation.
struct SegmentRange {
  int64_t segment = 0, first_token = 0, end_token = 0;
};
struct MemorySummary {
  int64_t position = 0, segment = 0;
  int segment_tokens = 0, capacity = 0;
  int working = 0, short_term = 0, long_term = 0, free = 0;
  double lifespan_sum = 0, max_lifespan = 0;
  int64_t evictions = 0;
  bool history_wrapped = false;
  int found = 0, recalled = 0, gain_columns = 0;  // of the last retrieval
};
struct EngramRow {
  GraphEngram engram;
  int64_t age = 0;
  SegmentRange source;
};
struct EngramEdge {
  uint32_t from = 0, to = 0;  // births; from < to
  int64_t count = 0;
  double weight = 0, weight_back = 0;  // E from one to the other, and back

  double strength() const { return weight > weight_back ? weight : weight_back; }
};
struct HistogramBin {
  double from = 0, to = 0;  // [from, to); the last one of lifespans includes `to`
  int64_t engrams = 0;
};
struct ContiguityBin {
  int64_t distance = 0;
  double mean_weight = 0;  // over both directions of `pairs`
  int64_t pairs = 0;
};
struct MemoryReport {
  MemorySummary summary;
  std::vector<EngramRow> engrams;
  std::vector<EngramEdge> edges;
  std::vector<HistogramBin> histogram;
  std::vector<ContiguityBin> contiguity;
};

// The bounds above are for callers to keep. `graph` has the query's parts. NOT_FOUND for an engram
// that is not there.
absl::StatusOr<MemoryReport> ReportMemory(const EngramGraph& graph, const MemoryQuery& query);

// The parts of a report.
MemorySummary SummaryOf(const EngramGraph& graph);
absl::StatusOr<std::vector<EngramRow>> EngramsOf(const EngramGraph& graph,
                                                 const EngramsQuery& query);
// The largest strength first, then the largest count, then the oldest.
absl::StatusOr<std::vector<EngramEdge>> EdgesOf(const EngramGraph& graph, const EdgesQuery& query);
// From the smallest to the largest value that there is; no bins without engrams. Bins are equally
// wide, or grow by a factor; those of whole numbers begin and end at some, so that there may be
// fewer than asked for.
std::vector<HistogramBin> HistogramOf(const EngramGraph& graph, const HistogramQuery& query);
// Distances for which there are pairs, from 0 on. An engram is no pair with itself.
std::vector<ContiguityBin> ContiguityOf(const EngramGraph& graph, const ContiguityQuery& query);

}  // namespace mneme
