#include <cstdint>

#include "base/log.h"
#include "kernels/ops/checks.h"
#include "kernels/ops/checks/expect.h"

namespace mneme {

void Check(const SelectiveScanArgs& args, ActivationTypes types) {
  const int64_t entries = args.u.shape[0], channels = args.u.shape[1], states = args.a.shape[0];
  CHECK(states >= 1 && states <= kMaxScanStates) << "a scan of " << states << " states";
  Expect(args.u, types, {entries, channels}, "u");
  Expect(args.dt, types, {entries, channels}, "dt");
  Expect(args.b, types, {entries, states}, "b");
  Expect(args.c, types, {entries, states}, "c");
  Expect(args.a, DType::kF32, {states, channels}, "a");
  Expect(args.dt_bias, DType::kF32, {channels}, "dt_bias");
  Expect(args.skip, DType::kF32, {channels}, "skip");
  Expect(args.gate, types, {entries, channels}, "gate");
  Check(args.segments);
  CHECK(args.state.dtype == types.act) << "state is " << Name(args.state.dtype);
  Expect(args.y, types, {entries, channels}, "y");
}

void Check(const DiscretizeArgs& args, ActivationTypes types) {
  ExpectRank(args.u, 3, "u");
  const int64_t entries = args.u.shape[0], heads = args.u.shape[1];
  Expect(args.u, types, args.u.shape, "u");
  Expect(args.dt, types, {entries, heads}, "dt");
  Expect(args.dt_bias, DType::kF32, {heads}, "dt_bias");
  Expect(args.a, DType::kF32, {heads}, "a");
  CHECK(args.least_step <= args.most_step)
      << "steps from " << args.least_step << " to " << args.most_step;
  Expect(args.log_decay, types, {entries, heads}, "log_decay");
  Expect(args.v, types, args.u.shape, "v");
}

}  // namespace mneme
