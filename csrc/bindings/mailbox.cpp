// Shared segments and mailboxes. Blocking calls release the GIL and look for Ctrl-C while they sleep.
#include "mailbox/mailbox.h"

#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "mailbox/segment.h"

namespace py = pybind11;

namespace decentcomm {
namespace {

void look_for_interrupts() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

WaitPolicy policy(double spin_seconds, double timeout_seconds) {
  using std::chrono::duration;
  const auto nanoseconds = [](double s) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(duration<double>(s));
  };
  return {nanoseconds(spin_seconds), nanoseconds(timeout_seconds), look_for_interrupts};
}

StepPlan make_plan(double own_weight, const std::vector<std::pair<uint32_t, double>>& direct,
                   const std::vector<std::pair<std::vector<uint32_t>, double>>& means, std::vector<uint32_t> readers) {
  StepPlan plan;
  plan.own_weight = own_weight;
  for (const auto& [rank, weight] : direct) plan.direct.push_back({rank, weight});
  for (const auto& [members, weight] : means) plan.means.push_back({members, weight});
  plan.readers = std::move(readers);
  return plan;
}

// Holds the segments that a mailbox points into.
std::unique_ptr<Mailbox> make_mailbox(uint32_t rank, const std::vector<const Segment*>& segments,
                                      const Geometry& geometry, Element element, double spin, double timeout) {
  std::vector<std::byte*> memory;
  for (const Segment* s : segments) memory.push_back(s == nullptr ? nullptr : s->data());
  return std::make_unique<Mailbox>(rank, memory, geometry, element, policy(spin, timeout));
}

}  // namespace

void register_mailbox(py::module_& m) {
  // The buffer protocol lets torch hold the memory: a tensor over a segment keeps it mapped.
  py::class_<Segment>(m, "Segment", py::buffer_protocol())
      .def_static("create", &Segment::create, py::arg("bytes"))
      .def_static("attach", &Segment::attach, py::arg("name"), py::arg("bytes"))
      .def_property_readonly("name", &Segment::name)
      .def("unlink", &Segment::unlink)
      .def_buffer([](Segment& s) {
        return py::buffer_info(s.data(), 1, py::format_descriptor<uint8_t>::format(),
                               static_cast<py::ssize_t>(s.bytes()));
      });

  py::class_<Geometry>(m, "Geometry")
      .def(py::init([](const std::vector<std::pair<uint64_t, uint64_t>>& buckets, uint32_t mean_scale) {
             std::vector<Bucket> list;
             for (const auto& [offset, bytes] : buckets) list.push_back({offset, bytes});
             return Geometry(std::move(list), mean_scale);
           }),
           py::arg("buckets"), py::arg("mean_scale"))
      .def_property_readonly("flat_bytes", &Geometry::flat_bytes)
      .def_property_readonly("segment_bytes", &Geometry::segment_bytes)
      .def("slot_offset", &Geometry::slot_offset, py::arg("version"));

  py::class_<StepPlan>(m, "StepPlan")
      .def(py::init(&make_plan), py::arg("own_weight"), py::arg("direct"), py::arg("means"), py::arg("readers"));

  py::class_<Mailbox>(m, "Mailbox")
      .def(py::init(&make_mailbox), py::arg("rank"), py::arg("segments"), py::arg("geometry"), py::arg("element"),
           py::arg("spin"), py::arg("timeout"), py::keep_alive<1, 3>())
      .def("restart", &Mailbox::restart, py::arg("version"))
      .def("publish", &Mailbox::publish, py::arg("bucket"), py::arg("version"))
      .def("collect", &Mailbox::collect, py::arg("bucket"), py::arg("step"), py::arg("plan"), py::arg("previous"),
           py::arg("staleness") = 0, py::call_guard<py::gil_scoped_release>())
      .def("average", &Mailbox::average, py::arg("bucket"), py::arg("step"), py::arg("members"),
           py::call_guard<py::gil_scoped_release>())
      .def("release", &Mailbox::release, py::arg("bucket"), py::arg("step"))
      .def_property_readonly("waited", &Mailbox::waited);
}

}  // namespace decentcomm
