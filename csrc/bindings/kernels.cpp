// The fused kernels. Pointers come in as integers (tensor.data_ptr()); the Python side keeps the tensors alive.
#include "kernels/kernels.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "common/error.h"

namespace py = pybind11;

namespace decentcomm {
namespace {

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

// The tensors of one bucket: places are fixed, gradients and step counts change with every step.
struct TensorTable {
  std::vector<Tensor> tensors;
  Element element;  // of the gradients

  TensorTable(const std::vector<uint64_t>& offsets, const std::vector<uint64_t>& counts,
              const std::vector<uint32_t>& groups, Element grad_element)
      : element(grad_element) {
    if (offsets.size() != counts.size() || offsets.size() != groups.size())
      throw Error("offsets, counts and groups must have one entry for each tensor");
    for (size_t i = 0; i < offsets.size(); ++i) {
      Tensor t;
      t.offset = offsets[i];
      t.count = counts[i];
      t.group = groups[i];
      tensors.push_back(t);
    }
  }

  // A gradient of 0 means none.
  void set(const std::vector<uintptr_t>& grads, const std::vector<double>& steps, const std::vector<bool>& frozen) {
    if (grads.size() != tensors.size() || steps.size() != tensors.size() || frozen.size() != tensors.size())
      throw Error("grads, steps and frozen must have one entry for each tensor");
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].grad = pointer(grads[i]);
      tensors[i].steps = steps[i];
      tensors[i].frozen = frozen[i];
    }
  }

  Update update(std::pair<uintptr_t, uintptr_t> masters, double grad_scale, int threads) const {
    return {static_cast<float*>(pointer(masters.first)), static_cast<float*>(pointer(masters.second)), element,
            grad_scale, threads};
  }
};

Incoming make_incoming(Element element, uintptr_t own, uintptr_t target, uint64_t bytes,
                       const std::vector<std::pair<uintptr_t, double>>& sources) {
  Incoming in{pointer(own), pointer(target), bytes, element, {}};
  for (const auto& [data, weight] : sources) in.sources.push_back({pointer(data), weight, 0, 0, element});
  return in;
}

// Alone, a bfloat16 bucket has nothing to add to its master.
void require_source(const Incoming& in, uintptr_t master = 0) {
  if (in.sources.empty() && master == 0) throw Error("a mix needs at least one source");
}

}  // namespace

void register_kernels(py::module_& m) {
  py::enum_<Element>(m, "Element")
      .value("float32", Element::kFloat32)
      .value("float64", Element::kFloat64)
      .value("bfloat16", Element::kBFloat16);

  py::class_<Incoming>(m, "Incoming")
      .def(py::init(&make_incoming), py::arg("element"), py::arg("own"), py::arg("target"), py::arg("bytes"),
           py::arg("sources"))
      .def_property_readonly("own", [](const Incoming& in) { return reinterpret_cast<uintptr_t>(in.own); })
      .def_property_readonly("target", [](const Incoming& in) { return reinterpret_cast<uintptr_t>(in.target); })
      .def_readonly("bytes", &Incoming::bytes)
      .def_property_readonly("versions",
                             [](const Incoming& in) {
                               std::vector<std::pair<uint32_t, uint32_t>> out;
                               for (const Source& s : in.sources) out.emplace_back(s.rank, s.version);
                               return out;
                             })
      .def_property_readonly("sources", [](const Incoming& in) {
        std::vector<std::pair<uintptr_t, double>> out;
        for (const Source& s : in.sources) out.emplace_back(reinterpret_cast<uintptr_t>(s.data), s.weight);
        return out;
      });

  py::class_<TensorTable>(m, "TensorTable")
      .def(
          py::init<const std::vector<uint64_t>&, const std::vector<uint64_t>&, const std::vector<uint32_t>&, Element>(),
          py::arg("offsets"), py::arg("counts"), py::arg("groups"), py::arg("element"))
      .def("set", &TensorTable::set, py::arg("grads"), py::arg("steps"), py::arg("frozen"));

  py::class_<AdamSettings>(m, "AdamSettings")
      .def(py::init([](double lr, double beta1, double beta2, double eps, double weight_decay, bool decoupled) {
             return AdamSettings{lr, beta1, beta2, eps, weight_decay, decoupled};
           }),
           py::arg("lr"), py::arg("beta1"), py::arg("beta2"), py::arg("eps"), py::arg("weight_decay"),
           py::arg("decoupled"));

  py::class_<SgdSettings>(m, "SgdSettings")
      .def(py::init([](double lr, double momentum, double dampening, double weight_decay, bool nesterov) {
             return SgdSettings{lr, momentum, dampening, weight_decay, nesterov};
           }),
           py::arg("lr"), py::arg("momentum"), py::arg("dampening"), py::arg("weight_decay"), py::arg("nesterov"));

  m.def(
      "mix_adam",
      [](const Incoming& in, const TensorTable& table, const std::vector<AdamSettings>& groups, uintptr_t mean,
         uintptr_t square, uintptr_t mean_grad, uint32_t accumulate, std::pair<uintptr_t, uintptr_t> masters,
         double grad_scale, int threads) {
        require_source(in, masters.first);
        if (accumulate > 1 && mean_grad == 0) throw Error("accumulate > 1 needs a buffer for the mean gradient");
        const AdamState state{pointer(mean), pointer(square), pointer(mean_grad), accumulate};
        return mix_adam(in, table.tensors, groups, state, table.update(masters, grad_scale, threads));
      },
      py::arg("incoming"), py::arg("table"), py::arg("groups"), py::arg("mean"), py::arg("square"),
      py::arg("mean_grad"), py::arg("accumulate"), py::arg("masters"), py::arg("grad_scale"), py::arg("threads"),
      py::call_guard<py::gil_scoped_release>());

  m.def(
      "mix_sgd",
      [](const Incoming& in, const TensorTable& table, const std::vector<SgdSettings>& groups, uintptr_t momentum,
         std::pair<uintptr_t, uintptr_t> masters, double grad_scale, int threads) {
        require_source(in, masters.first);
        for (const SgdSettings& g : groups)
          if (g.momentum != 0 && momentum == 0) throw Error("momentum needs a buffer");
        return mix_sgd(in, table.tensors, groups, pointer(momentum), table.update(masters, grad_scale, threads));
      },
      py::arg("incoming"), py::arg("table"), py::arg("groups"), py::arg("momentum"), py::arg("masters"),
      py::arg("grad_scale"), py::arg("threads"), py::call_guard<py::gil_scoped_release>());

  m.def(
      "weighted_mix",
      [](const Incoming& in, int threads) {
        require_source(in);
        weighted_mix(in, threads);
      },
      py::arg("incoming"), py::arg("threads"), py::call_guard<py::gil_scoped_release>());

  m.def(
      "sum_of_squares",
      [](const TensorTable& table, int threads) { return sum_of_squares(table.element, table.tensors, threads); },
      py::arg("table"), py::arg("threads"), py::call_guard<py::gil_scoped_release>());

  m.def(
      "stream",
      [](const std::vector<uintptr_t>& reads, const std::vector<uintptr_t>& updates, uintptr_t out, uint64_t count,
         bool around_caches, int threads) {
        std::vector<const float*> from;
        std::vector<float*> both;
        for (const uintptr_t p : reads) from.push_back(static_cast<const float*>(pointer(p)));
        for (const uintptr_t p : updates) both.push_back(static_cast<float*>(pointer(p)));
        stream(from, both, static_cast<float*>(pointer(out)), count, around_caches, threads);
      },
      py::arg("reads"), py::arg("updates"), py::arg("out"), py::arg("count"), py::arg("around_caches"),
      py::arg("threads"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace decentcomm
