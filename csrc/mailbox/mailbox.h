// The versioned mailbox over shared memory (design: publish, collect, release). Version v of a bucket is complete after
// step v-1; step t reads version t of its neighbours and writes version t+1.
//
// Who may touch what: a rank alone writes its slots and counters. It writes version t+1 over version t-1, and only
// after every rank that read version t-1 released it, so a reader never sees a mixture and a fast rank is at most one
// step ahead. A mean belongs to its leader's slot: any reader may make a chunk of it, once, after all members
// published, which includes the leader, who had to wait for the readers of the mean before last. So means need no rule
// of their own. In average() members write each other's next version, and wait for all members' readers, not only
// theirs.
//
// One thread per rank calls a mailbox. Ranks may be processes (shared segments) or threads (any memory), as tests need
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/wait.h"
#include "kernels/kernels.h"
#include "mailbox/geometry.h"

namespace decentcomm {

// What one rank does at one step of the topology's period.
struct StepPlan {
  struct Direct {
    uint32_t rank;
    double weight;
  };
  // Ranks that every reader weighs alike: their mean is made once, in chunks, by whoever comes first.
  struct Mean {
    std::vector<uint32_t> members;  // ascending; the first one's segment holds the mean
    double weight;                  // of the mean
  };

  double own_weight = 1.0;
  std::vector<Direct> direct;
  std::vector<Mean> means;
  std::vector<uint32_t> readers;  // who reads this rank's parameters at this step
};

class Mailbox {
 public:
  // `segments[r]` is rank r's memory, of geometry.segment_bytes(), zero at first; null for ranks never talked to.
  Mailbox(uint32_t rank, std::vector<std::byte*> segments, Geometry geometry, Element element, WaitPolicy policy);

  // Where this rank's parameters of a version are.
  std::byte* slot(uint32_t version) const { return geometry_.slot(segments_[rank_], version); }
  // Where another rank's are. The caller must know that it is published and stays.
  const std::byte* slot_of(uint32_t rank, uint32_t version) const { return geometry_.slot(segments_[rank], version); }

  // Starts anew at `version`, whatever was before: this rank's slot of it is complete. All ranks do it between two
  // barriers, while none is in a step.
  void restart(uint32_t version);

  // The bucket is complete as `version`. Never blocks.
  void publish(uint32_t bucket, uint32_t version);

  // Of bfloat16 the weights add up to 0, see Incoming.
  //
  // Waits until what `plan` needs for `step` is there and the slot for the next version is free. `previous` is the plan
  // of step-1. Throws DeadlineError.
  //
  // With staleness 0 every neighbour's version is `step`. With staleness s > 0, on all ranks and all steps, it is the
  // newest complete one, at least step - s: slots are then protected by pins while they are read, nobody waits for a
  // reader's computation, and means are read member by member.
  Incoming collect(uint32_t bucket, uint32_t step, const StepPlan& plan, const StepPlan& previous,
                   uint32_t staleness = 0);

  // Makes the members' mean of the bucket the next version of every member: each chunk is computed once, by whoever
  // comes first, and written to all. All members call it for this step instead of collecting and mixing; each publishes
  // and releases for itself. Throws DeadlineError.
  void average(uint32_t bucket, uint32_t step, const std::vector<uint32_t>& members);

  // All that `step` needed of the bucket has been read: its owners may reuse their slots.
  void release(uint32_t bucket, uint32_t step);

  // Seconds that this rank has waited for each other rank.
  const std::vector<double>& waited() const { return waited_; }

  const Geometry& geometry() const { return geometry_; }

 private:
  BucketCounters& counters(uint32_t rank, uint32_t bucket) const;
  void collect_newest(uint32_t bucket, uint32_t step, const StepPlan& plan, uint32_t staleness, Incoming& incoming);
  Source pin_newest(uint32_t rank, uint32_t bucket, double weight);
  void await(Counter& counter, uint32_t target, uint32_t rank, uint32_t bucket, uint32_t step, const char* what);
  // Computes the chunks of the members' mean that nobody has claimed yet and waits for the others; a chunk goes to the
  // same place in each target.
  void make_mean(uint32_t bucket, uint32_t step, const std::vector<uint32_t>& members,
                 const std::vector<std::byte*>& targets, Element target_element);
  void mean_chunk(uint32_t bucket, uint32_t step, const std::vector<uint32_t>& members,
                  const std::vector<std::byte*>& targets, Element target_element, uint64_t chunk) const;
  // Means of bfloat16 are kept in float32: they are read by all, and rounding them again would move everyone's mean.
  Element mean_element() const { return element_ == Element::kBFloat16 ? Element::kFloat32 : element_; }

  uint32_t rank_;
  std::vector<std::byte*> segments_;
  Geometry geometry_;
  Element element_;
  WaitPolicy policy_;
  std::vector<double> waited_;
  std::vector<std::vector<Pins*>> pinned_;  // of each bucket, from collect to release
};

}  // namespace decentcomm
