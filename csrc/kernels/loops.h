// The inner loops in plain C++. Included by one file for each instruction set, which defines DC_ISA; the compiler
// vectorises them for it. Work goes a cache line at a time: the sources are summed, the update is applied, and the line
// is written around the caches, while the lines that come some iterations later are fetched: all streams at once,
// across page boundaries, which the hardware's prefetchers do not do.

#include <algorithm>
#include <bit>
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

template <class T>
inline T widen(T x) {
  return x;
}
inline float widen(BFloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// To the nearest, ties to even, as torch rounds; a NaN stays one.
inline BFloat16 narrow(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return {static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded)};
}

// A line of elements; `count` is a compile-time constant except for a tensor's last, partial line.
template <class T, class Count>
inline void sum_into(T* __restrict line, Count count, const MixInput<T>& in, size_t at) {
  if (in.count != 0) {
    const T* __restrict a = in.sources[0] + at;
    const T wa = in.weights[0];
    fetch_ahead(a);
    for (size_t i = 0; i < count; ++i) line[i] = wa * a[i];
  } else {
    for (size_t i = 0; i < count; ++i) line[i] = 0;
  }
  for (size_t k = 1; k < in.count; ++k) {
    const T* __restrict b = in.sources[k] + at;
    const T wb = in.weights[k];
    fetch_ahead(b);
    for (size_t i = 0; i < count; ++i) line[i] += wb * b[i];
  }
  for (size_t k = 0; k < in.narrow_count; ++k) {
    const BFloat16* __restrict b = in.narrow[k] + at;
    const T wb = in.narrow_weights[k];
    fetch_ahead(b);
    for (size_t i = 0; i < count; ++i) line[i] += wb * widen(b[i]);
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

// The same for a line that is rounded: half as long.
inline void write_rounded_around(BFloat16* out, const float* line) {
  alignas(32) BFloat16 rounded[kLine<float>];
  for (size_t i = 0; i < kLine<float>; ++i) rounded[i] = narrow(line[i]);
#if defined(__AVX2__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(out), _mm256_load_si256(reinterpret_cast<const __m256i*>(rounded)));
#else
  std::memcpy(out, rounded, sizeof rounded);
#endif
}

// Streaming stores are ordered by nothing but this; without it a published version could be incomplete.
inline void finish_writes() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

template <class T>
constexpr std::integral_constant<size_t, kLine<T>> kWhole;

template <class T, class Count>
inline void write(T* out, const T* line, Count count) {
  if constexpr (std::is_same_v<Count, size_t>)
    std::copy(line, line + count, out);
  else
    write_around(out, line);
}

template <class Count>
inline void write_rounded(BFloat16* out, const float* line, Count count) {
  if constexpr (std::is_same_v<Count, size_t>)
    std::transform(line, line + count, out, narrow);
  else
    write_rounded_around(out, line);
}

// Notices numbers that are not finite: 0 times such a number is NaN, and stays. A vector, so that it stays in
// registers.
template <class T>
class Finite {
 public:
  void look(const T* line, size_t count) {
    for (size_t i = 0; i < count; ++i) rest_ += T(0) * line[i];
  }
  void look(const T* line, std::integral_constant<size_t, kLine<T>>) {
    Line x;
    std::memcpy(&x, line, sizeof x);
    zeros_ += x * T(0);
  }
  bool all() const {
    bool finite = rest_ == 0;
    for (size_t i = 0; i < kLine<T>; ++i) finite = finite && zeros_[i] == 0;
    return finite;
  }

 private:
  typedef T Line __attribute__((vector_size(64)));
  Line zeros_{};
  T rest_ = 0;
};

// Calls update(line, at, count) on each mixed line, which also writes it. Targets are 64-byte aligned, as every
// tensor's place is. True if all lines were finite afterwards.
template <class T, class Update>
bool for_lines(size_t n, const MixInput<T>& in, const Update& update) {
  alignas(64) T line[kLine<T>];
  Finite<T> finite;
  size_t at = 0;
  for (; at + kLine<T> <= n; at += kLine<T>) {
    sum_into(line, kWhole<T>, in, at);
    update(line, at, kWhole<T>);
    finite.look(line, kWhole<T>);
  }
  if (at < n) {
    sum_into(line, n - at, in, at);
    update(line, at, n - at);
    finite.look(line, n - at);
  }
  finish_writes();
  return finite.all();
}

// To several targets at once: a mean that all members of a group want is computed once and written to each.
template <class T>
void mix(size_t n, const MixTargets<T>& to, const MixInput<T>& in) {
  for_lines(n, in, [to](T* x, size_t at, auto count) {
    for (size_t k = 0; k < to.out_count; ++k) write(to.outs[k] + at, x, count);
    if constexpr (std::is_same_v<T, float>)
      for (size_t k = 0; k < to.wire_count; ++k) write_rounded(to.wires[k] + at, x, count);
  });
}

// Calls rule(line, at, count, gradients) on each mixed line and writes it: to a slot, or to the master and, rounded, to
// a slot. False if something that it wrote is not finite.
template <class T, class Rule>
bool apply(size_t n, const Pointers<T>& p, const MixInput<T>& in, const Rule& rule) {
  if constexpr (std::is_same_v<T, float>) {
    const auto with_master = [&](const auto* grad) {
      return for_lines(n, in, [out = p.out, wire = p.wire, grad, rule](T* __restrict x, size_t at, auto count) {
        rule(x, at, count, grad + at);
        std::copy(x, x + count, out + at);
        write_rounded(wire + at, x, count);
      });
    };
    if (p.wire != nullptr) return p.narrow_grad != nullptr ? with_master(p.narrow_grad) : with_master(p.grad);
  }
  return for_lines(n, in, [out = p.out, grad = p.grad, rule](T* __restrict x, size_t at, auto count) {
    rule(x, at, count, grad + at);
    write(out + at, x, count);
  });
}

template <bool kCoupled, class T>
bool adam_plain(size_t n, const AdamPointers<T>& p, const MixInput<T>& in, const AdamScalars<T>& s) {
  const AdamScalars<T> c = s;
  return apply(n, p, in, [p, c](T* __restrict x, size_t at, auto count, const auto* __restrict g) {
    const T* own = p.own + at;
    T* __restrict m = p.m + at, * __restrict v = p.v + at;
    fetch_ahead(g);
    fetch_ahead(m);
    fetch_ahead(v);
    for (size_t i = 0; i < count; ++i) {
      const T raw = c.grad_scale * widen(g[i]);
      const T grad = kCoupled ? raw + c.coupled_decay * own[i] : raw;
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
bool adam_accumulating(size_t n, const AdamPointers<T>& p, const MixInput<T>& in, const AdamScalars<T>& s) {
  const AdamScalars<T> c = s;
  return apply(n, p, in, [p, c](T* __restrict x, size_t at, auto count, const auto* __restrict g) {
    const T* own = p.own + at;
    T* __restrict m = p.m + at, * __restrict v = p.v + at, * __restrict b = p.mean_grad + at;
    fetch_ahead(g);
    fetch_ahead(m);
    fetch_ahead(v);
    fetch_ahead(b);
    for (size_t i = 0; i < count; ++i) {
      const T raw = c.grad_scale * widen(g[i]);
      const T grad = kCoupled ? raw + c.coupled_decay * own[i] : raw;
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
bool adam_with(size_t n, const AdamPointers<T>& p, const MixInput<T>& in, const AdamScalars<T>& s) {
  if (!s.accumulating) return adam_plain<kCoupled>(n, p, in, s);
  if (s.first) return adam_accumulating<kCoupled, true, false>(n, p, in, s);
  if (s.last) return adam_accumulating<kCoupled, false, true>(n, p, in, s);
  return adam_accumulating<kCoupled, false, false>(n, p, in, s);
}

template <class T>
bool adam(size_t n, const AdamPointers<T>& p, const MixInput<T>& in, const AdamScalars<T>& s) {
  return s.coupled_decay != 0 ? adam_with<true>(n, p, in, s) : adam_with<false>(n, p, in, s);
}

template <bool kMomentum, class T>
bool sgd_with(size_t n, const SgdPointers<T>& p, const MixInput<T>& in, const SgdScalars<T>& s) {
  const SgdScalars<T> c = s;
  const T keep = c.first ? T(0) : c.momentum, add = c.first ? T(1) : c.one_minus_dampening;
  const T from_grad = c.nesterov ? T(1) : T(0), from_buffer = c.nesterov ? c.momentum : T(1);
  return apply(n, p, in, [=](T* __restrict x, size_t at, auto count, const auto* __restrict g) {
    const T* own = p.own + at;
    T* __restrict buffer = p.momentum + at;
    fetch_ahead(g);
    if (kMomentum) fetch_ahead(buffer);
    for (size_t i = 0; i < count; ++i) {
      const T grad = c.grad_scale * widen(g[i]) + c.weight_decay * own[i];
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
bool sgd(size_t n, const SgdPointers<T>& p, const MixInput<T>& in, const SgdScalars<T>& s) {
  return s.has_momentum ? sgd_with<true>(n, p, in, s) : sgd_with<false>(n, p, in, s);
}

// In double, so that no finite float overflows.
template <class T>
double squares(size_t n, const T* x) {
  constexpr size_t kLanes = 16;
  double lanes[kLanes] = {};
  size_t at = 0;
  for (; at + kLanes <= n; at += kLanes) {
    fetch_ahead(x + at);
    for (size_t i = 0; i < kLanes; ++i) {
      const double y = widen(x[at + i]);
      lanes[i] += y * y;
    }
  }
  double sum = 0;
  for (; at < n; ++at) sum += static_cast<double>(widen(x[at])) * widen(x[at]);
  for (const double lane : lanes) sum += lane;
  return sum;
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

const Kernels kKernels{{mix<float>, adam<float>, sgd<float>, squares<float>},
                       {mix<double>, adam<double>, sgd<double>, squares<double>},
                       squares<BFloat16>,
                       stream};

}  // namespace decentcomm::DC_ISA
