#include "models/architecture.h"

#include "models/families/families.h"

namespace mneme {

std::span<const Architecture> Architectures() {
  static const Architecture all[] = {
      kMom,               // gated_delta.cc
      kMomGatedDeltaNet,  // gated_delta.cc
      kGatedDeltaNet,     // gated_delta.cc
      kLinearAttn,        // linear_attn.cc
      kRetNet,            // retnet.cc
      kGla,               // gla.cc
      kDeltaNet,          // delta_net.cc
      kKda,               // kda.cc
      kHgrn2,             // hgrn2.cc
      kGsa,               // gsa.cc
      kMomLinearAttn,     // linear_attn.cc
      kMomGla,            // gla.cc
      kMomGsa,            // gsa.cc
      kRwkv6,             // rwkv6.cc
      kRwkv7,             // rwkv7.cc
      kTransformer,       // transformer.cc
      kGpt2,              // gpt2.cc
      kGpt2WithMemoria,   // gpt2_with_memoria.cc
      kBert,              // bert.cc
      kRoberta,           // bert.cc
      kMemoriaBert,       // bert.cc
      kMemoriaRoberta,    // bert.cc
      kLlama,             // llama.cc
      kMistral,           // llama.cc
      kMamba,             // mamba.cc
      kFalconMamba,       // mamba.cc
      kMamba2,            // mamba2.cc
      kSamba,             // samba.cc
      kTitans,            // titans.cc
      kTitansPytorch,     // titans_pytorch.cc
      kTtt,               // ttt.cc
  };
  return all;
}

}  // namespace mneme
