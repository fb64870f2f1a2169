// The memory bandwidth of this host, measured, so that a kernel's time can be set against the least
// it could be.
#pragma once

#include <cstdint>

namespace mneme {

struct MemoryBandwidth {
  double read = 0;               // bytes per second, streaming reads
  double read_modify_write = 0;  // bytes per second, each byte counted twice: read and written
};

// Best of several passes over blocks far larger than the caches, `threads` workers side by side;
// takes about a second and 512 MB.
MemoryBandwidth MeasureMemoryBandwidth(int threads);

// Seconds a kernel needs at least that reads `read_bytes` and updates `updated_bytes` in place.
inline double FloorSeconds(const MemoryBandwidth& bandwidth, double read_bytes,
                           double updated_bytes) {
  return read_bytes / bandwidth.read + 2 * updated_bytes / bandwidth.read_modify_write;
}

}  // namespace mneme
