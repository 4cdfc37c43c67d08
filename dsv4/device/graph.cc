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
  const Template recorded = record(device.stream(), enqueue);
  Graph graph;
  cuda_check(cudaGraphGetNodes(recorded.get(), nullptr, &graph.kernels_), "cudaGraphGetNodes");
  cudaGraphExec_t exec = nullptr;
  cuda_check(cudaGraphInstantiate(&exec, recorded.get(), 0), "cudaGraphInstantiate");
  graph.exec_.reset(exec);
  cuda_check(cudaGraphUpload(exec, device.stream()), "cudaGraphUpload");
  return graph;
}

void Graph::launch(Device& device) const {
  cuda_check(cudaGraphLaunch(exec_.get(), device.stream()), "cudaGraphLaunch");
}

}  // namespace dsv4
