// Keys of config.json that all of Memoria's models have.
#pragma once

#include "base/config_reader.h"
#include "models/mixers/engram_memory.h"

namespace mneme {

// The sizes of a network that bound them.
struct MemoriaLayers {
  int layers = 1, heads = 1;  // that attend to engrams
  int positions = 1;          // the most tokens that a segment can have,
  const char* positions_key;  // and the key that says so
  const char* flag;           // of the authors' programs, for the tokens of a segment
  // memoria_num_memories may be null or 0: EngramConfig::encodes.
  bool may_encode_nothing = false;
};

// segment_tokens and memoria_*. They have no defaults but for what is ours alone.
EngramConfig ReadEngrams(ConfigReader& reader, const MemoriaLayers& layers);

}  // namespace mneme
