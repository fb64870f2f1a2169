// A program that measures operations on a GPU, prints tables and, with --json FILE, writes them.
#pragma once

#include <functional>
#include <span>

#include "bench/bench_table.h"
#include "kernels/cuda/common/device.h"

namespace mneme {

struct CudaTable {
  const char* key;  // in JSON
  // `copy`: bytes read and written each second by a large copy (CopyBandwidth).
  std::function<BenchTable(cuda::Device&, double copy)> measure;
};

// Returns the exit code. `purpose` is what --help says the program times.
int RunCudaTables(const char* program, const char* purpose, std::span<const CudaTable> tables,
                  int argc, char** argv);

}  // namespace mneme
