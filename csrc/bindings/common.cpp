// Errors, settings and build facts.
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "common/cpu.h"
#include "common/env.h"
#include "common/error.h"

namespace py = pybind11;

namespace decentcomm {
namespace {

void raise(const char* python_class, const Error& error) {
  py::set_error(py::module_::import("decentcomm.errors").attr(python_class), error.what());
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const ConfigError& e) {
    raise("ConfigError", e);
  } catch (const DeadlineError& e) {
    raise("DeadlineError", e);
  } catch (const Error& e) {
    raise("Error", e);
  }
}

}  // namespace

void register_common(py::module_& m) {
  py::register_exception_translator(&translate);

  py::class_<Environment>(m, "Environment")
      .def_static("get", &Environment::get, py::return_value_policy::reference)
      .def_static("parse", &Environment::parse)
      .def_property_readonly("log_level", [](const Environment& e) { return to_string(e.log_level); })
      .def_readonly("timeout_seconds", &Environment::timeout_seconds)
      .def_readonly("spin_microseconds", &Environment::spin_microseconds)
      .def_readonly("instruction_set", &Environment::instruction_set)
      .def("describe", [](const Environment& e) {
        std::vector<std::tuple<std::string, std::string, std::string>> rows;
        for (const Variable& v : describe(e)) rows.emplace_back(v.name, v.value, v.help);
        return rows;
      });

  m.def("instruction_sets", &instruction_sets);
  m.def("version", &version);
  m.def("compiler", &compiler);
}

}  // namespace decentcomm
