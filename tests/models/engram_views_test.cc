// Tables of engrams, of a state made by hand.
#include "models/engrams/engram_views.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

template <typename T>
StateTensor Tensor(const char* name, DType dtype, Shape shape, const std::vector<T>& values) {
  StateTensor tensor = {.name = name, .dtype = dtype, .shape = shape};
  tensor.bytes.resize(values.size() * sizeof(T));
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

// Two engrams of each segment of ten tokens; segment 5 is open. Of eight slots 0, 2 and 5 are free,
// and what they hold would show.
//
//   slot    1     3     4     6     7
//   birth   9     0     8     5     1
//   type    WM    LTM   WM    STM   LTM
//   life    4     16    4     1.5   2
CanonicalState FiveEngrams() {
  constexpr int kSlots = 8;
  std::vector<uint16_t> counts(kSlots * kSlots, 77);
  const auto set = [&](size_t i, size_t j, uint16_t count) {
    counts[i * kSlots + j] = counts[j * kSlots + i] = count;
  };
  for (const size_t i : {1, 3, 4, 6, 7}) {
    for (const size_t j : {1, 3, 4, 6, 7}) set(i, j, 0);
  }
  set(1, 1, 1), set(4, 4, 1), set(6, 6, 2), set(3, 3, 8), set(7, 7, 4);
  set(1, 4, 1), set(1, 6, 1), set(4, 6, 1), set(3, 7, 2), set(3, 6, 1);
  std::vector<float> vectors(kSlots * 2, 99);
  vectors[6] = 3, vectors[7] = -4;
  return {
      .tokens = 51,
      .tensors = {
          Tensor<uint8_t>("engrams.types", DType::kU8, {kSlots}, {0, 1, 0, 3, 1, 0, 2, 3}),
          Tensor<float>("engrams.vectors", DType::kF32, {kSlots, 2}, vectors),
          Tensor<float>("engrams.lifespans", DType::kF32, {kSlots}, {99, 4, 99, 16, 4, 99, 1.5, 2}),
          Tensor<float>("engrams.gains", DType::kF32, {kSlots}, {9, 0, 9, 1, 0, 9, 3, 2}),
          Tensor<int32_t>("engrams.births", DType::kI32, {kSlots}, {1, 9, 2, 0, 8, 3, 5, 1}),
          Tensor<uint16_t>("engrams.counts", DType::kU16, {kSlots, kSlots}, counts),
          Tensor<int32_t>("engrams.recalled", DType::kI32, {1, 3}, {3, 6, 5}),
          Tensor<int32_t>("engrams.facts", DType::kI32, {1, kEngramFacts}, {2, 3, 1, 0, 0, 7}),
      }};
}

class EngramViewsTest : public ::testing::Test {
 protected:
  std::vector<uint32_t> Births(const EngramsQuery& query) const {
    std::vector<uint32_t> births;
    const auto rows = EngramsOf(graph_, query);
    for (const EngramRow& row : *rows) births.push_back(row.engram.birth);
    return births;
  }
  std::vector<double> Borders(const HistogramQuery& query) const {
    std::vector<double> borders;
    for (const HistogramBin& bin : HistogramOf(graph_, query)) borders.push_back(bin.from);
    if (!borders.empty()) borders.push_back(HistogramOf(graph_, query).back().to);
    return borders;
  }
  std::vector<int64_t> Heights(const HistogramQuery& query) const {
    std::vector<int64_t> heights;
    for (const HistogramBin& bin : HistogramOf(graph_, query)) heights.push_back(bin.engrams);
    return heights;
  }

  EngramGraph graph_ = EngramGraph::Read(FiveEngrams(), {.tokens = 10, .working = 2},
                                         {.vectors = true, .counts = true});
};

TEST_F(EngramViewsTest, TheSummaryCountsWhatIsAlive) {
  const MemorySummary summary = SummaryOf(graph_);
  EXPECT_EQ(summary.position, 51);
  EXPECT_EQ(summary.segment, 5);
  EXPECT_EQ(summary.segment_tokens, 10);
  EXPECT_EQ(summary.capacity, 8);
  EXPECT_EQ(summary.working, 2);
  EXPECT_EQ(summary.short_term, 1);
  EXPECT_EQ(summary.long_term, 2);
  EXPECT_EQ(summary.free, 3);
  EXPECT_EQ(summary.lifespan_sum, 27.5);
  EXPECT_EQ(summary.max_lifespan, 16);
  EXPECT_EQ(summary.evictions, 7);
  EXPECT_EQ(summary.found, 1);
  EXPECT_EQ(summary.recalled, 2);
  EXPECT_EQ(summary.gain_columns, 3);
  EXPECT_FALSE(summary.history_wrapped);
}

// A segment is open until a token of the next one is fed.
TEST_F(EngramViewsTest, ASegmentIsOpenUntilTheNextOneBegins) {
  CanonicalState state = FiveEngrams();
  state.tokens = 60;
  EXPECT_EQ(EngramGraph::Read(state, {.tokens = 10, .working = 2}, {}).segment(), 5);
  state.tokens = 61;
  EXPECT_EQ(EngramGraph::Read(state, {.tokens = 10, .working = 2}, {}).segment(), 6);
  const auto wrapped = [&](const EngramSegments& segments) {
    return EngramGraph::Read(state, segments, {}).history_wrapped();
  };
  EXPECT_FALSE(wrapped({.tokens = 10, .working = 2}));
  EXPECT_FALSE(wrapped({.tokens = 10, .working = 2, .counted = 6}));
  EXPECT_TRUE(wrapped({.tokens = 10, .working = 2, .counted = 5}));
}

TEST_F(EngramViewsTest, EngramsComeInTheOrderThatIsAskedFor) {
  using Order = EngramsQuery::Order;
  EXPECT_THAT(Births({}), ElementsAre(0, 1, 5, 8, 9));
  EXPECT_THAT(Births({.order = Order::kNewest}), ElementsAre(9, 8, 5, 1, 0));
  EXPECT_THAT(Births({.order = Order::kLifespan}), ElementsAre(0, 8, 9, 1, 5));
  EXPECT_THAT(Births({.order = Order::kFirings}), ElementsAre(0, 1, 5, 8, 9));
  EXPECT_THAT(Births({.order = Order::kGain}), ElementsAre(5, 1, 0, 8, 9));
  EXPECT_THAT(Births({.order = Order::kNewest, .limit = 2}), ElementsAre(9, 8));
  EXPECT_THAT(Births({.kind = EngramType::kLongTerm}), ElementsAre(0, 1));
  EXPECT_THAT(Births({.birth = 5}), ElementsAre(5));
  EXPECT_THAT(Births({.kind = EngramType::kWorking, .birth = 5}), IsEmpty());
  const absl::Status none = EngramsOf(graph_, {.birth = 2}).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.message()), ::testing::HasSubstr("no engram 2"));
}

TEST_F(EngramViewsTest, AnEngramTellsWhereItComesFrom) {
  const auto rows = EngramsOf(graph_, {});
  const EngramRow& oldest = rows->front();
  EXPECT_EQ(oldest.engram.norm, 5);
  EXPECT_EQ(oldest.age, 4);
  EXPECT_EQ(oldest.engram.firings, 8);
  EXPECT_EQ(oldest.engram.last_gain, 1);
  EXPECT_TRUE(oldest.engram.recalled);
  EXPECT_EQ(oldest.source.segment, 0);
  const EngramRow& middle = (*rows)[2];
  EXPECT_EQ(middle.source.segment, 2);
  EXPECT_EQ(middle.source.first_token, 20);
  EXPECT_EQ(middle.source.end_token, 30);
  EXPECT_EQ(rows->back().age, 0);
  EXPECT_FALSE(rows->back().engram.recalled);
}

// The working engrams were forgotten, and nobody became younger by that.
TEST_F(EngramViewsTest, AgesDoNotDependOnWhoIsLeft) {
  CanonicalState state = FiveEngrams();
  for (StateTensor& tensor : state.tensors) {
    if (tensor.name == "engrams.types") tensor.bytes[1] = tensor.bytes[4] = std::byte{0};
  }
  const EngramGraph graph =
      EngramGraph::Read(state, {.tokens = 10, .working = 2}, {.counts = true});
  const auto rows = EngramsOf(graph, {});
  ASSERT_TRUE(rows.ok()) << rows.status();
  std::vector<int64_t> ages;
  for (const EngramRow& row : *rows) ages.push_back(row.age);
  EXPECT_THAT(ages, ElementsAre(4, 4, 2));
}

TEST_F(EngramViewsTest, StrongEdgesComeFirst) {
  const auto edges = EdgesOf(graph_, {});
  ASSERT_TRUE(edges.ok()) << edges.status();
  ASSERT_EQ(edges->size(), 5u);
  // Weights 1 of births 5 and 8, 5 and 9, 8 and 9; then 2/4 of 0 and 1, then 1/2 of 0 and 5.
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  for (const EngramEdge& edge : *edges) pairs.emplace_back(edge.from, edge.to);
  EXPECT_THAT(pairs, ElementsAre(std::pair(5, 8), std::pair(5, 9), std::pair(8, 9), std::pair(0, 1),
                                 std::pair(0, 5)));
  const EngramEdge& edge = (*edges)[3];
  EXPECT_EQ(edge.count, 2);
  EXPECT_EQ(edge.weight, 2.0 / 8);
  EXPECT_EQ(edge.weight_back, 2.0 / 4);
  EXPECT_EQ(EdgesOf(graph_, {.min_count = 2})->size(), 1u);
  EXPECT_EQ(EdgesOf(graph_, {.min_weight = 0.6})->size(), 3u);
  EXPECT_EQ(EdgesOf(graph_, {.birth = 0})->size(), 2u);
  EXPECT_EQ(EdgesOf(graph_, {.birth = 9})->size(), 2u);
  const auto one = EdgesOf(graph_, {.limit = 1});
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ(one->front().to, 8u);
  EXPECT_EQ(EdgesOf(graph_, {.birth = 7}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(EngramViewsTest, HistogramsCoverAllValues) {
  using Quantity = HistogramQuery::Quantity;
  EXPECT_THAT(Borders({.bins = 2}), ElementsAre(1.5, 8.75, 16));
  EXPECT_THAT(Heights({.bins = 2}), ElementsAre(4, 1));
  EXPECT_THAT(Heights({.bins = 2, .logarithmic = true}), ElementsAre(4, 1));
  EXPECT_THAT(Borders({.bins = 2, .logarithmic = true})[1], DoubleNear(std::sqrt(24.0), 1e-12));
  EXPECT_THAT(Borders({.kind = EngramType::kWorking}), ElementsAre(4, 4));
  EXPECT_THAT(Heights({.kind = EngramType::kWorking}), ElementsAre(2));
  // Ages 0, 0, 2, 4, 4 and segments 4, 4, 2, 0, 0.
  EXPECT_THAT(Borders({.quantity = Quantity::kAge}), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(Heights({.quantity = Quantity::kAge}), ElementsAre(2, 0, 1, 0, 2));
  EXPECT_THAT(Borders({.quantity = Quantity::kCreation, .bins = 2}), ElementsAre(0, 3, 6));
  EXPECT_THAT(Heights({.quantity = Quantity::kCreation, .bins = 2}), ElementsAre(3, 2));
  EXPECT_THAT(Borders({.quantity = Quantity::kAge, .bins = 2, .logarithmic = true}),
              ElementsAre(0, 1, 5));
  EXPECT_THAT(Heights({.quantity = Quantity::kAge, .bins = 2, .logarithmic = true}),
              ElementsAre(2, 3));
  // More bins than numbers: none is empty of range.
  EXPECT_THAT(Borders({.quantity = Quantity::kAge, .bins = 1000, .logarithmic = true}),
              ElementsAre(0, 1, 2, 3, 4, 5));
  for (const int bins : {1, 3, 7, 1000}) {
    for (const bool logarithmic : {false, true}) {
      for (const Quantity quantity : {Quantity::kLifespan, Quantity::kAge, Quantity::kCreation}) {
        int64_t engrams = 0;
        const auto histogram =
            HistogramOf(graph_, {.quantity = quantity, .bins = bins, .logarithmic = logarithmic});
        for (const HistogramBin& bin : histogram) engrams += bin.engrams;
        EXPECT_EQ(engrams, 5) << bins;
        EXPECT_LE(histogram.size(), static_cast<size_t>(bins));
      }
    }
  }
}

TEST_F(EngramViewsTest, ContiguityIsTheMeanOfBothDirections) {
  const std::vector<ContiguityBin> bins = ContiguityOf(graph_, {});
  ASSERT_EQ(bins.size(), 3u);
  // 0 segments apart: births 0 and 1, 8 and 9. 2: 0 and 5, 1 and 5, 5 and 8, 5 and 9. 4: none
  // linked.
  EXPECT_EQ(bins[0].distance, 0);
  EXPECT_EQ(bins[0].pairs, 2);
  EXPECT_DOUBLE_EQ(bins[0].mean_weight, (2.0 / 8 + 2.0 / 4 + 1 + 1) / 4);
  EXPECT_EQ(bins[1].distance, 2);
  EXPECT_EQ(bins[1].pairs, 4);
  EXPECT_DOUBLE_EQ(bins[1].mean_weight, (1.0 / 8 + 1.0 / 2 + 2 * (1.0 / 2 + 1)) / 8);
  EXPECT_EQ(bins[2].distance, 4);
  EXPECT_EQ(bins[2].mean_weight, 0);
  EXPECT_EQ(ContiguityOf(graph_, {.max_distance = 2}).size(), 2u);
}

// The same counts, of engrams whose firings are kept segment by segment.
TEST_F(EngramViewsTest, AHistoryOfFiringsIsCounted) {
  CanonicalState state = FiveEngrams();
  std::erase_if(state.tensors,
                [](const StateTensor& tensor) { return tensor.name == "engrams.counts"; });
  std::vector<int32_t> fired(8 * 2, -1);
  const auto set = [&](size_t slot, uint32_t low, uint32_t high) {
    fired[2 * slot] = static_cast<int32_t>(low);
    fired[2 * slot + 1] = static_cast<int32_t>(high);
  };
  set(1, 0, 0x80000000), set(4, 0, 0x80000000);  // the newest segment
  set(6, 1, 0x80000000), set(3, 0xff, 0), set(7, 0x606, 0);
  state.tensors.push_back(Tensor<int32_t>("engrams.fired", DType::kI32, {8, 2}, fired));
  const EngramGraph graph =
      EngramGraph::Read(state, {.tokens = 10, .working = 2}, {.counts = true});
  for (size_t i = 0; i < graph.engrams().size(); ++i) {
    EXPECT_EQ(graph.Together(i), graph_.Together(i)) << i;
    EXPECT_EQ(graph.engrams()[i].firings, graph_.engrams()[i].firings) << i;
  }
  StateLayout layout;
  EXPECT_EQ(FiringCounts::Field(layout), "engrams.counts");
  layout.Add({.name = "engrams.fired", .dtype = DType::kI32, .shape = {8, 2}});
  EXPECT_EQ(FiringCounts::Field(layout), "engrams.fired");
}

TEST_F(EngramViewsTest, AReportHasWhatWasAskedFor) {
  MemoryQuery query;
  EXPECT_FALSE(query.parts().counts);
  EXPECT_EQ(ReportMemory(graph_, query)->engrams.size(), 0u);
  query.edges = EdgesQuery{.birth = 3};
  EXPECT_TRUE(query.parts().counts);
  EXPECT_FALSE(query.parts().vectors);
  EXPECT_EQ(ReportMemory(graph_, query).status().code(), absl::StatusCode::kNotFound);
}

TEST(EngramGraphTest, ANewSessionHasNoEngrams) {
  CanonicalState state = FiveEngrams();
  state.tokens = 0;
  for (StateTensor& tensor : state.tensors)
    std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::byte{0});
  const EngramGraph graph =
      EngramGraph::Read(state, {.tokens = 10, .working = 2}, {.vectors = true, .counts = true});
  EXPECT_EQ(SummaryOf(graph).free, 8);
  EXPECT_EQ(SummaryOf(graph).segment, 0);
  EXPECT_THAT(*EngramsOf(graph, {}), IsEmpty());
  EXPECT_THAT(*EdgesOf(graph, {}), IsEmpty());
  EXPECT_THAT(HistogramOf(graph, {}), IsEmpty());
  EXPECT_THAT(ContiguityOf(graph, {}), IsEmpty());
}

}  // namespace
}  // namespace mneme
