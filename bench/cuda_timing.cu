#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "bench/cuda_timing.h"

namespace mneme {
namespace {

constexpr int kRounds = 9;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

double TimeGraph(cuda::Device& device, const std::function<void()>& work) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  device.Check(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeRelaxed), "begin");
  work();
  device.Check(cudaStreamEndCapture(device.stream(), &graph), "end of capture");
  device.Check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaGraphDestroy(graph);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    device.Check(cudaGraphLaunch(exec, device.stream()), "graph");
    cudaEventRecord(begin, device.stream());
    cudaGraphLaunch(exec, device.stream());
    cudaGraphLaunch(exec, device.stream());
    cudaEventRecord(end, device.stream());
    device.Check(cudaEventSynchronize(end), "event");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    times.push_back(1e-3 * ms / 2);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(exec);
  return Median(times);
}

double CopyBandwidth(cuda::Device& device) {
  constexpr int64_t kBytes = int64_t{2} << 30;
  char* data = nullptr;
  device.Check(cudaMalloc(&data, 2 * kBytes), "cudaMalloc");
  // Not as a graph, in which copies take another way.
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    cudaEventRecord(begin, device.stream());
    cudaMemcpyAsync(data + kBytes, data, kBytes, cudaMemcpyDeviceToDevice, device.stream());
    cudaEventRecord(end, device.stream());
    device.Check(cudaEventSynchronize(end), "event");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    times.push_back(1e-3 * ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaFree(data);
  return 2.0 * kBytes / Median(times);
}

}  // namespace mneme
