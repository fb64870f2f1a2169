// A library for CUDA's injection mechanism that says where a GPU's time goes, kernel by kernel,
// inside graphs too, without a profiler:
//
//   CUDA_INJECTION64_PATH=build/cuda/lib/libcuda_timeline.so CUDA_TIMELINE_LAST=8000
//       build/cuda/bin/gpu_bench --shapes mom-340m --sections decode --rows 32
//
// At the program's end it prints, of the last CUDA_TIMELINE_LAST kernels and copies (default
// 20000): how often each ran, how long it took, how long nothing ran before it, and what it added
// to the line, its end less the end of whatever ended last before it. Kernels that start while
// others run take longer than they add. If CUDA_TIMELINE_EACH is set, it prints each of them, too.
//
// Tracing every kernel of a graph makes its launch slow. With CUDA_TIMELINE_GRAPHS=1 a graph counts
// as a whole, and the time that the device waits for the host between steps is nearly that of a run
// without the library.
#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Record {
  uint64_t start, end;  // ns
  uint32_t stream;
  std::string name;  // with its launch
};

std::mutex mutex;
std::vector<Record> records;

std::string Readable(const char* name) {
  int status = 0;
  char* demangled = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string text = status == 0 ? demangled : name;
  std::free(demangled);
  text = text.substr(0, text.rfind('('));  // without its parameters
  for (const char* noise : {"mneme::cuda::", "(anonymous namespace)::", "void "}) {
    for (size_t at; (at = text.find(noise)) != std::string::npos;) {
      text.erase(at, std::string(noise).size());
    }
  }
  return text;
}

void Keep(const CUpti_Activity* activity) {
  if (activity->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy5*>(activity);
    records.push_back({copy->start, copy->end, copy->streamId,
                       "copy of " + std::to_string(copy->bytes) + " bytes"});
    return;
  }
  if (activity->kind == CUPTI_ACTIVITY_KIND_GRAPH_TRACE) {
    const auto* graph = reinterpret_cast<const CUpti_ActivityGraphTrace2*>(activity);
    records.push_back(
        {graph->start, graph->end, graph->streamId, "graph " + std::to_string(graph->graphId)});
    return;
  }
  if (activity->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) return;
  const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(activity);
  const int64_t blocks = int64_t{kernel->gridX} * kernel->gridY * kernel->gridZ;
  const int64_t threads = int64_t{kernel->blockX} * kernel->blockY * kernel->blockZ;
  records.push_back({kernel->start, kernel->end, kernel->streamId,
                     Readable(kernel->name) + " <" + std::to_string(blocks) + " x " +
                         std::to_string(threads) + ", " +
                         std::to_string(kernel->registersPerThread) + " registers>"});
}

void CUPTIAPI GiveBuffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  constexpr size_t kBytes = size_t{8} << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBytes));
  *bytes = *buffer == nullptr ? 0 : kBytes;
  *most_records = 0;
}

void CUPTIAPI TakeBuffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t used) {
  const std::lock_guard<std::mutex> lock(mutex);
  CUpti_Activity* activity = nullptr;
  while (cuptiActivityGetNextRecord(buffer, used, &activity) == CUPTI_SUCCESS) Keep(activity);
  std::free(buffer);
}

void Print() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const std::lock_guard<std::mutex> lock(mutex);
  std::sort(records.begin(), records.end(),
            [](const Record& a, const Record& b) { return a.start < b.start; });
  const char* last = std::getenv("CUDA_TIMELINE_LAST");
  const size_t wanted = last == nullptr ? 20000 : std::strtoul(last, nullptr, 10);
  if (records.size() > wanted) records.erase(records.begin(), records.end() - wanted);
  if (records.empty()) return;

  if (std::getenv("CUDA_TIMELINE_EACH") != nullptr) {
    std::fprintf(stderr, "%10s %9s %7s\n", "start us", "took us", "stream");
    for (const Record& record : records) {
      std::fprintf(stderr, "%10.2f %9.2f %7u  %s\n",
                   static_cast<double>(record.start - records.front().start) / 1e3,
                   static_cast<double>(record.end - record.start) / 1e3, record.stream,
                   record.name.c_str());
    }
  }

  struct Sum {
    int count = 0;
    double took = 0, waited = 0, added = 0;  // us
  };
  std::map<std::string, Sum> sums;
  double total = 0;
  uint64_t line = records.front().start;
  for (const Record& record : records) {
    const uint64_t end = std::max(line, record.end);
    Sum& sum = sums[record.name];
    ++sum.count;
    sum.took += static_cast<double>(record.end - record.start) / 1e3;
    if (record.start > line) sum.waited += static_cast<double>(record.start - line) / 1e3;
    sum.added += static_cast<double>(end - line) / 1e3;
    total += static_cast<double>(end - line) / 1e3;
    line = end;
  }
  std::vector<std::pair<std::string, Sum>> order(sums.begin(), sums.end());
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a.second.added > b.second.added; });
  std::fprintf(stderr, "%zu kernels and copies in %.1f us\n%8s %9s %9s %9s %7s\n", records.size(),
               total, "count", "took us", "waited us", "added us", "share");
  for (const auto& [name, sum] : order) {
    std::fprintf(stderr, "%8d %9.2f %9.2f %9.2f %6.1f%%  %s\n", sum.count, sum.took / sum.count,
                 sum.waited / sum.count, sum.added / sum.count, 100 * sum.added / total,
                 name.c_str());
  }
}

}  // namespace

// Called by the CUDA driver when it starts.
extern "C" int InitializeInjection() {
  cuptiActivityRegisterCallbacks(GiveBuffer, TakeBuffer);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
  if (std::getenv("CUDA_TIMELINE_GRAPHS") != nullptr) {
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
  }
  std::atexit(Print);
  return 1;
}
