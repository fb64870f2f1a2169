#include "server/openai/memory_view.h"

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

template <typename Value>
using Names = std::vector<std::pair<std::string, Value>>;

const Names<EngramType>& Kinds() {
  static const auto& names = *new Names<EngramType>{{"working", EngramType::kWorking},
                                                    {"short_term", EngramType::kShortTerm},
                                                    {"long_term", EngramType::kLongTerm}};
  return names;
}
const Names<EngramsQuery::Order>& Orders() {
  using Order = EngramsQuery::Order;
  static const auto& names = *new Names<Order>{{"birth", Order::kBirth},
                                               {"newest", Order::kNewest},
                                               {"lifespan", Order::kLifespan},
                                               {"firings", Order::kFirings},
                                               {"gain", Order::kGain}};
  return names;
}
const Names<HistogramQuery::Quantity>& Quantities() {
  using Quantity = HistogramQuery::Quantity;
  static const auto& names = *new Names<Quantity>{{"lifespan", Quantity::kLifespan},
                                                  {"age", Quantity::kAge},
                                                  {"creation", Quantity::kCreation}};
  return names;
}

// Fields of a query, each of which is taken once.
class QueryFields {
 public:
  explicit QueryFields(const std::map<std::string, std::string>& fields) : fields_(fields) {}

  void Number(const char* name, int64_t low, int64_t high, auto& value) {
    const std::string* text = Take(name);
    if (text == nullptr) return;
    int64_t number = 0;
    if (!absl::SimpleAtoi(*text, &number) || number < low || number > high) {
      Fail(name, *text, absl::StrCat("a number from ", low, " to ", high));
      return;
    }
    value = static_cast<std::remove_reference_t<decltype(value)>>(number);
  }
  void Birth(std::optional<uint32_t>& value) {
    int64_t number = -1;
    Number("birth", 0, UINT32_MAX, number);
    if (number >= 0) value = static_cast<uint32_t>(number);
  }
  void Share(const char* name, double& value) {
    const std::string* text = Take(name);
    if (text == nullptr) return;
    double number = 0;
    if (!absl::SimpleAtod(*text, &number) || !(number >= 0 && number <= 1)) {
      Fail(name, *text, "a number from 0 to 1");
      return;
    }
    value = number;
  }
  void Bool(const char* name, bool& value) {
    Choice(name, Names<bool>{{"true", true}, {"false", false}}, value);
  }
  template <typename Value>
  void Choice(const char* name, const Names<Value>& names, Value& value) {
    const std::string* text = Take(name);
    if (text == nullptr) return;
    std::vector<std::string> known;
    for (const auto& [spelling, meant] : names) {
      if (spelling == *text) {
        value = meant;
        return;
      }
      known.push_back(spelling);
    }
    Fail(name, *text, absl::StrJoin(known, ", "));
  }

  absl::Status Finish() const {
    if (!status_.ok()) return status_;
    for (const auto& [name, text] : fields_) {
      if (taken_.contains(name)) continue;
      return FieldError(absl::CHexEscape(name),
                        absl::StrCat("is unknown, expected ", absl::StrJoin(taken_, ", ")));
    }
    return absl::OkStatus();
  }

 private:
  const std::string* Take(const char* name) {
    taken_.insert(name);
    const auto it = fields_.find(name);
    return it == fields_.end() ? nullptr : &it->second;
  }
  void Fail(const char* name, const std::string& text, absl::string_view expected) {
    if (!status_.ok()) return;
    status_ =
        FieldError(name, absl::StrCat("is \"", SanitizeUtf8(text), "\", expected ", expected));
  }

  const std::map<std::string, std::string>& fields_;
  std::set<std::string> taken_;
  absl::Status status_;
};

EngramsQuery ReadEngrams(QueryFields& fields) {
  EngramsQuery query;
  fields.Choice("order", Orders(), query.order);
  fields.Choice("kind", Kinds(), query.kind);
  fields.Birth(query.birth);
  fields.Number("limit", 1, EngramsQuery::kMost, query.limit);
  return query;
}

EdgesQuery ReadEdges(QueryFields& fields) {
  EdgesQuery query;
  fields.Number("min_count", 1, INT32_MAX, query.min_count);
  fields.Share("min_weight", query.min_weight);
  fields.Birth(query.birth);
  fields.Number("limit", 1, EdgesQuery::kMost, query.limit);
  return query;
}

HistogramQuery ReadHistogram(QueryFields& fields) {
  HistogramQuery query;
  fields.Choice("quantity", Quantities(), query.quantity);
  fields.Choice("kind", Kinds(), query.kind);
  fields.Number("bins", 1, HistogramQuery::kMost, query.bins);
  fields.Bool("logarithmic", query.logarithmic);
  return query;
}

Json SummaryJson(const MemorySummary& summary) {
  return {{"position", summary.position},
          {"segment", summary.segment},
          {"segment_tokens", summary.segment_tokens},
          {"capacity", summary.capacity},
          {"working", summary.working},
          {"short_term", summary.short_term},
          {"long_term", summary.long_term},
          {"free", summary.free},
          {"lifespan_sum", summary.lifespan_sum},
          {"max_lifespan", summary.max_lifespan},
          {"evictions", summary.evictions},
          {"history_wrapped", summary.history_wrapped},
          {"found", summary.found},
          {"recalled", summary.recalled},
          {"gain_columns", summary.gain_columns}};
}

Json EngramJson(const EngramRow& row) {
  std::string kind;
  for (const auto& [name, type] : Kinds()) {
    if (type == row.engram.type) kind = name;
  }
  return {{"birth", row.engram.birth},
          {"kind", kind},
          {"age", row.age},
          {"lifespan", row.engram.lifespan},
          {"firings", row.engram.firings},
          {"last_gain", row.engram.last_gain},
          {"norm", row.engram.norm},
          {"recalled", row.engram.recalled},
          {"source",
           {{"segment", row.source.segment},
            {"first_token", row.source.first_token},
            {"end_token", row.source.end_token}}}};
}

}  // namespace

absl::StatusOr<MemoryQuery> ReadMemoryQuery(const std::map<std::string, std::string>& fields) {
  enum class View { kSummary, kEngrams, kEdges, kHistogram, kContiguity };
  QueryFields reader(fields);
  View view = View::kSummary;
  reader.Choice("view",
                Names<View>{{"summary", View::kSummary},
                            {"engrams", View::kEngrams},
                            {"edges", View::kEdges},
                            {"histogram", View::kHistogram},
                            {"contiguity", View::kContiguity}},
                view);
  MemoryQuery query;
  switch (view) {
    case View::kSummary:
      break;
    case View::kEngrams:
      query.engrams = ReadEngrams(reader);
      break;
    case View::kEdges:
      query.edges = ReadEdges(reader);
      break;
    case View::kHistogram:
      query.histogram = ReadHistogram(reader);
      break;
    case View::kContiguity:
      query.contiguity.emplace();
      reader.Number("max_distance", 1, ContiguityQuery::kMost, query.contiguity->max_distance);
      break;
  }
  MNEME_RETURN_IF_ERROR(reader.Finish());
  return query;
}

Json MemoryJson(const std::string& session, const MemoryQuery& query, const MemoryReport& report) {
  Json json = {
      {"object", "memory"}, {"session_id", session}, {"summary", SummaryJson(report.summary)}};
  const auto list = [&json](const char* name, const auto& rows, auto&& to_json) {
    Json& array = json[name] = Json::array();
    for (const auto& row : rows) array.push_back(to_json(row));
  };
  if (query.engrams.has_value()) list("engrams", report.engrams, EngramJson);
  if (query.edges.has_value()) {
    list("edges", report.edges, [](const EngramEdge& edge) {
      return Json{{"from", edge.from},
                  {"to", edge.to},
                  {"count", edge.count},
                  {"weight", edge.weight},
                  {"weight_back", edge.weight_back}};
    });
  }
  if (query.histogram.has_value()) {
    list("histogram", report.histogram, [](const HistogramBin& bin) {
      return Json{{"from", bin.from}, {"to", bin.to}, {"engrams", bin.engrams}};
    });
  }
  if (query.contiguity.has_value()) {
    list("contiguity", report.contiguity, [](const ContiguityBin& bin) {
      return Json{
          {"distance", bin.distance}, {"mean_weight", bin.mean_weight}, {"pairs", bin.pairs}};
    });
  }
  return json;
}

}  // namespace mneme
