#include "dsv4/device/graph.h"

#include "dsv4/device/error.h"

namespace dsv4 {
namespace {

struct DestroyTemplate {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};
using Template = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyTemplate>;

// Leaves capture mode also when recording stops half-way.
Template record(cudaStream_t stream, const std::function<void()>& enqueue) {
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  cudaGraph_t graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    Template discarded(graph);
    cudaGetLastError();
    throw;
  }
  cuda_check(cudaStreamEndCapture(stream, &graph), "end capture");
  return Template(graph);
}

}  // namespace

Graph Graph::capture(Device& device, const std::function<void()>& enqueue) {
  Graph graph;
  graph.instantiate(device, record(device.stream(), enqueue).get());
  return graph;
}

void Graph::update(Device& device, const std::function<void()>& enqueue) {
  const Template recorded = record(device.stream(), enqueue);
  cudaGraphExecUpdateResultInfo info{};
  if (cudaGraphExecUpdate(exec_.get(), recorded.get(), &info) == cudaSuccess) return;
  cudaGetLastError();  // "not the same graph" is an answer, not a failure
  instantiate(device, recorded.get());
}

void Graph::instantiate(Device& device, cudaGraph_t recorded) {
  cuda_check(cudaGraphGetNodes(recorded, nullptr, &kernels_), "cudaGraphGetNodes");
  cudaGraphExec_t exec = nullptr;
  cuda_check(cudaGraphInstantiate(&exec, recorded, 0), "cudaGraphInstantiate");
  exec_.reset(exec);
  cuda_check(cudaGraphUpload(exec, device.stream()), "cudaGraphUpload");
}

void Graph::launch(Device& device) const {
  cuda_check(cudaGraphLaunch(exec_.get(), device.stream()), "cudaGraphLaunch");
}

}  // namespace dsv4
