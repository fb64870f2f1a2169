#include "server/grpc/memory_conversion.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/request_check.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

// A bound of a view: 0 stands for the usual one.
absl::StatusOr<int> Bound(absl::string_view field, int32_t asked, int usual, int most) {
  MNEME_RETURN_IF_ERROR(CheckRange(field, asked, 0, most));
  return asked == 0 ? usual : asked;
}

absl::StatusOr<EngramType> ToType(absl::string_view field, v1::EngramKind kind) {
  switch (kind) {
    case v1::ENGRAM_KIND_UNSPECIFIED:
      return EngramType::kFree;
    case v1::ENGRAM_KIND_WORKING:
      return EngramType::kWorking;
    case v1::ENGRAM_KIND_SHORT_TERM:
      return EngramType::kShortTerm;
    case v1::ENGRAM_KIND_LONG_TERM:
      return EngramType::kLongTerm;
    default:
      return FieldError(field, absl::StrCat("is ", static_cast<int>(kind), ", expected 0 to 3"));
  }
}

v1::EngramKind ToKind(EngramType type) {
  switch (type) {
    case EngramType::kFree:
      break;
    case EngramType::kWorking:
      return v1::ENGRAM_KIND_WORKING;
    case EngramType::kShortTerm:
      return v1::ENGRAM_KIND_SHORT_TERM;
    case EngramType::kLongTerm:
      return v1::ENGRAM_KIND_LONG_TERM;
  }
  return v1::ENGRAM_KIND_UNSPECIFIED;
}

absl::StatusOr<EngramsQuery::Order> ToOrder(v1::EngramsView::Order order) {
  using Order = EngramsQuery::Order;
  switch (order) {
    case v1::EngramsView::ORDER_UNSPECIFIED:
    case v1::EngramsView::ORDER_BIRTH:
      return Order::kBirth;
    case v1::EngramsView::ORDER_NEWEST:
      return Order::kNewest;
    case v1::EngramsView::ORDER_LIFESPAN:
      return Order::kLifespan;
    case v1::EngramsView::ORDER_FIRINGS:
      return Order::kFirings;
    case v1::EngramsView::ORDER_GAIN:
      return Order::kGain;
    default:
      return FieldError("engrams.order",
                        absl::StrCat("is ", static_cast<int>(order), ", expected 0 to 5"));
  }
}

absl::StatusOr<HistogramQuery::Quantity> ToQuantity(v1::HistogramView::Quantity quantity) {
  using Quantity = HistogramQuery::Quantity;
  switch (quantity) {
    case v1::HistogramView::QUANTITY_LIFESPAN:
      return Quantity::kLifespan;
    case v1::HistogramView::QUANTITY_AGE:
      return Quantity::kAge;
    case v1::HistogramView::QUANTITY_CREATION:
      return Quantity::kCreation;
    default:
      return FieldError("histogram.quantity",
                        absl::StrCat("is ", static_cast<int>(quantity), ", expected 1 to 3"));
  }
}

absl::StatusOr<EngramsQuery> ToQuery(const v1::EngramsView& view) {
  EngramsQuery query;
  MNEME_ASSIGN_OR_RETURN(query.order, ToOrder(view.order()));
  MNEME_ASSIGN_OR_RETURN(query.kind, ToType("engrams.kind", view.kind()));
  MNEME_ASSIGN_OR_RETURN(
      query.limit, Bound("engrams.limit", view.limit(), EngramsQuery::kUsual, EngramsQuery::kMost));
  if (view.has_birth()) query.birth = view.birth();
  return query;
}

absl::StatusOr<EdgesQuery> ToQuery(const v1::EdgesView& view) {
  EdgesQuery query;
  MNEME_ASSIGN_OR_RETURN(query.min_count, Bound("edges.min_count", view.min_count(), 1, INT32_MAX));
  MNEME_ASSIGN_OR_RETURN(query.limit,
                         Bound("edges.limit", view.limit(), EdgesQuery::kUsual, EdgesQuery::kMost));
  if (!(view.min_weight() >= 0 && view.min_weight() <= 1)) {
    return FieldError("edges.min_weight",
                      absl::StrCat("is ", view.min_weight(), ", expected 0 to 1"));
  }
  query.min_weight = view.min_weight();
  if (view.has_birth()) query.birth = view.birth();
  return query;
}

absl::StatusOr<HistogramQuery> ToQuery(const v1::HistogramView& view) {
  HistogramQuery query;
  MNEME_ASSIGN_OR_RETURN(query.quantity, ToQuantity(view.quantity()));
  MNEME_ASSIGN_OR_RETURN(query.kind, ToType("histogram.kind", view.kind()));
  MNEME_ASSIGN_OR_RETURN(query.bins, Bound("histogram.bins", view.bins(), HistogramQuery::kUsual,
                                           HistogramQuery::kMost));
  query.logarithmic = view.logarithmic();
  return query;
}

void Fill(const MemorySummary& summary, v1::MemorySummary& message) {
  message.set_position(summary.position);
  message.set_segment(summary.segment);
  message.set_segment_tokens(summary.segment_tokens);
  message.set_capacity(summary.capacity);
  message.set_working(summary.working);
  message.set_short_term(summary.short_term);
  message.set_long_term(summary.long_term);
  message.set_free(summary.free);
  message.set_lifespan_sum(summary.lifespan_sum);
  message.set_max_lifespan(summary.max_lifespan);
  message.set_evictions(summary.evictions);
  message.set_history_wrapped(summary.history_wrapped);
  message.set_found(summary.found);
  message.set_recalled(summary.recalled);
  message.set_gain_columns(summary.gain_columns);
}

void Fill(const EngramRow& row, v1::Engram& message) {
  message.set_birth(row.engram.birth);
  message.set_kind(ToKind(row.engram.type));
  message.set_age(row.age);
  message.set_lifespan(row.engram.lifespan);
  message.set_firings(row.engram.firings);
  message.set_last_gain(row.engram.last_gain);
  message.set_norm(row.engram.norm);
  message.set_recalled(row.engram.recalled);
  message.mutable_source()->set_segment(row.source.segment);
  message.mutable_source()->set_first_token(row.source.first_token);
  message.mutable_source()->set_end_token(row.source.end_token);
}

}  // namespace

absl::StatusOr<MemoryQuery> ToMemoryQuery(const v1::InspectMemoryRequest& request) {
  MemoryQuery query;
  if (request.has_engrams()) {
    MNEME_ASSIGN_OR_RETURN(query.engrams, ToQuery(request.engrams()));
  }
  if (request.has_edges()) {
    MNEME_ASSIGN_OR_RETURN(query.edges, ToQuery(request.edges()));
  }
  if (request.has_histogram()) {
    MNEME_ASSIGN_OR_RETURN(query.histogram, ToQuery(request.histogram()));
  }
  if (request.has_contiguity()) {
    MNEME_ASSIGN_OR_RETURN(const int distance,
                           Bound("contiguity.max_distance", request.contiguity().max_distance(),
                                 ContiguityQuery::kUsual, ContiguityQuery::kMost));
    query.contiguity = ContiguityQuery{.max_distance = distance};
  }
  return query;
}

v1::InspectMemoryResponse ToMemoryMessage(const MemoryReport& report) {
  v1::InspectMemoryResponse message;
  Fill(report.summary, *message.mutable_summary());
  for (const EngramRow& row : report.engrams) Fill(row, *message.add_engrams());
  for (const EngramEdge& edge : report.edges) {
    v1::EngramEdge& to = *message.add_edges();
    to.set_from(edge.from);
    to.set_to(edge.to);
    to.set_count(edge.count);
    to.set_weight(edge.weight);
    to.set_weight_back(edge.weight_back);
  }
  for (const HistogramBin& bin : report.histogram) {
    v1::HistogramBin& to = *message.add_histogram();
    to.set_from(bin.from);
    to.set_to(bin.to);
    to.set_engrams(bin.engrams);
  }
  for (const ContiguityBin& bin : report.contiguity) {
    v1::ContiguityBin& to = *message.add_contiguity();
    to.set_distance(static_cast<int32_t>(bin.distance));
    to.set_mean_weight(bin.mean_weight);
    to.set_pairs(bin.pairs);
  }
  return message;
}

}  // namespace mneme
