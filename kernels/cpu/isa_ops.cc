// One instruction set's table of functions. Built once per instruction set.
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/linear.h"

namespace mneme::MNEME_ISA {

const IsaOps& Ops() {
  static constexpr IsaOps kOps = {
      .max_entries = kMaxEntries,
      .linear_panel_step = LinearPanelStep,
      .linear_scratch_bytes = LinearScratchBytes,
      .linear = Linear,
      .pack = Pack,
      .embedding = Embedding,
      .rms_norm = RmsNorm,
      .gated_rms_norm = GatedRmsNorm,
      .l2_norm = L2Norm,
      .swiglu = SwiGlu,
      .mix_memories = MixMemories,
      .route_top_k = RouteTopK,
      .delta_gates = DeltaGates,
      .short_conv = ShortConv,
      .gated_delta_rule = GatedDeltaRule,
      .attention = Attention,
      .sample = Sample,
  };
  return kOps;
}

}  // namespace mneme::MNEME_ISA
