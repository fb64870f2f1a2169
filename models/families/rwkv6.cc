#include "models/mixers/rwkv6.h"

#include "models/families/families.h"
#include "models/families/rwkv_keys.h"

namespace mneme {

namespace {

NetworkMaker ReadRwkv6(absl::string_view, ConfigReader& reader, ModelConfig& config) {
  constexpr int kMostRank = 1 << 14;
  const RwkvKeys keys = ReadRwkvKeys(reader, /*default_ratio=*/3.5, config);
  const HeadKeys heads =
      ReadHeads(reader, keys.stack.model_dim, {.heads = 4, .expand_k = 0.5, .grouped = false});
  const Rwkv6Config mixer = {.heads = heads.heads,
                             .key_dim = heads.key_dim,
                             .value_dim = heads.value_dim,
                             .mix_rank = reader.Int("proj_low_rank_dim", 32, 1, kMostRank),
                             .decay_rank = reader.Int("gate_low_rank_dim", 64, 1, kMostRank)};
  // Tensors say their ranks; and whether upstream fuses its norms.
  reader.Disregard({"proj_low_rank_dim", "gate_low_rank_dim", "fuse_norm"});
  return RwkvNetwork(
      keys, [mixer](const LayerBuilder& builder) { return MakeRwkv6(builder, mixer); },
      ChannelMix::kReceptance);
}

}  // namespace

const Architecture kRwkv6 = {
    .model_type = "rwkv6", .read = ReadRwkv6, .coarsest_state = DType::kF16, .ways = R"([{},
                {"num_heads": 4, "expand_k": 1.0, "expand_v": 2.0, "norm_first": false},
                {"attn": {"layers": [0], "num_heads": 4, "window_size": 21}}])"};

}  // namespace mneme
