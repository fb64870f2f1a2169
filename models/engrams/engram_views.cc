#include "models/engrams/engram_views.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

bool IsOfKind(const GraphEngram& engram, EngramType kind) {
  return kind == EngramType::kFree || engram.type == kind;
}

absl::StatusOr<size_t> IndexOf(const EngramGraph& graph, uint32_t birth) {
  const std::vector<GraphEngram>& engrams = graph.engrams();
  const auto it = std::lower_bound(
      engrams.begin(), engrams.end(), birth,
      [](const GraphEngram& engram, uint32_t value) { return engram.birth < value; });
  if (it == engrams.end() || it->birth != birth) {
    return absl::NotFoundError(
        absl::StrCat("there is no engram ", birth,
                     ": it was never made, or has died, or has been evicted or forgotten"));
  }
  return static_cast<size_t>(it - engrams.begin());
}

SegmentRange RangeOf(const EngramGraph& graph, int64_t segment) {
  const int64_t tokens = graph.segments().tokens;
  return {segment, segment * tokens, (segment + 1) * tokens};
}

// The borders of bins from `low` to `high`, both included.
std::vector<double> EvenBorders(double low, double high, int bins) {
  if (low == high) return {low, high};
  std::vector<double> borders;
  for (int i = 0; i <= bins; ++i) borders.push_back(low + (high - low) * i / bins);
  borders.back() = high;
  return borders;
}

std::vector<double> GrowingBorders(double low, double high, int bins) {
  if (low == high) return {low, high};
  std::vector<double> borders;
  for (int i = 0; i <= bins; ++i) borders.push_back(low * std::pow(high / low, 1.0 * i / bins));
  borders.front() = low;
  borders.back() = high;
  return borders;
}

// The same of whole numbers, `high` excluded.
std::vector<double> WholeBorders(double low, double high, int bins, bool logarithmic) {
  std::vector<double> borders;
  if (logarithmic) {
    // Zero has no logarithm: numbers count from 1.
    for (const double border : GrowingBorders(low + 1, high + 1, bins)) {
      const double whole = std::round(border) - 1;
      if (borders.empty() || whole > borders.back()) borders.push_back(whole);
    }
    return borders;
  }
  const double width = std::ceil((high - low) / bins);
  for (double border = low; border < high; border += width) borders.push_back(border);
  borders.push_back(borders.back() + width);
  return borders;
}

}  // namespace

MemorySummary SummaryOf(const EngramGraph& graph) {
  MemorySummary summary = {.position = graph.position(),
                           .segment = graph.segment(),
                           .segment_tokens = graph.segments().tokens,
                           .capacity = graph.capacity(),
                           .evictions = graph.fact(kEngramsEvicted),
                           .history_wrapped = graph.history_wrapped(),
                           .found = graph.fact(kEngramsFound),
                           .recalled = graph.fact(kEngramsRecalled),
                           .gain_columns = graph.fact(kEngramColumns)};
  for (const GraphEngram& engram : graph.engrams()) {
    ++(engram.type == EngramType::kWorking     ? summary.working
       : engram.type == EngramType::kShortTerm ? summary.short_term
                                               : summary.long_term);
    summary.lifespan_sum += engram.lifespan;
    summary.max_lifespan = std::max(summary.max_lifespan, engram.lifespan);
  }
  summary.free = summary.capacity - static_cast<int>(graph.engrams().size());
  return summary;
}

absl::StatusOr<std::vector<EngramRow>> EngramsOf(const EngramGraph& graph,
                                                 const EngramsQuery& query) {
  std::vector<size_t> chosen;
  if (query.birth.has_value()) {
    MNEME_ASSIGN_OR_RETURN(const size_t index, IndexOf(graph, *query.birth));
    if (IsOfKind(graph.engrams()[index], query.kind)) chosen.push_back(index);
  } else {
    for (size_t i = 0; i < graph.engrams().size(); ++i) {
      if (IsOfKind(graph.engrams()[i], query.kind)) chosen.push_back(i);
    }
  }
  const auto largest_first = [&](const auto& value) {
    std::stable_sort(chosen.begin(), chosen.end(),
                     [&](size_t a, size_t b) { return value(a) > value(b); });
  };
  switch (query.order) {
    case EngramsQuery::Order::kBirth:
      break;
    case EngramsQuery::Order::kNewest:
      std::reverse(chosen.begin(), chosen.end());
      break;
    case EngramsQuery::Order::kLifespan:
      largest_first([&](size_t i) { return graph.engrams()[i].lifespan; });
      break;
    case EngramsQuery::Order::kFirings:
      largest_first([&](size_t i) { return graph.engrams()[i].firings; });
      break;
    case EngramsQuery::Order::kGain:
      largest_first([&](size_t i) { return graph.engrams()[i].last_gain; });
      break;
  }
  chosen.resize(std::min(chosen.size(), static_cast<size_t>(query.limit)));
  std::vector<EngramRow> rows;
  for (const size_t i : chosen) {
    const GraphEngram& engram = graph.engrams()[i];
    rows.push_back({.engram = engram,
                    .age = graph.age(engram),
                    .source = RangeOf(graph, graph.source(engram))});
  }
  return rows;
}

absl::StatusOr<std::vector<EngramEdge>> EdgesOf(const EngramGraph& graph, const EdgesQuery& query) {
  const size_t count = graph.engrams().size(), limit = static_cast<size_t>(query.limit);
  std::vector<EngramEdge> edges;
  const auto stronger = [](const EngramEdge& a, const EngramEdge& b) {
    return std::tuple(-a.strength(), -a.count, a.from, a.to) <
           std::tuple(-b.strength(), -b.count, b.from, b.to);
  };
  // Keeps memory within twice what is asked for.
  const auto drop_weakest = [&] {
    if (edges.size() <= limit) return;
    const auto end = edges.begin() + static_cast<int64_t>(limit);
    std::nth_element(edges.begin(), end, edges.end(), stronger);
    edges.erase(end, edges.end());
  };
  const auto add = [&](size_t i, size_t j, int64_t together) {
    const EngramEdge edge = {.from = graph.engrams()[i].birth,
                             .to = graph.engrams()[j].birth,
                             .count = together,
                             .weight = graph.Weight(i, together),
                             .weight_back = graph.Weight(j, together)};
    if (edge.count < query.min_count || edge.strength() < query.min_weight) return;
    edges.push_back(edge);
    if (edges.size() >= 2 * limit + 1) drop_weakest();
  };
  if (query.birth.has_value()) {
    MNEME_ASSIGN_OR_RETURN(const size_t index, IndexOf(graph, *query.birth));
    const std::vector<int64_t> together = graph.Together(index);
    for (size_t i = 0; i < count; ++i) {
      if (i != index) add(std::min(i, index), std::max(i, index), together[i]);
    }
  } else {
    for (size_t i = 0; i < count; ++i) {
      const std::vector<int64_t> together = graph.Together(i);
      for (size_t j = i + 1; j < count; ++j) add(i, j, together[j]);
    }
  }
  drop_weakest();
  std::sort(edges.begin(), edges.end(), stronger);
  return edges;
}

std::vector<HistogramBin> HistogramOf(const EngramGraph& graph, const HistogramQuery& query) {
  using Quantity = HistogramQuery::Quantity;
  std::vector<double> values;
  for (const GraphEngram& engram : graph.engrams()) {
    if (!IsOfKind(engram, query.kind)) continue;
    values.push_back(query.quantity == Quantity::kLifespan ? engram.lifespan
                     : query.quantity == Quantity::kAge
                         ? static_cast<double>(graph.age(engram))
                         : static_cast<double>(graph.source(engram)));
  }
  if (values.empty()) return {};
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const bool whole = query.quantity != Quantity::kLifespan;
  const std::vector<double> borders =
      whole               ? WholeBorders(*least, *most + 1, query.bins, query.logarithmic)
      : query.logarithmic ? GrowingBorders(*least, *most, query.bins)
                          : EvenBorders(*least, *most, query.bins);
  std::vector<HistogramBin> bins;
  for (size_t i = 0; i + 1 < borders.size(); ++i) bins.push_back({borders[i], borders[i + 1]});
  for (const double value : values) {
    const auto above = std::upper_bound(borders.begin(), borders.end(), value);
    const auto bin = std::min(static_cast<size_t>(above - borders.begin()) - 1, bins.size() - 1);
    ++bins[bin].engrams;
  }
  return bins;
}

std::vector<ContiguityBin> ContiguityOf(const EngramGraph& graph, const ContiguityQuery& query) {
  const std::vector<GraphEngram>& engrams = graph.engrams();
  std::vector<ContiguityBin> sums(static_cast<size_t>(query.max_distance) + 1);
  for (size_t i = 0; i < engrams.size(); ++i) {
    const std::vector<int64_t> together = graph.Together(i);
    for (size_t j = i + 1; j < engrams.size(); ++j) {
      const int64_t distance = graph.source(engrams[j]) - graph.source(engrams[i]);
      if (distance > query.max_distance) break;  // they are in order of birth
      ContiguityBin& sum = sums[static_cast<size_t>(distance)];
      sum.mean_weight += graph.Weight(i, together[j]) + graph.Weight(j, together[j]);
      ++sum.pairs;
    }
  }
  std::vector<ContiguityBin> bins;
  for (size_t distance = 0; distance < sums.size(); ++distance) {
    const ContiguityBin& sum = sums[distance];
    if (sum.pairs == 0) continue;
    bins.push_back({.distance = static_cast<int64_t>(distance),
                    .mean_weight = sum.mean_weight / (2 * static_cast<double>(sum.pairs)),
                    .pairs = sum.pairs});
  }
  return bins;
}

absl::StatusOr<MemoryReport> ReportMemory(const EngramGraph& graph, const MemoryQuery& query) {
  MemoryReport report = {.summary = SummaryOf(graph)};
  if (query.engrams.has_value()) {
    MNEME_ASSIGN_OR_RETURN(report.engrams, EngramsOf(graph, *query.engrams));
  }
  if (query.edges.has_value()) {
    MNEME_ASSIGN_OR_RETURN(report.edges, EdgesOf(graph, *query.edges));
  }
  if (query.histogram.has_value()) report.histogram = HistogramOf(graph, *query.histogram);
  if (query.contiguity.has_value()) report.contiguity = ContiguityOf(graph, *query.contiguity);
  return report;
}

}  // namespace mneme
