// The inner loops, one table for each instruction set: loops.h is compiled once for each, dispatch.cpp picks one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace decentcomm {

struct BFloat16 {
  uint16_t bits;
};

// The sum of weight * source over `count` sources of T and `narrow_count` of bfloat16; at least one is of T, unless all
// there is is bfloat16.
template <class T>
struct MixInput {
  const T* const* sources;
  const T* weights;
  size_t count;
  const BFloat16* const* narrow;
  const T* narrow_weights;
  size_t narrow_count;
};

// Scalars of one tensor's Adam update, folded as far as they can be.
template <class T>
struct AdamScalars {
  T grad_scale;
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
  T grad_scale, lr, momentum, one_minus_dampening, weight_decay;
  bool has_momentum, first, nesterov;
};

// All pointers are at the same element of their buffers; n elements.
template <class T>
struct Pointers {
  T* out;          // a slot, written around the caches; with a wire the master, which it may overwrite
  BFloat16* wire;  // null, or a slot that gets the result rounded
  const T* own;
  const T* grad;
  const BFloat16* narrow_grad;  // instead of grad
};

template <class T>
struct AdamPointers : Pointers<T> {
  T *m, *v, *mean_grad;
};

template <class T>
struct SgdPointers : Pointers<T> {
  T* momentum;
};

// Where a mix without update goes; all get the same.
template <class T>
struct MixTargets {
  T* const* outs;
  size_t out_count;
  BFloat16* const* wires;
  size_t wire_count;
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
  void (*mix)(size_t n, const MixTargets<T>& to, const MixInput<T>& in);
  // False if a new parameter is not finite.
  bool (*adam)(size_t n, const AdamPointers<T>& p, const MixInput<T>& in, const AdamScalars<T>& s);
  bool (*sgd)(size_t n, const SgdPointers<T>& p, const MixInput<T>& in, const SgdScalars<T>& s);
  double (*squares)(size_t n, const T* x);
};

struct Kernels {
  KernelTable<float> f32;
  KernelTable<double> f64;
  double (*narrow_squares)(size_t n, const BFloat16* x);
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
