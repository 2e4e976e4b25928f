// Picks the instruction set, cuts a bucket into pieces and lets threads claim them.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <string>

#include "common/cpu.h"
#include "common/env.h"
#include "common/thread_pool.h"
#include "kernels/kernels.h"
#include "kernels/table.h"

namespace decentcomm {
namespace {

constexpr uint64_t kPiece = 256 * 1024;  // elements: long enough to stream, short enough to balance threads

const Kernels& kernels() {
  static const Kernels& chosen = []() -> const Kernels& {
    const std::string wanted = Environment::get().instruction_set;
    const std::string best = wanted == "auto" ? instruction_sets().back() : wanted;
#if defined(__x86_64__)
    if (best == "avx512") return avx512::kKernels;
    if (best == "avx2") return avx2::kKernels;
#endif
    return portable::kKernels;
  }();
  return chosen;
}

template <class T>
const KernelTable<T>& table() {
  if constexpr (sizeof(T) == 4)
    return kernels().f32;
  else
    return kernels().f64;
}

// The sources of a bucket, as the loops want them: from element `at` on.
template <class T>
struct Sources {
  Sources(const Incoming& in, uint64_t at) {
    for (const Source& s : in.sources) {
      pointers.push_back(static_cast<const T*>(s.data) + at);
      weights.push_back(static_cast<T>(s.weight));
    }
  }
  MixInput<T> input() const { return {pointers.data(), weights.data(), pointers.size()}; }

  std::vector<const T*> pointers;
  std::vector<T> weights;
};

struct Piece {
  const Tensor* tensor;
  uint64_t begin, count;  // elements of the bucket
};

std::vector<Piece> cut(const std::vector<Tensor>& tensors) {
  std::vector<Piece> pieces;
  for (const Tensor& t : tensors)
    for (uint64_t at = 0; at < t.count; at += kPiece)
      pieces.push_back({&t, t.offset + at, std::min(kPiece, t.count - at)});
  return pieces;
}

void for_pieces(const std::vector<Piece>& pieces, int threads, const std::function<void(const Piece&)>& work) {
  std::atomic<size_t> next{0};
  const int useful = static_cast<int>(std::min<size_t>(static_cast<size_t>(threads), pieces.size()));
  run_parallel(useful, [&](int) {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < pieces.size();) work(pieces[i]);
  });
}

template <class T>
AdamScalars<T> scalars(const AdamSettings& s, const Tensor& tensor, uint32_t accumulate) {
  const double k = std::ceil(tensor.steps / accumulate);
  const auto phase = static_cast<uint64_t>(tensor.steps - 1) % accumulate;
  AdamScalars<T> out{};
  out.beta1 = static_cast<T>(s.beta1);
  out.one_minus_beta1 = static_cast<T>(1 - s.beta1);
  out.beta2 = static_cast<T>(s.beta2);
  out.one_minus_beta2 = static_cast<T>(1 - s.beta2);
  out.step_size = static_cast<T>(s.lr / (1 - std::pow(s.beta1, k)));
  out.inv_sqrt_bias2 = static_cast<T>(1 / std::sqrt(1 - std::pow(s.beta2, k)));
  out.eps = static_cast<T>(s.eps);
  out.shrink = static_cast<T>(s.decoupled ? 1 - s.lr * s.weight_decay : 1);
  out.coupled_decay = static_cast<T>(s.decoupled ? 0 : s.weight_decay);
  out.inv_accumulate = static_cast<T>(1.0 / accumulate);
  out.accumulating = accumulate > 1;
  out.first = phase == 0;
  out.last = phase == accumulate - 1;
  return out;
}

template <class T>
SgdScalars<T> scalars(const SgdSettings& s, const Tensor& tensor) {
  return {static_cast<T>(s.lr),
          static_cast<T>(s.momentum),
          static_cast<T>(1 - s.dampening),
          static_cast<T>(s.weight_decay),
          s.momentum != 0,
          tensor.steps == 1,
          s.nesterov};
}

template <class T>
const T* gradient(const Piece& piece) {
  return static_cast<const T*>(piece.tensor->grad) + (piece.begin - piece.tensor->offset);
}

// Mixes every piece, and calls update(piece, sources) instead where the tensor has a gradient.
template <class T, class Update>
void run(const Incoming& in, const std::vector<Tensor>& tensors, int threads, const Update& update) {
  for_pieces(cut(tensors), threads, [&](const Piece& piece) {
    const Sources<T> sources(in, piece.begin);
    if (piece.tensor->grad == nullptr) {
      std::vector<T*> targets{static_cast<T*>(in.target) + piece.begin};
      for (void* more : in.more_targets) targets.push_back(static_cast<T*>(more) + piece.begin);
      table<T>().mix(piece.count, targets.data(), targets.size(), sources.input());
    } else {
      update(piece, sources.input());
    }
  });
}

template <class T>
void adam(const Incoming& in, const std::vector<Tensor>& tensors, const std::vector<AdamSettings>& groups,
          const AdamState& state, int threads) {
  run<T>(in, tensors, threads, [&](const Piece& piece, const MixInput<T>& mix) {
    const auto at = [&piece](void* p) { return p == nullptr ? nullptr : static_cast<T*>(p) + piece.begin; };
    const AdamPointers<T> pointers{at(in.target),      static_cast<const T*>(in.own) + piece.begin,
                                   gradient<T>(piece), at(state.m),
                                   at(state.v),        at(state.mean_grad)};
    table<T>().adam(piece.count, pointers, mix,
                    scalars<T>(groups.at(piece.tensor->group), *piece.tensor, state.accumulate));
  });
}

template <class T>
void sgd(const Incoming& in, const std::vector<Tensor>& tensors, const std::vector<SgdSettings>& groups, void* momentum,
         int threads) {
  run<T>(in, tensors, threads, [&](const Piece& piece, const MixInput<T>& mix) {
    const SgdPointers<T> pointers{static_cast<T*>(in.target) + piece.begin, static_cast<const T*>(in.own) + piece.begin,
                                  gradient<T>(piece), static_cast<T*>(momentum) + (momentum ? piece.begin : 0)};
    table<T>().sgd(piece.count, pointers, mix, scalars<T>(groups.at(piece.tensor->group), *piece.tensor));
  });
}

}  // namespace

void mix_adam(Element element, const Incoming& in, const std::vector<Tensor>& tensors,
              const std::vector<AdamSettings>& groups, const AdamState& state, int threads) {
  element == Element::kFloat32 ? adam<float>(in, tensors, groups, state, threads)
                               : adam<double>(in, tensors, groups, state, threads);
}

void mix_sgd(Element element, const Incoming& in, const std::vector<Tensor>& tensors,
             const std::vector<SgdSettings>& groups, void* momentum, int threads) {
  element == Element::kFloat32 ? sgd<float>(in, tensors, groups, momentum, threads)
                               : sgd<double>(in, tensors, groups, momentum, threads);
}

void weighted_mix(Element element, const Incoming& in, int threads) {
  const uint64_t size = element == Element::kFloat32 ? sizeof(float) : sizeof(double);
  Tensor whole;
  whole.count = in.bytes / size;
  const std::vector<Tensor> tensors{whole};
  const auto never = [](const Piece&, const auto&) {};
  element == Element::kFloat32 ? run<float>(in, tensors, threads, never) : run<double>(in, tensors, threads, never);
}

void stream(const std::vector<const float*>& reads, const std::vector<float*>& updates, float* out, uint64_t count,
            bool around_caches, int threads) {
  Tensor whole;
  whole.count = count;
  const std::vector<Tensor> tensors{whole};
  for_pieces(cut(tensors), threads, [&](const Piece& piece) {
    std::vector<const float*> from;
    std::vector<float*> both;
    for (const float* p : reads) from.push_back(p + piece.begin);
    for (float* p : updates) both.push_back(p + piece.begin);
    kernels().stream(piece.count, {from.data(), from.size(), both.data(), both.size(), out + piece.begin},
                     around_caches);
  });
}

}  // namespace decentcomm
