// The fields of a slab. A slab is the whole state of one session: a fixed number of bytes. Whoever
// creates, copies, saves, counts or compares sessions reads what fields say of themselves here, and
// knows nothing else of a model's memory.
//
// A slab has two parts. The first one holds, one behind the other, the fields of a fixed size. The
// second one holds those that grow with what a session is fed (keys and values of attention): in
// blocks of kContextBlock positions (kernels/ops/attention.h), each with the rows of all fields of
// a *context group*, which are filled alike. So what is filled is one piece of memory, and a block
// of all layers could be a page.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/inserted_positions.h"
#include "kernels/ops/attention.h"
#include "kernels/tensor_view.h"

namespace mneme {

// The value of a field, or of a memory of it, in a session that has not written it.
enum class StateInitial : uint8_t {
  kZero,
  // The initial slab's bytes (Network::InitState), copied into every new session.
  kEager,
  // What lies in one place of the network's, where kernels read it until the memory is first
  // written: nothing is copied into new sessions.
  kShared,
  // A number from 0 to `phases` - 1, i32 [1], that new sessions are given in turn, so that what
  // they do every so many tokens is not done by all in the same step. A fork keeps its parent's.
  kPhase,
};

// Which bytes of a field have a meaning. The others are left over from a former owner of the slab,
// and whoever shows or saves a state leaves them out.
enum class StateGuard : uint8_t {
  kAlways,     // all, from the session's birth on
  kFlags,      // memory m, where byte m of the field `flags` is not 0; else it is its initial value
  kFed,        // all, once a token was fed; before that they stand for the initial value
  kFirstRows,  // rows [0, n) of each memory, after n tokens were fed
  kRing,       // rows of the last min(n, rows) positions
};

// Positions [begin, end).
struct PositionRange {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};

// How a field changes, for those who copy and save states.
enum class StateRole : uint8_t {
  kRewritten,   // any byte at any token
  kAppendOnly,  // row n is written once, at position n (of a ring: until it comes round)
  kHeldBack,    // writes that Network::Settle adds to other fields; none in a canonical state
  kDerived,     // follows from the other fields, or from nothing that matters: never saved
};

// Which steps have to do with a field's bytes, for those who count what steps move.
enum class StateTraffic : uint8_t {
  kUpdated,   // read and written by every token
  kRead,      // read by every token, and written where a row begins a segment of positions
  kSegments,  // read and written where a row begins a segment
};

// Whether a field has room for so many things as whoever starts the server says, used from the
// first one on: it stands for the same with more room.
enum class StateRoom : uint8_t {
  kModels,    // as much as the model says
  kChosen,    // that many memories, of a size that does not depend on it
  kOfChosen,  // what a memory is depends on it
};

// Handle to one field of the slab. Layers keep the handle, never an address, so that the pool is
// free to place, copy, save and restore slabs.
struct StateField {
  std::string name;  // "memory"; StateLayout::Add makes it "layers.3.memory" where it is a layer's
  int layer = -1;    // none: of all layers
  DType dtype = DType::kF32;
  Shape shape;  // outermost dimension: memories; of a field that grows, the next one: rows
  StateInitial initial = StateInitial::kZero;
  StateGuard guard = StateGuard::kAlways;
  StateRole role = StateRole::kRewritten;
  int flags = -1;  // of kFlags: index of the field with the flags, kU8 [memories]
  // Values in the innermost dimension, where rows are stored otherwise than as their elements
  // (StateRowPitch); 0: as many as elements.
  int64_t row_values = 0;
  StateTraffic traffic = StateTraffic::kUpdated;
  StateRoom room = StateRoom::kModels;
  // It came when states without it had been stored: it lies in what the field before it leaves of a
  // line, so that all others stay where they are, and where it is zero a saved state is without it.
  bool is_late = false;
  int phases = 0;              // of kPhase
  int writes = 0;              // of kHeldBack: that there is room for
  InsertedPositions inserted;  // of a field that grows: positions that are no tokens

  // Set by StateLayout::Add.
  int index = -1;      // in fields()
  int group = -1;      // of a field that grows: in groups()
  int64_t offset = 0;  // bytes from the start of a slab; of a field that grows, of each block

  // Whether the field is one of a context group: it has a row for each position, up to rows().
  bool grows() const { return guard == StateGuard::kFirstRows || guard == StateGuard::kRing; }
  int64_t memories() const { return shape.rank == 0 ? 1 : shape[0]; }
  // The bytes of a memory in a slab or, where the field grows, in each block.
  int64_t memory_bytes() const {
    if (grows()) return kContextBlock * row_bytes();
    return memories() == 0 ? 0 : shape.elements() / memories() * SizeOf(dtype);
  }
  // For fields that grow only.
  int64_t rows() const { return shape[1]; }
  int64_t row_bytes() const {
    int64_t elements = 1;
    for (int i = 2; i < shape.rank; ++i) elements *= shape[i];
    return elements * SizeOf(dtype);
  }
  int64_t blocks() const { return (rows() + kContextBlock - 1) / kContextBlock; }
  // The positions whose rows a session has that was fed `tokens` tokens.
  PositionRange held(int64_t tokens) const {
    const int64_t positions = inserted.Of(tokens);
    if (guard == StateGuard::kFirstRows) return {0, std::min(positions, rows())};
    return {std::max<int64_t>(0, positions - rows()), positions};
  }
  // In a slab, room in the last block included.
  int64_t bytes() const { return (grows() ? blocks() : 1) * memories() * memory_bytes(); }
  // The values that the field stands for.
  Shape values() const {
    Shape values = shape;
    if (row_values > 0) values.dims[values.rank - 1] = row_values;
    return values;
  }
};

// The slabs of a pool, as kernels find fields in them.
struct Slabs {
  std::byte* base = nullptr;  // slab 0
  int64_t bytes = 0;          // distance between slabs

  StateView View(const StateField& field) const {
    return {base, bytes, field.offset, field.memory_bytes(), field.dtype};
  }
};

// Fields that grow, of one guard and number of rows, over all layers.
struct ContextGroup {
  StateGuard guard = StateGuard::kFirstRows;
  int64_t rows = 0;
  int64_t block_bytes = 0;  // of all its fields
  InsertedPositions inserted;

  int64_t blocks() const { return (rows + kContextBlock - 1) / kContextBlock; }
  int64_t bytes() const { return blocks() * block_bytes; }
  // Blocks that hold something in a session that was fed `tokens` tokens: they are the first ones.
  int64_t filled_blocks(int64_t tokens) const {
    return std::min(blocks(), (inserted.Of(tokens) + kContextBlock - 1) / kContextBlock);
  }
};

// Fields in the order they were added, each but late ones aligned to 64 bytes. Built once while a
// model is made.
class StateLayout {
 public:
  // Appends a field, whose index and offset are still to be set, and returns its handle, of the
  // whole name.
  StateField Add(StateField field);

  // The field of StateInitial::kPhase, which all layers share: the
  // first call appends it. To be called before other fields of a layer are added, so that those of
  // all layers lie at one distance.
  StateField AddPhase(int phases);

  std::span<const StateField> fields() const { return fields_; }
  std::span<const ContextGroup> groups() const { return groups_; }
  int64_t slab_bytes() const;                           // multiple of 64
  int64_t fixed_bytes() const { return fixed_bytes_; }  // of the part that does not grow, likewise
  // Bytes from the start of a slab to a block of a group.
  int64_t BlockOffset(int group, int64_t block) const;
  // Bytes from the start of a slab to the row of a position; of a field that grows.
  int64_t RowOffset(const StateField& field, int64_t memory, int64_t position) const;
  // The most tokens that a session can be fed; none where nothing grows but rings.
  std::optional<int64_t> max_tokens() const;
  // Bytes of a slab for the rows of fields that grow and are no ring.
  int64_t growing_bytes() const;
  // Printed by mneme-inspect and mneme-server --plan: one line per group of equal layers, one for
  // what alignment adds, and one for the tables of a session. All lines add up to SessionBytes.
  std::string ToString() const;

 private:
  std::vector<StateField> fields_;
  std::vector<ContextGroup> groups_;
  int64_t fixed_bytes_ = 0;
};

// Bytes [begin, end) of a slab.
struct ByteRange {
  int64_t begin = 0, end = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

}  // namespace mneme
