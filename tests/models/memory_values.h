// The matrix memories in a slab, as numbers, whatever they are stored as; and what a coarser store
// would make of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/tensor_view.h"
#include "models/state_layout.h"
#include "tests/models/model_driver.h"
#include "tests/models/recorded_routing.h"

namespace mneme {

// Matrices, [value_heads, value_dim, key_dim], by layer and memory. Memories never written are left
// out, and writes that are held back are in them.
using MemoryValues = std::map<std::pair<int, int>, std::vector<double>>;
MemoryValues ReadMemories(ModelDriver& driver, int slot);

// How a device stores matrices: as `dtype`, kF16 or kI8, to which a memory is rounded when more
// than `held_back` tokens went through it since it last was, and after a step that fed it several.
struct MemoryRounding {
  DType dtype = DType::kF16;
  int held_back = 0;
};

// The fields of a folder's model that a device keeps as `dtype`, where --state-dtype says so; none
// where the model is refused then.
std::set<std::string> FieldsOf(const std::string& folder, DType dtype);

// Feeds tokens in steps of `chunk` to slot 0 of a reference whose matrices in `fields` are rounded
// like that, and at the routing that was recorded: what its logits lose is what a device may lose.
std::vector<double> FeedRounded(ModelDriver& reference, std::span<const int32_t> tokens, int chunk,
                                const MemoryRounding& rounding, const std::set<std::string>& fields,
                                const RoutingChoices& choices);

}  // namespace mneme
