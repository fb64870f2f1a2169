#include <cstdint>
#include <span>
#include <type_traits>
#include <variant>

#include "base/log.h"
#include "kernels/ops/checks.h"
#include "kernels/ops/checks/expect.h"

namespace mneme {
namespace {

// That a part reads what the one ahead of it wrote.
void ExpectFed(const TensorView& x, const TensorView& ahead, const char* name) {
  CHECK(x.data == ahead.data) << name << " is not what the part ahead of it leaves";
}

void ExpectSingleTokens(const Segments& segments) {
  CHECK_LE(segments.longest, 1) << "tokens of a segment, in a step of single ones";
}

// Whether a field is there, whose dtype the backend chooses.
void ExpectSet(const StateView& view, const char* name) {
  CHECK(view.base != nullptr) << name << " is unset";
}

void CheckAnswer(const MemoryAnswer& answer, ActivationTypes types) {
  if (answer.output == nullptr) return;
  Check(*answer.output, types);
  Check(answer.product, types);
  CHECK(answer.done != nullptr) << "an answer of which nobody hears";
}

void ExpectSlots(const TensorView& slots) { Expect(slots, DType::kI32, {slots.shape[0]}, "slots"); }

}  // namespace

void Check(const DeltaMixerStepArgs& args, ActivationTypes types) {
  const DeltaMixer& mixer = args.mixer;
  const int64_t rows = args.hidden.shape[0], dim = mixer.norm.shape[0];
  Expect(args.hidden, types, {rows, dim}, "hidden");
  ExpectSlots(args.slots);  // of more rows than have a token, too, which no device fuses
  CHECK(mixer.q_proj.in_features == dim && mixer.out_proj.out_features == dim)
      << "a mixer from " << mixer.q_proj.in_features << " to " << mixer.out_proj.out_features
      << " features, beside a norm of " << dim;
  if (mixer.memories == 0) return;
  Expect(args.choice.indices, DType::kI32, {rows, mixer.top_k}, "choice.indices");
  Expect(args.choice.weights, types, {rows, mixer.top_k}, "choice.weights");
}

void Check(const FeedForwardStepArgs& args, ActivationTypes types) {
  const GatedFeedForward& network = args.network;
  const int64_t dim = network.norm.shape[0], inner = network.gate.out_features;
  Expect(args.hidden, types, {args.hidden.shape[0], dim}, "hidden");
  for (const PackedMatrix* const in : {&network.gate, &network.up}) {
    CHECK(in->in_features == dim && in->out_features == inner)
        << "gate or up is " << in->out_features << " x " << in->in_features << ", expected "
        << inner << " x " << dim;
  }
  CHECK(network.down.in_features == inner && network.down.out_features == dim)
      << "down is " << network.down.out_features << " x " << network.down.in_features
      << ", expected " << dim << " x " << inner;
}

// The logits are not the caller's.
void Check(const RmsNormArgs& norm, const PackedMatrix& router, RouteTopKArgs route,
           ActivationTypes types) {
  Check(norm, types);
  CHECK_EQ(router.in_features, norm.x.shape[1]) << "features of a router";
  route.logits = {norm.x.data, types.act, {norm.x.shape[0], router.out_features}};
  Check(route, types);
}

void Check(const MixMemoriesArgs& mix, const GatedRmsNormArgs& norm, ActivationTypes types) {
  Check(mix, types);
  Check(norm, types);
  ExpectFed(norm.x, mix.y, "norm.x");
}

// The norm's y may be left out where nobody else reads it.
void Check(LayerNormArgs norm, const TokenShiftArgs& shift, ActivationTypes types) {
  if (norm.y.data == nullptr) norm.y = shift.x;
  Check(norm, types);
  Check(shift, types);
  ExpectFed(shift.x, norm.y, "shift.x");
}

void Check(const SwiGluProductArgs& args, ActivationTypes types) {
  const int64_t rows = args.x.shape[0], in = args.gate.in_features, dim = args.gate.out_features;
  CHECK(args.up.in_features == in && args.up.out_features == dim)
      << "up is " << args.up.out_features << " x " << args.up.in_features << ", gate " << dim
      << " x " << in;
  Expect(args.x, types, {rows, in}, "x");
  Expect(args.y, types, {rows, dim}, "y");
  if (!args.gate_bias.empty()) Expect(args.gate_bias, DType::kF32, {1, dim}, "gate_bias");
  if (!args.up_bias.empty()) Expect(args.up_bias, DType::kF32, {1, dim}, "up_bias");
}

void Check(const ActivatedProduct& args, ActivationTypes types) {
  Check(args.product, types);
  CHECK(!args.product.accumulate) << "an activation of what is added up";
}

void Check(const MemoryStream& stream, ActivationTypes types) {
  TensorView ahead;
  const auto follow = [&](const auto& part, const TensorView& y) {
    Check(part, types);
    if (!ahead.empty()) ExpectFed(part.x, ahead, "x");
    ahead = y;
  };
  if (stream.convolution.has_value()) follow(*stream.convolution, stream.convolution->y);
  if (stream.activation.has_value()) follow(*stream.activation, stream.activation->y);
  std::visit(
      [&](const auto& last) {
        using Last = std::decay_t<decltype(last)>;
        if constexpr (std::is_same_v<Last, std::monostate>) {
          CHECK(!ahead.empty()) << "a stream without parts";
        } else if constexpr (std::is_same_v<Last, DecayGatesArgs>) {
          follow(last, last.log_decay);
        } else {
          follow(last, last.y);
        }
      },
      stream.last);
}

void Check(const DeltaMemoryPassArgs& args, ActivationTypes types) {
  for (const ShortConvArgs* const convolution : {&args.q, &args.k, &args.v}) {
    Check(*convolution, types);
  }
  Check(args.gates, types);
  Check(args.rule, types);
  ExpectFed(args.rule.q, args.q.y, "rule.q");
  ExpectFed(args.rule.k, args.k.y, "rule.k");
  ExpectFed(args.rule.v, args.v.y, "rule.v");
  ExpectFed(args.rule.log_decay, args.gates.log_decay, "rule.log_decay");
  ExpectFed(args.rule.beta, args.gates.beta, "rule.beta");
}

void Check(const MatrixMemoryStepArgs& args, ActivationTypes types) {
  CheckAll(args.streams, types);
  Check(args.rule, types);
}

void Check(const NeuralMemoryStepArgs& args, ActivationTypes types) {
  CheckAll(args.streams, types);
  Check(args.memory, types);
}

void Check(const HeldMemoryArgs& args, ActivationTypes types) {
  CheckAll(args.streams, types);
  Check(args.memory, types);
  CheckAnswer(args.answer, types);
  CHECK_GE(args.held.capacity, 1) << "steps that are held back";
  ExpectSet(args.held.numbers, "held.numbers");
  ExpectSet(args.held.vectors, "held.vectors");
}

void Check(const NeuralMemoryOutputArgs& args, ActivationTypes types) {
  if (!args.surprise.surprise.empty()) Check(args.surprise, types);
  Check(args.gate, types);
  Check(args.product, types);
  std::visit([&](const auto& norm) { Check(norm, types); }, args.norm);
  if (const auto* const norm = std::get_if<RmsNormArgs>(&args.norm)) {
    ExpectFed(args.product.b, args.gate.y, "product.b");
    ExpectFed(norm->x, args.product.y, "norm.x");
  } else {
    ExpectFed(args.product.a, args.gate.y, "product.a");
    ExpectFed(args.product.b, std::get<LayerNormArgs>(args.norm).y, "product.b");
  }
}

void Check(const Rwkv7StepArgs& args, ActivationTypes types) {
  Check(args.gates, types);
  if (!args.residual.v.empty()) Check(args.residual, types);
  Check(args.memory, types);
  Check(args.output, types);
  ExpectSingleTokens(args.memory.segments);
  ExpectFed(args.memory.log_decay, args.gates.log_decay, "memory.log_decay");
  ExpectFed(args.memory.c, args.gates.c, "memory.c");
  ExpectFed(args.memory.e, args.gates.e, "memory.e");
  ExpectFed(args.output.x, args.memory.out, "output.x");
}

void Check(const Rwkv7LayerStepArgs& args, ActivationTypes types) {
  CheckAll(args.low_rank, types);
  Check(args.step, types);
}

void Check(const Mamba2StepArgs& args, ActivationTypes types) {
  Check(args.discretize, types);
  Check(args.memory, types);
  Check(args.skip, types);
  ExpectSingleTokens(args.memory.segments);
  ExpectFed(args.memory.log_decay, args.discretize.log_decay, "memory.log_decay");
  ExpectFed(args.memory.v, args.discretize.v, "memory.v");
  ExpectFed(args.skip.y, args.memory.out, "skip.y");
  if (args.gate.y.empty()) return;
  Check(args.gate, types);
  ExpectFed(args.gate.up, args.skip.y, "gate.up");
}

void Check(const Mamba2LayerStepArgs& args, ActivationTypes types) {
  CheckAll(args.convolutions, types);
  Check(args.step, types);
  if (args.norm != nullptr) Check(*args.norm, types);
}

void Check(const Mamba2OutputArgs& args, ActivationTypes types) {
  Check(args.skip, types);
  Check(args.gate, types);
  Check(args.norm, types);
  ExpectFed(args.gate.up, args.skip.y, "gate.up");
  ExpectFed(args.norm.x, args.gate.y, "norm.x");
}

void Check(const PassStreamsArgs& args, ActivationTypes types) {
  if (!args.write.x.empty()) {
    Check(args.write, types);
    ExpectFed(args.read.x, args.write.y, "read.x");
  }
  // Tensors that are left out, or not looked at, are stood in for.
  ReadStreamsArgs read = args.read;
  ExpectRank(read.x, 3, "read.x");
  const Shape answer{read.x.shape[0], read.x.shape[2]};
  if (read.y.empty()) read.y = {read.x.data, types.act, answer};
  Check(read, types);
  for (RmsNormArgs norm : args.norms) {
    if (norm.y.empty()) continue;
    norm.x = read.y;
    Check(norm, types);
  }
  if (args.mean.y.empty()) return;
  ChunkMeanArgs mean = args.mean;
  mean.x = args.norms[1].y;
  Check(mean, types);
  ExpectSingleTokens(mean.segments);
}

void Check(const GatedMemoryArgs& args, ActivationTypes types) {
  Check(args.memory, types);
  const Shape& shape = args.memory.q.shape;
  Expect(args.gate, types, {shape[0], shape[1]}, "gate");
  Expect(args.y, types, {shape[0], shape[1] * shape[2]}, "y");
}

void Check(const TurnedAttentionArgs& args, ActivationTypes types) {
  if (!args.mix.v.empty()) {
    Check(args.mix, types);
    ExpectFed(args.attention.v, args.mix.v, "attention.v");
  }
  Check(args.attention, types);
  for (const TensorView& turned : {args.attention.q, args.attention.k}) {
    RopeArgs rope = args.rope;
    rope.x = rope.y = turned;
    Check(rope, types);
  }
}

void Check(const SettleArgs& args, ActivationTypes) {
  ExpectSlots(args.slots);
  CHECK(args.memories >= 1 && args.heads >= 1 && args.key_dim >= 1 && args.value_heads >= 1 &&
        args.value_dim >= 1)
      << args.memories << " memories of " << args.value_heads << " heads, " << args.value_dim
      << " x " << args.key_dim;
  ExpectSet(args.state, "state");
}

void Check(const SettleNetworkArgs& args, ActivationTypes) {
  ExpectSlots(args.slots);
  CHECK(args.heads >= 1 && args.dim >= 1 && args.hidden >= 0)
      << args.heads << " heads of " << args.dim << " x " << args.hidden;
  CHECK_GE(args.held.capacity, 1) << "steps that are held back";
  ExpectSet(args.held.numbers, "held.numbers");
  ExpectSet(args.held.vectors, "held.vectors");
  if (args.gradients.at[0].base != nullptr) return;
  for (int i = 0; i < 2; ++i) {
    ExpectSet(args.weights.at[i], "weights");
    ExpectSet(args.momenta.at[i], "momenta");
  }
}

}  // namespace mneme
