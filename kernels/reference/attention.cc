#include <algorithm>
#include <cmath>
#include <vector>

#include "base/log.h"
#include "kernels/reference/reference_kernels.h"

namespace mneme {
namespace {

// Where the rows of one field are while a step runs: in the table, or among the step's own.
struct Rows {
  const ContextView& context;
  const TensorView& own;  // [tokens, kv_heads, dim] f64
  int64_t slot, first_token, first_position;

  const double* At(int64_t position) const {
    if (position < first_position) {
      return reinterpret_cast<const double*>(context.At(slot, position));
    }
    return own.as<double>() +
           (first_token + position - first_position) * own.shape[1] * own.shape[2];
  }
};

// The output of one head of the token at `position`. `keys` and `values`: one or two of each.
void Attend(const AttentionArgs& args, const std::vector<Rows>& keys,
            const std::vector<Rows>& values, int64_t position, int64_t kv_head, const double* q,
            double* out) {
  const int64_t key_dim = args.k.shape[2], value_dim = args.v.shape[2];
  const int64_t first = args.window > 0    ? std::max<int64_t>(0, position - args.window + 1)
                        : args.segment > 0 ? position - position % args.segment
                                           : int64_t{0};
  const int64_t prefix = args.prefix_keys.empty() ? 0 : args.prefix_keys.shape[0];
  // Scores of the rows of the prefix, then of positions.
  std::vector<const double*> seen_keys, seen_values;
  for (int64_t row = 0; row < prefix; ++row) {
    const int64_t at = row * args.k.shape[1] + kv_head;
    seen_keys.push_back(args.prefix_keys.as<double>() + at * key_dim);
    seen_values.push_back(args.prefix_values.as<double>() + at * value_dim);
  }
  for (int64_t p = first; p <= position; ++p) {
    for (size_t i = 0; i < keys.size(); ++i) {
      seen_keys.push_back(keys[i].At(p) + kv_head * key_dim);
      seen_values.push_back(values[i].At(p) + kv_head * value_dim);
    }
  }
  std::vector<double> weights;
  for (const double* k : seen_keys) {
    double score = 0;
    for (int64_t i = 0; i < key_dim; ++i) score += q[i] * k[i];
    weights.push_back(args.scale * score);
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  std::fill_n(out, value_dim, 0.0);
  for (size_t row = 0; row < weights.size(); ++row) {
    const double weight = weights[row] / sum;
    for (int64_t i = 0; i < value_dim; ++i) out[i] += weight * seen_values[row][i];
  }
}

}  // namespace

void ReferenceKernels::Attention(const AttentionArgs& args) {
  Check(args, reference::kTypes);
  CHECK(args.keys.dtype == DType::kF64 && args.values.dtype == DType::kF64) << "keys and values";
  const int64_t heads = args.q.shape[1], kv_heads = args.k.shape[1];
  const int64_t key_dim = args.k.shape[2], value_dim = args.v.shape[2];
  const int64_t held = args.keys.table.positions();
  const int32_t* offsets = args.row_offsets.as<int32_t>();
  for (int64_t row = 0; row < args.slots.shape[0]; ++row) {
    const int64_t slot = args.slots.as<int32_t>()[row];
    if (slot < 0) continue;
    const int64_t begin = args.positions.as<int64_t>()[row];
    const int64_t end = begin + offsets[row + 1] - offsets[row];
    CHECK(args.window > 0 || args.segment > 0 || end <= held)
        << end << " positions in a table of " << held;
    std::vector<Rows> keys = {{args.keys, args.k, slot, offsets[row], begin}};
    std::vector<Rows> values = {{args.values, args.v, slot, offsets[row], begin}};
    if (!args.other_k.empty()) {
      keys.push_back({args.other_keys, args.other_k, slot, offsets[row], begin});
      values.push_back({args.other_values, args.other_v, slot, offsets[row], begin});
    }
    for (int64_t position = begin; position < end; ++position) {
      const int64_t token = offsets[row] + position - begin;
      for (int64_t head = 0; head < heads; ++head) {
        Attend(args, keys, values, position, head / (heads / kv_heads),
               args.q.as<double>() + (token * heads + head) * key_dim,
               args.out.as<double>() + (token * heads + head) * value_dim);
      }
    }
    for (int64_t p = std::max(begin, end - held); p < end; ++p) {
      for (const Rows& rows : keys) {
        std::copy_n(rows.At(p), kv_heads * key_dim,
                    reinterpret_cast<double*>(rows.context.At(slot, p)));
      }
      for (const Rows& rows : values) {
        std::copy_n(rows.At(p), kv_heads * value_dim,
                    reinterpret_cast<double*>(rows.context.At(slot, p)));
      }
    }
  }
}

}  // namespace mneme
