#include <cstdint>

#include "base/log.h"
#include "kernels/ops/checks.h"
#include "kernels/ops/checks/expect.h"

namespace mneme {

void Check(const BanTokensArgs& args, ActivationTypes types) {
  Expect(args.logits, types, {args.logits.shape[0], args.logits.shape[1]}, "logits");
  Expect(args.tokens, DType::kI32, {args.tokens.shape[0]}, "tokens");
}

void Check(const SampleArgs& args, ActivationTypes types) {
  const size_t rows = args.rows.size();
  Expect(args.logits, types, {static_cast<int64_t>(rows), args.logits.shape[1]}, "logits");
  CHECK(args.tokens.size() == rows && args.logprobs.size() == rows) << "outputs of " << rows;
  const size_t top = rows * static_cast<size_t>(args.max_top_logprobs);
  CHECK(args.top_tokens.size() == top && args.top_logprobs.size() == top)
      << "top outputs, expected " << top;
  for (const SamplingRow& row : args.rows) CHECK_LT(row.forced_token, args.logits.shape[1]);
}

}  // namespace mneme
