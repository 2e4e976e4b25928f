// One register_x per binding file; module.cpp calls them all. Nothing outside this folder includes pybind11.
#pragma once

#include <pybind11/pybind11.h>

namespace decentcomm {

void register_common(pybind11::module_& m);
void register_kernels(pybind11::module_& m);
void register_mailbox(pybind11::module_& m);

}  // namespace decentcomm
