#include "models/architecture.h"

#include "models/families/gated_delta.h"

namespace mneme {
namespace {

constexpr Architecture kArchitectures[] = {
    {"mom", ReadGatedDelta},
    {"mom_gated_deltanet", ReadGatedDelta},
    {"gated_deltanet", ReadGatedDelta},
};

}  // namespace

std::span<const Architecture> Architectures() { return kArchitectures; }

}  // namespace mneme
