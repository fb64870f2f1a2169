#include <cstdint>

#include "base/log.h"
#include "kernels/ops/checks.h"
#include "kernels/ops/checks/expect.h"

namespace mneme {

void Check(const AttentionArgs& args, ActivationTypes types) {
  ExpectRank(args.q, 3, "q");
  ExpectRank(args.k, 3, "k");
  ExpectRank(args.v, 3, "v");
  const int64_t tokens = args.q.shape[0], heads = args.q.shape[1], key_dim = args.q.shape[2];
  const int64_t kv_heads = args.k.shape[1], value_dim = args.v.shape[2];
  const int64_t rows = args.slots.shape[0];
  CHECK(kv_heads > 0 && heads % kv_heads == 0) << "k has " << kv_heads << " heads, q " << heads;
  Expect(args.q, types, {tokens, heads, key_dim}, "q");
  Expect(args.k, types, {tokens, kv_heads, key_dim}, "k");
  Expect(args.v, types, {tokens, kv_heads, value_dim}, "v");
  Expect(args.out, types, {tokens, heads, value_dim}, "out");
  Expect(args.row_offsets, DType::kI32, {rows + 1}, "row_offsets");
  Expect(args.slots, DType::kI32, {rows}, "slots");
  Expect(args.positions, DType::kI64, {rows}, "positions");
  const ContextTable& table = args.keys.table;
  ExpectRank(table.offsets, 2, "table");
  Expect(table.offsets, DType::kI64, table.offsets.shape, "table");
  CHECK(table.base != nullptr && table.base == args.values.table.base &&
        table.offsets.data == args.values.table.offsets.data)
      << "keys and values of different tables";
  CHECK_GE(args.keys.row_bytes, kv_heads * key_dim * SizeOf(args.keys.dtype)) << "keys";
  CHECK_GE(args.values.row_bytes, kv_heads * value_dim * SizeOf(args.values.dtype)) << "values";
  const int64_t prefix = args.prefix_keys.empty() ? 0 : args.prefix_keys.shape[0];
  if (prefix > 0) {
    Expect(args.prefix_keys, types, {prefix, kv_heads, key_dim}, "prefix_keys");
    Expect(args.prefix_values, types, {prefix, kv_heads, value_dim}, "prefix_values");
  }
  if (!args.other_k.empty()) {
    Expect(args.other_k, types, {tokens, kv_heads, key_dim}, "other_k");
    Expect(args.other_v, types, {tokens, kv_heads, value_dim}, "other_v");
    CHECK(args.other_keys.table.offsets.data == table.offsets.data &&
          args.other_values.table.offsets.data == table.offsets.data)
        << "the other keys and values of other tables";
  }
  CHECK(args.segment >= 0 && args.segment <= table.positions() &&
        (args.segment == 0 || args.window == 0))
      << "segments of " << args.segment << " over " << table.positions() << " positions";
  CHECK(args.window >= 0 && args.window <= table.positions())
      << "a window of " << args.window << " over " << table.positions() << " positions";
}

}  // namespace mneme
