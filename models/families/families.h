// The registrations of the architectures, each defined in its family's file.
#pragma once

#include "models/architecture.h"

namespace mneme {

// Mixture-of-Memories, its forerunner and Gated DeltaNet: gated_delta.cc
extern const Architecture kMom;
extern const Architecture kMomGatedDeltaNet;
extern const Architecture kGatedDeltaNet;

// The matrix memories of flash-linear-attention, and those of the Mixture-of-Memories repository
// under the same rules, in a file named after the rule.
extern const Architecture kLinearAttn;
extern const Architecture kRetNet;
extern const Architecture kGla;
extern const Architecture kDeltaNet;
extern const Architecture kKda;
extern const Architecture kHgrn2;
extern const Architecture kGsa;
extern const Architecture kMomLinearAttn;
extern const Architecture kMomGla;
extern const Architecture kMomGsa;
extern const Architecture kRwkv6;
extern const Architecture kRwkv7;

// Attention alone: flash-linear-attention's (transformer.cc), transformers' (llama.cc, gpt2.cc)
extern const Architecture kTransformer;
extern const Architecture kLlama;
extern const Architecture kMistral;
extern const Architecture kGpt2;
// Memoria's GPT-2, as the authors' experiments save it
extern const Architecture kGpt2WithMemoria;

// BERT and RoBERTa for classification, as transformers has them, and with Memoria, as the authors'
// experiments save them: bert.cc
extern const Architecture kBert;
extern const Architecture kRoberta;
extern const Architecture kMemoriaBert;
extern const Architecture kMemoriaRoberta;

// Mamba and what came of it. "mamba" and "mamba2" are written by transformers and by
// flash-linear-attention, with other keys and other meanings (mamba_keys.h); flash-linear-attention
// alone has "samba".
extern const Architecture kMamba;
extern const Architecture kFalconMamba;
extern const Architecture kMamba2;
extern const Architecture kSamba;

// Titans (arXiv:2501.00663), of which there are two formats (titans.h), titans-pytorch's own
// tensors with its constructor's arguments, and TTT-Linear and TTT-MLP (arXiv:2407.04620) of
// ttt-lm-pytorch
extern const Architecture kTitans;
extern const Architecture kTitansPytorch;
extern const Architecture kTtt;

}  // namespace mneme
