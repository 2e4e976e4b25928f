// Fused CPU kernels: mix k buffers and update the parameters in one pass over memory. Stateless; any thread may call
// them. The instruction set is chosen once, at the first call.
//
// Each kernel reads x, the gradient, the optimizer's state and the sources, and writes x and the state, once each. The
// new x goes around the caches where the CPU can do that: it is not read again before the next forward.
#pragma once

#include <cstdint>
#include <vector>

namespace decentcomm {

enum class Element { kFloat32, kFloat64, kBFloat16 };

constexpr uint64_t size_of(Element element) {
  return element == Element::kFloat64 ? 8 : element == Element::kFloat32 ? 4 : 2;
}

// A buffer to mix with a weight: a neighbour's parameters, a mean, or the own parameters.
struct Source {
  const void* data;
  double weight;
  uint32_t rank = 0;     // whose it is; of a mean, the group's first rank
  uint32_t version = 0;  // which version of it
  Element element = Element::kFloat32;
};

// One bucket's mixing: target = sum of weight * source. Valid from collect() to release() of a mailbox.
//
// A bucket that travels as bfloat16 is rounded, but mixing must not round the parameters: its weights add up to 0 (the
// own one is w - 1), and the sum is added to this rank's parameters in float32, the master. So the mean over all ranks
// stays what it was, and ranks that agree stay as they are, whatever was lost on the way.
struct Incoming {
  const void* own = nullptr;            // this rank's parameters before the step; coupled weight decay reads them
  void* target = nullptr;               // this rank's parameters after the step; never overlaps a source
  uint64_t bytes = 0;                   // of the target
  Element element = Element::kFloat32;  // of own and target
  std::vector<Source> sources;
  std::vector<void*> more_targets = {};  // of weighted_mix: the result goes there, too
};

// One parameter tensor's place in its bucket and what its update needs. Padding between tensors is only mixed.
struct Tensor {
  uint64_t offset = 0;         // elements from the bucket's begin; a multiple of 64 bytes
  uint64_t count = 0;          // elements
  const void* grad = nullptr;  // contiguous; null: mixed, but not updated
  bool frozen = false;         // not even mixed: the value is carried over bit for bit
  uint32_t group = 0;          // index of its settings
  double steps = 0;            // updates so far, this one included: bias correction of Adam, first step of momentum
};

struct AdamSettings {
  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled;  // AdamW
};

// Moments and, for AccumAdam, the running mean gradient; elements from the bucket's begin.
struct AdamState {
  void* m;
  void* v;
  void* mean_grad = nullptr;  // null if accumulate == 1
  uint32_t accumulate = 1;
};

struct SgdSettings {
  double lr, momentum, dampening, weight_decay;
  bool nesterov;
};

// What all updates have in common.
struct Update {
  const float* master = nullptr;             // of a bfloat16 bucket, from the bucket's begin
  float* new_master = nullptr;               // where the result goes; may be the same
  Element grad_element = Element::kFloat32;  // the bucket's own, or bfloat16 beside a master
  double grad_scale = 1;                     // gradients are multiplied by it: clipping, loss scaling
  int threads = 1;
};

// False if a new parameter is not finite: the target must then not be published.
bool mix_adam(const Incoming& in, const std::vector<Tensor>& tensors, const std::vector<AdamSettings>& groups,
              const AdamState& state, const Update& update);

// `momentum` may be null if no group has momentum.
bool mix_sgd(const Incoming& in, const std::vector<Tensor>& tensors, const std::vector<SgdSettings>& groups,
             void* momentum, const Update& update);

// target = sum of weight * source, nothing else.
void weighted_mix(const Incoming& in, int threads);

// Sum of the squares of all gradients; not finite if one of them is not.
double sum_of_squares(Element grad_element, const std::vector<Tensor>& tensors, int threads);

// A bare loop over fp32 buffers: reads some, adds 1 to others, writes one. The bandwidth limit that benchmarks compare
// with.
void stream(const std::vector<const float*>& reads, const std::vector<float*>& updates, float* out, uint64_t count,
            bool around_caches, int threads);

}  // namespace decentcomm
