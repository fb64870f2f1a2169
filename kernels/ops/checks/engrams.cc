#include <cstdint>

#include "base/log.h"
#include "kernels/ops/checks.h"
#include "kernels/ops/checks/expect.h"

namespace mneme {

namespace {

void CheckRows(const TensorView& row_offsets, const TensorView& slots, const TensorView& positions,
               int segment) {
  const int64_t rows = slots.shape[0];
  Expect(row_offsets, DType::kI32, {rows + 1}, "row_offsets");
  Expect(slots, DType::kI32, {rows}, "slots");
  Expect(positions, DType::kI64, {rows}, "positions");
  CHECK_GE(segment, 1) << "segment";
}

void Check(const Crossings& crossings) {
  Expect(crossings.slots, DType::kI32, {crossings.most()}, "crossings.slots");
  Expect(crossings.segments, DType::kI32, {crossings.most()}, "crossings.segments");
}

void ExpectState(const StateView& field, DType dtype, const char* name) {
  CHECK(field.base != nullptr) << name << " are missing";
  CHECK(field.dtype == dtype) << name << " are " << Name(field.dtype) << ", expected "
                              << Name(dtype);
}

// Keys and values of engrams are kept in the dtype of the layer's context: the activations' own, or
// bf16.
void ExpectContext(const StateView& keys, const StateView& values, DType act) {
  ExpectState(keys, keys.dtype == DType::kBF16 ? DType::kBF16 : act, "keys");
  ExpectState(values, keys.dtype, "values");
}

void Check(const EngramRules& rules, const EngramStore& store, ActivationTypes types) {
  CHECK_GE(rules.working, 1) << "working";
  CHECK_GE(rules.recalled_short, 1) << "recalled_short";
  CHECK_GE(rules.recalled_long, 0) << "recalled_long";
  CHECK_GE(store.capacity, rules.least_capacity()) << "capacity";
  ExpectState(store.types, DType::kU8, "types");
  ExpectState(store.vectors, types.act, "vectors");
  ExpectState(store.lifespans, types.act, "lifespans");
  ExpectState(store.gains, types.act, "gains");
  ExpectState(store.births, DType::kI32, "births");
  if (store.steps == 0) {
    ExpectState(store.counts, DType::kU16, "counts");
  } else {
    CHECK(store.steps > 0 && store.steps % 64 == 0) << "steps of a history: " << store.steps;
    ExpectState(store.fired, DType::kI32, "fired");
  }
  ExpectState(store.recalled, DType::kI32, "recalled");
  ExpectState(store.facts, DType::kI32, "facts");
  if (store.seed.base != nullptr) ExpectState(store.seed, DType::kI32, "seed");
}

void Check(const EngramRules& rules, const EngramReports& reports) {
  if (reports.words.empty()) return;
  Expect(reports.words, DType::kI32, {reports.words.shape[0], EngramReportSize(rules.recalled())},
         "reports.words");
  Expect(reports.range, DType::kI32, {2}, "reports.range");
}

}  // namespace

void Check(const FindCrossingsArgs& args, ActivationTypes) {
  CheckRows(args.row_offsets, args.slots, args.positions, args.segment);
  Check(args.crossings);
  CHECK_GE(args.first, 0) << "first";
  Expect(args.working_entries, DType::kI32, {2}, "working_entries");
  Expect(args.attended_entries, DType::kI32, {2}, "attended_entries");
  if (!args.report_range.empty()) Expect(args.report_range, DType::kI32, {2}, "report_range");
}

void Check(const CommitEngramsArgs& args, ActivationTypes types) {
  Check(args.rules, args.store, types);
  Check(args.crossings);
  ExpectState(args.sums, types.act, "sums");
  Check(args.rules, args.reports);
}

void Check(const EncodeTokensArgs& args, ActivationTypes types) {
  ExpectRank(args.h, 2, "h");
  Expect(args.h, types.act, args.h.shape, "h");
  CheckRows(args.row_offsets, args.slots, args.positions, args.segment);
  ExpectState(args.sums, types.act, "sums");
  if (args.queries.empty()) return;
  Expect(args.queries, DType::kF32, {args.queries.shape[0], args.h.shape[1]}, "queries");
  ExpectState(args.largest, types.act, "largest");
  ExpectState(args.total, types.act, "total");
}

void Check(const ReadEncoderArgs& args, ActivationTypes types) {
  Check(args.crossings);
  ExpectState(args.sums, types.act, "sums");
  Expect(args.x, types.act, {args.crossings.most() * args.working, args.x.shape[1]}, "x");
}

void Check(const WriteEngramsArgs& args, ActivationTypes types) {
  Check(args.rules, args.store, types);
  Check(args.crossings);
  Expect(args.x, types.act, {args.crossings.most() * args.rules.working, args.store.dim}, "x");
}

void Check(const ScoreEngramsArgs& args, ActivationTypes types) {
  Check(args.rules, args.store, types);
  Check(args.crossings);
  Expect(args.scores, types.act, {args.crossings.most(), args.store.capacity + 1}, "scores");
}

void Check(const RetrieveEngramsArgs& args, ActivationTypes types) {
  Check(args.rules, args.store, types);
  Check(args.crossings);
  Expect(args.scores, types.act, {args.crossings.most(), args.store.capacity + 1}, "scores");
  Check(args.rules, args.reports);
}

void Check(const GatherEngramsArgs& args, ActivationTypes types) {
  Check(args.rules, args.store, types);
  Check(args.crossings);
  Expect(args.x, types, {args.crossings.most() * args.rules.attended(), args.store.dim}, "x");
}

void Check(const StoreEngramContextArgs& args, ActivationTypes types) {
  Check(args.crossings);
  ExpectRank(args.k, 3, "k");
  Expect(args.k, types.act, args.k.shape, "k");
  Expect(args.v, types.act, args.k.shape, "v");
  CHECK_EQ(args.k.shape[0] % args.crossings.most(), 0) << "engrams of a crossing";
  ExpectContext(args.keys, args.values, types.act);
}

void Check(const EngramAttentionArgs& args, ActivationTypes types) {
  ExpectRank(args.q, 3, "q");
  Expect(args.q, types.act, args.q.shape, "q");
  Expect(args.out, types, args.q.shape, "out");
  CheckRows(args.row_offsets, args.slots, args.positions, args.segment);
  ExpectContext(args.keys, args.values, types.act);
  ExpectState(args.facts, DType::kI32, "facts");
  if (args.sums.base == nullptr) return;
  ExpectState(args.sums, types.act, "sums");
  CHECK_LE(args.most, args.recalled) << "most";
}

void Check(const AddFromArgs& args, ActivationTypes types) {
  ExpectRank(args.x, 2, "x");
  Expect(args.x, types.act, args.x.shape, "x");
  Expect(args.positions, DType::kI64, {args.x.shape[0]}, "positions");
  Expect(args.y, types.act, args.x.shape, "y");
}

}  // namespace mneme
