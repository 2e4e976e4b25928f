#include "mailbox/mailbox.h"

#include <algorithm>
#include <sstream>

#include "common/error.h"

namespace decentcomm {
namespace {

using Clock = std::chrono::steady_clock;

// States of a mean chunk: below claimed(t), the chunk is of an earlier step and free to claim.
constexpr uint32_t claimed(uint32_t step) { return 2 * step + 1; }
constexpr uint32_t done(uint32_t step) { return 2 * step + 2; }

}  // namespace

Mailbox::Mailbox(uint32_t rank, std::vector<std::byte*> segments, Geometry geometry, Element element, WaitPolicy policy)
    : rank_(rank),
      segments_(std::move(segments)),
      geometry_(std::move(geometry)),
      element_(element),
      policy_(std::move(policy)),
      waited_(segments_.size()),
      pinned_(geometry_.buckets().size()) {}

BucketCounters& Mailbox::counters(uint32_t rank, uint32_t bucket) const {
  return geometry_.counters(segments_[rank], bucket);
}

void Mailbox::restart(uint32_t version) {
  geometry_.clear(segments_[rank_]);
  for (uint32_t b = 0; b < geometry_.buckets().size(); ++b) {
    if (version > 0) release(b, version - 1);
    publish(b, version);
  }
}

void Mailbox::publish(uint32_t bucket, uint32_t version) { counters(rank_, bucket).published.advance(version + 1); }

void Mailbox::release(uint32_t bucket, uint32_t step) {
  for (Pins* pins : pinned_[bucket]) pins->unpin();
  pinned_[bucket].clear();
  counters(rank_, bucket).released.advance(step + 1);
}

Incoming Mailbox::collect(uint32_t bucket, uint32_t step, const StepPlan& plan, const StepPlan& previous,
                          uint32_t staleness) {
  const Bucket& range = geometry_.buckets()[bucket];
  Incoming incoming;
  incoming.own = slot(step) + range.offset;
  incoming.target = slot(step + 1) + range.offset;
  incoming.bytes = range.bytes;
  incoming.element = element_;
  const double own_weight = plan.own_weight - (element_ == Element::kBFloat16 ? 1 : 0);
  if (own_weight != 0) incoming.sources.push_back({incoming.own, own_weight, rank_, step, element_});
  if (staleness > 0) {
    collect_newest(bucket, step, plan, staleness, incoming);
    return incoming;
  }
  for (const auto& [rank, weight] : plan.direct) {
    await(counters(rank, bucket).published, step + 1, rank, bucket, step, "published");
    incoming.sources.push_back({slot_of(rank, step) + range.offset, weight, rank, step, element_});
  }
  for (const auto& [members, weight] : plan.means) {
    for (const uint32_t rank : members)
      if (rank != rank_) await(counters(rank, bucket).published, step + 1, rank, bucket, step, "published");
    std::byte* mean = geometry_.mean(segments_[members.front()], step);
    make_mean(bucket, step, members, {mean}, mean_element());
    incoming.sources.push_back(
        {mean + range.offset * geometry_.mean_scale(), weight, members.front(), step, mean_element()});
  }
  if (step > 0) {  // the next version overwrites step-1's
    for (const uint32_t rank : previous.readers)
      await(counters(rank, bucket).released, step, rank, bucket, step, "released");
  }
  return incoming;
}

void Mailbox::collect_newest(uint32_t bucket, uint32_t step, const StepPlan& plan, uint32_t staleness,
                             Incoming& incoming) {
  std::vector<StepPlan::Direct> read = plan.direct;
  for (const auto& [members, weight] : plan.means)
    for (const uint32_t rank : members) read.push_back({rank, weight / static_cast<double>(members.size())});
  // All waiting comes before the first pin: whoever holds pins waits for nothing, so no circle can form.
  const uint32_t oldest = step > staleness ? step - staleness : 0;
  for (const auto& [rank, weight] : read)
    if (rank != rank_) await(counters(rank, bucket).published, oldest + 1, rank, bucket, step, "published");
  if (!wait_unpinned(counters(rank_, bucket).pins[(step + 1) % kSlots], policy_))
    throw DeadlineError("rank " + std::to_string(rank_) + " waited at step " + std::to_string(step) +
                        " for readers of its bucket " + std::to_string(bucket) +
                        ", which did not release it; did one die?");
  for (const auto& [rank, weight] : read)
    incoming.sources.push_back(rank == rank_ ? Source{incoming.own, weight, rank_, step, element_}
                                             : pin_newest(rank, bucket, weight));
}

// The owner writes version v+2 over v, after publishing v+1 and finding no pins. So a pin holds if v is still the
// newest afterwards; if not, the owner may have looked before, and a newer version is there to be pinned.
Source Mailbox::pin_newest(uint32_t rank, uint32_t bucket, double weight) {
  BucketCounters& owner = counters(rank, bucket);
  for (;;) {
    const uint32_t version = owner.published.value.load() - 1;
    Pins& pins = owner.pins[version % kSlots];
    pins.pin();
    if (owner.published.value.load() - 1 == version) {
      pinned_[bucket].push_back(&pins);
      return {slot_of(rank, version) + geometry_.buckets()[bucket].offset, weight, rank, version, element_};
    }
    pins.unpin();
  }
}

void Mailbox::average(uint32_t bucket, uint32_t step, const std::vector<uint32_t>& members) {
  std::vector<std::byte*> targets;
  for (const uint32_t rank : members) {
    targets.push_back(geometry_.slot(segments_[rank], step + 1));
    if (rank == rank_) continue;
    await(counters(rank, bucket).published, step + 1, rank, bucket, step, "published");
    if (step > 0) await(counters(rank, bucket).released, step, rank, bucket, step, "released");
  }
  make_mean(bucket, step, members, targets, element_);
}

void Mailbox::make_mean(uint32_t bucket, uint32_t step, const std::vector<uint32_t>& members,
                        const std::vector<std::byte*>& targets, Element target_element) {
  std::byte* leader = segments_[members.front()];
  const uint64_t chunks = geometry_.chunks(bucket);
  // Readers start at different places, so that they seldom want the same chunk.
  const uint64_t start = chunks * rank_ / segments_.size();
  for (uint64_t i = 0; i < chunks; ++i) {
    const uint64_t chunk = (start + i) % chunks;
    auto& [state, claimer] = geometry_.chunk_state(leader, step, bucket, chunk);
    uint32_t seen = state.value.load(std::memory_order_relaxed);
    if (static_cast<int32_t>(seen - claimed(step)) >= 0) continue;
    if (!state.value.compare_exchange_strong(seen, claimed(step))) continue;
    claimer.store(rank_, std::memory_order_relaxed);
    mean_chunk(bucket, step, members, targets, target_element, chunk);
    state.advance(done(step));
  }
  for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
    auto& [state, claimer] = geometry_.chunk_state(leader, step, bucket, chunk);
    if (!state.reached(done(step))) await(state, done(step), claimer.load(), bucket, step, "finished its share of");
  }
}

void Mailbox::mean_chunk(uint32_t bucket, uint32_t step, const std::vector<uint32_t>& members,
                         const std::vector<std::byte*>& targets, Element target_element, uint64_t chunk) const {
  const Bucket& range = geometry_.buckets()[bucket];
  const uint64_t scale = size_of(target_element) / size_of(element_);
  const uint64_t begin = range.offset + chunk * kMeanChunk;
  Incoming mix;
  mix.element = target_element;
  mix.bytes = std::min(kMeanChunk, range.offset + range.bytes - begin) * scale;
  mix.target = targets.front() + begin * scale;
  for (size_t i = 1; i < targets.size(); ++i) mix.more_targets.push_back(targets[i] + begin * scale);
  for (const uint32_t rank : members)
    mix.sources.push_back({slot_of(rank, step) + begin, 1.0 / members.size(), rank, step, element_});
  weighted_mix(mix, 1);
}

void Mailbox::await(Counter& counter, uint32_t target, uint32_t rank, uint32_t bucket, uint32_t step,
                    const char* what) {
  if (counter.reached(target)) return;
  const auto start = Clock::now();
  const bool came = wait(counter, target, policy_);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  waited_[rank] += seconds;
  if (came) return;
  std::ostringstream message;
  message << "rank " << rank_ << " waited " << seconds << " s at step " << step << " for rank " << rank
          << ", which has not " << what << " bucket " << bucket << " (it is at step "
          << counters(rank, bucket).published.value.load() - 1
          << "); did it die, hang, or take fewer steps? DECENTCOMM_TIMEOUT sets the deadline";
  throw DeadlineError(message.str());
}

}  // namespace decentcomm
