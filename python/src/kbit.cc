// The functions of dsv4_kbit.h in dsv4_kernels._core; kbit.py gives them their public names.

#include <nanobind/stl/vector.h>

#include <vector>

#include "call.h"
#include "dsv4_kbit.h"

namespace dsv4::python {
namespace {

// weight: (format, layout, bits, e4m3, n, k, data, scale or None, codebook or None, scale2)
dsv4_weight weight_of(nb::handle weight) {
  const auto number = [&](int i) { return nb::cast<int64_t>(nb::object(weight[i])); };
  return {.format = static_cast<int32_t>(number(0)),
          .layout = static_cast<int32_t>(number(1)),
          .bits = static_cast<int32_t>(number(2)),
          .e4m3_codebook = static_cast<int32_t>(number(3)),
          .n = number(4),
          .k = number(5),
          .data = tensor_of("data", nb::object(weight[6])),
          .scale = tensor_of("scale", nb::object(weight[7])),
          .codebook = tensor_of("codebook", nb::object(weight[8])),
          .scale2 = nb::cast<float>(nb::object(weight[9]))};
}

int64_t bytes_of(int32_t dtype) {
  switch (dtype) {
    case DSV4_F64:
    case DSV4_I64:
      return 8;
    case DSV4_F32:
    case DSV4_I32:
      return 4;
    case DSV4_BF16:
    case DSV4_F16:
    case DSV4_I16:
      return 2;
    default:
      return 1;
  }
}

// Element i of the first axis; an absent tensor stays absent.
dsv4_tensor part_of(const dsv4_tensor& stack, int64_t i) {
  if (stack.rank == 0) return stack;
  dsv4_tensor part = stack;
  part.data = static_cast<char*>(stack.data) + i * stack.stride[0] * bytes_of(stack.dtype);
  for (int axis = 1; axis < stack.rank; ++axis) {
    part.shape[axis - 1] = stack.shape[axis];
    part.stride[axis - 1] = stack.stride[axis];
  }
  --part.rank;
  return part;
}

// weights: a list of weights, or one weight whose data and scale have a first axis for the experts
// and whose scale2 is a list; the codebook is then shared.
std::vector<dsv4_weight> weights_of(const char* name, nb::handle weights) {
  std::vector<dsv4_weight> list;
  if (nb::isinstance<nb::list>(weights)) {
    for (const nb::handle weight : nb::cast<nb::list>(weights)) list.push_back(weight_of(weight));
    return list;
  }
  const auto scale2 = nb::cast<std::vector<float>>(nb::object(weights[9]));
  nb::list fields;
  for (int i = 0; i < 9; ++i) fields.append(nb::object(weights[i]));
  fields.append(1.f);
  const dsv4_weight stack = weight_of(fields);
  const int64_t count = stack.data.rank == 0 ? 0 : stack.data.shape[0];
  if (static_cast<int64_t>(scale2.size()) != count)
    refuse(std::string(name) + ": " + std::to_string(count) + " experts and " +
           std::to_string(scale2.size()) + " numbers scale2");
  for (int64_t i = 0; i < count; ++i) {
    dsv4_weight& one = list.emplace_back(stack);
    one.data = part_of(stack.data, i), one.scale = part_of(stack.scale, i);
    one.scale2 = scale2[static_cast<size_t>(i)];
  }
  return list;
}

void codebook(const std::string& name, int32_t bits, nb::handle out) {
  check_status(
      dsv4_kbit_codebook(name.c_str(), bits, static_cast<float*>(tensor_of("codebook", out).data)));
}

int64_t image_bytes(nb::handle weight) {
  const dsv4_weight given = weight_of(weight);
  int64_t bytes = 0;
  check_status(dsv4_kbit_image_bytes(&given, &bytes));
  return bytes;
}

float tensor_scale(nb::handle x) {
  const dsv4_tensor given = tensor_of("x", x);
  float scale = 1;
  check_status(dsv4_kbit_tensor_scale(&given, &scale));
  return scale;
}

void quantize(nb::handle x, nb::handle book, int32_t bits, bool search, nb::handle importance,
              float scale2, nb::handle data, nb::handle scale, nb::handle how,
              const nb::callable& allocate) {
  const dsv4_quantize_kbit_params params = {.size = sizeof params,
                                            .x = tensor_of("A", x),
                                            .codebook = tensor_of("codebook", book),
                                            .bits = bits,
                                            .search = search,
                                            .importance = tensor_of("importance", importance),
                                            .tensor_scale = scale2,
                                            .data = tensor_of("packed", data),
                                            .scale = tensor_of("absmax", scale)};
  const How chosen = how_of(how);
  call_op(dsv4_quantize_kbit, dsv4_quantize_kbit_workspace_bytes, params, chosen.call(), allocate);
}

void dequantize(nb::handle weight, nb::handle out, nb::handle how, const nb::callable& allocate) {
  const dsv4_dequantize_kbit_params params = {
      .size = sizeof params, .weight = weight_of(weight), .out = tensor_of("out", out)};
  const How chosen = how_of(how);
  call_op(dsv4_dequantize_kbit, dsv4_dequantize_kbit_workspace_bytes, params, chosen.call(),
          allocate);
}

void repack(nb::handle from, nb::handle to, nb::handle how, const nb::callable& allocate) {
  const dsv4_repack_kbit_params params = {
      .size = sizeof params, .from = weight_of(from), .to = weight_of(to)};
  const How chosen = how_of(how);
  call_op(dsv4_repack_kbit, dsv4_repack_kbit_workspace_bytes, params, chosen.call(), allocate);
}

void repack_scales(nb::handle rows, nb::handle tiles, bool to_rows, nb::handle how,
                   const nb::callable& allocate) {
  const dsv4_repack_scales_params params = {.size = sizeof params,
                                            .to_rows = to_rows,
                                            .rows = tensor_of("rows", rows),
                                            .tiles = tensor_of("tiles", tiles)};
  const How chosen = how_of(how);
  call_op(dsv4_repack_scales, dsv4_repack_scales_workspace_bytes, params, chosen.call(), allocate);
}

// name: "linear", "gemm_prod" or "scalar_gemv"
void kbit_linear(const std::string& name, nb::handle x, nb::handle weight, nb::handle out,
                 nb::handle how, const nb::callable& allocate) {
  const dsv4_kbit_linear_params params = {.size = sizeof params,
                                          .x = tensor_of("A", x),
                                          .weight = weight_of(weight),
                                          .out = tensor_of("out", out)};
  const auto run = name == "gemm_prod"     ? dsv4_kbit_gemm_prod
                   : name == "scalar_gemv" ? dsv4_kbit_scalar_gemv
                                           : dsv4_kbit_linear;
  const How chosen = how_of(how);
  call_op(run, dsv4_kbit_linear_workspace_bytes, params, chosen.call(), allocate);
}

size_t kbit_linear_workspace(nb::handle x, nb::handle weight, nb::handle out, nb::handle how) {
  const dsv4_kbit_linear_params params = {.size = sizeof params,
                                          .x = tensor_of("A", x),
                                          .weight = weight_of(weight),
                                          .out = tensor_of("out", out)};
  const How chosen = how_of(how);
  return workspace_of(dsv4_kbit_linear_workspace_bytes, params, chosen.call());
}

// Arguments with the lists that they point into.
struct ExpertLinear {
  std::vector<dsv4_weight> weights;
  dsv4_kbit_expert_linear_params params;

  ExpertLinear(nb::handle x, nb::handle stack, nb::handle offsets, nb::handle out)
      : weights(weights_of("B_packed_all", stack)),
        params{.size = sizeof params,
               .x = tensor_of("A_concat", x),
               .weights = weights.data(),
               .num_experts = static_cast<int64_t>(weights.size()),
               .offsets = tensor_of("expert_offsets", offsets),
               .out = tensor_of("out", out)} {}
};

// name: "expert_linear" or "grouped_gemm"
void kbit_expert_linear(const std::string& name, nb::handle x, nb::handle weights,
                        nb::handle offsets, nb::handle out, nb::handle how,
                        const nb::callable& allocate) {
  const ExpertLinear given(x, weights, offsets, out);
  const auto run = name == "grouped_gemm" ? dsv4_kbit_grouped_gemm : dsv4_kbit_expert_linear;
  const How chosen = how_of(how);
  call_op(run, dsv4_kbit_expert_linear_workspace_bytes, given.params, chosen.call(), allocate);
}

size_t kbit_expert_linear_workspace(nb::handle x, nb::handle weights, nb::handle offsets,
                                    nb::handle out, nb::handle how) {
  const ExpertLinear given(x, weights, offsets, out);
  const How chosen = how_of(how);
  return workspace_of(dsv4_kbit_expert_linear_workspace_bytes, given.params, chosen.call());
}

struct Moe {
  std::vector<dsv4_weight> gates, ups, downs;
  dsv4_kbit_moe_params params;

  Moe(nb::handle x, nb::handle gate, nb::handle up, nb::handle down, nb::handle experts,
      nb::handle expert_weights, int32_t activation, float limit, nb::handle out)
      : gates(weights_of("gate", gate)),
        ups(weights_of("up", up)),
        downs(weights_of("down", down)),
        params{.size = sizeof params,
               .x = tensor_of("x", x),
               .gate = gates.data(),
               .up = ups.data(),
               .down = downs.data(),
               .num_experts = static_cast<int64_t>(gates.size()),
               .experts = tensor_of("experts", experts),
               .expert_weights = tensor_of("expert_weights", expert_weights),
               .activation = activation,
               .limit = limit,
               .out = tensor_of("out", out)} {
    if (gates.size() != ups.size() || gates.size() != downs.size())
      refuse("gate, up and down have " + std::to_string(gates.size()) + ", " +
             std::to_string(ups.size()) + " and " + std::to_string(downs.size()) + " experts");
  }
};

void kbit_moe(nb::handle x, nb::handle gate, nb::handle up, nb::handle down, nb::handle experts,
              nb::handle expert_weights, int32_t activation, float limit, nb::handle out,
              nb::handle how, const nb::callable& allocate) {
  const Moe given(x, gate, up, down, experts, expert_weights, activation, limit, out);
  const How chosen = how_of(how);
  call_op(dsv4_kbit_moe, dsv4_kbit_moe_workspace_bytes, given.params, chosen.call(), allocate);
}

size_t kbit_moe_workspace(nb::handle x, nb::handle gate, nb::handle up, nb::handle down,
                          nb::handle experts, nb::handle expert_weights, int32_t activation,
                          float limit, nb::handle out, nb::handle how) {
  const Moe given(x, gate, up, down, experts, expert_weights, activation, limit, out);
  const How chosen = how_of(how);
  return workspace_of(dsv4_kbit_moe_workspace_bytes, given.params, chosen.call());
}

}  // namespace

void bind_kbit(nb::module_& module) {
  module.def("kbit_codebook", &codebook);
  module.def("kbit_image_bytes", &image_bytes);
  module.def("kbit_tensor_scale", &tensor_scale);
  module.def("quantize_kbit", &quantize, nb::arg("x"), nb::arg("codebook"), nb::arg("bits"),
             nb::arg("search"), nb::arg("importance").none(), nb::arg("scale2"), nb::arg("data"),
             nb::arg("scale"), nb::arg("how"), nb::arg("allocate"));
  module.def("dequantize_kbit", &dequantize);
  module.def("repack_kbit", &repack);
  module.def("repack_scales", &repack_scales);
  module.def("kbit_linear", &kbit_linear);
  module.def("kbit_linear_workspace", &kbit_linear_workspace);
  module.def("kbit_expert_linear", &kbit_expert_linear);
  module.def("kbit_expert_linear_workspace", &kbit_expert_linear_workspace);
  module.def("kbit_moe", &kbit_moe);
  module.def("kbit_moe_workspace", &kbit_moe_workspace);
}

}  // namespace dsv4::python
