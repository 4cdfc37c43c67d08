// A C call made from Python: statuses to exceptions, workspace from the caller's array library, and
// the GIL released while it runs.

#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "dsv4_kernels.h"
#include "tensor.h"

namespace dsv4::python {

namespace nb = nanobind;

inline void check_status(int status) {
  if (status == DSV4_OK) return;
  const char* line = dsv4_last_error();
  if (status == DSV4_INVALID_ARGUMENT || status == DSV4_UNSUPPORTED) throw nb::value_error(line);
  PyErr_SetString(status == DSV4_OUT_OF_ROOM ? PyExc_MemoryError : PyExc_RuntimeError, line);
  throw nb::python_error();
}

template <class Params>
size_t workspace_of(int (*workspace_bytes)(const Params*, const dsv4_call*, size_t*),
                    const Params& params, dsv4_call call) {
  call.size = sizeof call;
  size_t bytes = 0;
  check_status(workspace_bytes(&params, &call, &bytes));
  return bytes;
}

// Queries the workspace size, gets memory from allocate(bytes), which returns a [bytes] uint8 array
// that stays valid for the stream, and calls without the GIL.
template <class Params>
void call_op(int (*run)(const Params*, const dsv4_call*),
             int (*workspace_bytes)(const Params*, const dsv4_call*, size_t*), const Params& params,
             dsv4_call call, const nb::callable& allocate) {
  call.size = sizeof call;
  const size_t bytes = workspace_of(workspace_bytes, params, call);
  nb::object block = nb::none();
  if (bytes > 0) {
    block = allocate(bytes);
    const dsv4_tensor workspace = tensor_of("workspace", block);
    call.workspace = workspace.data;
    call.workspace_bytes = static_cast<size_t>(workspace.shape[0]);
  }
  int status = DSV4_OK;
  {
    const nb::gil_scoped_release release;
    status = run(&params, &call);
  }
  check_status(status);
}

// How a call runs: where its implementation is chosen, and what it may allocate.
struct How {
  bool exact;
  std::optional<std::string> implementation;
  uintptr_t stream;

  dsv4_call call() const {
    return {.stream = reinterpret_cast<void*>(stream),
            .implementation = implementation ? implementation->c_str() : nullptr,
            .exact = exact};
  }
};
inline How how_of(nb::handle how) {
  return {nb::cast<bool>(nb::object(how[0])),
          nb::cast<std::optional<std::string>>(nb::object(how[1])),
          nb::cast<uintptr_t>(nb::object(how[2]))};
}

void bind_kbit(nb::module_& module);  // the functions of dsv4_kbit.h, in kbit.cc

}  // namespace dsv4::python
