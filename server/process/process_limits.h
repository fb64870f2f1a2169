// The limits that the system sets for this process: a server makes do with them, or says in time
// that it cannot.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "mneme/v1/config.pb.h"

namespace mneme {

// Connections that ports may have open at once; 0 for a port that there is not.
struct ConnectionLimits {
  int64_t grpc = 0;
  int64_t http = 0;

  bool operator==(const ConnectionLimits&) const = default;
};

// The part of `wanted` that fits where the process may open `files`: all of it, or shares in
// proportion.
// RESOURCE_EXHAUSTED, with the numbers, where too few files are left beside the server's own.
absl::StatusOr<ConnectionLimits> FitConnections(ConnectionLimits wanted, int64_t files);

// Raises the soft limit on open files to the hard one and, where the ports' limits do not fit into
// it, lowers those in `config` and warns. RESOURCE_EXHAUSTED as above.
absl::Status FitToOpenFiles(v1::ServerConfig& config);

// Where address space is limited, threads share heaps, as each of their own reserves 64 MiB of it.
// RESOURCE_EXHAUSTED, with the numbers, unless the system gives the threads that a server with
// `compute_threads` (0: one for each processor) begins with, and the address space for their stacks
// and for itself. Libraries would abort the process where they find out by themselves.
absl::Status FitToThreadsAndAddressSpace(int compute_threads);

// Both, for what `config` says: of a server, and of its plan.
absl::Status FitToLimits(v1::ServerConfig& config);

// Address space that a server takes for the stacks of threads it has not yet started; 0 where none
// is counted. For a plan, which starts none.
int64_t AddressSpaceToCome(int compute_threads);

// Limits that are set on memory and threads, for the message when one of them was hit:
// "address space 409600 KiB of 524288 KiB (ulimit -v), threads 31 of 64 (ulimit -u)". Empty: none.
std::string LimitsText();
// Those on memory alone.
std::string MemoryLimitsText();

}  // namespace mneme
