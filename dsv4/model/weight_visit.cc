// The walk through ModelWeights, in the order of model.cc, attention.cc and moe.cc.

#include "dsv4/model/weights.h"

namespace dsv4 {
namespace {

class Walk {
 public:
  explicit Walk(const std::function<void(ConstTensorView&)>& visit) : visit_(visit) {}

  void tensors(std::initializer_list<ConstTensorView*> views) {
    for (ConstTensorView* view : views) {
      if (!view->empty()) visit_(*view);
    }
  }
  void weights(std::initializer_list<WeightView*> list) {
    for (WeightView* w : list) tensors({&w->data, &w->scale, &w->codebook});
  }
  void hyper(HyperWeights& w) { tensors({&w.fn, &w.base, &w.scale}); }
  void compressor(CompressorWeights& w) {
    weights({&w.wkv, &w.wgate});
    tensors({&w.ape, &w.norm});
  }
  void attention(AttentionWeights& w) {
    weights({&w.wq_a});
    tensors({&w.q_norm});
    weights({&w.wq_b, &w.wkv});
    tensors({&w.kv_norm});
    compressor(w.compressor);
    compressor(w.indexer.compressor);
    weights({&w.indexer.wq_b, &w.indexer.weights_proj});
    tensors({&w.sink});
    weights({&w.wo_a, &w.wo_b});
  }
  void moe(MoeWeights& w) {
    weights({&w.gate});
    tensors({&w.bias, &w.tid2eid});
    for (auto* table : {&w.routed, &w.shared}) {
      for (ExpertWeights& expert : *table) weights({&expert.w1, &expert.w3, &expert.w2});
    }
  }
  void layer(LayerWeights& w) {
    hyper(w.hc_attn);
    tensors({&w.attn_norm});
    attention(w.attn);
    hyper(w.hc_ffn);
    tensors({&w.ffn_norm});
    moe(w.moe);
  }

 private:
  const std::function<void(ConstTensorView&)>& visit_;
};

}  // namespace

void for_each_tensor(ModelWeights& weights, const std::function<void(ConstTensorView&)>& visit) {
  Walk walk(visit);
  walk.tensors({&weights.embed});
  for (LayerWeights& layer : weights.layers) walk.layer(layer);
  walk.hyper(weights.hc_head);
  walk.tensors({&weights.norm});
  walk.weights({&weights.head});
}

}  // namespace dsv4
