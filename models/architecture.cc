#include "models/architecture.h"

#include "models/families/bert.h"
#include "models/families/fla.h"
#include "models/families/gated_delta.h"
#include "models/families/gpt2.h"
#include "models/families/gpt2_with_memoria.h"
#include "models/families/llama.h"
#include "models/families/mamba.h"
#include "models/families/titans.h"
#include "models/families/transformer.h"
#include "models/families/ttt.h"

namespace mneme {
namespace {

constexpr Architecture kArchitectures[] = {
    {"mom", ReadGatedDelta},
    {"mom_gated_deltanet", ReadGatedDelta},
    {"gated_deltanet", ReadGatedDelta},
    {"linear_attn", ReadLinearAttn},
    {"retnet", ReadRetNet},
    {"gla", ReadGla},
    {"delta_net", ReadDeltaNet},
    {"kda", ReadKda},
    {"hgrn2", ReadHgrn2},
    {"gsa", ReadGsa},
    {"mom_linear_attn", ReadLinearAttn},
    {"mom_gla", ReadGla},
    {"mom_gsa", ReadGsa},
    {"rwkv6", ReadRwkv6},
    {"rwkv7", ReadRwkv7},
    {"transformer", ReadTransformer},
    {"gpt2", ReadGpt2},
    {"gpt2_with_memoria", ReadGpt2WithMemoria},
    {"bert", ReadBert, /*classifies=*/true},
    {"roberta", ReadBert, /*classifies=*/true},
    {"memoria_bert", ReadBert, /*classifies=*/true},
    {"memoria_roberta", ReadBert, /*classifies=*/true},
    {"llama", ReadLlama},
    {"mistral", ReadLlama},
    {"mamba", ReadMamba},
    {"falcon_mamba", ReadMamba},
    {"mamba2", ReadMamba2},
    {"samba", ReadSamba},
    {"titans", ReadTitans},
    {"titans_mac_lucidrains", ReadTitansPytorch},
    {"ttt", ReadTtt},
};

}  // namespace

std::span<const Architecture> Architectures() { return kArchitectures; }

}  // namespace mneme
