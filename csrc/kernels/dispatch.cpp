// Picks the instruction set, cuts a bucket into pieces and lets threads claim them.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <type_traits>

#include "common/cpu.h"
#include "common/env.h"
#include "common/error.h"
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

// The sources of a bucket, as the loops want them: from element `at` on, wide and narrow ones apart. A master counts as
// a source with weight 1. Of a frozen tensor nothing but the own value is a source.
template <class T>
struct Sources {
  Sources(const Incoming& in, const T* master, uint64_t at, bool frozen) {
    const T* own = master != nullptr ? master : static_cast<const T*>(in.own);
    if (master != nullptr || frozen) add(pointers, weights, own + at, 1);
    if (frozen) return;
    for (const Source& s : in.sources) {
      if (s.element == Element::kBFloat16)
        add(narrow, narrow_weights, static_cast<const BFloat16*>(s.data) + at, s.weight);
      else
        add(pointers, weights, static_cast<const T*>(s.data) + at, s.weight);
    }
  }
  MixInput<T> input() const {
    return {pointers.data(), weights.data(), pointers.size(), narrow.data(), narrow_weights.data(), narrow.size()};
  }

  template <class P>
  static void add(std::vector<P>& to, std::vector<T>& to_weights, P pointer, double weight) {
    to.push_back(pointer);
    to_weights.push_back(static_cast<T>(weight));
  }

  std::vector<const T*> pointers;
  std::vector<const BFloat16*> narrow;
  std::vector<T> weights, narrow_weights;
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
AdamScalars<T> scalars(const AdamSettings& s, const Tensor& tensor, uint32_t accumulate, double grad_scale) {
  const double k = std::ceil(tensor.steps / accumulate);
  const auto phase = static_cast<uint64_t>(tensor.steps - 1) % accumulate;
  AdamScalars<T> out{};
  out.grad_scale = static_cast<T>(grad_scale);
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
SgdScalars<T> scalars(const SgdSettings& s, const Tensor& tensor, double grad_scale) {
  return {
      static_cast<T>(grad_scale),     static_cast<T>(s.lr), static_cast<T>(s.momentum), static_cast<T>(1 - s.dampening),
      static_cast<T>(s.weight_decay), s.momentum != 0,      tensor.steps == 1,          s.nesterov};
}

// A pointer into a buffer that starts where the bucket does.
template <class T>
T* at(void* begin, const Piece& piece) {
  return begin == nullptr ? nullptr : static_cast<T*>(begin) + piece.begin;
}

template <class T>
const T* gradient(const Piece& piece) {
  return static_cast<const T*>(piece.tensor->grad) + (piece.begin - piece.tensor->offset);
}

template <class T>
const T* master(const Update& update) {
  if constexpr (std::is_same_v<T, float>) return update.master;
  return nullptr;
}

// Only mixes the piece, to the target and all others.
template <class T>
void mix(const Incoming& in, const Update& update, const Piece& piece, const MixInput<T>& input) {
  std::vector<T*> outs;
  std::vector<BFloat16*> wires;
  if (master<T>(update) != nullptr) outs.push_back(at<T>(update.new_master, piece));
  const auto add = [&](void* target) {
    if (in.element == Element::kBFloat16)
      wires.push_back(at<BFloat16>(target, piece));
    else
      outs.push_back(at<T>(target, piece));
  };
  add(in.target);
  for (void* more : in.more_targets) add(more);
  table<T>().mix(piece.count, {outs.data(), outs.size(), wires.data(), wires.size()}, input);
}

// Mixes every piece, and calls rule(piece, pointers, input) instead where the tensor has a gradient; true if all were.
template <class T, class Rule>
bool run(const Incoming& in, const Update& update, const std::vector<Tensor>& tensors, const Rule& rule) {
  std::atomic<bool> all{true};
  for_pieces(cut(tensors), update.threads, [&](const Piece& piece) {
    const Sources<T> sources(in, master<T>(update), piece.begin, piece.tensor->frozen);
    if (piece.tensor->grad == nullptr || piece.tensor->frozen) return mix(in, update, piece, sources.input());
    const bool narrow = update.grad_element == Element::kBFloat16;
    Pointers<T> pointers{at<T>(in.target, piece), nullptr, static_cast<const T*>(in.own) + piece.begin, nullptr,
                         nullptr};
    if (master<T>(update) != nullptr) {
      pointers.out = at<T>(update.new_master, piece);
      pointers.own = master<T>(update) + piece.begin;
      pointers.wire = at<BFloat16>(in.target, piece);
    }
    if (narrow)
      pointers.narrow_grad = gradient<BFloat16>(piece);
    else
      pointers.grad = gradient<T>(piece);
    if (!rule(piece, pointers, sources.input())) all = false;
  });
  return all;
}

template <class T>
bool adam(const Incoming& in, const std::vector<Tensor>& tensors, const std::vector<AdamSettings>& groups,
          const AdamState& state, const Update& update) {
  return run<T>(in, update, tensors, [&](const Piece& piece, const Pointers<T>& pointers, const MixInput<T>& input) {
    return table<T>().adam(
        piece.count, {pointers, at<T>(state.m, piece), at<T>(state.v, piece), at<T>(state.mean_grad, piece)}, input,
        scalars<T>(groups.at(piece.tensor->group), *piece.tensor, state.accumulate, update.grad_scale));
  });
}

template <class T>
bool sgd(const Incoming& in, const std::vector<Tensor>& tensors, const std::vector<SgdSettings>& groups, void* momentum,
         const Update& update) {
  return run<T>(in, update, tensors, [&](const Piece& piece, const Pointers<T>& pointers, const MixInput<T>& input) {
    return table<T>().sgd(piece.count, {pointers, at<T>(momentum, piece)}, input,
                          scalars<T>(groups.at(piece.tensor->group), *piece.tensor, update.grad_scale));
  });
}

void require_master(const Incoming& in, const Update& update) {
  const bool narrow = in.element == Element::kBFloat16;
  if (narrow != (update.master != nullptr) || narrow != (update.new_master != nullptr))
    throw Error("a bfloat16 bucket, and no other, is updated through a master");
  if (update.grad_element != in.element && !(narrow && update.grad_element == Element::kFloat32))
    throw Error("gradients must be of the bucket's element, or float32 beside a master");
}

}  // namespace

bool mix_adam(const Incoming& in, const std::vector<Tensor>& tensors, const std::vector<AdamSettings>& groups,
              const AdamState& state, const Update& update) {
  require_master(in, update);
  return in.element == Element::kFloat64 ? adam<double>(in, tensors, groups, state, update)
                                         : adam<float>(in, tensors, groups, state, update);
}

bool mix_sgd(const Incoming& in, const std::vector<Tensor>& tensors, const std::vector<SgdSettings>& groups,
             void* momentum, const Update& update) {
  require_master(in, update);
  return in.element == Element::kFloat64 ? sgd<double>(in, tensors, groups, momentum, update)
                                         : sgd<float>(in, tensors, groups, momentum, update);
}

void weighted_mix(const Incoming& in, int threads) {
  Tensor whole;
  whole.count = in.bytes / size_of(in.element);
  const std::vector<Tensor> tensors{whole};
  Update update;
  update.threads = threads;
  const auto never = [](const Piece&, const auto&, const auto&) { return true; };
  in.element == Element::kFloat64 ? run<double>(in, update, tensors, never) : run<float>(in, update, tensors, never);
}

double sum_of_squares(Element grad_element, const std::vector<Tensor>& tensors, int threads) {
  const std::vector<Piece> pieces = cut(tensors);
  std::vector<double> sums(pieces.size());  // added up in order, so that the number of threads does not matter
  for_pieces(pieces, threads, [&](const Piece& piece) {
    if (piece.tensor->grad == nullptr) return;
    double& sum = sums[static_cast<size_t>(&piece - pieces.data())];
    if (grad_element == Element::kFloat64)
      sum = kernels().f64.squares(piece.count, gradient<double>(piece));
    else if (grad_element == Element::kFloat32)
      sum = kernels().f32.squares(piece.count, gradient<float>(piece));
    else
      sum = kernels().narrow_squares(piece.count, gradient<BFloat16>(piece));
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
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
