// The experts of a layer, all of equal shape, and how their bytes lie.

#pragma once

#include <span>
#include <vector>

#include "dsv4/formats/kbit_image.h"
#include "dsv4/formats/weight.h"
#include "dsv4/ops/gemm/sm90/experts/entries.h"

namespace dsv4 {

class ExpertTurns;

using gemm::experts::ImagePlaces;
using gemm::experts::kMaxExperts;  // of a stack that kernels take

enum class WeightLayout : uint8_t {
  kFile,          // every matrix as formats/weight.h says, wherever it is
  kImage,         // k-bit and FP4 weights as kernel images, one allocation for all experts
  kMatrixImages,  // every matrix is a kernel image of its own
};

struct ExpertWeights {
  WeightView w1, w3;  // [i, d] gate and up
  WeightView w2;      // [d, i] down
};

// Kernel images (formats/kbit_image.h) of e experts of one format, K and codebook for gate and up,
// and one for down. Codebooks are antisymmetric; those of FP4 are the e2m1 numbers.
struct ExpertImages {
  KbitImage gate_up, down;  // of one expert: [2 i, d], [d, i]
  Codebook gate_up_codebook, down_codebook;
  ConstTensorView gate_up_bytes, down_bytes;  // [e, image.bytes()] U8
  ConstTensorView scale2;                     // [e, 3] F32: of w1, w3 and w2
  // [e, 3] I32, MXFP4: the largest exponent byte among the blocks of w1, w3 and w2 that are not
  // zeros. Empty where one has a block more than 11 below it, or of NaN: e4m3 operands
  // (gemm/weights/kbit_image_folded.cuh) would not be exact.
  ConstTensorView exponents;
  // [e] I64: an address for each expert, where the kernels find its gate_up image and its down
  // image right behind it, in memory that the device reads. Then the two views of bytes have
  // shapes only. Empty: the images are those of the views.
  ConstTensorView places{};
  // Not null, with places: the experts are computed in turns (expert_turns.h).
  ExpertTurns* turns = nullptr;

  bool empty() const { return gate_up.bits == 0; }
  bool has_places() const { return !places.empty(); }
  int num_turns() const;
  ImagePlaces gate_up_places() const { return places_of(gate_up_bytes, 0); }
  ImagePlaces down_places() const { return places_of(down_bytes, gate_up.bytes()); }

 private:
  ImagePlaces places_of(const ConstTensorView& bytes, int64_t offset) const {
    return {.first = bytes.data,
            .distance = bytes.dim(1),
            .table = has_places() ? places.as<int64_t>() : nullptr,
            .offset = offset};
  }
};

// Whether scales of images can be folded into e4m3 operands if their range allows it.
inline bool may_fold(const ExpertImages& images) {
  return images.gate_up.scale == ImageScale::kUe8m0 || images.down.scale == ImageScale::kUe8m0;
}

// The experts that a call computes: all of a layer, or those of a rank, whose ids are neighbors.
class ExpertStack {
 public:
  ExpertStack() = default;
  // Each matrix in its own format. The span must outlive the stack.
  ExpertStack(std::span<const ExpertWeights> experts) : file_(experts) {}
  ExpertStack(const std::vector<ExpertWeights>& experts) : file_(experts) {}
  // kMatrixImages: data of each weight is its image, [bytes] U8, and scale is empty.
  ExpertStack(std::span<const ExpertWeights> experts, WeightLayout layout)
      : layout_(layout), file_(experts) {}
  ExpertStack(const ExpertImages& images) : layout_(WeightLayout::kImage), images_(images) {}

  // The experts with the ids [first, first + size()) of `ids` ones.
  ExpertStack part_of(int64_t ids, int64_t first) const {
    ExpertStack part = *this;
    part.first_id_ = first, part.num_ids_ = ids;
    return part;
  }

  int64_t num_ids() const { return num_ids_ < 0 ? size() : num_ids_; }
  int64_t first_id() const { return first_id_; }
  bool is_part() const { return num_ids() != size(); }
  bool has_id(int64_t id) const { return first_id_ <= id && id < first_id_ + size(); }

  WeightLayout layout() const { return layout_; }
  bool is_file() const { return layout_ == WeightLayout::kFile; }
  bool is_image() const { return layout_ == WeightLayout::kImage; }
  bool empty() const { return size() == 0; }
  int64_t size() const { return is_image() ? images_.gate_up_bytes.dim(0) : std::ssize(file_); }
  // Inner columns of a stack that is not empty.
  int64_t inner() const { return is_image() ? images_.gate_up.n / 2 : file_.front().w1.n; }
  int64_t expert_bytes(int64_t e) const {  // stored bytes of weights
    if (is_image()) return images_.gate_up.bytes() + images_.down.bytes();
    const ExpertWeights& expert = file_[static_cast<size_t>(e)];
    return expert.w1.bytes() + expert.w3.bytes() + expert.w2.bytes();
  }

  std::span<const ExpertWeights> file() const { return file_; }  // kFile, kMatrixImages
  const ExpertImages& images() const { return images_; }         // kImage

 private:
  WeightLayout layout_ = WeightLayout::kFile;
  std::span<const ExpertWeights> file_;
  ExpertImages images_;
  int64_t first_id_ = 0, num_ids_ = -1;  // -1: size()
};

// The images that these experts would have, without data but for the codebooks: empty when they
// have none, with the reason in `why` if it is not null.
ExpertImages expert_images(std::span<const ExpertWeights> experts, const char** why = nullptr);

}  // namespace dsv4
