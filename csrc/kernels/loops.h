// The inner loops in plain C++. Included by one file for each instruction set, which defines DC_ISA; the compiler
// vectorises them for it. Work goes a cache line at a time: the sources are summed, the update is applied, and the line
// is written around the caches, while the lines that come some iterations later are fetched: all streams at once,
// across page boundaries, which the hardware's prefetchers do not do.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/table.h"

namespace decentcomm::DC_ISA {
namespace {

template <class T>
constexpr size_t kLine = 64 / sizeof(T);

// Bytes: at 25 ns a line, some 400 ns ahead, which covers a miss to memory and a page walk. 512 and 2048 measured
// slower.
constexpr size_t kAhead = 1024;

template <class T>
inline void fetch_ahead(const T* p) {
  __builtin_prefetch(reinterpret_cast<const char*>(p) + kAhead);
}

// A line of elements; `count` is a compile-time constant except for a tensor's last, partial line.
template <class T, class Count>
inline void sum_into(T* __restrict line, Count count, const MixInput<T>& in, size_t at) {
  const T* __restrict a = in.sources[0] + at;
  const T wa = in.weights[0];
  fetch_ahead(a);
  for (size_t i = 0; i < count; ++i) line[i] = wa * a[i];
  for (size_t k = 1; k < in.count; ++k) {
    const T* __restrict b = in.sources[k] + at;
    const T wb = in.weights[k];
    fetch_ahead(b);
    for (size_t i = 0; i < count; ++i) line[i] += wb * b[i];
  }
}

// Copies a line to memory without reading the target's cache line first.
template <class T>
inline void write_around(T* out, const T* line) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(out), _mm512_load_si512(line));
#elif defined(__AVX2__)
  const auto* from = reinterpret_cast<const __m256i*>(line);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(out), _mm256_load_si256(from));
  _mm256_stream_si256(reinterpret_cast<__m256i*>(out) + 1, _mm256_load_si256(from + 1));
#else
  std::memcpy(out, line, 64);
#endif
}

// Streaming stores are ordered by nothing but this; without it a published version could be incomplete.
inline void finish_writes() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

// Calls update(line, at, count) on each mixed line. `out` is 64-byte aligned, as every tensor's place is.
template <class T, class Update>
void for_lines(size_t n, T* out, const MixInput<T>& in, const Update& update) {
  constexpr std::integral_constant<size_t, kLine<T>> whole;
  alignas(64) T line[kLine<T>];
  size_t at = 0;
  for (; at + whole <= n; at += whole) {
    sum_into(line, whole, in, at);
    update(line, at, whole);
    write_around(out + at, line);
  }
  if (at < n) {
    sum_into(line, n - at, in, at);
    update(line, at, n - at);
    std::copy(line, line + (n - at), out + at);
  }
  finish_writes();
}

// To several targets at once: a mean that all members of a group want is computed once and written to each.
template <class T>
void mix(size_t n, T* const* outs, size_t out_count, const MixInput<T>& in) {
  for_lines(n, outs[0], in, [=](T* x, size_t at, auto count) {
    for (size_t k = 1; k < out_count; ++k) {
      if constexpr (std::is_same_v<decltype(count), size_t>)
        std::copy(x, x + count, outs[k] + at);
      else
        write_around(outs[k] + at, x);
    }
  });
}

template <bool kCoupled, class T>
void adam_plain(size_t n, const AdamPointers<T>& p, const MixInput<T>& in, const AdamScalars<T>& s) {
  const AdamScalars<T> c = s;
  for_lines(n, p.out, in, [p, c](T* __restrict x, size_t at, auto count) {
    const T* __restrict g = p.grad + at, * __restrict own = p.own + at;
    T* __restrict m = p.m + at, * __restrict v = p.v + at;
    fetch_ahead(g);
    fetch_ahead(m);
    fetch_ahead(v);
    for (size_t i = 0; i < count; ++i) {
      const T grad = kCoupled ? g[i] + c.coupled_decay * own[i] : g[i];
      const T m1 = c.beta1 * m[i] + c.one_minus_beta1 * grad;
      const T v1 = c.beta2 * v[i] + c.one_minus_beta2 * grad * grad;
      m[i] = m1;
      v[i] = v1;
      x[i] = c.shrink * x[i] - c.step_size * m1 / (std::sqrt(v1) * c.inv_sqrt_bias2 + c.eps);
    }
  });
}

// The parameters move at every step; the moments only at the last of s, by the mean gradient.
template <bool kCoupled, bool kFirst, bool kLast, class T>
void adam_accumulating(size_t n, const AdamPointers<T>& p, const MixInput<T>& in, const AdamScalars<T>& s) {
  const AdamScalars<T> c = s;
  for_lines(n, p.out, in, [p, c](T* __restrict x, size_t at, auto count) {
    const T* __restrict g = p.grad + at, * __restrict own = p.own + at;
    T* __restrict m = p.m + at, * __restrict v = p.v + at, * __restrict b = p.mean_grad + at;
    fetch_ahead(g);
    fetch_ahead(m);
    fetch_ahead(v);
    fetch_ahead(b);
    for (size_t i = 0; i < count; ++i) {
      const T grad = kCoupled ? g[i] + c.coupled_decay * own[i] : g[i];
      const T m0 = c.beta1 * m[i], v0 = c.beta2 * v[i];
      const T m1 = m0 + c.one_minus_beta1 * grad;
      const T v1 = v0 + c.one_minus_beta2 * grad * grad;
      x[i] = c.shrink * x[i] - c.step_size * m1 / (std::sqrt(v1) * c.inv_sqrt_bias2 + c.eps);
      const T mean = kFirst ? grad * c.inv_accumulate : b[i] + grad * c.inv_accumulate;
      if (kLast) {
        m[i] = m0 + c.one_minus_beta1 * mean;
        v[i] = v0 + c.one_minus_beta2 * mean * mean;
      } else {
        b[i] = mean;
      }
    }
  });
}

template <bool kCoupled, class T>
void adam_with(size_t n, const AdamPointers<T>& p, const MixInput<T>& in, const AdamScalars<T>& s) {
  if (!s.accumulating) return adam_plain<kCoupled>(n, p, in, s);
  if (s.first) return adam_accumulating<kCoupled, true, false>(n, p, in, s);
  if (s.last) return adam_accumulating<kCoupled, false, true>(n, p, in, s);
  return adam_accumulating<kCoupled, false, false>(n, p, in, s);
}

template <class T>
void adam(size_t n, const AdamPointers<T>& p, const MixInput<T>& in, const AdamScalars<T>& s) {
  return s.coupled_decay != 0 ? adam_with<true>(n, p, in, s) : adam_with<false>(n, p, in, s);
}

template <bool kMomentum, class T>
void sgd_with(size_t n, const SgdPointers<T>& p, const MixInput<T>& in, const SgdScalars<T>& s) {
  const SgdScalars<T> c = s;
  const T keep = c.first ? T(0) : c.momentum, add = c.first ? T(1) : c.one_minus_dampening;
  const T from_grad = c.nesterov ? T(1) : T(0), from_buffer = c.nesterov ? c.momentum : T(1);
  for_lines(n, p.out, in, [=](T* __restrict x, size_t at, auto count) {
    const T* __restrict g = p.grad + at, * __restrict own = p.own + at;
    T* __restrict buffer = p.momentum + at;
    fetch_ahead(g);
    if (kMomentum) fetch_ahead(buffer);
    for (size_t i = 0; i < count; ++i) {
      const T grad = g[i] + c.weight_decay * own[i];
      if (!kMomentum) {
        x[i] -= c.lr * grad;
        continue;
      }
      const T moved = keep * buffer[i] + add * grad;
      buffer[i] = moved;
      x[i] -= c.lr * (from_grad * grad + from_buffer * moved);
    }
  });
}

template <class T>
void sgd(size_t n, const SgdPointers<T>& p, const MixInput<T>& in, const SgdScalars<T>& s) {
  return s.has_momentum ? sgd_with<true>(n, p, in, s) : sgd_with<false>(n, p, in, s);
}

template <size_t kReads>
void stream_with(size_t n, const StreamPointers& p, bool around_caches) {
  alignas(64) float line[16];
  for (size_t at = 0; at + 16 <= n; at += 16) {
    std::fill(line, line + 16, 0.0f);
    for (size_t r = 0; r < kReads; ++r) {
      fetch_ahead(p.reads[r] + at);
      for (size_t i = 0; i < 16; ++i) line[i] += p.reads[r][at + i];
    }
    for (size_t u = 0; u < 2; ++u) {
      fetch_ahead(p.updates[u] + at);
      for (size_t i = 0; i < 16; ++i) p.updates[u][at + i] += 1.0f;
    }
    if (around_caches)
      write_around(p.out + at, line);
    else
      std::copy(line, line + 16, p.out + at);
  }
  finish_writes();
}

void stream(size_t n, const StreamPointers& p, bool around_caches) {
  constexpr decltype(&stream_with<1>) with[]{stream_with<1>, stream_with<2>, stream_with<3>, stream_with<4>,
                                             stream_with<5>};
  with[p.read_count - 1](n, p, around_caches);
}

}  // namespace

const Kernels kKernels{{mix<float>, adam<float>, sgd<float>}, {mix<double>, adam<double>, sgd<double>}, stream};

}  // namespace decentcomm::DC_ISA
