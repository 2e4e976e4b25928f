// The inner loops, one table for each instruction set: loops.h is compiled once for each, dispatch.cpp picks one.
#pragma once

#include <cstddef>

namespace decentcomm {

template <class T>
struct MixInput {
  const T* const* sources;
  const T* weights;
  size_t count;
};

// Scalars of one tensor's Adam update, folded as far as they can be.
template <class T>
struct AdamScalars {
  T beta1, one_minus_beta1, beta2, one_minus_beta2;
  T step_size;       // lr / (1 - beta1^k)
  T inv_sqrt_bias2;  // 1 / sqrt(1 - beta2^k)
  T eps;
  T shrink;           // 1 - lr * decay, decoupled
  T coupled_decay;    // added to the gradient, times x
  T inv_accumulate;   // 1 / s
  bool accumulating;  // s > 1
  bool first, last;   // of s steps
};

template <class T>
struct SgdScalars {
  T lr, momentum, one_minus_dampening, weight_decay;
  bool has_momentum, first, nesterov;
};

// All pointers are at the same element of their buffers; n elements.
template <class T>
struct AdamPointers {
  T* out;
  const T* own;
  const T* grad;
  T *m, *v, *mean_grad;
};

template <class T>
struct SgdPointers {
  T* out;
  const T* own;
  const T* grad;
  T* momentum;
};

// What memory allows: reads, read-modify-writes and one write with next to no arithmetic. For benchmarks.
struct StreamPointers {
  const float* const* reads;
  size_t read_count;
  float* const* updates;
  size_t update_count;
  float* out;
};

template <class T>
struct KernelTable {
  void (*mix)(size_t n, T* const* outs, size_t out_count, const MixInput<T>& in);
  void (*adam)(size_t n, const AdamPointers<T>& p, const MixInput<T>& in, const AdamScalars<T>& s);
  void (*sgd)(size_t n, const SgdPointers<T>& p, const MixInput<T>& in, const SgdScalars<T>& s);
};

struct Kernels {
  KernelTable<float> f32;
  KernelTable<double> f64;
  void (*stream)(size_t n, const StreamPointers& p, bool around_caches);
};

namespace portable {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}

}  // namespace decentcomm
