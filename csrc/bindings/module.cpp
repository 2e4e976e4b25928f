#include "bindings/bindings.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "The engine of decentcomm.";
  decentcomm::register_common(m);
  decentcomm::register_kernels(m);
  decentcomm::register_mailbox(m);
}
