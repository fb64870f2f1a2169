#include <cstdint>

#include "base/log.h"
#include "kernels/ops/checks.h"
#include "kernels/ops/checks/expect.h"

namespace mneme {

void Check(const IndexWholeSegmentsArgs& args, ActivationTypes) {
  const int64_t rows = args.row_positions.shape[0], tokens = args.token_ids.shape[0];
  Expect(args.token_ids, DType::kI32, {tokens}, "token_ids");
  if (!args.token_types.empty()) Expect(args.token_types, DType::kI32, {tokens}, "token_types");
  Expect(args.row_offsets, DType::kI32, {rows + 1}, "row_offsets");
  Expect(args.row_positions, DType::kI64, {rows}, "row_positions");
  CHECK_GE(args.segment, 1) << "segment";
  Expect(args.picks, DType::kI32, {args.picks.shape[0]}, "picks");
  Expect(args.positions, DType::kI64, {tokens}, "positions");
  Expect(args.types, DType::kI64, {tokens}, "types");
  Expect(args.seen, DType::kI32, {rows}, "seen");
  Expect(args.next_positions, DType::kI64, {rows}, "next_positions");
  Expect(args.firsts, DType::kI32, {args.picks.shape[0]}, "firsts");
}

void Check(const SegmentAttentionArgs& args, ActivationTypes types) {
  ExpectRank(args.q, 3, "q");
  const int64_t rows = args.slots.shape[0];
  Expect(args.q, types, args.q.shape, "q");
  Expect(args.k, types, args.q.shape, "k");
  Expect(args.v, types, args.q.shape, "v");
  Expect(args.row_offsets, DType::kI32, {rows + 1}, "row_offsets");
  Expect(args.slots, DType::kI32, {rows}, "slots");
  Expect(args.seen, DType::kI32, {rows}, "seen");
  Expect(args.out, types, args.q.shape, "out");
}

}  // namespace mneme
