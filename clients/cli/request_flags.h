// Flags that become fields of a GenerateRequest.
#pragma once

#include <functional>

#include "clients/cli/flags.h"
#include "mneme/v1/inference.pb.h"

namespace mneme::cli {

// Sampling and stopping; only flags that are given set their field.
void AddSamplingFlags(FlagSet& flags, v1::GenerateRequest& request);

// Flags that say of a session how turns go on with it: --remember, --replace-lost, --memory-seed,
// --durability.
void AddSessionFlags(FlagSet& flags, v1::GenerateRequest& request);
// --replace-lost alone.
void AddReplaceLostFlag(FlagSet& flags, std::function<void(bool)> set);
// --durability alone.
void AddDurabilityFlag(FlagSet& flags, std::function<void(v1::Durability)> set);
// --memory-seed alone.
void AddMemorySeedFlag(FlagSet& flags, std::function<void(uint64_t)> set);

// Session, retries, and what is sent back.
void AddRequestFlags(FlagSet& flags, v1::GenerateRequest& request);

}  // namespace mneme::cli
