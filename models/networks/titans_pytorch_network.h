// The network of titans-pytorch's MemoryAsContextTransformer: layers of a memory, attention and a
// feed-forward network on a residual of several streams, with positions that are no tokens.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "models/layer_builder.h"
#include "models/mixers/persistent_attention.h"
#include "models/mixers/titans_pytorch_memory.h"
#include "models/network.h"
#include "models/residual_streams.h"

namespace mneme {

// A position n of a session's tokens and of the longterm rows that are inserted between them
// (NetworkInfo::inserted), each as if it were a token:
//   x   = embedding + A(n / period) + B(n % period)       two networks of one number, in whole
//   X_s = x + stream_embedding_s
// for each layer, a branch reading the streams as StreamBranch says:
//   m   = branch reads;  r = Memory(views of m)           where the layer has a memory
//         branch writes r,   or, with gates_attention, gate = sigmoid(r)
//   a   = branch reads;  branch writes (gate) Attention(a)
//   f   = branch reads;  branch writes FeedForward(f)
//   FeedForward(f) = Wd (silu(z_2) z_1) + b_d,   [z_1, z_2] = Wu Norm(f) + b_u
// logits = head Norm(sum_s X_s), of tokens
// With views, q, k and v of a memory are sums of m and of the inputs and outputs of attention and
// feed-forward in the layers below, by a softmax each that m chooses; without them they are m.
struct TitansPytorchParts {
  NetworkInfo info;
  float norm_eps = 1e-6f;
  int mlp_dim = 1;
  ResidualStreamsConfig streams;
  std::vector<bool> has_memory;  // of each layer
  TitansPytorchMemoryConfig memory;
  PersistentAttentionConfig attention;
  bool gates_attention = false, views = false;
  // The gradients of a memory are taken with a part of the memory below it.
  bool weight_residual = false;
};

absl::StatusOr<std::unique_ptr<Network>> MakeTitansPytorchNetwork(const NetworkBuilder& builder,
                                                                  const TitansPytorchParts& parts);

}  // namespace mneme
